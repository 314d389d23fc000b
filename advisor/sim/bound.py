"""How well any schedule could do: lower bounds on average JCT, p99 JCT and makespan, by linear programs.

Each program lets a job be cut into pieces that run on several types at once, which no schedule can do, and keeps only
what every schedule obeys: a type's units, a job's submission, one type for the whole of a job. Whatever is found
with everything known lies above; so "within x % of the bound" holds against schedules nobody has thought of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from advisor.policy.gavel.matching import match
from advisor.sim.engine import Engine
from advisor.sim.state import CPUS, GPUS, Floats, Ints

Objective = Literal["avg_jct", "makespan", "p99_jct"]
OBJECTIVES: tuple[Objective, ...] = ("avg_jct", "makespan", "p99_jct")

# So many slots of time; finer ones give a closer bound and a larger program.
SLOTS, COARSE_SLOTS = 100, 60
# Submissions that the makespan's program looks at one by one.
WAVES = 24
# Bounds are found to this part of themselves.
CLOSE = 1e-3


class Work:
    """A workload as the programs see it: seconds of each job on each kind of processor, and the units there are."""

    def __init__(self, engine: Engine) -> None:
        cluster, jobs = engine.cluster, engine.jobs
        self.kinds = cluster.processors
        unit = GPUS if cluster.gpus else CPUS
        # A unit is a GPU where there are any: jobs without one take nothing, which is below the truth.
        self.units = np.asarray([cluster.units(kind) for kind in self.kinds], dtype=np.float64)
        self.wanted = (jobs.nodes * jobs.need[:, unit]).astype(np.float64)
        self.submit = jobs.submit - jobs.submit.min(initial=math.inf) if len(jobs.submit) else jobs.submit
        places = [[p for p, place in enumerate(cluster.places) if place.processor == kind] for kind in self.kinds]
        self.run = np.stack([jobs.run[:, of].min(axis=1) for of in places], axis=1)
        if unit == GPUS:
            for k, kind in enumerate(self.kinds):
                if kind == "cpu":
                    self.units[k] = math.inf  # its CPUs are not counted in this unit
        self.shortest = self.run.min(axis=1)

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self.submit)

    @property
    def matching(self) -> bool:
        """Whether every job takes one unit from the start: then the least average is a matching, and exact."""
        return bool((self.submit == 0).all() and (self.wanted == 1).all() and np.isfinite(self.units).all())


def lower_bound(engine: Engine, objective: Objective) -> float:
    """Seconds below which the objective cannot be, on this cluster, without preempting or sharing."""
    work = Work(engine)
    if work.jobs == 0:
        return 0.0
    if objective == "makespan":
        return least_makespan(work)
    if objective == "p99_jct":
        return least_p99(work)
    return matched_average(work)[0] if work.matching else least_average(work)


def matched_average(work: Work) -> tuple[float, Ints, Ints]:
    """The least average JCT where all jobs are there from the start and take one unit; kind and position of each."""
    kinds = np.repeat(np.arange(len(work.kinds)), work.units.astype(np.int64))
    unit, position, total = match(work.run[:, kinds])
    return total / work.jobs, kinds[unit], position


def least_average(work: Work) -> float:
    """A bound on the average JCT.

    A job ends half its run time after the mean of the times at which it runs, and no sooner than its run time after
    its submission; it never runs on two types at a time.
    """
    slots = _Slots(work, _edges(work, SLOTS))
    job, pieces, n = slots.job, len(slots.job), work.jobs
    own = sparse.csr_matrix((slots.part * slots.begin + slots.width / 2, (job, slots.number)), shape=(n, pieces))
    long = sparse.csr_matrix((slots.width, (job, slots.number)), shape=(n, pieces))
    ends = -sparse.identity(n)
    at_once, room = slots.one_at_a_time()
    found = _solve(
        np.concatenate([np.zeros(pieces), np.ones(n)]),
        [[slots.capacity, None], [own, ends], [long, ends], [at_once, None]],
        np.concatenate([slots.most, np.zeros(n), -work.submit, room]),
        sparse.hstack([slots.whole, sparse.csr_matrix((n, n))]),
        np.concatenate([slots.room, np.full(n, np.inf)]),
    )
    assert found is not None, "everything can run before the last edge"
    return float(max((found - work.submit.sum()) / n, work.shortest.mean()))


def least_p99(work: Work) -> float:
    """A bound on the p99 JCT: all but the few slowest jobs must fit between their submission and that much later."""
    n = work.jobs
    spared = n - 1 - math.ceil(0.99 * (n - 1))  # so many may be left out, or parts of more
    edges = _edges(work, COARSE_SLOTS)

    def possible(span: float) -> bool:
        slots = _Slots(work, edges, span)
        pieces = len(slots.job)
        left_out = sparse.csr_matrix(np.ones((1, n)))
        return (
            _solve(
                np.zeros(pieces + n),
                [[slots.capacity, None], [sparse.csr_matrix((1, pieces)), left_out]],
                np.append(slots.most, spared),
                sparse.hstack([slots.whole, sparse.identity(n)]),
                np.concatenate([slots.room, np.ones(n)]),
            )
            is not None
        )

    return _least(possible, float(np.sort(work.shortest)[n - 1 - spared]))


def least_makespan(work: Work) -> float:
    """A bound on the makespan: what is submitted from some time on has only the time from then on."""
    waves = np.unique(np.quantile(work.submit, np.linspace(0.0, 1.0, WAVES), method="lower"))
    low = float((work.submit + work.shortest).max())

    def possible(end: float) -> bool:
        job, kind = np.nonzero(np.isfinite(work.run) & (work.submit[:, None] + work.run <= end * (1 + 1e-9)))
        if len(np.unique(job)) < work.jobs:
            return False
        run = work.run[job, kind]
        finite = np.flatnonzero(np.isfinite(work.units))
        rows, at_most = [], []
        for wave in waves:
            later = work.submit[job] >= wave
            for k in finite:
                rows.append(np.where(later & (kind == k), work.wanted[job] * run, 0.0))
                at_most.append(work.units[k] * (end - wave))
        whole = sparse.csr_matrix((np.ones(len(job)), (job, np.arange(len(job)))), shape=(work.jobs, len(job)))
        limits = sparse.csr_matrix(np.asarray(rows).reshape(-1, len(job)))
        return _solve(np.zeros(len(job)), [[limits]], np.asarray(at_most), whole, np.ones(len(job))) is not None

    return _least(possible, low)


def _edges(work: Work, count: int) -> Floats:
    """Edges of slots: even ones until everything could be done, then ever longer ones up to one job after the other."""
    load = float((work.wanted * work.shortest).sum()) / max(float(work.units[np.isfinite(work.units)].sum()), 1.0)
    busy = float(work.submit.max()) + 2 * load + float(work.shortest.max())
    worst = float(work.submit.max() + np.where(np.isfinite(work.run), work.run, 0.0).max(axis=1).sum())
    even = np.linspace(0.0, max(busy, 1.0), count)
    if worst <= busy:
        return even
    return np.concatenate([even, np.geomspace(busy * 1.1, max(worst, busy * 1.2) + 1.0, 12)])


class _Slots:
    """Pieces: a job on a kind of processor in a slot of time, wherever it could run after its submission."""

    def __init__(self, work: Work, edges: Floats, span: float = math.inf) -> None:
        """`span`: only pieces that end within so many seconds of the submission, on types that are fast enough."""
        n, count, slots = work.jobs, len(work.kinds), len(edges) - 1
        usable = (edges[None, 1:] > work.submit[:, None]) & (edges[None, :-1] < work.submit[:, None] + span)
        runs = np.isfinite(work.run) & (work.run <= span)
        self.job, self.kind, self.slot = np.nonzero(runs[:, :, None] & usable[:, None, :])
        self.number = np.arange(len(self.job))
        self.width = np.diff(edges)[self.slot]
        self.begin = np.maximum(edges[self.slot], work.submit[self.job])
        self.part = self.width / np.maximum(work.run[self.job, self.kind], 1e-3)  # of the job in a whole slot
        self.room = (edges[self.slot + 1] - self.begin) / self.width  # of the slot, after its submission
        finite = np.isfinite(work.units)
        counted = finite[self.kind]
        self.capacity = sparse.csr_matrix(
            (
                (work.wanted[self.job] * self.width)[counted],
                ((self.slot * count + self.kind)[counted], self.number[counted]),
            ),
            shape=(slots * count, len(self.job)),
        )
        self.most = (np.where(finite, work.units, 0.0)[None, :] * np.diff(edges)[:, None]).ravel()
        self.whole = sparse.csr_matrix((self.part, (self.job, self.number)), shape=(n, len(self.job)))

    def one_at_a_time(self) -> tuple[Any, Floats]:
        """Rows that keep a job from running on two types in the same part of a slot, and what they may reach."""
        rows, of = np.unique(self.job * (int(self.slot.max(initial=0)) + 1) + self.slot, return_inverse=True)
        room = np.zeros(len(rows))
        np.maximum.at(room, of, self.room)
        return sparse.csr_matrix((np.ones(len(of)), (of, self.number)), shape=(len(rows), len(of))), room


def _solve(cost: Floats, rows: list[list[Any]], at_most: Floats, equal: Any, upper: Floats) -> float | None:
    """The least cost·x with rows·x ≤ at_most and equal·x = 1; None where there is no such x."""
    found = linprog(
        cost,
        A_ub=sparse.bmat(rows, format="csr"),
        b_ub=at_most,
        A_eq=equal,
        b_eq=np.ones(equal.shape[0]),
        bounds=np.stack([np.zeros(len(cost)), upper], axis=1),
        method="highs-ipm",
    )
    return float(found.fun) if found.status == 0 else None


def _least(possible: Callable[[float], bool], low: float) -> float:
    """The least value that is possible, from below, by doubling and halving; `low` is known to be no more."""
    if possible(low):
        return low
    high = 2 * low
    while not possible(high):
        low, high = high, 2 * high
    while high - low > CLOSE * low:
        middle = (low + high) / 2
        if possible(middle):
            high = middle
        else:
            low = middle
    return low
