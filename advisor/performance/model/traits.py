"""What is known of an app before it has run: the last number in its name, and the time limit its users ask for.

Both are told relative to a middle (the family's for numbers, the site's for limits), so that an app about which nothing
is said lies in the middle.
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


class Middles(msgspec.Struct, frozen=True):
    """What traits are relative to."""

    number: dict[str, float]  # by family, of log numbers
    limit: float = _LOG_LIMIT

    def traits(self, app: str, log_limit: float | None) -> tuple[float, float]:
        """The traits of an app, in the order of `TRAITS`."""
        name, number = family_of(app)
        middle = self.number.get(name)
        return (
            0.0 if number is None or middle is None else _near(number - middle),
            0.0 if log_limit is None else _near(log_limit - self.limit),
        )


def _near(distance: float) -> float:
    return max(-_FARTHEST, min(distance, _FARTHEST))


def middles(apps: list[str], limits: Floats) -> Middles:
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
    )


def app_limits(app: Ints, log_limit: Floats, apps: int) -> Floats:
    """The mean log limit of each app's runs, NaN where none had one."""
    known = np.isfinite(log_limit)
    count = np.bincount(app[known], minlength=apps)
    total = np.bincount(app[known], log_limit[known], apps)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
