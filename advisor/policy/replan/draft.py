"""A plan for the makespan in the making: GPUs (or other units) one by one, each with a list of jobs.

Jobs of several units go first, in one list a pool, each on units of its own; then each unit works off its own list,
two jobs at a time where they may share. Named tuples, because numba reads those.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.policy.replan.machine_code import compiled
from advisor.policy.replan.problem import Flags, Floats, Ints
from advisor.policy.replan.slots import play

OVER_SQUARED = 10.0  # weight of the square of what is beyond the goal


class Span(NamedTuple):
    """What does not change during a search; jobs are the pending ones, then the running ones; units sorted by pool."""

    run: Floats  # [pending, pool]; longer than it is where the goal forbids the place
    width: Ints  # [pending, pool]
    left: Floats  # [job] seconds of work of a running job
    app: Ints  # [job]
    share: Flags  # [job]
    pair: Floats  # [pool, app, other app]
    pool: Ints  # [unit]
    first: Ints  # [pool + 1] where the units of a pool begin
    ready: Floats  # [unit] out of reach until then
    residents: Ints  # [unit, 2] running jobs; -1: nobody
    price: Floats  # [pool] what a second of one of its units is worth; all units together: 1
    least_gain: float


class Goal(NamedTuple):
    """What the search is after at present."""

    time: float  # by then all is to have ended
    late: float  # weight of what is beyond it, for each unit
    used: float  # weight of all that is used, at its price


class Draft(NamedTuple):
    """The lists, and what follows from them."""

    jobs: Ints  # [unit, position]
    length: Ints  # [unit]
    wide: Ints  # [pool, position]
    wide_count: Ints  # [pool]
    base: Floats  # [unit] when those that run there have ended
    begin: Floats  # [unit] when the wide jobs that take it have ended; base where there are none
    end: Floats  # [unit]
    cost: Floats  # [unit]
    unit: Ints  # [pending] -1: several, or none yet
    seats: Ints  # [pending, nth] the units of a wide job, as many as it is wide
    hole: Ints  # [pending] where a wide job stood in its list before it was taken out
    start: Floats  # [pending] as last noted
    ended: Floats  # [job] as last played


@compiled
def seat_wide(s: Span, d: Draft, pool: int, wide: Ints, count: int, note: bool) -> None:
    """Books the units of a pool's wide jobs, in order: each starts when the last of its units comes free."""
    first, last = s.first[pool], s.first[pool + 1]
    d.begin[first:last] = d.base[first:last]
    for turn in range(count):
        seat(s, d, pool, wide[turn], note)


@compiled
def seat(s: Span, d: Draft, pool: int, job: int, note: bool) -> None:
    """Books the units of one wide job."""
    start = 0.0
    for k in range(s.width[job, pool]):
        start = max(start, d.begin[d.seats[job, k]])
    for k in range(s.width[job, pool]):
        d.begin[d.seats[job, k]] = start + s.run[job, pool]
    if note:
        d.start[job] = start


@compiled
def cost_of(price: float, end: float, goal: Goal) -> float:
    """What a unit that ends then costs: what is beyond the goal, on whatever unit, and all it uses, at its price.

    The latter keeps the search from wasting what it will need later, where nothing is too late yet.
    """
    over = max(0.0, end / goal.time - 1.0)
    return goal.late * (over + OVER_SQUARED * over * over) + goal.used * price * end / goal.time


@compiled
def judge(s: Span, d: Draft, unit: int, goal: Goal) -> None:
    """Writes down when a unit ends, and what that costs."""
    d.end[unit] = play(s, d, unit, d.jobs[unit], d.length[unit], False)
    d.cost[unit] = cost_of(s.price[s.pool[unit]], d.end[unit], goal)


@compiled
def empty_draft(s: Span) -> Draft:
    """Nobody has a place yet."""
    units, pools, pending = len(s.pool), len(s.price), len(s.width)
    d = Draft(
        np.zeros((units, pending + 1), dtype=np.int64),
        np.zeros(units, dtype=np.int64),
        np.zeros((pools, pending + 1), dtype=np.int64),
        np.zeros(pools, dtype=np.int64),
        np.zeros(units),
        np.zeros(units),
        np.zeros(units),
        np.zeros(units),
        np.full(pending, -1, dtype=np.int64),
        np.full((pending, max(s.width.max(), 1) if pending else 1), -1, dtype=np.int64),
        np.zeros(pending, dtype=np.int64),
        np.full(pending, np.inf),
        np.zeros(len(s.left)),
    )
    for u in range(units):
        d.base[u] = play(s, d, u, d.jobs[u], 0, False)
        d.begin[u] = d.end[u] = d.base[u]
    return d
