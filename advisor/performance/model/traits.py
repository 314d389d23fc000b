"""What is known of an app before it has run: the last number in its name, and the time limit its users ask for.

Both are told relative to a middle (the family's for numbers, the site's for limits), so that an app about which nothing
is said lies in the middle. How much work a job is told to do is a trait of the job, not of the
app: twice the work takes twice the time. It is told relative to what jobs of the family usually do.
"""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.performance.model.design import Floats, Ints
from advisor.performance.model.names import family as family_of

# At most so far from the middle, in logarithms: a number beyond it is an id, a limit the longest there is.
_FARTHEST = 3.0
# The middle of the limits before any was seen: four hours.
_LOG_LIMIT = 9.6


class Work(msgspec.Struct, frozen=True):
    """Work that runs of a family were told to do: the logarithm that others are relative to, and how they scatter."""

    usual: float
    squares: float = 0.0  # of the distances from it, summed
    runs: int = 0

    def scatter(self) -> float:
        """The variance of a job's work of which nothing is told."""
        return self.squares / self.runs if self.runs else 0.0


class Middles(msgspec.Struct, frozen=True):
    """What traits are relative to."""

    number: dict[str, float]  # by family, of log numbers
    limit: float = _LOG_LIMIT
    work: dict[str, Work] = {}  # by family

    def traits(self, app: str, log_limit: float | None) -> tuple[float, float]:
        """The traits of an app, in the order of `TRAITS`."""
        name, number = family_of(app)
        middle = self.number.get(name)
        return (
            0.0 if number is None or middle is None else _near(number - middle),
            0.0 if log_limit is None else _near(log_limit - self.limit),
        )

    def more_work(self, family: str, log_work: float | None) -> float:
        """By how much a job does more than is usual in its family, as a logarithm; 0 where nobody knows."""
        usual = self.work.get(family)
        return 0.0 if usual is None or log_work is None else log_work - usual.usual

    def note_work(self, family: str, log_work: float | None) -> None:
        """One more run has told its work."""
        if log_work is not None:
            was = self.work.get(family) or Work(log_work)
            self.work[family] = Work(was.usual, was.squares + (log_work - was.usual) ** 2, was.runs + 1)


def _near(distance: float) -> float:
    return max(-_FARTHEST, min(distance, _FARTHEST))


def middles(apps: list[str], limits: Floats, work: dict[str, Work]) -> Middles:
    """The middles of a log; `limits` of each app, NaN where none is known."""
    of: dict[str, list[float]] = {}
    for app in apps:
        name, number = family_of(app)
        if number is not None:
            of.setdefault(name, []).append(number)
    known = limits[np.isfinite(limits)]
    return Middles(
        {name: float(np.mean(values)) for name, values in sorted(of.items())},
        float(known.mean()) if len(known) else _LOG_LIMIT,
        work,
    )


def usual_work(family: Ints, log_work: Floats, families: list[str]) -> dict[str, Work]:
    """Of each family whose runs told their work; `family` and `log_work` of each run, NaN where none was told."""
    told = np.isfinite(log_work)
    order = np.lexsort((log_work[told], family[told]))  # so that sums come out the same to the last bit
    at, values = family[told][order], log_work[told][order]
    found: dict[str, Work] = {}
    for number in np.unique(at):
        mine = values[at == number]
        usual = float(mine.mean())
        found[families[number]] = Work(usual, float(((mine - usual) ** 2).sum()), len(mine))
    return found


def app_limits(app: Ints, log_limit: Floats, apps: int) -> Floats:
    """The mean log limit of each app's runs, NaN where none had one."""
    known = np.isfinite(log_limit)
    count = np.bincount(app[known], minlength=apps)
    total = np.bincount(app[known], log_limit[known], apps)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
