"""Munge credentials, which every Slurm node can make and check: through libmunge, or through munge's commands.

The library is used where it can be loaded, since starting a process for each batch would cost more than the check. The
commands serve where munged is reached some other way, as with a controller in a container
(`telemetry.unmunge: [docker, exec, -i, ctl, unmunge]`).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_OPT_SOCKET = 8  # MUNGE_OPT_SOCKET in munge.h
_TIMEOUT_S = 10.0
_UID = re.compile(r"^UID:\s+(?:\S+ \()?(\d+)\)?\s*$", re.M)
_STATUS = re.compile(r"^STATUS:\s+(.*?)\s*(?:\((\d+)\))?\s*$", re.M)


class MungeError(Exception):
    """A credential could not be made or is not valid; the text says why."""


class MungeAway(MungeError):
    """munged could not be asked: the credential may well be good."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A valid credential: who made it, and what it holds."""

    uid: int
    payload: bytes


class Munge(Protocol):
    """Makes and checks credentials."""

    def encode(self, payload: bytes) -> bytes:
        """A credential that holds these bytes; raises `MungeError`."""

    def decode(self, credential: bytes) -> Credential:
        """What a credential holds; raises `MungeError`, also when it was decoded before."""


def open_munge(socket: str | None = None, munge: Sequence[str] = (), unmunge: Sequence[str] = ()) -> Munge:
    """The library, unless commands are given or it is not installed."""
    if munge or unmunge:
        return MungeCommands(munge or ("munge",), unmunge or ("unmunge",))
    try:
        return MungeLibrary(socket)
    except OSError:
        extra = ("--socket", socket) if socket else ()
        return MungeCommands(("munge", *extra), ("unmunge", *extra))


class MungeLibrary:
    """libmunge through ctypes."""

    def __init__(self, socket: str | None = None) -> None:
        self._library: Any = ctypes.CDLL("libmunge.so.2")
        self._free: Any = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]
        library = self._library
        library.munge_ctx_create.restype = ctypes.c_void_p
        library.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
        library.munge_ctx_strerror.argtypes = [ctypes.c_void_p]
        library.munge_ctx_strerror.restype = ctypes.c_char_p
        library.munge_strerror.restype = ctypes.c_char_p
        self._socket = socket
        self._local = threading.local()  # a context belongs to one thread

    def _context(self) -> Any:
        context = getattr(self._local, "context", None)
        if context is None:
            context = ctypes.c_void_p(self._library.munge_ctx_create())
            if self._socket:
                self._library.munge_ctx_set(context, _OPT_SOCKET, ctypes.c_char_p(self._socket.encode()))
            self._local.context = context
        return context

    def encode(self, payload: bytes) -> bytes:
        """See `Munge`."""
        credential = ctypes.c_void_p()
        context = self._context()
        code = self._library.munge_encode(ctypes.byref(credential), context, payload, len(payload))
        try:
            if code:
                raise self._error(code, context)
            return ctypes.string_at(credential)
        finally:
            self._free(credential)

    def decode(self, credential: bytes) -> Credential:
        """See `Munge`."""
        payload, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
        context = self._context()
        code = self._library.munge_decode(
            ctypes.c_char_p(credential),
            context,
            ctypes.byref(payload),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        try:
            if code:
                raise self._error(code, context)
            held = ctypes.string_at(payload, length.value) if payload.value else b""
            return Credential(uid.value, held)
        finally:
            self._free(payload)

    def _error(self, code: int, context: Any) -> MungeError:
        text = self._library.munge_ctx_strerror(context) or self._library.munge_strerror(code) or b"unknown error"
        return _error(code, text.decode("utf-8", "replace"))


class MungeCommands:
    """The programs munge and unmunge, or what stands in for them."""

    def __init__(self, munge: Sequence[str] = ("munge",), unmunge: Sequence[str] = ("unmunge",)) -> None:
        self._munge, self._unmunge = tuple(munge), tuple(unmunge)

    def encode(self, payload: bytes) -> bytes:
        """See `Munge`."""
        done = _run(self._munge, payload)
        if done.returncode:
            raise MungeAway(f"{self._munge[0]} failed: {done.stderr.decode('utf-8', 'replace').strip()}")
        return done.stdout.strip()

    def decode(self, credential: bytes) -> Credential:
        """See `Munge`."""
        done = _run(self._unmunge, credential)
        head, _, payload = done.stdout.partition(b"\n\n")
        text = head.decode("utf-8", "replace") + "\n"
        status, uid = _STATUS.search(text), _UID.search(text)
        if done.returncode or status is None or uid is None:
            if status is not None and status[2]:
                raise _error(int(status[2]), status[1])
            said = done.stderr.decode("utf-8", "replace").strip()
            error = re.search(r"unmunge: Error: (.*)", said)
            if error and not error[1].startswith(("Failed to access", "Failed to connect")):
                raise MungeError(error[1])
            raise MungeAway(f"{' '.join(self._unmunge)} failed: {said or 'no message'}")
        return Credential(int(uid[1]), payload)


def _run(command: tuple[str, ...], given: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, input=given, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MungeAway(f"{' '.join(command)} cannot be run: {error}") from None


def _error(code: int, text: str) -> MungeError:
    # EMUNGE_SOCKET and EMUNGE_TIMEOUT: munged was not there, or did not answer in time.
    return MungeAway(text) if code in (6, 7) else MungeError(text)
