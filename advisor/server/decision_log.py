"""Hands decisions to the log writer and tells how the log is.

The writer (`advisor.store`) has a thread and a bounded buffer of its own; nothing here waits for a disk.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from advisor.policy.interface import Decision
from advisor.protocol import SubmitRequest
from advisor.server.status import LogStatus
from advisor.settings import Settings
from advisor.store.database import Database, StoreError
from advisor.store.writer import LogStats, LogWriter
from advisor.training.decision_rows import decision_row

log = logging.getLogger(__name__)

STUCK_S = 30.0


class DecisionLog:
    """The daemon's end of the log."""

    def __init__(self, settings: Settings) -> None:
        self.path = settings.paths.database
        self._capacity = settings.log.buffer
        self._writer: LogWriter | None = None
        self._written = self._dropped = 0  # by writers of before a reload
        self._progress = (0, 0.0)  # rows written, and when that last changed or nothing was waiting

    def open(self) -> None:
        """Makes the tables, sets a corrupt file aside, and begins to write; a database that fails is tried again."""
        try:
            with Database(self.path, set_aside=True, busy_timeout_s=0.5) as database:
                if database.set_aside_as is not None:
                    log.error("%s was damaged; it is kept as %s, a new one was begun", self.path, database.set_aside_as)
        except StoreError as error:
            log.error("the log cannot be written yet, decisions are kept in memory: %s", error)
        self._writer = LogWriter(Path(self.path), self._capacity)
        self._progress = (0, time.monotonic())

    def reopen(self, settings: Settings) -> None:
        """Follows the settings; the same file is written on, and what waits for it stays."""
        before, old = (self.path, self._capacity), self._writer
        self.path, self._capacity = settings.paths.database, settings.log.buffer
        if old is None or before == (self.path, self._capacity):
            return
        self.open()
        stats = old.close()
        self._written += stats.written
        self._dropped += stats.dropped + stats.buffered
        if stats.buffered:
            log.error("%d decisions could not be written to %s and are lost", stats.buffered, before[0])

    def record(self, request: SubmitRequest, decision: Decision, latency_us: float, cluster: str) -> None:
        """Takes one decision for the log."""
        if self._writer is not None:
            self._writer.put(decision_row(request, decision, latency_us, cluster))

    def drained(self) -> bool:
        """Whether every decision so far is in the database; asked once a second, so it also watches the writer."""
        if self._writer is None:
            return False
        stats = self._writer.stats()
        if stats.buffered == 0 or stats.written != self._progress[0]:
            self._progress = (stats.written, time.monotonic())
        return stats.buffered == 0

    def _stuck(self, stats: LogStats) -> str | None:
        """A writer that says all is well but writes nothing has stopped, whatever the reason."""
        if not stats.healthy or stats.buffered == 0 or time.monotonic() - self._progress[1] < STUCK_S:
            return None
        return f"nothing has been written for {STUCK_S:.0f} s although the writer reports no fault; restart the daemon"

    def status(self, lost: int) -> LogStatus:
        """How the log is."""
        if self._writer is None:
            return LogStatus(path=self.path)
        stats = self._writer.stats()
        return LogStatus(
            path=self.path,
            written=self._written + stats.written,
            buffered=stats.buffered,
            dropped=self._dropped + stats.dropped,
            last_error=self._stuck(stats) if stats.healthy else stats.last_error,
            lost=lost,
            set_aside=stats.set_aside,
        )

    def close(self) -> int:
        """Writes what is left; how many decisions could not be written."""
        return self._writer.close().buffered if self._writer is not None else 0
