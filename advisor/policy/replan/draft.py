"""A plan for the makespan in the making: GPUs (or other units) one by one, each with a list of jobs.

Jobs of several units go first, in one list a pool, each on the units that come free first; then each unit works off
its own list, two jobs at a time where they may share. Named tuples, because numba reads those.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from advisor.policy.replan.machine_code import compiled
from advisor.policy.replan.problem import Flags, Floats, Ints

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
    behind: Ints  # [pending] of a wide job: how many units that come free first it leaves to others
    start: Floats  # [pending] as last noted


@compiled
def play(s: Span, d: Draft, unit: int, jobs: Ints, count: int, note: bool) -> float:
    """When the last job of a unit's list ends; with `note`, the starts of its jobs are written down."""
    pool = s.pool[unit]
    run, left, app, share, pair = s.run, s.left, s.app, s.share, s.pair
    a, b, now = s.residents[unit, 0], s.residents[unit, 1], s.ready[unit]
    if d.begin[unit] != d.base[unit]:
        a, b, now = -1, -1, d.begin[unit]
    left_a = left[a] if a >= 0 else 0.0
    left_b = left[b] if b >= 0 else 0.0
    k = 0
    while True:
        while k < count and (a < 0 or b < 0):
            job = jobs[k]
            other = a if a >= 0 else b
            if other >= 0:
                if not (share[job] and share[other]):
                    break
                mine, theirs = pair[pool, app[job], app[other]], pair[pool, app[other], app[job]]
                if mine <= 0.0 or theirs <= 0.0 or mine + theirs < s.least_gain:
                    break
            if a < 0:
                a, left_a = job, run[job, pool]
            else:
                b, left_b = job, run[job, pool]
            if note:
                d.start[job] = now
            k += 1
        if a < 0 and b < 0:
            return float(now)
        speed_a, speed_b = 1.0, 1.0
        if a >= 0 and b >= 0:
            # Two that met by accident (their pair is not in the table) are taken to halve each other.
            speed_a, speed_b = pair[pool, app[a], app[b]], pair[pool, app[b], app[a]]
            if speed_a <= 0.0 or speed_b <= 0.0:
                speed_a, speed_b = 0.5, 0.5
        end_a = left_a / speed_a if a >= 0 else math.inf
        end_b = left_b / speed_b if b >= 0 else math.inf
        step = min(end_a, end_b)
        now += step
        if end_a <= end_b:
            a = -1
            left_b = max(0.0, left_b - step * speed_b)
        else:
            b = -1
            left_a = max(0.0, left_a - step * speed_a)


@compiled
def seat_wide(s: Span, d: Draft, pool: int, wide: Ints, count: int, note: bool) -> bool:
    """Gives wide jobs, in order, the units of a pool that come free first, or those behind so many of them.

    The latter puts two wide jobs onto the same units, where the others are better left to narrow ones. False: one has
    no room there.
    """
    first, last = s.first[pool], s.first[pool + 1]
    d.begin[first:last] = d.base[first:last]
    for turn in range(count):
        job = wide[turn]
        wanted = s.width[job, pool]
        if wanted > last - first:
            return False
        order = np.argsort(d.begin[first:last], kind="mergesort")
        behind = min(d.behind[job], last - first - wanted)
        start = d.begin[first + order[behind + wanted - 1]]
        for k in range(behind, behind + wanted):
            d.begin[first + order[k]] = start + s.run[job, pool]
        if note:
            d.start[job] = start
    return True


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
        np.zeros(pending, dtype=np.int64),
        np.full(pending, np.inf),
    )
    for u in range(units):
        d.base[u] = play(s, d, u, d.jobs[u], 0, False)
        d.begin[u] = d.end[u] = d.base[u]
    return d
