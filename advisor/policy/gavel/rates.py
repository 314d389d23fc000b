"""Policies that make a sum as large as possible: shortest job first, and most work for the money.

A vertex of these programs gives whole types to the jobs that gain most, which is what they are for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from advisor.policy.gavel.offer import ByReference, Floats, Offer
from advisor.policy.gavel.program import Program
from advisor.policy.gavel.solver import Infeasible, maximise

# What a GPU cost by the hour in a public cloud when the policies were published; only their ratios matter.
HOURLY = {"v100": 2.48, "p100": 1.46, "k80": 0.45}


class ShortestFirst(ByReference):
    """max Σ throughput / steps left: a job that would soon be done weighs more, where it is done soonest."""

    def shares(self, offer: Offer) -> Floats:
        """Shares at the optimum."""
        offer = self.seen(offer)
        program = Program(offer)
        weight = 1.0 / np.maximum(offer.steps_left, 1e-9)
        goal = np.asarray(program.throughput.T @ weight)
        x = maximise(goal / max(float(goal.max(initial=0.0)), 1e-300), program.limits, program.at_most, program.upper)
        return program.table(x)


class LeastCost(ByReference):
    """max Σ normalised throughput / Σ cost; with deadlines, jobs that can still meet theirs do.

    A ratio of two sums is a linear program in shares times a scale (Charnes and Cooper).
    """

    def shares(self, offer: Offer) -> Floats:
        """Shares at the best ratio, as large as there is room for."""
        cost = costs(offer)
        offer = self.seen(offer)
        program = Program(offer)
        fastest = np.maximum(program.speed.max(axis=1), 1e-12)
        worth = np.asarray(program.throughput.T @ (1.0 / fastest))
        gpus = np.concatenate([offer.gpus, offer.gpus[offer.pairs[:, 0]]]) if len(offer.pairs) else offer.gpus
        price = (gpus[:, None] * cost[None, :]).ravel() / float(cost.mean())
        due = self._due(offer, program)
        for asked in ([due] if due.any() else []) + [np.zeros_like(due)]:
            try:
                return self._best(program, worth, price, asked)
            except Infeasible:
                continue  # not all deadlines can be met together: the cheapest way, as far as it goes
        raise Infeasible("no shares at any price")

    @staticmethod
    def _due(offer: Offer, program: Program) -> Floats:
        """The throughput that each job needs to end in time; 0 where it has no deadline or cannot meet it."""
        if offer.deadline is None:
            return np.zeros(len(offer.jobs))
        left = offer.deadline
        needed = np.divide(offer.steps_left, left, out=np.zeros_like(left), where=np.isfinite(left) & (left > 0))
        return np.where(needed <= program.speed.max(axis=1), needed, 0.0)

    @staticmethod
    def _best(program: Program, worth: Floats, price: Floats, due: Floats) -> Floats:
        columns = program.columns
        scale = sparse.csr_matrix(-program.at_most[:, None])
        late = sparse.csr_matrix(due[:, None])
        money = sparse.csr_matrix(price[None, :])
        bounds = [sparse.identity(columns), sparse.csr_matrix(-program.upper[:, None])]
        rows: list[list[Any]] = [[program.limits, scale], [money, None], bounds]
        at_most = [np.zeros(program.limits.shape[0]), np.ones(1), np.zeros(columns)]
        if due.any():
            rows.append([-program.throughput, late])
            at_most.append(np.zeros(len(due)))
        x = maximise(
            np.append(worth / max(float(worth.max()), 1e-300), 0.0),
            sparse.bmat(rows, format="csr"),
            np.concatenate(at_most),
            np.full(columns + 1, np.inf),
        )
        shares = x[:-1] / max(float(x[-1]), 1e-12)
        used = np.asarray(program.limits @ shares) / program.at_most
        return program.table(shares / max(float(used.max(initial=1e-12)), 1e-12))


def costs(offer: Offer) -> Floats:
    """What a GPU of each type costs: the offer's own figures, or the table's, where an unknown type is the dearest."""
    if offer.cost is not None:
        return offer.cost
    return np.asarray([HOURLY.get(kind, max(HOURLY.values())) for kind in offer.types])
