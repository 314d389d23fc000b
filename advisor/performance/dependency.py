"""What a job waits for before Slurm lets it start: `--dependency` as users write it and as Slurm prints it.

Only ever read, with limits: other people's jobs are named here by number. What is not understood counts as not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

# Kinds for which the others must have ended, one way or another. `after` waits for their start only.
_ENDED = frozenset({"afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer"})
MOST_JOBS = 256
_MOST_TEXT = 16_384
# `123`, `123_4`, `123_*`, `123+30`; Slurm prints `123(unfulfilled)`.
_JOB = re.compile(
    r"([0-9]{1,10})(?:_(?:[0-9]{1,10}|\*|\[[^\]]{0,64}\]))?(?:\+[0-9]{1,10})?(?:\([a-z]{1,16}\))?", re.ASCII
)


class Dependency(msgspec.Struct, frozen=True):
    """The jobs whose end is waited for; `one`: that of any one of them will do."""

    jobs: tuple[int, ...] = ()
    one: bool = False

    def over_at(self, end_of: Callable[[int], float]) -> float:
        """When it lets the job start, by when each of the others ends."""
        ends = [end_of(job) for job in self.jobs]
        return (min if self.one else max)(ends, default=0.0)


NOTHING = Dependency()


def parse(text: str | None) -> Dependency | None:
    """The dependency that `text` spells; None where it is not understood."""
    if not text:
        return NOTHING
    if len(text) > _MOST_TEXT:
        return None
    one = "?" in text
    if one and "," in text:
        return None  # Slurm takes one or the other
    jobs: dict[int, None] = {}
    for word in text.replace("?", ",").split(","):
        kind, _, rest = word.strip().partition(":")
        kind = kind.lower()
        if kind.partition("(")[0] == "singleton":
            if one:
                return None
            continue  # jobs of the same name and user: which ones, is not told
        if kind not in _ENDED and kind != "after":
            return None
        for spelled in rest.split(":"):
            match = _JOB.fullmatch(spelled)
            if match is None:
                return None
            if kind in _ENDED:
                jobs[int(match[1])] = None
            elif one:
                return None
    return Dependency(tuple(jobs), one) if len(jobs) <= MOST_JOBS else None
