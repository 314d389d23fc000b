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
