"""Corrects expected waits by what waits really were: how often a job starts at once, and how far off the rest are.

List scheduling knows nothing of fragmentation, limits of users, preemption or jobs yet to come, so its waits are off in
a way that depends on the partition and on how long they are. For each partition and at a few lengths of wait (what lies
between is interpolated) the model keeps how many jobs started at once, and the distribution of log(real / expected) of
the others; partitions with few jobs lean on all of them, and those on the expectation. Plain Python, so that the hot
path may use what `corrections` makes of it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import msgspec

# Expected waits, in seconds, at which the correction is kept.
KNOTS_S = (0.0, 120.0, 600.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
# Started at once: within a scheduler's cycle. Also what "twice as long" is measured from, so that 0 is no special case.
AT_ONCE_S = 60.0
LONGEST_S = 90 * 86_400.0
# Before anything was seen: the share that starts at once at each knot, and the spread of log(real / expected).
_AT_ONCE = (0.8, 0.3, 0.15, 0.08, 0.04, 0.02)
_SPREAD = 0.8
# All partitions together count as so many jobs for each one of them; the expectation, as so many for all.
_STRENGTH = 20.0
_BINS = 120  # of distances in logarithms, from -6 to 6
_REACH = 6.0
# One job that waited a hundred times as long as expected tells of an accident, not of the next job.
_MOST_TIMES = 20.0
# Older jobs fade: a knot remembers about so many.
_MEMORY = 4000.0


class Wait(msgspec.Struct, frozen=True):
    """Seconds until a job starts: what to expect, and between which nine of ten lie."""

    expected_s: float
    low_s: float
    high_s: float
    at_once: float  # how likely it starts at once


class Knot(msgspec.Struct):
    """What was seen at one length of wait in one partition; numbers of jobs are weighted."""

    jobs: float = 0.0
    at_once: float = 0.0
    times: float = 0.0  # sum of real / expected, both from a minute before
    waited: float = 0.0
    total: float = 0.0  # of log(real / expected) of those that waited
    bins: list[float] = []  # how many of them lay how far from what was then expected

    def __post_init__(self) -> None:
        if not self.bins:
            self.bins = [0.0] * _BINS


class _Figures(NamedTuple):
    at_once: float
    times: float
    mean: float  # of log(real / expected) of those that wait
    bins: list[float]  # shares


class WaitModel(msgspec.Struct):
    """The correction; `""` stands for all partitions together."""

    knots: dict[str, list[Knot]] = {}

    def __post_init__(self) -> None:
        if not self.knots:
            self.knots = {"": [Knot() for _ in KNOTS_S]}

    def predict(self, partition: str, expected_s: float) -> Wait:
        """What an expected wait comes to in this partition."""
        expected_s = _sane(expected_s)
        at_once = times = mean = 0.0
        bins = [0.0] * _BINS
        for place, share in _between(expected_s):
            figures = self._figures(partition, place)
            at_once += share * figures.at_once
            times += share * figures.times
            mean += share * figures.mean
            bins = [a + share * b for a, b in zip(bins, figures.bins, strict=True)]
        middle = math.log(expected_s + AT_ONCE_S) + mean

        def quantile(q: float) -> float:
            if q <= at_once:
                return AT_ONCE_S
            later = _quantile(bins, (q - at_once) / (1.0 - at_once))
            return max(math.exp(min(middle + later, 25.0)) - AT_ONCE_S, AT_ONCE_S)

        # Where more than one in twenty starts at once, the interval begins there and leaves out only long waits.
        low, high = (0.0, quantile(0.9)) if at_once > 0.05 else (quantile(0.05), quantile(0.95))
        return Wait(max((expected_s + AT_ONCE_S) * times - AT_ONCE_S, 0.0), low, high, at_once)

    def update(self, partition: str, expected_s: float, real_s: float) -> None:
        """Takes in that a job that was expected to wait so long really waited so long; refuses what is no wait."""
        if not (math.isfinite(expected_s) and math.isfinite(real_s)) or min(expected_s, real_s) < 0:
            raise ValueError(f"a wait of {real_s} s, expected {expected_s} s, cannot be")
        expected_s, real_s = _sane(expected_s), _sane(real_s)
        lines = [self.knots[""]]
        if partition:
            lines.append(self.knots.setdefault(partition, [Knot() for _ in KNOTS_S]))
        off = math.log((real_s + AT_ONCE_S) / (expected_s + AT_ONCE_S))
        between = _between(expected_s)
        away = off - sum(share * self._mean(partition, place) for place, share in between)
        for place, share in between:
            for knots in lines:
                _add(knots[place], share, off, away, real_s <= AT_ONCE_S)

    def _mean(self, partition: str, place: int) -> float:
        """As `_figures` has it."""
        mean = 0.0
        for name in ("", partition) if partition else ("",):
            if name in self.knots:
                knot = self.knots[name][place]
                mean = (knot.total + _STRENGTH * mean) / (knot.waited + _STRENGTH)
        return mean

    def _figures(self, partition: str, place: int) -> _Figures:
        found = _Figures(_AT_ONCE[place], 1.0, 0.0, _NORMAL)
        for name in ("", partition) if partition else ("",):
            if name in self.knots:
                knot = self.knots[name][place]
                found = _Figures(
                    (knot.at_once + _STRENGTH * found.at_once) / (knot.jobs + _STRENGTH),
                    (knot.times + _STRENGTH * found.times) / (knot.jobs + _STRENGTH),
                    self._mean(name, place),
                    [
                        (a + _STRENGTH * b) / (knot.waited + _STRENGTH)
                        for a, b in zip(knot.bins, found.bins, strict=True)
                    ],
                )
        return found


def learned(waits: Iterable[tuple[str, float, float]], model: WaitModel | None = None) -> WaitModel:
    """A model of (partition, expected, real) waits, oldest first; what is no wait is passed over.

    With `model`, it is that one that goes on learning.
    """
    model = model or WaitModel()
    for partition, expected_s, real_s in waits:
        if min(expected_s, real_s) >= 0 and math.isfinite(expected_s + real_s):
            model.update(partition, expected_s, real_s)
    return model


# Corrected waits at each of `KNOTS_S`: expected, and between which nine of ten lie.
Corrections = Mapping[str, tuple[tuple[float, float, float], ...]]


def corrections(model: WaitModel) -> dict[str, tuple[tuple[float, float, float], ...]]:
    """The model boiled down to what a lookup needs, for each partition it knows and (`""`) for any other.

    A longer expected wait never comes out shorter than a shorter one.
    """
    found = {}
    for partition in sorted(model.knots):
        line: list[tuple[float, float, float]] = []
        for knot_s in KNOTS_S:
            wait = model.predict(partition, knot_s)
            before = line[-1] if line else (0.0, 0.0, 0.0)
            line.append((max(wait.expected_s, before[0]), max(wait.low_s, before[1]), max(wait.high_s, before[2])))
        found[partition] = tuple(line)
    return found


def corrected(table: Corrections, partition: str, expected_s: float, which: int = 0) -> float:
    """An expected wait, corrected; `which`: 0 the mean, 1 and 2 the ends of the interval. As it is without a table."""
    line = table.get(partition) or table.get("")
    if line is None:
        return expected_s
    above = bisect_right(KNOTS_S, expected_s)
    if above == len(KNOTS_S):
        return line[-1][which] * (expected_s + AT_ONCE_S) / (KNOTS_S[-1] + AT_ONCE_S)
    low, high = KNOTS_S[above - 1], KNOTS_S[above]
    share = (max(expected_s, 0.0) - low) / (high - low)
    return line[above - 1][which] * (1.0 - share) + line[above][which] * share


def encode(model: WaitModel) -> bytes:
    """The model as bytes, the same for the same model."""
    return msgspec.json.encode(model, order="deterministic")


def decode(content: bytes) -> WaitModel:
    """The model of these bytes; raises `msgspec.DecodeError`."""
    model = msgspec.json.decode(content, type=WaitModel)
    lines = list(model.knots.values())
    if "" not in model.knots or any(len(line) != len(KNOTS_S) for line in lines):
        raise msgspec.ValidationError("a wait model with other lengths of wait than this version has")
    if any(len(knot.bins) != _BINS for line in lines for knot in line):
        raise msgspec.ValidationError("a wait model with other distances than this version has")
    return model


def _sane(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST_S)


def _between(expected_s: float) -> tuple[tuple[int, float], ...]:
    """The knots on both sides, and the share of each."""
    above = bisect_right(KNOTS_S, expected_s)
    if above == len(KNOTS_S):
        return ((above - 1, 1.0),)
    low, high = KNOTS_S[above - 1] + AT_ONCE_S, KNOTS_S[above] + AT_ONCE_S
    share = math.log((expected_s + AT_ONCE_S) / low) / math.log(high / low)
    return ((above - 1, 1.0 - share), (above, share)) if share > 0 else ((above - 1, 1.0),)


def _add(knot: Knot, share: float, off: float, away: float, at_once: bool) -> None:
    fading = 1.0 - share / _MEMORY
    knot.jobs = knot.jobs * fading + share
    knot.times = knot.times * fading + share * min(math.exp(off), _MOST_TIMES)
    knot.at_once = knot.at_once * fading + (share if at_once else 0.0)
    if not at_once:
        knot.waited = knot.waited * fading + share
        knot.total = knot.total * fading + share * off
        knot.bins = [weight * fading for weight in knot.bins]
        at = int((away + _REACH) * _BINS / (2 * _REACH))
        knot.bins[min(max(at, 0), _BINS - 1)] += share


def _normal_bins() -> list[float]:
    edges = [-_REACH + 2 * _REACH * i / _BINS for i in range(_BINS + 1)]
    below = [0.5 * math.erfc(-edge / _SPREAD / math.sqrt(2)) for edge in edges]
    return [b - a for a, b in pairwise(below)]


_NORMAL = _normal_bins()


def _quantile(bins: list[float], q: float) -> float:
    left = q * sum(bins)
    for i, weight in enumerate(bins):
        if left <= weight:
            return -_REACH + 2 * _REACH * (i + (left / weight if weight else 0.5)) / _BINS
        left -= weight
    return _REACH
