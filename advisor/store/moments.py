"""Count, mean and squared deviations of samples, which merge exactly, in any order and any grouping."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Moments:
    """What is known of a metric's samples; for events, with the seconds they were enabled and running."""

    n: int = 0
    mean: float = 0.0
    m2: float = 0.0  # sum of squared deviations from the mean
    enabled_s: float | None = None
    running_s: float | None = None

    def add(self, value: float, enabled_s: float | None = None, running_s: float | None = None) -> None:
        """Takes in one sample."""
        self.merge(Moments(1, value, 0.0, enabled_s, running_s))

    def merge(self, other: Moments) -> None:
        """Takes in the samples that another has seen (Chan, Golub and LeVeque's update)."""
        if other.n == 0:
            return
        n = self.n + other.n
        apart = other.mean - self.mean
        # Weighted, not stepped: the result is the same whichever of the two comes first.
        self.mean = (self.n * self.mean + other.n * other.mean) / n
        self.m2 += other.m2 + apart * apart * self.n * other.n / n
        self.n = n
        self.enabled_s = _sum(self.enabled_s, other.enabled_s)
        self.running_s = _sum(self.running_s, other.running_s)

    @property
    def sd(self) -> float | None:
        """The samples' standard deviation; None for fewer than two."""
        return math.sqrt(max(0.0, self.m2) / (self.n - 1)) if self.n > 1 else None


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
