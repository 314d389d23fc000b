"""Turns processor and size into the numbers that the run-time model is linear in.

Known processors also have a coefficient of their own, so that a site learns how its k80s differ from the data sheet;
and so have sizes beside the usual one there, since how a program scales depends on what connects its processors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from advisor.performance.model.prior import BALANCE, CPU, FIXED, LEVEL, PROCESSOR, SCALING, SIZE, SPEED, Prior, spreads
from advisor.performance.processors import lookup
from advisor.settings import Processor

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# The GPU that coefficients are relative to (a V100): any choice will do, one in the middle keeps them apart.
_TFLOPS, _MEMORY_GBS = 15.7, 900.0
# So many processors have a coefficient of their own; a site with more has old ones that hardly run anything.
MOST_PROCESSORS = 12
# And so many sizes of them: what a fit takes grows with the square of all.
MOST_SIZES = 8


def features(name: str, processors: Mapping[str, Processor]) -> tuple[float, float, bool]:
    """Speed and balance of a processor against the reference, and whether they are known."""
    if name == "cpu":
        return 0.0, 0.0, True
    figures = lookup(processors, name)
    if figures is None:
        return 0.0, 0.0, False
    flops, bandwidth = math.log(figures.tflops / _TFLOPS), math.log(figures.memory_gbs / _MEMORY_GBS)
    return (flops + bandwidth) / 2, (flops - bandwidth) / 2, True


class Design:
    """The coefficients of one model, and the row of numbers that each (processor, units) multiplies them with."""

    def __init__(
        self, own: Sequence[str], processors: Mapping[str, Processor], sizes: Sequence[tuple[str, int]] = ()
    ) -> None:
        """`own`: the processors with a coefficient of their own; never "cpu", which has one anyway. `sizes`: so many
        units of one of them, with another.
        """
        self.own, self.sizes = tuple(own), tuple(sizes)
        self.processors = processors
        self.width = FIXED + len(self.own) + len(self.sizes)
        kinds = [*range(FIXED), *([PROCESSOR] * len(self.own)), *([SCALING] * len(self.sizes))]
        self.kind: Ints = np.array(kinds, dtype=np.int64)
        self._at = {name: FIXED + i for i, name in enumerate(self.own)}
        self._size_at = {size: FIXED + len(self.own) + i for i, size in enumerate(self.sizes)}
        self._rows: dict[tuple[str, int], Floats] = {}

    def row(self, processor: str, units: int) -> Floats:
        """The multipliers of every coefficient but those of an app's traits."""
        found = self._rows.get((processor, units))
        if found is None:
            speed, balance, _ = features(processor, self.processors)
            found = np.zeros(self.width)
            found[LEVEL] = 1.0
            found[CPU] = processor == "cpu"
            found[SPEED], found[BALANCE], found[SIZE] = speed, balance, math.log(max(units, 1))
            if processor in self._at:
                found[self._at[processor]] = 1.0
            if (processor, units) in self._size_at:
                found[self._size_at[processor, units]] = 1.0
            self._rows[processor, units] = found
        return found

    def unknown(self, processor: str) -> bool:
        """Whether nothing is known of a processor: neither its peak figures nor any run on it."""
        return processor not in self._at and not features(processor, self.processors)[2]

    def means(self, prior: Prior) -> Floats:
        """The site's mean of each coefficient."""
        return np.array([spread.mean for spread in spreads(prior)])[self.kind]

    def variances(self, per_kind: Sequence[float]) -> Floats:
        """The variance of each coefficient, from that of each kind."""
        return np.array(per_kind, dtype=np.float64)[self.kind]

    def site_variances(self, prior: Prior) -> Floats:
        """How far the site may be from the prior's means; farther for processors without peak figures."""
        found = self.variances([spread.site**2 for spread in spreads(prior)])
        for name, at in self._at.items():
            if not features(name, self.processors)[2]:
                found[at] += prior.unknown_processor**2
        return found
