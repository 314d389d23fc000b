"""Notices that another rank is gone, whatever this one is doing meanwhile.

An exchange over gloo fails when the other side's process has died, but not when its node hangs, and not while this rank
works by itself for minutes. So every rank says every few seconds that it is alive; the first looks after all others,
the others after the first, which keeps what is said. Who is not heard of for `PATIENCE_S` is gone, and without it the
training cannot go on: this process ends with a sentence, at once, as all it writes is written beside and moved.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

# Compiling and long inner loops keep a rank from saying anything for some seconds.
PATIENCE_S = 60.0


def patience_s() -> float:
    """`ADVISOR_RANK_PATIENCE` in seconds, else `PATIENCE_S`."""
    try:
        return max(float(os.environ.get("ADVISOR_RANK_PATIENCE", "")), 1.0)
    except ValueError:
        return PATIENCE_S


class Lookout:
    """A thread beside the training."""

    def __init__(self, store: TCPStore, rank: int, count: int, patience: float) -> None:
        self._store, self._rank, self._count, self._patience = store, rank, count, patience
        self._over = threading.Event()

    def start(self) -> None:
        """Looks out from now on."""
        threading.Thread(target=self._look, name="lookout", daemon=True).start()

    def stop(self) -> None:
        """What happens to the others from now on is no concern of this one."""
        self._over.set()

    def _look(self) -> None:
        others = range(1, self._count) if self._rank == 0 else (0,)
        heard = {other: ("", time.monotonic()) for other in others}
        beat = 0
        while not self._over.wait(self._patience / 10):
            beat += 1
            try:
                self._store.set(f"alive/{self._rank}", str(beat))
                for other in others:
                    told = self._said(other)
                    if told != heard[other][0]:
                        heard[other] = (told, time.monotonic())
                    elif time.monotonic() - heard[other][1] > self._patience:
                        self._end(f"rank {other} of {self._count} has not been heard of for {self._patience:.0f} s")
            except RuntimeError:  # the first rank keeps what is said: it is gone
                self._end(f"rank 0 of {self._count} is gone")

    def _said(self, other: int) -> str:
        key = f"alive/{other}"
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _end(self, what: str) -> None:
        if self._over.is_set():
            return
        print(f"Error: {what}; rank {self._rank} cannot go on without it: start again with --resume", file=sys.stderr)
        sys.stderr.flush()
        # Not sys.exit: the other thread may wait for the rank that is gone.
        os._exit(1)
