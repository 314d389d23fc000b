"""What one run says about its expected log run time: a value and a weight, given what is believed so far.

An exact run far from what is expected weighs less (Student's t). One that was cut off counts by the slope and
curvature of "at least so long": hardly anything where it was cut off early, like an exact run if it went on far beyond.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import erfcx

from advisor.performance.model.design import Flags, Floats


class Weighed(NamedTuple):
    """Runs as the tree takes them; and what they add to the estimate of the noise: squares, and how many count."""

    value: Floats
    weight: Floats
    squares: Floats
    counted: Floats


def weigh(log_s: Floats, cut_off: Flags, mean: Floats, variance: Floats, noise: Floats, tail: float) -> Weighed:
    """Weighs runs; `mean` and `variance` of the expected log run time, `noise` the variance of a run around it."""
    away = log_s - mean
    squares = away**2 + variance
    weight = (tail + 1.0) / (tail + squares / noise)
    value = log_s.copy()
    count = np.ones_like(log_s)
    squares = weight * squares
    if cut_off.any():
        sd = np.sqrt(noise[cut_off])
        z = np.clip(away[cut_off] / sd, -8.0, 30.0)
        hazard = np.sqrt(2.0 / np.pi) / erfcx(z / np.sqrt(2.0))
        slack = np.maximum(hazard - z, 1e-3)
        # A program that hangs runs into any limit, however long: as with exact runs, the far ones count for less.
        robust = np.minimum((tail + 1.0) / (tail + np.maximum(z, 0.0) ** 2), 1.0)
        weight[cut_off] = np.maximum(hazard * slack, 1e-9) * robust
        value[cut_off] = mean[cut_off] + sd * np.minimum(1.0 / slack, 30.0)
        squares[cut_off] = noise[cut_off] * z * hazard * robust
        count[cut_off] = 0.0
    return Weighed(value, weight, squares, count)


def weigh_one(
    log_s: float, cut_off: bool, mean: float, variance: float, noise: float, tail: float
) -> tuple[float, float, float]:
    """Value, weight and squares of a run that is not yet part of what `mean` and `variance` rest on."""
    # Weighed as it will be once it is in: its own pull takes the expected value a part of the way towards it.
    left = noise / (noise + variance)
    made = weigh(
        np.array([log_s]),
        np.array([cut_off]),
        np.array([mean + (0.0 if cut_off else (1.0 - left) * (log_s - mean))]),
        np.array([variance * left]),
        np.array([noise]),
        tail,
    )
    return float(made.value[0]), float(made.weight[0]), float(made.squares[0])
