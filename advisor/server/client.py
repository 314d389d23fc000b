"""Asks the running daemon, for the commands: one connection, one line each way, plain sockets.

Nothing heavy is imported here, so `advisor status` starts at once. Every error says what to do.
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from advisor import protocol
from advisor.server.status import Status

_MAX_REPLY = 16 << 20

Answered = TypeVar("Answered")


class ClientError(Exception):
    """The daemon could not be asked or did not answer; the text says what to do."""


def ask(
    socket_path: str | Path,
    request: protocol.SubmitRequest | protocol.ControlRequest,
    answer: type[Answered],
    timeout_s: float = 5.0,
) -> Answered:
    """Sends one request and reads its answer as `answer`."""
    line = ask_line(socket_path, msgspec.json.encode(request), timeout_s)
    try:
        refused = msgspec.json.decode(line, type=protocol.Reply)
    except msgspec.MsgspecError:
        refused = None
    if refused is not None and refused.error:
        raise ClientError(f"the daemon at {socket_path} refused: {refused.error}")
    try:
        return msgspec.json.decode(line, type=answer)
    except msgspec.MsgspecError as error:
        raise ClientError(
            f"the daemon at {socket_path} answered something else ({error}); "
            f"it is probably of another version: restart it"
        ) from None


def ask_line(socket_path: str | Path, request: bytes, timeout_s: float = 5.0) -> bytes:
    """One line out, one line back, within `timeout_s` in all."""
    until = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(socket_path))
            # A daemon that refuses this user says so and closes, maybe before it was asked.
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(request + b"\n")
            reply = bytearray()
            while not reply.endswith(b"\n"):
                connection.settimeout(max(0.001, until - time.monotonic()))
                chunk = connection.recv(65536)
                if not chunk:
                    raise ClientError(
                        f"the daemon at {socket_path} closed the connection without an answer; see its log"
                    )
                reply += chunk
                if len(reply) > _MAX_REPLY:
                    raise ClientError(f"the daemon at {socket_path} answers without end; restart it")
        except (FileNotFoundError, ConnectionRefusedError):
            raise ClientError(
                f"no daemon at {socket_path}: start it with 'advisor serve' "
                f"(or 'systemctl start slurm-advisor'), or set paths.socket"
            ) from None
        except PermissionError:
            raise ClientError(
                f"{socket_path}: no permission to connect; run this as root, as Slurm's user, "
                f"or as a member of the socket's group (server.socket_group)"
            ) from None
        except TimeoutError:
            raise ClientError(
                f"the daemon at {socket_path} did not answer within {timeout_s:g} s; see its log, or restart it"
            ) from None
        except OSError as error:
            raise ClientError(f"{socket_path}: cannot be asked ({error.strerror or error})") from None
    return bytes(reply)


def status(socket_path: str | Path, timeout_s: float = 5.0) -> Status:
    """How the daemon is."""
    return ask(socket_path, protocol.ControlRequest(v=protocol.VERSION, op="status"), Status, timeout_s)


def ping(socket_path: str | Path, timeout_s: float = 5.0) -> bool:
    """Whether a daemon answers; raises `ClientError` with what to do when none does."""
    ask(socket_path, protocol.ControlRequest(v=protocol.VERSION, op="ping"), protocol.Reply, timeout_s)
    return True


def submit(socket_path: str | Path, request: protocol.SubmitRequest, timeout_s: float = 10.0) -> protocol.Reply:
    """What the daemon would tell the hook; with `op="advise"` nothing is logged or booked."""
    return ask(socket_path, request, protocol.Reply, timeout_s)
