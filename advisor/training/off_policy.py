"""What another policy would have done to the logged jobs, from what really happened to them.

Every logged decision was drawn with a known probability. Jobs that went where the other policy would have sent them
stand for those that did not, each weighted by one over that probability: inverse propensity (IPS), self-normalised
(SNIPS), and doubly robust (DR), which starts from what was predicted of every place and corrects it by what was seen.
All three estimate a policy's mean turnaround; an effect compares two policies on the same jobs, so that those on which
both agree cancel out.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# A place that would be chosen more seldom than this counts as never tried: one such job would outweigh all others.
# The control group's usual share is just enough.
LEAST_PROBABILITY = 0.0499
_FOLDS = 5


class Logged(msgspec.Struct, frozen=True):
    """Logged jobs as numbers; one row each, all of equal length."""

    turnaround: Floats  # seconds, as it was
    probability: Floats  # of the place the job was sent to
    new: Flags  # whether the new policy would have sent it there
    old: Flags  # whether the policy in force would have
    agree: Flags  # whether the two would have sent it to the same place, wherever it went
    expected: Floats  # what was predicted of where it went, in seconds
    expected_new: Floats  # of where the new policy would have sent it
    expected_old: Floats
    probability_new: Floats  # of where the new policy would have sent it
    probability_old: Floats
    fold: NDArray[np.int64]  # any number that has nothing to do with the outcome

    def __len__(self) -> int:
        return len(self.turnaround)


class Interval(msgspec.Struct, frozen=True):
    """An estimate with the interval that holds the truth in 95 of 100 logs."""

    value: float
    low: float
    high: float


class Estimate(msgspec.Struct, frozen=True):
    """One estimator's answer: mean turnaround under each policy, and the share by which the new one shortens it."""

    new_s: float
    old_s: float
    gain: Interval


class Effect(msgspec.Struct, frozen=True):
    """What a log says about a new policy."""

    jobs: int
    differ: int  # of them, those that the two policies would have sent to different places
    effective_jobs: float  # as many unweighted jobs would tell as much about the new policy
    ips: Estimate
    snips: Estimate
    dr: Estimate


def effect(logged: Logged) -> Effect:
    """All three estimates; there must be at least two rows."""
    if len(logged) < 2:
        raise ValueError("an effect needs at least two logged jobs")
    weight_new = np.where(logged.new, 1.0 / logged.probability, 0.0)
    weight_old = np.where(logged.old, 1.0 / logged.probability, 0.0)
    seen = logged.turnaround
    model, model_new, model_old = calibrated(logged)
    rest = seen - model
    ips = ratio(weight_new * seen, weight_old * seen)
    snips = ratio(*normalised(weight_new, weight_old, seen))
    dr = ratio(
        model_new + weight_new * rest,
        model_old + weight_old * rest,
        _foreseen(logged, model, model_new, model_old),
    )
    squares = float(np.sum(weight_new**2))
    return Effect(
        len(logged),
        int(np.sum(~logged.agree)),
        float(np.sum(weight_new)) ** 2 / squares if squares else 0.0,
        ips,
        snips,
        dr,
    )


def calibrated(logged: Logged) -> tuple[Floats, Floats, Floats]:
    """Predicted turnarounds brought to the level and slope of the real ones, each row by the rows of other folds."""
    logs = np.log(np.maximum(logged.expected, 1.0))
    seen = np.log(np.maximum(logged.turnaround, 1.0))
    found = [np.empty(len(logged)) for _ in range(3)]
    folds = logged.fold % _FOLDS
    for fold in range(_FOLDS):
        inside, outside = folds == fold, folds != fold
        if not outside.any():
            outside = inside
        slope, level = _line(logs[outside], seen[outside])
        fitted = np.exp(level + slope * logs[outside])
        # Means, not medians, are what is compared: a line through logarithms lies below them.
        scale = float(logged.turnaround[outside].mean() / max(fitted.mean(), 1e-9))
        for out, given in zip(found, (logged.expected, logged.expected_new, logged.expected_old), strict=True):
            out[inside] = scale * np.exp(level + slope * np.log(np.maximum(given[inside], 1.0)))
    return found[0], found[1], found[2]


def mean_interval(values: Floats) -> Interval:
    """The mean of independent values, whatever their distribution."""
    return _skewed(float(values.mean()), values - values.mean())


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    spread = float(np.var(x))
    # A slope beyond these would make predictions explode on a log with a few odd jobs.
    slope = float(np.clip(np.mean((x - x.mean()) * (y - y.mean())) / spread, 0.2, 1.5)) if spread > 1e-9 else 1.0
    return slope, float(y.mean() - slope * x.mean())


def _foreseen(logged: Logged, model: Floats, model_new: Floats, model_old: Floats) -> float:
    """What rows add to the variance of the difference, whether or not a rare draw has shown it.

    A place that is tried in one of twenty cases may not have been seen at all; its spread is known from the others.
    """
    relative = float(np.mean(((logged.turnaround - model) / np.maximum(model, 1.0)) ** 2))
    differ = ~logged.agree
    by_new, by_old = 1.0 / logged.probability_new[differ], 1.0 / logged.probability_old[differ]
    return relative * float(np.sum(model_new[differ] ** 2 * by_new + model_old[differ] ** 2 * by_old)) / len(logged)


def ratio(new: Floats, old: Floats, foreseen: float = 0.0) -> Estimate:
    """Mean of each, and one minus their ratio with its interval; rows are paired, so what is equal cancels.

    `foreseen`: the variance that is known to be there; the interval is never narrower.
    """
    mean_new, mean_old = float(new.mean()), float(old.mean())
    if not mean_old > 1e-6:  # seconds
        return Estimate(mean_new, mean_old, Interval(0.0, -math.inf, math.inf))
    share = mean_new / mean_old
    influence = -(new - share * old) / mean_old
    return Estimate(mean_new, mean_old, _skewed(1.0 - share, influence, foreseen / mean_old**2))


def normalised(new: Floats, old: Floats, seen: Floats) -> tuple[Floats, Floats]:
    """Rows whose means are the self-normalised estimates, and whose spread is that of these."""
    rows = []
    for weight in (new, old):
        total = float(weight.mean())
        value = float((weight * seen).mean()) / total if total else 0.0
        rows.append(value + weight * (seen - value) / total if total else np.zeros(len(seen)))
    return rows[0], rows[1]


def _skewed(value: float, influence: Floats, least_variance: float = 0.0) -> Interval:
    """A 95 % interval by Hall's transformation of Student's t: turnarounds are skewed, and weights more so.

    `least_variance` is there although the values may not show it.
    """
    n = len(influence)
    centred = influence - influence.mean()
    variance = float(np.sum(centred**2)) / max(n - 1, 1)
    if max(variance, least_variance) <= 0:
        return Interval(value, value, value)
    third = float(np.mean(centred**3)) / variance**1.5 if variance > 0 else 0.0
    # Beyond this the correction is of the order of the interval itself and no longer one.
    skew = min(max(third / math.sqrt(n), -1.0), 1.0)
    reach, step = _student(n - 1), math.sqrt(max(variance, least_variance) / n)
    return Interval(value, value - step * _untransformed(reach, skew), value - step * _untransformed(-reach, skew))


def _untransformed(t: float, a: float) -> float:
    """The t whose transform (Hall 1992: t + a t²/3 + a² t³/27 + a/6) is `t`; `a`: skewness over √n."""
    if abs(a) < 1e-9:
        return t
    return 3.0 / a * (math.copysign(abs(1.0 + a * (t - a / 6.0)) ** (1 / 3), 1.0 + a * (t - a / 6.0)) - 1.0)


def _student(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(max(freedom, 1), 0.975))
