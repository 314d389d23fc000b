"""The search for a short makespan: takes some jobs out of the plan and puts each back where it costs least, again and
again; a worse plan is kept for a while where the temperature allows it.

Which units are worth what is told by prices (`advisor.policy.replan.prices`): a plan that wastes little of what is
dear can always be evened out later, one that wastes much cannot.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.policy.replan.draft import Draft, Goal, Span, cost_of, empty_draft, judge, seat_wide
from advisor.policy.replan.lists import remove
from advisor.policy.replan.machine_code import compiled, entry
from advisor.policy.replan.problem import Flags, Floats, Ints
from advisor.policy.replan.putting import begin_draft, put_back, reseat
from advisor.policy.replan.slots import play

EXCHANGED = 0.2  # part of the turns in which two wide jobs change places first
AWAY = 6  # jobs that are taken out at once, on average
ANYONE, FROM_THE_LATEST = 0.3, 0.3  # parts of the turns: jobs at random, or the unit that ends last and others
WIDE_DRAWN = 0.15  # otherwise each draw takes a wide job with this probability,
WHOLE_UNIT = 0.5  # or one job of a unit, or with this one all of them.
BLINK = 0.02  # places that are overlooked, so that the same jobs do not always come back to the same places;
MOST_UNITS = 64  # and of many units about so many are looked at.
USED = 0.3  # weight of all that is used, at its price, beside what is too late
PRICE_STEP = 0.05  # how fast prices follow what is left idle
NEXT_GOAL = 0.995  # of the shortest plan so far
# A place on which a job alone would last longer than this part of the bound is closed (it counts as several times as
# long), as long as the job has another.
CLOSED_BEYOND, CLOSED_TIMES = 1.03, 3.0


@compiled
def _take_out(s: Span, d: Draft, unit: int, at: int, touched: Flags) -> int:
    job = d.jobs[unit, at]
    remove(d.jobs[unit], d.length[unit], at)
    d.length[unit] -= 1
    d.unit[job] = -1
    touched[unit] = True
    return int(job)


@compiled
def _take_out_wide(s: Span, d: Draft, pool: int, at: int, where: Ints, changed: Flags) -> int:
    job = d.wide[pool, at]
    d.hole[job] = at
    remove(d.wide[pool], d.wide_count[pool], at)
    d.wide_count[pool] -= 1
    where[job] = -1
    changed[pool] = True
    return int(job)


@compiled
def _ruin(s: Span, d: Draft, where: Ints, out: Ints, touched: Flags, changed: Flags) -> int:
    """Takes jobs out of the plan; how many."""
    units, pools, pending = len(s.pool), len(s.price), len(where)
    wanted = 1 + np.random.randint(2 * AWAY)
    kind = np.random.random()
    one, other = s.pool[np.random.randint(units)], np.random.randint(pools)
    latest = int(np.argmax(d.end)) if ANYONE <= kind < ANYONE + FROM_THE_LATEST else -1
    count = 0
    for _ in range(wanted):
        if count >= wanted:
            break
        if kind < ANYONE:
            job = np.random.randint(pending)
            if where[job] < 0:
                continue
            at = 0
            if d.unit[job] >= 0:
                while d.jobs[d.unit[job], at] != job:
                    at += 1
                out[count] = _take_out(s, d, d.unit[job], at, touched)
                where[job] = -1
            else:
                while d.wide[where[job], at] != job:
                    at += 1
                out[count] = _take_out_wide(s, d, where[job], at, where, changed)
            count += 1
            continue
        pool = one if np.random.random() < 0.5 else other
        wide = WIDE_DRAWN
        if latest >= 0:
            # Its own jobs or the wide ones before them: whichever makes it late.
            pool, wide = s.pool[latest], 0.5
        if d.wide_count[pool] > 0 and np.random.random() < wide:
            latest = -1
            out[count] = _take_out_wide(s, d, pool, np.random.randint(d.wide_count[pool]), where, changed)
            count += 1
            continue
        if s.first[pool + 1] == s.first[pool]:
            continue
        unit = s.first[pool] + np.random.randint(s.first[pool + 1] - s.first[pool])
        if latest >= 0:
            unit, latest = latest, -1
        everyone = np.random.random() < WHOLE_UNIT
        while d.length[unit] > 0:
            job = _take_out(s, d, unit, np.random.randint(d.length[unit]), touched)
            where[job] = -1
            out[count] = job
            count += 1
            if not everyone:
                break
    return count


@compiled
def _exchange(s: Span, d: Draft, where: Ints, out: Ints, count: int, changed: Flags) -> int:
    """Lets two wide jobs change places; they are noted behind those that are out. How many: 2 or 0."""
    pools = len(s.price)
    p, q = np.random.randint(pools), np.random.randint(pools)
    if d.wide_count[p] == 0 or d.wide_count[q] == 0:
        return 0
    i, k = np.random.randint(d.wide_count[p]), np.random.randint(d.wide_count[q])
    one, other = d.wide[p, i], d.wide[q, k]
    wanted = s.width[one, p]
    if one == other or s.run[one, q] == math.inf or s.run[other, p] == math.inf:
        return 0
    if s.width[one, q] != s.width[other, q] or s.width[other, p] != wanted:
        return 0
    d.wide[p, i], d.wide[q, k] = other, one
    seats = d.seats[one].copy()
    d.seats[one], d.seats[other] = d.seats[other].copy(), seats
    where[one], where[other] = q, p
    changed[p], changed[q] = True, True
    out[count], out[count + 1] = one, other
    return 2


@compiled
def _copy(s: Span, source: Draft, to: Draft, touched: Flags, changed: Flags) -> None:
    """What has been touched, from one draft to another."""
    for p in range(len(s.price)):
        if changed[p]:
            to.wide[p, : source.wide_count[p]] = source.wide[p, : source.wide_count[p]]
            to.wide_count[p] = source.wide_count[p]
    for u in range(len(s.pool)):
        if touched[u]:
            n = source.length[u]
            to.jobs[u, :n] = source.jobs[u, :n]
            to.length[u], to.begin[u], to.end[u], to.cost[u] = n, source.begin[u], source.end[u], source.cost[u]


@compiled
def _reprice(s: Span, d: Draft, goal: Goal) -> None:
    """Where whole jobs leave units idle that parts of them would have filled, a unit is worth less than it was."""
    pools = len(s.price)
    idle, mean = np.zeros(pools), 0.0
    for u in range(len(s.pool)):
        idle[s.pool[u]] += 1.0 - d.end[u] / goal.time
        mean += (1.0 - d.end[u] / goal.time) * s.price[s.pool[u]]
    worth = 0.0
    for p in range(pools):
        count = s.first[p + 1] - s.first[p]
        if count > 0:
            s.price[p] *= math.exp(-PRICE_STEP * (idle[p] / count - mean))
            worth += count * s.price[p]
    for p in range(pools):
        s.price[p] /= worth


@compiled
def _turns(s: Span, size: Floats, out: Ints, count: int) -> Ints:
    """In which order they come back: the wide ones first, then mostly what needs most, sometimes anyhow."""
    key = np.zeros(count)
    mixed = np.random.random()
    for k in range(count):
        job = out[k]
        key[k] = np.random.random() if mixed < 0.2 else -size[job] * math.exp(0.3 * np.random.randn())
        if mixed < 0.9 and s.width[job].max() > 1:
            key[k] -= 1e12 * s.width[job].max()
    return np.argsort(key, kind="mergesort")


@entry
def search_span(
    s: Span,
    true_run: Floats,
    before: Ints,
    at_unit: Ints,
    at_seats: Ints,
    position: Floats,
    bound: float,
    turns: int,
    hot: float,
    cold: float,
    seed: int,
) -> tuple[Ints, Ints, Ints, Floats, float]:
    """Pools, units (-1: several), units of wide jobs, and starts of the pending jobs, and the makespan.

    `before`, `at_unit`, `at_seats`: pool and units of the last plan, -1 for a new job; `position`: its start then.
    `bound`: a plan need not be shorter. `hot`, `cold`: temperatures, in parts of the makespan. `s.run` is written to.
    """
    np.random.seed(seed)
    units, pools, pending = len(s.pool), len(s.price), len(before)
    size = np.zeros(pending)
    for j in range(pending):
        needed = math.inf
        for p in range(pools):
            needed = min(needed, true_run[j, p] * s.width[j, p] * s.price[p])
        size[j] = needed
        shortest = true_run[j].min()
        for p in range(pools):
            if true_run[j, p] > max(CLOSED_BEYOND * bound, shortest) and true_run[j, p] < math.inf and before[j] != p:
                s.run[j, p] = CLOSED_TIMES * true_run[j, p]
    blink = max(BLINK, 1.0 - MOST_UNITS / max(units, 1))
    d = empty_draft(s)
    late = 1.0 / max(units, 1)
    goal = Goal(max(bound, 1e-9), late, USED)
    where = begin_draft(s, d, before, at_unit, at_seats, position, size, goal)
    best = d.end.max() if units else 0.0
    everything, all_pools = np.ones(units, dtype=np.bool_), np.ones(pools, dtype=np.bool_)
    kept, kept_where, kept_unit = empty_draft(s), where.copy(), d.unit.copy()
    found, found_where = empty_draft(s), where.copy()
    _copy(s, d, kept, everything, all_pools)
    _copy(s, d, found, everything, all_pools)
    kept.seats[:], found.seats[:] = d.seats, d.seats
    touched, changed = np.zeros(units, dtype=np.bool_), np.zeros(pools, dtype=np.bool_)
    wides = 0
    for j in range(pending):
        wides += 1 if s.width[j].max() > 1 else 0
    out, trial = np.zeros(pending + 2, dtype=np.int64), np.zeros(pending + 1, dtype=np.int64)
    total, temperature, fresh = 0.0, hot, True
    for turn in range(turns if pending and best > bound else 0):
        if turn % 100 == 0 or fresh:
            temperature = hot * (cold / hot) ** (turn / turns)
            goal = Goal(max(NEXT_GOAL * best, bound, 1e-9), late, USED)
            _reprice(s, d, goal)
            for u in range(units):
                d.cost[u] = cost_of(s.price[s.pool[u]], d.end[u], goal)
                kept.cost[u] = d.cost[u]
            total = d.cost.sum()
            fresh = False
        touched[:], changed[:] = False, False
        count = _ruin(s, d, where, out, touched, changed)
        moved = count
        if wides > 1 and np.random.random() < EXCHANGED:
            moved += _exchange(s, d, where, out, count, changed)
        if moved == 0:
            continue
        for p in range(pools):
            if changed[p]:
                reseat(s, d, p, goal, touched)
        for u in range(units):
            if touched[u]:
                judge(s, d, u, goal)
        good = True
        for k in _turns(s, size, out, count):
            good = good and put_back(
                s, d, out[k], goal, blink, where, touched, changed, trial, out[:count], kept_where, kept.seats
            )
        cost = d.cost.sum()
        if good and (cost <= total or np.random.random() < math.exp((total - cost) / temperature)):
            total = cost
            _copy(s, d, kept, touched, changed)
            for k in range(moved):
                job = out[k]
                kept_where[job], kept_unit[job], kept.seats[job] = where[job], d.unit[job], d.seats[job]
            latest = d.end.max()
            if latest < best - 1e-6:
                best, fresh = latest, True
                _copy(s, d, found, everything, all_pools)
                found_where[:], found.seats[:] = where, d.seats
                if best <= bound:
                    break
        else:
            _copy(s, kept, d, touched, changed)
            for k in range(moved):
                job = out[k]
                where[job], d.unit[job], d.seats[job] = kept_where[job], kept_unit[job], kept.seats[job]
    return _noted(s, found, found_where, true_run)


@compiled
def _noted(s: Span, d: Draft, where: Ints, true_run: Floats) -> tuple[Ints, Ints, Ints, Floats, float]:
    """The plan with its starts."""
    s.run[:] = true_run
    unit = np.full(len(where), -1, dtype=np.int64)
    latest = 0.0
    for p in range(len(s.price)):
        seat_wide(s, d, p, d.wide[p], d.wide_count[p], True)
    for u in range(len(s.pool)):
        latest = max(latest, play(s, d, u, d.jobs[u], d.length[u], True))
        for k in range(d.length[u]):
            unit[d.jobs[u, k]] = u
    return where, unit, d.seats, d.start, latest
