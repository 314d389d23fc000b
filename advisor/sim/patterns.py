"""Whether work that is all there at the start can end by some time without preempting or sharing: a closer look.

The makespan's bound (`advisor.sim.bound`) lets a type's units be filled to the last second. Here each unit is
filled with whole runs, as every schedule must: a unit's pattern is a set of jobs that fit one after another before
that time, a job of several units needs a place in as many patterns. Patterns are found as they are wanted (column
generation, a knapsack each); what is left uncovered at the least, if anything is, proves that no schedule ends in time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from advisor.sim.bound import CLOSE, Work, least_makespan
from advisor.sim.compiled import entry
from advisor.sim.state import Flags, Floats, Ints

# Times are rounded down to so many parts of the end, which can only make more fit than really does.
GRAINS = 1740
# The proof is given up after so many rounds of new patterns: then the end counts as possible.
ROUNDS = 400
# What must be left uncovered before it counts as proof: more than a solver's rounding.
PROOF = 1e-6


def closer_makespan(work: Work, found_s: float) -> float:
    """A bound on the makespan, no less than `least_makespan`; `found_s`: some schedule that is known ends then."""
    low, high = least_makespan(work), found_s
    if (work.submit > 0).any() or not np.isfinite(work.units).all():
        return low
    while high - low > 2 * CLOSE * low:
        middle = (low + high) / 2
        if cannot_end_by(work, middle):
            low = middle
        else:
            high = middle
    return low


def closer_shared_makespan(work: Work, found_s: float, use: Floats) -> float:
    """A bound on the makespan where jobs share; `use`: see `advisor.sim.shared_patterns`."""
    low, high = found_s / 2, found_s
    if (work.submit > 0).any() or not np.isfinite(work.units).all() or not cannot_end_by(work, low, use):
        return 0.0
    while high - low > CLOSE * low:
        middle = (low + high) / 2
        if cannot_end_by(work, middle, use):
            low = middle
        else:
            high = middle
    return low


def cannot_end_by(work: Work, end_s: float, use: Floats | None = None) -> bool:
    """True: proved that no schedule without preemption ends by then. False: not proved.

    `use`: the part of its run time for which a job takes a unit at the least, where units are shared.
    """
    grain = end_s / GRAINS
    taken = np.where(np.isfinite(work.run), work.run, 2.0 * end_s) * (1.0 if use is None else use)
    size = np.floor(taken / grain + 1e-9).astype(np.int64)
    able = (
        (np.floor(np.where(np.isfinite(work.run), work.run, np.inf) / grain + 1e-9) <= GRAINS)
        & (work.wanted[:, None] <= work.units[None, :])
        & (work.wanted[:, None] > 0)
    )
    if not (able.any(axis=1) | (work.wanted == 0)).all():
        return True
    master = _Master(work, able)
    for _ in range(ROUNDS):
        left, worth, rent = master.solve()
        if left <= PROOF:
            return False
        missing = 0.0
        added = False
        for kind in range(len(work.kinds)):
            value, jobs = best_pattern(worth[:, kind], np.where(able[:, kind], size[:, kind], GRAINS + 1), GRAINS)
            gain = value - rent[kind]
            missing += float(work.units[kind]) * max(gain, 0.0)
            if gain > 1e-7:
                master.add(kind, np.flatnonzero(jobs))
                added = True
        # Even with every pattern that has not been found yet, so much would be left.
        if left - missing > PROOF:
            return True
        if not added:
            return left > 10 * PROOF
    return False


class _Master:
    """Covers the jobs with the patterns found so far; what cannot be covered is counted in units."""

    def __init__(self, work: Work, able: Flags) -> None:
        self.work, self.able = work, able
        self.job, self.kind = np.nonzero(able)
        self.row = np.full(able.shape, -1, dtype=np.int64)
        self.row[self.job, self.kind] = np.arange(len(self.job))
        self.patterns: list[tuple[int, Ints]] = [
            (int(k), np.asarray([j])) for j, k in zip(self.job, self.kind, strict=True)
        ]

    def add(self, kind: int, jobs: Ints) -> None:
        """One more pattern."""
        self.patterns.append((kind, jobs))

    def solve(self) -> tuple[float, Floats, Floats]:
        """What is left uncovered; what a job's unit is worth in a pattern of a kind, and what a unit of it is."""
        n, pairs, kinds = self.work.jobs, len(self.job), len(self.work.kinds)
        count = pairs + n + len(self.patterns)
        entries: list[tuple[int, int, float]] = [
            (i, i, float(self.work.wanted[j])) for i, j in enumerate(self.job)
        ]  # a job that is on a kind needs its units there
        for c, (kind, jobs) in enumerate(self.patterns):
            entries += [(int(self.row[j, kind]), pairs + n + c, -1.0) for j in jobs]
            entries.append((pairs + kind, pairs + n + c, 1.0))
        whole = [(int(j), i, 1.0) for i, j in enumerate(self.job)] + [(j, pairs + j, 1.0) for j in range(n)]
        cost = np.zeros(count)
        cost[pairs : pairs + n] = self.work.wanted
        found = linprog(
            cost,
            A_ub=matrix(entries, (pairs + kinds, count)),
            b_ub=np.concatenate([np.zeros(pairs), self.work.units]),
            A_eq=matrix(whole, (n, count)),
            b_eq=np.ones(n),
            method="highs",
        )
        if found.status != 0:
            return 0.0, np.zeros(self.able.shape), np.zeros(kinds)
        price = -np.asarray(found.ineqlin.marginals)
        worth = np.zeros(self.able.shape)
        worth[self.job, self.kind] = price[:pairs]
        return float(found.fun), worth, price[pairs:]


def matrix(entries: list[tuple[int, int, float]], shape: tuple[int, int]) -> Any:
    """A sparse matrix of (row, column, value)."""
    row, column, value = zip(*entries, strict=True)
    return sparse.csr_matrix((value, (row, column)), shape=shape)


@entry
def best_pattern(worth: Floats, size: Ints, room: int) -> tuple[float, Flags]:
    """The most valuable set of jobs that fits into so much room: a knapsack."""
    n = len(worth)
    best = np.zeros(room + 1)
    taken = np.zeros((n, room + 1), dtype=np.bool_)
    for j in range(n):
        if worth[j] <= 1e-9 or size[j] > room:
            continue
        for r in range(room, size[j] - 1, -1):
            value = best[r - size[j]] + worth[j]
            if value > best[r] + 1e-12:
                best[r] = value
                taken[j, r] = True
    chosen = np.zeros(n, dtype=np.bool_)
    r = room
    for j in range(n - 1, -1, -1):
        if taken[j, r]:
            chosen[j] = True
            r -= size[j]
    return best[room], chosen
