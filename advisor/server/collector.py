"""The collector process: polls Slurm, schedules the queue ahead, and sends finished snapshots to the daemon.

Started by the daemon (`advisor.server.keeper`), it takes its settings from standard input and ends when that closes
or when its parent dies. Everything that touches the database runs in a thread of its own
(`advisor.server.bookkeeping`), so that a locked database never delays a snapshot.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time

import msgspec

from advisor.cluster.sources import open_source
from advisor.cluster.types import ClusterState, Source, SourceError
from advisor.performance.processors import load
from advisor.performance.queue import build_snapshot
from advisor.performance.snapshot import Snapshot
from advisor.policy.gavel.site import with_owed
from advisor.server import child_main, frames
from advisor.server.bookkeeping import Bookkeeper
from advisor.server.rounds.thread import Rounds
from advisor.settings import Settings

log = logging.getLogger(__name__)

NICE = 5  # on a busy controller answers come before snapshots


class Pipe:
    """The daemon at the other end of the pipes."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._frames = frames.to_collector()
        self._lock = threading.Lock()

    def send(self, message: frames.FromCollector) -> None:
        """Sends one message whole; both threads send."""
        left = memoryview(frames.encode(message))
        with self._lock:
            while left:
                left = left[os.write(self._outgoing, left) :]

    def receive(self, timeout_s: float) -> list[frames.ToCollector]:
        """What the daemon has said within `timeout_s`; raises `EOFError` when it is gone."""
        ready, _, _ = select.select([self._incoming], [], [], max(0.0, timeout_s))
        if not ready:
            return []
        chunk = os.read(self._incoming, 1 << 16)
        if not chunk:
            raise EOFError
        return list(self._frames.feed(chunk))


class Collector:
    """Polls at the pace of the settings until the daemon is gone."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._settings: Settings | None = None
        self._source: Source | None = None
        self._previous: Snapshot | None = None
        self._seen: frozenset[str] = frozenset()
        self._books = Bookkeeper(pipe.send)
        self._rounds = Rounds(pipe.send)
        self._next_poll = 0.0

    def run(self) -> None:
        """Works until the pipe closes."""
        while True:
            idle_s = self._next_poll - time.monotonic() if self._settings else 3600.0
            for message in self._pipe.receive(idle_s):
                match message:
                    case frames.Configure():
                        self._configure(message.settings)
                    case frames.Drained():
                        self._books.drained(message.at)
                    case frames.Submitted():
                        self._rounds.submitted(message.remembered)
            if self._settings is not None and time.monotonic() >= self._next_poll:
                started = time.monotonic()
                self._poll(self._settings)
                # At a steady pace, but never twice in a row without a pause when Slurm is slow.
                self._next_poll = max(started + self._settings.slurm.poll_s, time.monotonic() + 0.1)

    def _configure(self, settings: Settings) -> None:
        self._settings = settings
        self._source = None
        self._next_poll = 0.0
        self._books.configure(settings)
        self._rounds.configure(settings)

    def _poll(self, settings: Settings) -> None:
        started = time.monotonic()
        try:
            if self._source is None:
                slurm = settings.slurm
                self._source = open_source(slurm.source, slurm.command, slurm.timeout_s, slurm.recording)
            state = self._source.read()
        except SourceError as error:
            self._pipe.send(frames.Failed("poll", str(error)))
            return
        history = self._books.history
        try:
            snapshot = build_snapshot(state, history, self._previous)
            snapshot = self._books.sharing.outlook(state, snapshot)
            snapshot = with_owed(settings.policy.name, state, snapshot, history, load(settings.processors))
        except Exception as error:  # one odd job must not end all advice: the last snapshot serves
            log.exception("a snapshot could not be made of what Slurm told")
            self._pipe.send(
                frames.Failed("poll", f"a snapshot could not be made ({type(error).__name__}: {error}); see the log")
            )
            return
        self._previous = snapshot
        self._hand_over(snapshot, state, time.monotonic() - started)

    def _hand_over(self, snapshot: Snapshot, state: ClusterState, took_s: float) -> None:
        # History travels when it changes, and of the tokens only those that are new: fifty thousand of them at
        # each poll would cost the daemon milliseconds.
        new = snapshot.tokens - self._seen
        self._seen = snapshot.tokens
        self._books.send_history()
        slim = msgspec.structs.replace(snapshot, history={}, tokens=new)
        self._pipe.send(frames.Polled(slim, self._source.name if self._source else "", took_s))
        self._books.seen(state, time.time())
        self._rounds.seen(
            state, msgspec.structs.replace(snapshot, wait_corrections=self._books.waits, told=self._books.told)
        )


def main(arguments: list[str] | None = None) -> int:
    """The child's own main; speaks frames on standard input and output."""
    child_main.begin("advisor.server.collector", NICE, arguments)
    # Frames alone go to the daemon: whatever a library prints goes to standard error.
    outgoing = os.dup(1)
    os.dup2(2, 1)
    try:
        Collector(Pipe(0, outgoing)).run()
    except (EOFError, BrokenPipeError):
        log.debug("the daemon is gone")
    except frames.FrameError as error:
        log.error("the daemon sent something else than frames: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
