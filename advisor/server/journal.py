"""The daemon's log: stdlib logging to stderr, with syslog levels when systemd reads it.

A fault that repeats with every submission must not write a line with every submission, so whatever
can repeat is said through `Sparingly`: the first time, then at most once a minute, with a count of
what was held back.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

_SYSLOG = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


class _JournalFormatter(logging.Formatter):
    """One `<level>` prefix per line, so that journald keeps a traceback's lines at their level."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_SYSLOG.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


def set_up(level: str = "info", stream: TextIO | None = None) -> None:
    """Sends the log of every part of the advisor to stderr; the time is left to journald where it reads."""
    handler = logging.StreamHandler(stream or sys.stderr)
    if os.environ.get("JOURNAL_STREAM"):
        handler.setFormatter(_JournalFormatter("%(name)s: %(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger("advisor")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level.upper())


class Sparingly:
    """Says each kind of thing at most once in `every_s` seconds."""

    def __init__(
        self,
        logger: logging.Logger,
        every_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._every_s = every_s
        self._clock = clock
        self._said: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def say(self, level: int, kind: str, text: str, *, traceback: bool | Exception = False) -> None:
        """Logs `text` unless its kind was said within the interval; kinds are few and named by the code."""
        now = self._clock()
        if kind in self._said and now - self._said[kind] < self._every_s:
            self._held[kind] = self._held.get(kind, 0) + 1
            return
        self._said[kind] = now
        held = self._held.pop(kind, 0)
        more = f" ({held} more like it since the last such line)" if held else ""
        self._logger.log(level, "%s%s", text, more, exc_info=traceback)
