"""The least total completion time of jobs that take one unit each: a matching of jobs to units and positions.

A job that is k-th from the end on its unit delays k jobs by its run time, itself included; a unit that is busy for a
while delays all of its jobs by that. So the total is a sum over (job, unit, position), which a matching makes least.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import linear_sum_assignment

from advisor.policy.gavel.offer import Floats, Ints

_NEVER = 1e15


def match(run: Floats, busy: Floats | None = None) -> tuple[Ints, Ints, float]:
    """Unit of each job, its position from the end of the unit's queue (0: last), and the total of all completion times.

    `run`: [job, unit] seconds, inf where it cannot run; `busy`: seconds until each unit is free.
    """
    jobs, units = run.shape
    wait = np.zeros(units) if busy is None else busy
    deep = min(math.ceil(jobs / units) + 2, jobs)
    while True:
        cost = np.concatenate([k * run + wait for k in range(1, deep + 1)], axis=1)
        rows, columns = linear_sum_assignment(np.where(np.isfinite(cost), cost, _NEVER))
        position = columns // units
        # A queue as long as was allowed for might want to be longer.
        if position.max(initial=0) < deep - 1 or deep >= jobs:
            return columns % units, position, float(cost[rows, columns].sum())
        deep = min(2 * deep, jobs)
