"""Looks for what hooks have noted, in a thread that does nothing else.

A note must not wake anybody up (slurmctld would pay for it), so somebody has to look every few milliseconds. The event
loop could, but what it takes to wake it up, with cold caches each time, is several times what a look takes. This
thread reads nothing. It only says that there is something to read, once slurmctld has had the time to end the
submission that it was noted in.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable

# Where one answer is prepared: of two submissions of a loop around `sbatch`, 8 ms apart at the least, the second must
# find its own.
LOOK_S = 0.005
MOST_S = 0.1  # where many are
# So long after its note slurmctld may still be at that submission, and may need the core.
PAUSE_S = 0.001


class Watcher:
    """Watches connections on which nobody waits. All but `_run` belongs to the event loop."""

    def __init__(self, found: Callable[[], None]) -> None:
        self._found = found  # called in the loop
        self._poll = select.poll()
        self._watched: set[int] = set()
        self._on = False
        self._go = threading.Event()
        self.pause_s = LOOK_S  # between looks
        self._told = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, number: int) -> None:
        """Looks at this file descriptor as well. One that is closed, or another's by now, does no harm."""
        self._watched.add(number)
        self._poll.register(number, select.POLLIN)
        self._follow()

    def forget(self, number: int) -> None:
        """Looks at it no more."""
        if number in self._watched:
            self._watched.remove(number)
            self._poll.unregister(number)
        self._follow()

    def begin(self) -> None:
        """Something may be noted from now on."""
        self._on = True
        self._follow()

    def end(self) -> None:
        """Nothing will be."""
        self._on = False
        self._follow()

    def _follow(self) -> None:
        if not (self._on and self._watched):
            self._go.clear()
        elif not self._go.is_set():
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
                threading.Thread(target=self._run, args=(self._loop,), name="watcher", daemon=True).start()
            self._go.set()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            self._go.wait()
            time.sleep(self.pause_s)
            if self._told or not self._poll.poll(0):
                continue
            time.sleep(PAUSE_S)
            self._told = True
            try:
                loop.call_soon_threadsafe(self._tell)
            except RuntimeError:  # the loop is closed, and with it everything else
                return

    def _tell(self) -> None:
        self._told = False
        self._found()
