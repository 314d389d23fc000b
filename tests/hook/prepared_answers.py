"""What a stand-in daemon prepares, as the real one sends it."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from hook_ends import PARTITIONS, REWRITE, UNCHANGED, Daemon, line

ASKED = {"v": 1, "token": "asked", "action": "rewrite", "set": {"partition": "a100"}}
AS_ASKED = {**UNCHANGED, "partition": "a100", "admin_comment": "advisor=asked"}
AS_PREPARED = {
    **UNCHANGED,
    "partition": "v100",
    "tres_per_node": "gres/gpu:v100:1",
    "admin_comment": "advisor=ahead",
}


def compact(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


TAKEN_BACK = compact({"v": 1, "prepared": 0})


def handed(
    answers: list[dict[str, Any]],
    /,
    kind: int = 1,
    after: int = 1,
    number: int = 7,
    follows: int = 0,
    good_s: float = 9.0,
    **changes: Any,
) -> bytes:
    """Answers as the daemon sends them: what they are stands in front, what they set and say once."""
    sets: list[Any] = []
    says: list[Any] = []
    told: list[Any] = []
    for answer in answers:
        for which, value in ((sets, answer.get("set")), (says, answer.get("message"))):
            if value and value not in which:
                which.append(value)
        said = [
            which.index(answer[key]) + 1 if answer.get(key) else 0 for which, key in ((sets, "set"), (says, "message"))
        ]
        told += [answer["token"], *said]
    head = {"v": 1, "prepared": kind, "after": after, "count": len(answers), "number": number, "follows": follows}
    until = round(time.time() + good_s, 3)
    return compact({**head, "until": until, "sets": sets, "says": says, "answers": told, **changes})


def prepared(kind: int = 1, after: int = 1, number: int = 7, good_s: float = 9.0, **changes: Any) -> bytes:
    """One answer."""
    answer = {"token": "ahead", "set": REWRITE["set"], **changes}
    return handed([answer], kind, after, number, good_s=good_s)


class Preparing:
    """A daemon that answers what it is asked, and takes notes; what it sends unasked, a test says."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.asked: list[dict[str, Any]] = []
        self.used: list[int] = []
        self.reply = line(ASKED)
        self.hook: socket.socket | None = None  # the connection on which it was asked last
        daemon.behaviour = self._answer

    def _answer(self, peer: socket.socket, request: bytes) -> None:
        told = json.loads(request)
        if told["op"] == "used":
            self.used.append(told["number"] + told["place"])
        elif told["op"] == "submit":
            self.hook = peer
            self.asked.append(told)
            peer.sendall(self.reply)

    def say(self, text: bytes) -> None:
        assert self.hook is not None
        self.hook.sendall(text)

    def take_back(self) -> None:
        """As the daemon does it: nothing that was prepared can be noted any more."""
        self.say(TAKEN_BACK)
        for peer in self.daemon.connections:
            if peer is not self.hook:
                peer.shutdown(socket.SHUT_RD)

    def noted(self, *numbers: int) -> bool:
        """Whether these answers, in this order and no others, were used; notes come by themselves."""
        until = time.monotonic() + 10
        while len(self.used) < len(numbers) and time.monotonic() < until:
            time.sleep(0.005)
        return self.used == list(numbers)


def row(count: int, after: int = 1, number: int = 100, follows: int = 0, **changes: Any) -> bytes:
    """So many answers to one kind, each to be used after the one before."""
    answers = [{"token": f"t{number + n}", "set": REWRITE["set"], **changes} for n in range(count)]
    placed = {key: changes[key] for key in ("kind", "good_s") if key in changes}
    return handed(answers, after=after, number=number, follows=follows, **placed)


V100 = PARTITIONS["v100"]
TOLD: dict[str, Any] = {
    **dict.fromkeys(
        ("features", "partition", "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket"), "x"
    ),
    **dict.fromkeys(("name", "prefer", "licenses", "reservation", "req_nodes", "exc_nodes", "clusters"), "x"),
    **dict.fromkeys(("cpus_per_tres", "mem_per_tres", "dependency", "array_inx", "comment", "extra"), "x"),
    **dict.fromkeys(("time_limit", "time_min", "min_cpus", "num_tasks", "min_nodes", "max_nodes"), 3),
    **dict.fromkeys(("het_job_offset", "cpus_per_task", "ntasks_per_node", "ntasks_per_tres", "shared"), 3),
    **dict.fromkeys(("begin_time", "min_mem_per_node", "min_mem_per_cpu", "user_id"), 3),
    **dict.fromkeys(("account", "qos"), "x"),
    "script": "#!/bin/sh\n#ADVISOR app: x\n",
}
