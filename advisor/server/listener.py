"""The daemon's unix socket: made with its folder, owned by the right group, never stolen.

A lock beside the socket is held for as long as the daemon lives, so that of two daemons started at
once exactly one serves. A socket left by a killed daemon is replaced by a rename, so there is no
moment in which the path is missing.
"""

from __future__ import annotations

import fcntl
import grp
import os
import socket
import stat
from pathlib import Path

from advisor.server.peers import peer_of

BACKLOG = 128
_LONGEST_PATH = 107  # sun_path, less its terminating NUL


class ListenError(Exception):
    """The daemon cannot listen; the text says why and what to do."""


class Listener:
    """A listening socket and what has to be undone when the daemon stops."""

    def __init__(self, path: Path, sock: socket.socket, lock: int) -> None:
        self.path = path
        self.socket = sock
        self._lock = lock
        self._inode = path.stat().st_ino
        self._closed = False

    def close(self) -> None:
        """Stops listening and removes the socket file, if it is still ours; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        self.socket.close()
        try:
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            pass  # someone else cleaned up first
        os.close(self._lock)


def listen(path: Path, group: str | None = None) -> Listener:
    """Listens on `path` with mode 0660; raises `ListenError` when a daemon already answers there."""
    staged = path.with_name(path.name + ".new")
    if len(os.fsencode(staged)) > _LONGEST_PATH:
        raise ListenError(
            f"{path}: too long for a unix socket ({_LONGEST_PATH - 4} bytes at most); shorten paths.socket"
        )
    gid = _gid(group)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = _lock(path)
    except OSError as error:
        raise ListenError(
            f"{path.parent}: the socket's folder cannot be used ({error.strerror}); "
            f"make it writable for uid {os.geteuid()}, or set paths.socket"
        ) from None
    try:
        _refuse_if_taken(path)
        return Listener(path, _bind(path, staged, gid), lock)
    except OSError as error:
        os.close(lock)
        raise ListenError(f"{path}: cannot listen ({error.strerror or error})") from None
    except ListenError:
        os.close(lock)
        raise


def _gid(group: str | None) -> int:
    if group is None:
        return -1
    if group.isdecimal():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ListenError(
            f"server.socket_group: this host has no group {group!r}; create it, or give its numeric id"
        ) from None


def _lock(path: Path) -> int:
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ListenError(_taken(path, None)) from None
    except OSError:
        os.close(lock)
        raise
    return lock


def _refuse_if_taken(path: Path) -> None:
    """The lock is ours, but a daemon of another kind (or one whose lock was removed) may still answer."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path}: is there and is not a socket; remove it, or set paths.socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return  # left behind by a daemon that was killed
        except TimeoutError:
            raise ListenError(_taken(path, None)) from None
        raise ListenError(_taken(path, peer_of(probe).pid))


def _taken(path: Path, pid: int | None) -> str:
    who = f"another daemon (pid {pid})" if pid else "another daemon"
    return f"{path}: {who} already serves here; stop it first, or set paths.socket to another path"


def _bind(path: Path, staged: Path, gid: int) -> socket.socket:
    staged.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        before = os.umask(0o177)  # nobody may connect before the group is set
        try:
            sock.bind(str(staged))
        finally:
            os.umask(before)
        if gid != -1:
            try:
                os.chown(staged, -1, gid)
            except PermissionError:
                raise ListenError(
                    f"server.socket_group: uid {os.geteuid()} may not give the socket to group {gid}; "
                    f"make it a member of that group, or run the daemon as root"
                ) from None
        staged.chmod(0o660)
        sock.listen(BACKLOG)
        staged.rename(path)
    except (OSError, ListenError):
        sock.close()
        staged.unlink(missing_ok=True)
        raise
    return sock
