"""Writes decisions to the log from a thread of its own, so that no submission ever waits for a disk.

`put` only appends to a bounded buffer. The thread writes what has gathered a few times a second; while the
database is locked, full, read-only or gone it keeps the buffer and tries again, and says so in `stats`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path

import msgspec

from advisor.store.database import Database, RowError, StoreError, put_aside
from advisor.store.decisions import DecisionRow, insert_values, values

log = logging.getLogger("advisor.store")

BATCH = 1000
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 5.0
_BUSY_TIMEOUT_S = 0.5  # short: the buffer is the patience, and `close` must not hang


class LogStats(msgspec.Struct, frozen=True):
    """How the log is doing."""

    written: int  # rows, since the start
    buffered: int
    dropped: int  # because the buffer was full, or a row could not be stored
    healthy: bool  # whether the last attempt to write succeeded
    last_error: str | None  # of the last failure, also when all is well again
    set_aside: tuple[str, ...]  # corrupt files that were renamed


class LogWriter:
    """The one writer of decisions in a daemon."""

    def __init__(self, path: Path | str, capacity: int = 100_000, flush_s: float = 0.1) -> None:
        self._path = Path(path)
        self._capacity = capacity
        self._flush_s = flush_s
        # Only `put` appends and only the thread takes, after a row is safely stored.
        self._rows: deque[DecisionRow] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._deadline = float("inf")  # while closing: when to give up
        self._db: Database | None = None
        self._written = self._overflowed = self._unstorable = 0
        self._healthy = True
        self._last_error: str | None = None
        self._set_aside: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def put(self, row: DecisionRow) -> None:
        """Takes a row for the log. Never waits, never raises; where there is no room, the row is counted as dropped."""
        if len(self._rows) >= self._capacity:
            self._overflowed += 1
            return
        self._rows.append(row)
        if not self._wake.is_set():
            self._wake.set()

    def stats(self) -> LogStats:
        """How the log is doing now."""
        return LogStats(
            self._written,
            len(self._rows),
            self._overflowed + self._unstorable,
            self._healthy,
            self._last_error,
            self._set_aside,
        )

    def close(self, timeout_s: float = 5.0) -> LogStats:
        """Writes what is left, within a time limit; what could not be written is still `buffered` in the result."""
        self._deadline = time.monotonic() + timeout_s
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s + 2 * _BUSY_TIMEOUT_S)
        return self.stats()

    def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        try:
            while not self._finished():
                self._wake.wait()
                if not self._closing.is_set():
                    self._closing.wait(self._flush_s)  # let a batch gather
                self._wake.clear()
                while self._rows and not (self._closing.is_set() and time.monotonic() > self._deadline):
                    if self._write_batch():
                        retry_s = FIRST_RETRY_S
                    elif self._closing.is_set():
                        time.sleep(FIRST_RETRY_S)  # bounded by the deadline of `close`
                    else:
                        self._closing.wait(retry_s)
                        retry_s = min(2 * retry_s, LONGEST_RETRY_S)
        finally:
            self._disconnect()

    def _finished(self) -> bool:
        return self._closing.is_set() and (not self._rows or time.monotonic() > self._deadline)

    def _write_batch(self) -> bool:
        """Writes the oldest rows; false if that failed and they are still in the buffer."""
        # By index: an iterator over the deque would break when `put` appends meanwhile.
        rows = [self._rows[i] for i in range(min(BATCH, len(self._rows)))]
        try:
            db = self._connect()
            stored = self._insert(db, rows)
        except StoreError as error:
            self._healthy, self._last_error = False, str(error)
            self._disconnect()
            if error.corrupt:
                self._replace_corrupt()
            return False
        except Exception as error:
            # The thread must outlive what nobody foresaw: the rows stay, and `stats` tells.
            self._healthy, self._last_error = False, f"unexpected {type(error).__name__}: {error}"
            log.exception("the log could not be written; it is tried again")
            self._disconnect()
            return False
        self._healthy = True
        self._written += stored
        self._unstorable += len(rows) - stored
        for _ in rows:
            self._rows.popleft()
        return True

    def _insert(self, db: Database, rows: list[DecisionRow]) -> int:
        """How many were stored. A row that cannot be is left out, so that it does not hold up those behind it."""
        encoded = []
        for row in rows:
            try:
                encoded.append(values(row))
            except (TypeError, ValueError, RecursionError) as error:  # not JSON, or not text that can be encoded
                self._last_error = f"decision {row.token!r} cannot be stored: {error}"
        try:
            insert_values(db, encoded)
            return len(encoded)
        except (TypeError, ValueError, OverflowError, RowError):
            pass
        stored = 0
        for one in encoded:
            try:
                insert_values(db, [one])
                stored += 1
            except (TypeError, ValueError, OverflowError, RowError) as error:
                self._last_error = f"decision {one[0]!r} cannot be stored: {error}"
        return stored

    def _connect(self) -> Database:
        # A file that was moved or deleted under us would swallow rows without a word.
        if self._db is not None and not self._db.same_file():
            self._disconnect()
        if self._db is None:
            self._db = Database(self._path, set_aside=True, busy_timeout_s=_BUSY_TIMEOUT_S)
            if self._db.set_aside_as is not None:
                self._set_aside += (str(self._db.set_aside_as),)
        return self._db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _replace_corrupt(self) -> None:
        """Sets the file aside if a look at it from scratch agrees that it is damaged."""
        try:
            with Database(self._path, busy_timeout_s=_BUSY_TIMEOUT_S) as db:
                if db.rows("PRAGMA quick_check(1)")[0][0] == "ok":
                    return
        except StoreError as error:
            if not error.corrupt:
                return
        try:
            self._set_aside += (str(put_aside(self._path)),)
        except StoreError as error:
            self._last_error = str(error)
