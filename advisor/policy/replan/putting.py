"""Puts jobs into a plan for the makespan: those of the last plan where they were, others where they cost least."""

from __future__ import annotations

import math

import numpy as np

from advisor.policy.replan.draft import Draft, Goal, Span, cost_of, judge, seat, seat_wide
from advisor.policy.replan.lists import insert
from advisor.policy.replan.machine_code import compiled
from advisor.policy.replan.problem import Flags, Floats, Ints
from advisor.policy.replan.slots import play

TURNS_TRIED = 0.3  # part of a wide list's positions that is tried,
WAYS_TO_SEAT = 4  # each with so many choices of units


@compiled
def reseat(s: Span, d: Draft, pool: int, goal: Goal, touched: Flags) -> None:
    """Books a pool's wide jobs anew and judges all its units."""
    seat_wide(s, d, pool, d.wide[pool], d.wide_count[pool], False)
    for u in range(s.first[pool], s.first[pool + 1]):
        touched[u] = True
        judge(s, d, u, goal)


@compiled
def put_back(
    s: Span,
    d: Draft,
    job: int,
    goal: Goal,
    blink: float,
    where: Ints,
    touched: Flags,
    changed: Flags,
    trial: Ints,
    left: Ints,
    left_where: Ints,
    left_seats: Ints,
) -> bool:
    """Puts a job where it costs least; False: nowhere. `left`: who has been taken out, from which pool and units."""
    best, best_pool, best_unit, best_at = math.inf, -1, -1, 0
    best_seats = np.zeros(d.seats.shape[1], dtype=np.int64)
    for pool in range(len(s.price)):
        first, last = s.first[pool], s.first[pool + 1]
        if s.run[job, pool] == math.inf or s.width[job, pool] > last - first:
            continue
        if s.width[job, pool] == 1:
            for u in range(first, last):
                if np.random.random() < blink:
                    continue
                n = d.length[u]
                # Without sharing the turn makes no difference to the end.
                for at in range(0 if s.share[job] else n, n + 1):
                    trial[:n] = d.jobs[u, :n]
                    insert(trial, n, job, at)
                    more = cost_of(s.price[pool], play(s, d, u, trial, n + 1, False), goal) - d.cost[u]
                    if more < best:
                        best, best_pool, best_unit, best_at = more, pool, u, at
            continue
        n, wanted = d.wide_count[pool], s.width[job, pool]
        saved = d.begin[first:last].copy()
        for at in range(n, -1, -1):
            tried = at == n or np.random.random() < TURNS_TRIED
            if not tried:
                for other in left:
                    if left_where[other] == pool and d.hole[other] == at:
                        tried = True
            if not tried:
                continue
            seat_wide(s, d, pool, d.wide[pool], at, False)
            free = d.begin[first:last].copy()
            for way in range(WAYS_TO_SEAT + len(left)):
                if way < WAYS_TO_SEAT:
                    # On the units that come free first, on those that are done first, or in between.
                    mix = 1.0 - way if way < 2 else np.random.random()
                    order = np.argsort(mix * free + (1.0 - mix) * d.end[first:last], kind="mergesort")
                    skipped = np.random.randint(last - first - wanted + 1) if way > 2 else 0
                    d.seats[job, :wanted] = first + order[skipped : skipped + wanted]
                else:
                    # Or in the place of another that has been taken out.
                    other = left[way - WAYS_TO_SEAT]
                    if left_where[other] != pool or s.width[other, pool] != wanted or abs(d.hole[other] - at) > 1:
                        continue
                    d.seats[job, :wanted] = left_seats[other, :wanted]
                d.begin[first:last] = free
                seat(s, d, pool, job, False)
                for turn in range(at, n):
                    seat(s, d, pool, d.wide[pool, turn], False)
                more = 0.0
                for u in range(first, last):
                    if d.begin[u] != saved[u - first]:
                        end = play(s, d, u, d.jobs[u], d.length[u], False)
                        more += cost_of(s.price[pool], end, goal) - d.cost[u]
                        if more > best:
                            break
                if more < best:
                    best, best_pool, best_unit, best_at = more, pool, -1, at
                    best_seats[:wanted] = d.seats[job, :wanted]
        d.begin[first:last] = saved
    if best_pool < 0:
        return False
    where[job] = best_pool
    if best_unit >= 0:
        insert(d.jobs[best_unit], d.length[best_unit], job, best_at)
        d.length[best_unit] += 1
        d.unit[job] = best_unit
        touched[best_unit] = True
        judge(s, d, best_unit, goal)
    else:
        insert(d.wide[best_pool], d.wide_count[best_pool], job, best_at)
        d.wide_count[best_pool] += 1
        d.seats[job] = best_seats
        changed[best_pool] = True
        reseat(s, d, best_pool, goal, touched)
    return True


@compiled
def _as_before(s: Span, d: Draft, before: Ints, at_unit: Ints, at_seats: Ints, position: Floats) -> Ints:
    """Puts those that were planned where they were, in their order; where the plan named no units, finds them some.

    Whoever starts at some time may have any units that are free by then; but narrow ones keep to units that narrow
    ones have had, so that wide ones go before them everywhere, as a draft wants it.
    """
    where = np.full(len(before), -1, dtype=np.int64)
    free, narrow = d.base.copy(), np.zeros(len(s.pool), dtype=np.bool_)
    for job in np.argsort(position, kind="mergesort"):
        p = before[job]
        if p < 0 or s.run[job, p] == math.inf:
            continue
        first, last = s.first[p], s.first[p + 1]
        wanted = s.width[job, p]
        if wanted > 1:
            if wanted > last - first:
                continue
            if at_seats[job, 0] >= 0:
                d.seats[job, :wanted] = at_seats[job, :wanted]
            else:
                order = np.argsort(free[first:last] + np.where(narrow[first:last], 1e15, 0.0), kind="mergesort")
                d.seats[job, :wanted] = first + order[:wanted]
            start = 0.0
            for k in range(wanted):
                start = max(start, free[d.seats[job, k]])
            for k in range(wanted):
                free[d.seats[job, k]] = start + s.run[job, p]
            d.wide[p, d.wide_count[p]] = job
            d.wide_count[p] += 1
        else:
            u = at_unit[job]
            if u < 0:
                u = first
                for other in range(first, last):
                    if _sooner(free[other], narrow[other], free[u], narrow[u], position[job] + 1e-3):
                        u = other
            free[u], narrow[u] = max(free[u], 0.0) + s.run[job, p], True
            d.jobs[u, d.length[u]] = job
            d.length[u] += 1
            d.unit[job] = u
        where[job] = p
    return where


@compiled
def _sooner(free: float, narrow: bool, other_free: float, other_narrow: bool, start: float) -> bool:
    """Whether a narrow job should take the one unit, not the other."""
    if (free <= start) != (other_free <= start):
        return free <= start
    if free <= start and narrow != other_narrow:
        return narrow
    return free > other_free if free <= start else free < other_free


@compiled
def begin_draft(
    s: Span, d: Draft, before: Ints, at_unit: Ints, at_seats: Ints, position: Floats, size: Floats, goal: Goal
) -> Ints:
    """Those that were planned as they were; then the new ones, each where it costs least."""
    pending, units = len(before), len(s.pool)
    where = _as_before(s, d, before, at_unit, at_seats, position)
    touched, changed = np.zeros(units, dtype=np.bool_), np.zeros(len(s.price), dtype=np.bool_)
    for p in range(len(s.price)):
        reseat(s, d, p, goal, touched)
    trial, nobody = np.zeros(pending + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for wide in (True, False):
        for job in np.argsort(-size, kind="mergesort"):
            if where[job] < 0 and (s.width[job].max() > 1) == wide:
                put_back(s, d, job, goal, 0.0, where, touched, changed, trial, nobody, where, d.seats)
    return where
