"""The two ends of the wire: `Slurmctld` runs the real advisor.lua in a real Lua, `Daemon` is a unix-socket
server that behaves, or misbehaves, as a test says."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("driver.lua")
LUA = os.environ.get("ADVISOR_TEST_LUA", "lua5.1")
UNCHANGED: dict[str, Any] = {
    "name": "train",
    "tres_per_node": "gres/gpu:1",
    "script": "#!/bin/sh\nsrun x\n",
    "user_id": 1001,
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "cpu": {"name": "cpu", "flag_default": 1, "state_up": 3, "max_time": 0xFFFFFFFF},
    "v100": {"name": "v100", "flag_default": 0, "state_up": 3, "max_time": 1440},
    "a100": {"name": "a100", "flag_default": 0, "state_up": 3, "max_time": 1440},
}
REWRITE = {"v": 1, "token": "t1", "action": "rewrite", "set": {"partition": "v100", "tres_per_node": "gres/gpu:v100:1"}}
Behaviour = Callable[[socket.socket, bytes], None]


def line(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply).encode() + b"\n"


def always(reply: bytes) -> Behaviour:
    return lambda peer, _: peer.sendall(reply)


class Daemon:
    """Listens at `path`; each request line goes to `behaviour`. Counts what it saw."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.behaviour: Behaviour = always(line({"v": 1}))
        self.requests: list[bytes] = []
        self.connections: list[socket.socket] = []
        self._listener: socket.socket | None = None

    @property
    def last_request(self) -> dict[str, Any]:
        return json.loads(self.requests[-1])

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:  # stopped
                return
            self.connections.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer.makefile("rb") as lines:
            for request in lines:
                if not request.endswith(b"\n"):
                    return  # begun and given up: nothing was asked
                self.requests.append(request)
                self.behaviour(peer, request)

    def hang_up(self) -> None:
        for peer in self.connections:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()
        self.connections.clear()

    def stop(self) -> None:
        if self._listener:
            # shutdown wakes the thread in accept; close alone would leave it there
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.hang_up()
        self.path.unlink(missing_ok=True)


@dataclass
class Outcome:
    """What a submission came to, and what slurmctld and the user were told meanwhile."""

    raised: bool
    rc: int
    fields: dict[str, Any]
    environment: dict[str, str] | None
    logged: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        return not self.raised and self.rc == 0


class Slurmctld:
    """A Lua process that lives as long as slurmctld's Lua state does."""

    def __init__(self, folder: Path, *hidden_modules: str) -> None:
        self.process = subprocess.Popen(
            [LUA, str(DRIVER), str(folder), *hidden_modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        # surrogateescape: users write bytes, not text
        self.process.stdin.write(json.dumps(command, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"Lua ended with {self.process.wait()}"
        reply: dict[str, Any] = json.loads(answer.decode("utf-8", "surrogateescape"))
        return reply

    def configure(self, **settings: Any) -> list[str]:
        return list(self._ask({"configure": settings})["logged"])

    def break_log(self) -> None:
        self._ask({"break_log": True})

    def submit(
        self,
        fields: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        partitions: dict[str, dict[str, Any]] | None = None,
        uid: int = 1001,
        **quirks: Any,
    ) -> Outcome:
        fields = dict(UNCHANGED if fields is None else fields)
        command: dict[str, Any] = {
            "fields": fields,
            "partitions": PARTITIONS if partitions is None else partitions,
            "uid": uid,
            **quirks,
        }
        if "script" in fields:  # slurmctld has an environment for batch jobs only
            command["environment"] = environment or {}
        reply = self._ask(command)
        return Outcome(
            reply["raised"],
            reply["rc"],
            dict(reply["fields"]),
            None if reply.get("environment") is None else dict(reply["environment"]),
            list(reply["logged"]),
            list(reply["told"]),
        )

    def end(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=30)
