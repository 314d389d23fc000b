"""What an agent could not measure, each said once: to its log, and to the daemon with the next batch.

A note is a subject (an event, a file, a tool), a word for what is wrong, and a sentence. It is no error: the agent goes
on with the rest, and whoever reads the summaries can tell "zero" from "never measured".
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

log = logging.getLogger(__name__)

MOST = 500


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that is not measured, or not fully."""

    subject: str
    what: str
    text: str


class Notes:
    """Every note of this run of the agent."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()
        self._new: list[Note] = []

    def add(self, subject: str, what: str, text: str) -> None:
        """Takes note, unless the same was noted before."""
        key = (subject[:120], what[:40])
        if key in self._said or len(self._said) >= MOST:
            return
        self._said.add(key)
        self._new.append(Note(*key, text[:300]))
        log.warning("%s: %s (%s)", subject, what, text)

    def take(self) -> list[Note]:
        """The notes since the last call."""
        new, self._new = self._new, []
        return new
