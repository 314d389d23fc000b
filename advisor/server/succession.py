"""Puts the next snapshot in place of the last without holding up an answer.

Decisions that the new snapshot does not contain yet must be booked on it again. After a burst of submissions
that is tens of milliseconds of work, more than the hook waits: it is done a few bookings at a time, between
answers, which go on from the old snapshot until the new one is complete.
"""

from __future__ import annotations

import asyncio

import msgspec

from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import Ledger
from advisor.server.hotpath import HotPath

SLICE = 16  # bookings between two looks at the socket; about a millisecond


class Succession:
    """Swaps snapshots into a hot path, the newest one that is waiting."""

    def __init__(self, hot: HotPath) -> None:
        self._hot = hot
        self._next: Snapshot | None = None
        self._task: asyncio.Task[None] | None = None

    def offer(self, snapshot: Snapshot) -> None:
        """Takes a snapshot that will serve soon, or at once when there is nothing to book on it."""
        if self._next is not None:
            # Never served; the tokens it was the first to show must not be forgotten.
            snapshot = msgspec.structs.replace(snapshot, tokens=self._next.tokens | snapshot.tokens)
        self._next = snapshot
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._succeed())

    async def _succeed(self) -> None:
        while self._next is not None:
            snapshot, self._next = self._next, None
            old, new = self._hot.ledger, Ledger(snapshot)
            self._hot.settle()
            # New decisions are booked on the old ledger meanwhile, always at its end. The last few are carried over
            # without a pause, so that a steady stream of submissions cannot put off the new snapshot for ever.
            looked_at = 0
            while looked_at < len(old):
                waiting = old.unknown_to(snapshot, looked_at)
                looked_at = len(old)
                for start in range(0, len(waiting), SLICE):
                    if start:
                        await asyncio.sleep(0)
                    for booking in waiting[start : start + SLICE]:
                        new.carry(booking)
                self._hot.settle()
            self._hot.serve(snapshot, new)
