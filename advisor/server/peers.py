"""Who may talk to the daemon: the uid of the process at the other end, as the kernel tells it.

The socket's mode already keeps ordinary users out; this check holds even where the socket's folder is
mounted into a container, whose uids mean nothing on this host (hence numeric ids in the settings).
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec

_UCRED = struct.Struct("3i")  # pid, uid, gid


class Peer(msgspec.Struct, frozen=True):
    """The process that connected."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """SO_PEERCRED of a connected unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Peer(*_UCRED.unpack(raw))


class Allowed(msgspec.Struct, frozen=True):
    """The uids that may connect, and the names in the settings that this host does not know."""

    uids: frozenset[int]
    unknown: tuple[str, ...]


def allowed(users: Iterable[str]) -> Allowed:
    """Resolves names and numeric ids; the daemon's own uid is always among them."""
    uids = {os.geteuid()}
    unknown = []
    for user in users:
        if user.isdecimal():
            uids.add(int(user))
            continue
        try:
            uids.add(pwd.getpwnam(user).pw_uid)
        except KeyError:
            unknown.append(user)
    return Allowed(frozenset(uids), tuple(unknown))


def kept_out(user: str, path: Path, users: Iterable[str]) -> str | None:
    """Why this user of this host cannot ask at the socket, and what to do; none where it can."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        return f"this host does not know Slurm's user {user}; run this where slurmctld runs"
    if account.pw_uid not in allowed(users).uids | {path.stat().st_uid}:
        return f"{user} is not among those who may ask; add it to server.allowed_users and reload the daemon"
    groups = os.getgrouplist(user, account.pw_gid)
    wanted = [(path, 0o6), *((folder, 0o1) for folder in path.absolute().parents)]
    for place, need in wanted:
        seen = place.stat()
        shift = 6 if seen.st_uid == account.pw_uid else 3 if seen.st_gid in groups else 0
        if account.pw_uid != 0 and (seen.st_mode >> shift) & need != need:
            return (
                f"{user} may not open {place} (mode {seen.st_mode & 0o7777:04o}, uid {seen.st_uid}, "
                f"gid {seen.st_gid}), so every job passes unchanged; let {user} into that group "
                "and restart slurmctld, or set server.socket_group to a group of slurmctld's user"
            )
    return None
