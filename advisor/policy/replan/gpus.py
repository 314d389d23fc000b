"""The arrays of the search over GPUs one by one: named tuples, because numba reads those."""

from __future__ import annotations

from typing import NamedTuple

from advisor.policy.replan.problem import Flags, Floats, Ints


class Gpus(NamedTuple):
    """What does not change during a search; jobs are the pending ones, then the running ones."""

    run: Floats  # [pending, pool]
    width: Ints  # [pending]
    left: Floats  # [job] seconds of work of a running job
    app: Ints  # [job]
    share: Flags  # [job]
    pair: Floats  # [pool, app, other app]
    pool: Ints  # [gpu]
    ready: Floats  # [gpu] out of reach until then
    residents: Ints  # [gpu, 2] running jobs; -1: nobody
    age: Floats  # [job]
    weight: Floats  # [job]
    key: Floats  # [pending] the order of the queue
    fixed: Flags  # [pending] goes first, in the order of the queue
    least_gain: float
    objective: int
    reorder: bool


class Lists(NamedTuple):
    """A plan in the making."""

    jobs: Ints  # [gpu, position]
    length: Ints  # [gpu]
    wide: Ints  # [pool, position]: jobs of several GPUs
    wide_count: Ints  # [pool]
    base: Floats  # [gpu] when those that run there have ended
    begin: Floats  # [gpu] when the wide jobs that take it have ended; base where there are none
    start: Floats  # [pending] as last noted
    ended: Floats  # [job] as last played
