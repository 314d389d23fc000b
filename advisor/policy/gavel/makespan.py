"""Shares that let everything finish as early as the last one can.

The least T for which every job's throughput × T covers its steps left. As in the published policy, T is only as exact
as a bisection that stops at 5 %, which leaves the shares some freedom.
"""

from __future__ import annotations

from advisor.policy.gavel.offer import ByReference, Floats, Offer
from advisor.policy.gavel.program import Program

FIRST_S, LAST_S, CLOSE = 100.0, 1_000_000.0, 1.05


class Makespan(ByReference):
    """min T with throughput × T ≥ steps left; an unaware one takes the speed on a v100 for the speed everywhere."""

    def shares(self, offer: Offer) -> Floats:
        """Shares from the inside of all that finish within T."""
        offer = self.seen(offer)
        program = Program(offer)
        # One linear program finds the exact least T; the bisection then only has to compare with it.
        least = 1.0 / program.largest_factor(offer.steps_left)
        return program.inside(offer.steps_left / bisected(least))


def bisected(least: float) -> float:
    """Where a bisection from 100 s to 1,000,000 s (ten times more while nothing is found) stops, within 5 %."""
    low, high, last = FIRST_S, LAST_S, LAST_S
    found: float | None = None
    while found is None:
        while CLOSE * low < high:
            middle = (low + high) / 2
            if middle >= least * (1 + 1e-7):
                found = high = middle
            else:
                low = middle
        low, high = last, last * 10
        last *= 10
    return found
