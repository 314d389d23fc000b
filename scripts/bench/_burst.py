"""A burst of submissions on the daemon's own socket: one after the other, at once, and at once as a batch.

The daemon's hot path and connections serve in a process of their own. Each round puts the same submissions to it in
three ways, from the same snapshot: on one connection, each after the reply to the one before (`one_by_one`); on as many
connections as there are jobs, all readable in the same turn of the loop, each answered by itself (`at_once`); and the
same taken together (`together`). CPU time is that of the daemon's process, what is done after the replies included.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import Ledger
from advisor.policy.registry import make_policy
from advisor.server.connection import Connections
from advisor.server.counters import Counters
from advisor.server.hotpath import HotPath
from advisor.settings import Settings

WAYS = ("one_by_one", "at_once", "together")
# What is left to do after a reply begins a millisecond later.
AFTER_S = 0.02


def serve(pipe: Connection, path: str, frame: bytes, settings: bytes) -> None:
    """The daemon's part, until the pipe is closed."""
    snapshot = msgspec.msgpack.decode(frame, type=Snapshot)
    policy = make_policy(in_force := msgspec.msgpack.decode(settings, type=Settings))
    counters = Counters()
    hot = HotPath(in_force, policy, counters, lambda *of: None, lambda: None)  # type: ignore[arg-type,return-value]
    connections = Connections(hot.answer, counters, hot.answer_together)
    connections.allowed = frozenset({os.geteuid()})

    async def whole() -> None:
        over = asyncio.Event()

        def told() -> None:
            """The way of the next burst, and then that it has been sent."""
            try:
                way = pipe.recv()
            except EOFError:
                over.set()
                return
            connections._together = hot.answer_together if way == "together" else None
            fresh = msgspec.structs.replace(snapshot, taken_at=time.time())
            hot.serve(fresh, Ledger(fresh))
            gc.collect()
            pipe.send("ready")
            pipe.recv()

        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(connections.new, path)
        loop.add_reader(pipe.fileno(), told)
        pipe.send("listens")
        await over.wait()
        server.close()

    asyncio.run(whole())


def _receive(peer: socket.socket) -> bytes:
    """One reply."""
    found = b""
    while not found.endswith(b"\n"):
        found += peer.recv(1 << 16)
    return found


def _cpu_s(pid: int) -> float:
    """CPU time of a process, by the clock that the kernel has for it."""
    return time.clock_gettime((~pid << 3) | 2)


def measure(
    frame: bytes, settings: Settings, bursts: Callable[[int], Sequence[bytes]], jobs: int, rounds: int
) -> dict[str, Any]:
    """Medians over the rounds, a decision's share each, and their ratios."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "socket")
        process = context.Process(target=serve, args=(theirs, path, frame, msgspec.msgpack.encode(settings)))
        process.start()
        theirs.close()
        assert ours.recv() == "listens" and process.pid is not None
        peers = []
        for _ in range(jobs):
            peers.append(socket.socket(socket.AF_UNIX))
            peers[-1].connect(path)
        cpu: dict[str, list[float]] = {way: [] for way in WAYS}
        last: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(rounds + 2):
            lines = bursts(number)
            for way in WAYS[number % 3 :] + WAYS[: number % 3]:
                ours.send(way)
                ours.recv()
                before = _cpu_s(process.pid)
                if way != "one_by_one":
                    for peer, line in zip(peers, lines, strict=True):
                        peer.sendall(line + b"\n")
                began = time.perf_counter()
                ours.send("go")
                for peer, line in zip(peers, lines, strict=True):
                    if way == "one_by_one":
                        peers[0].sendall(line + b"\n")
                        _receive(peers[0])
                    else:
                        _receive(peer)
                took = time.perf_counter() - began
                time.sleep(AFTER_S)
                if number >= 2:  # the first ones meet nothing that is remembered
                    cpu[way].append((_cpu_s(process.pid) - before) / jobs * 1e6)
                    last[way].append(took * 1e3)
        for peer in peers:
            peer.close()
        ours.close()
        process.join()
    found: dict[str, Any] = {"jobs": jobs, "rounds": rounds}
    for way in WAYS:
        found[f"{way}_cpu_us"] = round(statistics.median(cpu[way]), 1)
        found[f"{way}_last_ms"] = round(statistics.median(last[way]), 2)
    for name, times in (("cpu", cpu), ("last", last)):
        for other in WAYS[:2]:
            pairs = [ours / theirs for ours, theirs in zip(times["together"], times[other], strict=True)]
            found[f"{name}_over_{other}"] = round(statistics.median(pairs), 3)
    return found
