"""Merges batches into the database from a thread of its own, many in one transaction, and sweeps what is too old."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from advisor.settings import Settings
from advisor.store.counter_retention import sweep
from advisor.store.counters import Batch, CounterStore, Merged
from advisor.store.database import Database, RowError, StoreError

log = logging.getLogger(__name__)

TOGETHER = 64  # batches in one transaction
WAITING = 1000  # batches; more are told to come again
SWEEP_S = 3600.0
SLOW_S = 5.0
_DAY_S = 86400.0


class Unstorable(NamedTuple):
    """A batch that the tables will never take."""

    reason: str


Result = Merged | Unstorable | str  # or why it could not be stored now


class Writer:
    """The one writer of summaries."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._queue: queue.Queue[tuple[Batch, Callable[[Result], None]] | None] = queue.Queue(WAITING)
        self._store: CounterStore | None = None
        self._sweep_at = time.monotonic() + 60
        self.error: str | None = None
        self._thread = threading.Thread(target=self._run, name="telemetry-writer", daemon=True)
        self._thread.start()

    async def merge(self, batch: Batch) -> Result:
        """Waits until the batch is in the database, or says why it is not."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def settle(result: Result) -> None:
            if not future.done():  # the agent may have hung up
                future.set_result(result)

        def tell(result: Result) -> None:
            loop.call_soon_threadsafe(settle, result)

        try:
            self._queue.put_nowait((batch, tell))
        except queue.Full:
            return "too many batches wait for the database; come again"
        return await future

    def close(self) -> None:
        """Writes what waits, and ends."""
        self._queue.put(None)
        self._thread.join(10)

    def _run(self) -> None:
        going = True
        while going:
            taken = self._take()
            going = None not in taken
            work = [item for item in taken if item is not None]
            if work:
                self._write(work)
            if time.monotonic() >= self._sweep_at:
                self._sweep()
        self._disconnect()

    def _take(self) -> list[tuple[Batch, Callable[[Result], None]] | None]:
        try:
            taken = [self._queue.get(timeout=1.0)]
        except queue.Empty:
            return []
        while len(taken) < TOGETHER and taken[-1] is not None:
            try:
                taken.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return taken

    def _write(self, work: list[tuple[Batch, Callable[[Result], None]]]) -> None:
        results: list[Result]
        began = time.monotonic()
        try:
            results = list(self._merge([batch for batch, _ in work]))
        except RowError:
            # One odd batch must not hold up the others.
            results = [self._alone(batch) for batch, _ in work]
        except StoreError as error:
            results = [self._fail(str(error))] * len(work)
        except Exception:  # as with a row that is refused: the others of this transaction are not to suffer for it
            self._disconnect()
            results = [self._alone(batch) for batch, _ in work]
        for (_, tell), result in zip(work, results, strict=True):
            tell(result)
        took_s = time.monotonic() - began
        if took_s > SLOW_S:
            log.warning("%d batches took %.1f s to merge: is the disk of the database busy?", len(work), took_s)

    def _alone(self, batch: Batch) -> Result:
        try:
            return self._merge([batch])[0]
        except RowError as error:
            # Sent again it would be refused again, for ever, and the agent's spool be blocked by it.
            self._fail(str(error))
            return Unstorable(str(error))
        except StoreError as error:
            return self._fail(str(error))
        except Exception as error:  # the thread must live as long as its process; the agent sends it again
            log.exception("a batch of %s could not be merged; it will be sent again", batch.node)
            return self._fail(f"{type(error).__name__}: {error}; the daemon's log has the traceback")

    def _merge(self, batches: list[Batch]) -> list[Merged]:
        if self._store is not None and not self._store.db.same_file():
            self._disconnect()
        if self._store is None:
            self._store = CounterStore(Database(self._settings.paths.database))
        results = self._store.merge(batches, self._clock(), self._settings.telemetry.accept_days * _DAY_S)
        self.error = None
        return results

    def _fail(self, error: str) -> str:
        self.error = error
        self._disconnect()
        return error

    def _disconnect(self) -> None:
        if self._store is not None:
            self._store.db.close()
            self._store = None

    def _sweep(self) -> None:
        """A bounded round; soon again while there is more to do."""
        self._sweep_at = time.monotonic() + SWEEP_S
        kept = self._settings.telemetry
        try:
            if self._store is None:
                self._store = CounterStore(Database(self._settings.paths.database))
            accept_s = kept.accept_days * _DAY_S
            done = sweep(
                self._store.db, self._clock(), kept.keep_job_days, kept.keep_hour_days, kept.keep_day_days, accept_s
            )
        except (StoreError, RowError) as error:
            self._fail(str(error))
            return
        except Exception:  # as above; the next round may do better
            self._disconnect()
            log.exception("what is old in the summaries could not be let go of; it is tried again in an hour")
            return
        if done.jobs or done.hours:
            self._sweep_at = time.monotonic() + 1.0
