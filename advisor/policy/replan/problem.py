"""What replanning is asked and what it answers, as arrays: free times, run times, weights → place and order."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

OBJECTIVES = ("avg_jct", "p99_jct", "makespan")
AVG_JCT, P99_JCT, MAKESPAN = range(3)


class Waiting(msgspec.Struct, frozen=True):
    """The pending jobs, in the order of the queue; times are seconds, counted from now."""

    run: Floats  # [job, pool] expected run time; inf: cannot run there
    width: Ints  # [job, pool] units it needs
    age: Floats  # [job] seconds since its submission
    weight: Floats  # [job]
    before: Ints  # [job] pool of the last plan; -1: new
    position: Floats  # [job] its start in the last plan, counted from now (or anything that sorts like it)
    fixed: Flags  # [job] has waited so long that it goes first, in the order of the queue


class Sharing(msgspec.Struct, frozen=True):
    """GPUs one by one, and who is on them. Jobs are numbered through: the pending ones, then the running ones."""

    pool: Ints  # [gpu]
    ready: Floats  # [gpu] out of reach until then
    residents: Ints  # [gpu, 2] numbers of running jobs; -1: nobody
    left: Floats  # [pending and running] seconds of work left of a running job, counted as alone
    age: Floats  # [pending and running]
    weight: Floats
    app: Ints  # [pending and running] row of the table
    share: Flags  # [pending and running] may share
    speed: Floats  # [pool, app, other app] part of its speed that an app keeps beside another; 0: cannot
    before: Ints  # [pending] GPU of the last plan (a job of several GPUs: pool); -1: new
    # [pending, nth] GPUs of the last plan for a job of several, -1 behind the last; None: the plan named none
    seats: Ints | None = None
    least_gain: float = 1.05  # two meet only where their speeds add up to this


class Plan(msgspec.Struct, frozen=True):
    """Where each pending job should wait, and the order in which they should start."""

    pool: Ints  # -1: no pool can run it
    start: Floats  # expected start, in seconds from now
    gpu: Ints  # with sharing: the GPU it waits for; -1: any
    cost: float
    seats: Ints | None = None  # [job, nth] the GPUs that a job of several waits for, -1 behind the last
