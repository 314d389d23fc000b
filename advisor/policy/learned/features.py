"""What the network is told of jobs and their places: `CANDIDATE_FEATURES`, of one job or of several in one go.

Each row depends on the places of its own job alone, so that a job is described in company as it is by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.policy.interface import JobShape, Prediction
from advisor.policy.learned.memory import Seen
from advisor.policy.learned.shapes import CANDIDATE_FEATURES, Floats, Ints

# What the run time rests on where the app itself has run before.
_KNOWN = frozenset({"history", "history elsewhere", "similar jobs"})


class Job(NamedTuple):
    """One of the jobs, with the places where it could start, of which there are at least two."""

    number: int  # among those that were asked about
    shape: JobShape
    rows: list[Prediction]
    sensitivity: float  # to contention, by its dataflow graph
    embedding: Floats  # of that graph


def sizes(jobs: list[Job]) -> list[int]:
    """How many rows each job has."""
    return [len(job.rows) for job in jobs]


def told_of(jobs: list[Job]) -> Floats:
    """Rows: wait, run time with its slowdown, slowdown, spread, pool, whether the app is new; a column a place."""
    told: Floats = np.ascontiguousarray(
        np.array(
            [
                value
                for job in jobs
                for p in job.rows
                for value in (p.wait_s, p.run_s, p.slowdown, p.sd_log, p.pool, p.run_source not in _KNOWN)
            ],
            dtype=np.float64,
        )
        .reshape(-1, 6)
        .T
    )
    told[1] *= told[2]
    return told


def describe(jobs: list[Job], told: Floats, where: Ints, seen: Seen) -> Floats:
    """The features, one row for each place, in the order of the jobs; `told` as above, `where` its pools."""
    wait, run, _, spread, _, new = told
    finish = wait + run
    if len(jobs) == 1:
        counts, starts, first = [], [0], [int(finish.argmin())]
    else:
        counts = sizes(jobs)
        starts = [0, *np.cumsum(counts)[:-1].tolist()]
        first = [
            start + int(finish[start : start + count].argmin()) for start, count in zip(starts, counts, strict=True)
        ]
    by_job = np.empty((6, len(jobs)))  # what is the same for all of its places
    np.minimum.reduceat(run, starts, out=by_job[0])
    by_job[1] = finish[first]
    by_job[2] = [job.shape.gpus for job in jobs]
    by_job[3] = [job.sensitivity for job in jobs]
    limits = [job.shape.time_limit_s for job in jobs]
    if not all(limits):
        longest = np.maximum.reduceat(run, starts).tolist()
        limits = [limit or 3.0 * most for limit, most in zip(limits, longest, strict=True)]
    by_job[4] = limits
    by_job[5] = [job.shape.after_s for job in jobs]
    best, soonest, gpus, sensitivity, limit, after = by_job if len(jobs) == 1 else np.repeat(by_job, counts, axis=1)
    units, free, belief, belief_spread, slower = seen.by_pool[:, where]
    table = np.zeros((len(CANDIDATE_FEATURES), len(where)))
    np.log(told[1:3], out=table[3:9:5])
    np.divide(wait, best, out=table[0])
    np.divide(free, gpus, out=table[12])
    np.divide(limit, best, out=table[15])
    np.divide(after, best, out=table[13])
    np.log1p(table[0:13:12], out=table[0:13:12])
    np.log1p(table[13:16:2], out=table[13:16:2])
    np.subtract(table[3], np.log(best), out=table[1])
    if seen.usual_s:
        np.log1p(wait / seen.usual_s, out=table[2])
        table[3] -= np.log(seen.usual_s)
    else:  # nothing was submitted before
        table[2:4] = table[:2]
    np.subtract(table[1], slower, out=table[4])
    np.log(finish / soonest, out=table[5])
    table[6, first] = 1.0
    table[7] = spread
    np.multiply(belief, sensitivity, out=table[9])
    np.multiply(belief_spread, sensitivity, out=table[10])
    np.divide(gpus, units, out=table[11])
    table[14] = new
    return table.T
