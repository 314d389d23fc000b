"""Daemons that misbehave, on the socket where the hook looks for the real one."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.slurm.site import SLURM_ID

Behaviour = Callable[[socket.socket], None]


def hung(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def dies_in_the_middle(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b'{"v": 1, "action": "rew')


def garbage(connection: socket.socket) -> None:
    while connection.recv(65536):
        connection.sendall(b"\x00\xff not json at all\n")


def half_a_line(connection: socket.socket) -> None:
    while connection.recv(65536):
        connection.sendall(b'{"v": 1, "token": "t", "action": "rewrite", "set": {"partition": "v100"}')


def another_version(connection: socket.socket) -> None:
    while connection.recv(65536):
        connection.sendall(b'{"v": 99, "token": "t", "action": "rewrite", "set": {"partition": "v100"}}\n')


def forbidden_field(connection: socket.socket) -> None:
    while connection.recv(65536):
        connection.sendall(
            b'{"v": 1, "token": "t", "action": "rewrite", "set": {"user_id": "0", "partition": "v100"}}\n'
        )


class FakeDaemon:
    """Serves one behaviour until left; counts how often it was asked."""

    def __init__(self, path: Path, behaviour: Behaviour) -> None:
        self.path, self.behaviour, self.connections = path, behaviour, 0

    def __enter__(self) -> FakeDaemon:
        self.path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        os.chown(self.path, -1, SLURM_ID)
        self.path.chmod(0o660)
        self.listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        # The hook hangs up when it has waited long enough, as it should.
        with connection, contextlib.suppress(OSError):
            self.behaviour(connection)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.path.unlink(missing_ok=True)
