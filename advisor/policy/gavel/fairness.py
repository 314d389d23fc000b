"""Fair shares: the worst-off job does as well as it can.

`MaxMin` is Gavel's heterogeneity-aware least attained service: every job's throughput, relative to what it would have
with its part of every type, is at least z, and z is as large as possible. `FinishTime` bounds how much later a
job finishes than it would with a cluster of its own, 1/m of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import sparse

from advisor.policy.gavel.offer import ByReference, Floats, Offer
from advisor.policy.gavel.program import Program

# The worst ratio is found to about this part of itself, in at most so many steps (three or four are usual).
CLOSE, MOST_STEPS = 1e-4, 30


class MaxMin:
    """max min over jobs of throughput × GPUs / (weight × throughput with a proportional part of the cluster)."""

    def __init__(self, aware: bool = True, shared: bool = False) -> None:
        self.aware = aware
        self.shared = shared

    def shares(self, offer: Offer) -> Floats:
        """Shares at the optimum."""
        program = Program(offer, aware=self.aware)
        proportion = offer.counts / offer.counts.sum()
        alone = program.speed @ proportion
        factor = offer.gpus / (offer.weight * alone)
        return program.maximise_least(sparse.diags(factor) @ program.throughput)[0]


class FinishTime(ByReference):
    """min max over jobs of (time so far + steps left / throughput) / time it would have taken on 1/m of the cluster."""

    def __init__(self, aware: bool = True, shared: bool = False, reference: str = "v100") -> None:
        super().__init__(aware, shared, reference)
        self._alone_so_far: dict[int, float] = {}
        self._last = 0.0  # the ratio of the last call: the next is not far
        self._before: dict[int, tuple[float, float]] = {}  # job → (steps left, throughput on 1/m) at the last call

    def shares(self, offer: Offer) -> Floats:
        """Shares at the least worst ratio."""
        offer = self.seen(offer)
        program = Program(offer)
        part = offer.counts[None, :] / len(offer.jobs) / offer.gpus[:, None]
        part = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
        alone = (program.speed * part).sum(axis=1)
        isolated = np.empty(len(offer.jobs))
        for i, job in enumerate(int(j) for j in offer.jobs):
            so_far = self._alone_so_far.get(job, 0.0)
            if job in self._before:
                steps, speed = self._before[job]
                so_far += (steps - offer.steps_left[i]) / speed
            self._alone_so_far[job] = so_far
            isolated[i] = so_far + offer.steps_left[i] / alone[i]
        self._before = {int(job): (float(offer.steps_left[i]), float(alone[i])) for i, job in enumerate(offer.jobs)}
        return self._least_worst(offer, program, isolated)

    def _least_worst(self, offer: Offer, program: Program, isolated: Floats) -> Floats:
        """Shares at the least ratio that every job can keep, within 1e-4 of it.

        Newton's method: the prices at one ratio tell which jobs hold it down, and bound what any other ratio asks for.
        Each step comes from below and lands close; where the last ratio is still near, two programs are enough.
        """
        elapsed, steps = offer.elapsed, offer.steps_left
        low = float(np.max(elapsed / isolated))  # there a job would have to be finished by now
        ratio = max(self._last, 1.01 * low + 1e-3) if self._last else 2 * low + 1

        def asked(at: float) -> Floats:
            return np.asarray(steps / (at * isolated - elapsed))

        wanted, factor = asked(ratio), 1.0
        for _ in range(MOST_STEPS):
            wanted = asked(ratio)
            _, factor, price = program.largest_factor_priced(wanted)
            if abs(math.log(max(factor, 1e-300))) < CLOSE:
                break
            ratio = self._where(low, lambda at: float(price @ (asked(at) / wanted)), factor, ratio)  # noqa: B023
        self._last = ratio
        # From the inside of all that keep the ratio, as the published policy's solver returns it.
        return program.inside(wanted * min(1.0, factor * (1 - CLOSE / 10)))

    @staticmethod
    def _where(low: float, load: Callable[[float], float], factor: float, near: float) -> float:
        """The ratio at which the priced demand is what can be had: the demand falls from infinity at `low` to 0."""
        # Not all the way down to `low`, where some job would have to be infinitely fast.
        below, above = low + 1e-3 * (near - low), near
        if load(below) <= factor:
            return below
        while load(above) > factor:
            below, above = above, low + 2 * (above - low)
        for _ in range(80):
            middle = (below + above) / 2
            if middle in (below, above):
                break
            if load(middle) > factor:
                below = middle
            else:
                above = middle
        return above
