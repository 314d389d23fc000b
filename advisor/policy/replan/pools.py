"""Which pool each pending job should wait for, and in which order: annealing over lists of jobs, one list a pool.

A pool is the units (GPUs, or CPUs) of one place; a list is judged by handing its jobs, in order, to the units that
come free first. Moves take a job to another pool or another position, or exchange two jobs; each costs the judging of
the two lists it touches. Order is only touched where the caller allows it.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.policy.replan.lists import OVER_SQUARED, TAIL_POWER, TIGHTER, insert, remove
from advisor.policy.replan.machine_code import compiled, entry
from advisor.policy.replan.problem import MAKESPAN, P99_JCT, Flags, Floats, Ints

# Where a moved job goes in its new list: to the turn of the one it replaces, by its length, or anywhere.
SAME_TURN, BY_LENGTH = 0.05, 0.9


@compiled
def _give(units: Floats, n: int, wanted: int, seconds: float) -> float:
    """Books the first `wanted` of n sorted unit times and keeps them sorted; the end."""
    end = units[wanted - 1] + seconds
    k = wanted
    while k < n and units[k] < end:
        units[k - wanted] = units[k]
        k += 1
    for z in range(k - wanted, k):
        units[z] = end
    return float(end)


@compiled
def _judge(
    jobs: Ints,
    count: int,
    pool: int,
    run: Floats,
    width: Ints,
    ready: Floats,
    units: Floats,
    age: Floats,
    weight: Floats,
    objective: int,
    scale: float,
) -> float:
    """What a pool's list costs under the objective; inf: a job stands where it cannot run."""
    n = len(ready)
    for k in range(n):
        units[k] = ready[k]
    cost = 0.0
    for k in range(count):
        job = jobs[k]
        wanted = width[job, pool]
        if wanted > n or run[job, pool] == math.inf:
            return math.inf
        end = _give(units, n, wanted, run[job, pool])
        if objective == P99_JCT:
            cost += ((age[job] + end) / scale) ** TAIL_POWER
        else:
            cost += weight[job] * end
    if objective == MAKESPAN:
        # The mean only tells apart plans that end at the same time.
        cost *= 1e-6 / scale
        for k in range(n):
            over = max(0.0, units[k] / scale - 1.0)
            cost += over + OVER_SQUARED * over * over
    return cost


@compiled
def _by_key(jobs: Ints, count: int, key: Floats, job: int) -> int:
    """Where a job belongs in a list that is sorted by key."""
    at = count
    while at > 0 and key[jobs[at - 1]] > key[job]:
        at -= 1
    return at


@compiled
def _by_length(jobs: Ints, count: int, first: int, run: Floats, width: Ints, pool: int, job: int, longest: bool) -> int:
    """Shortest first; for the makespan the widest first, of equals the longest: small ones fill what is left."""
    at = first
    mine, wide = run[job, pool], width[job, pool]
    while at < count:
        other, across = run[jobs[at], pool], width[jobs[at], pool]
        if (across < wide or (across == wide and other < mine)) if longest else other > mine:
            break
        at += 1
    return at


@entry
def search_pools(
    run: Floats,
    width: Ints,
    ready: Floats,
    ready_first: Ints,
    age: Floats,
    weight: Floats,
    key: Floats,
    fixed: Flags,
    reorder: bool,
    objective: int,
    scale: float,
    before: Ints,
    position: Floats,
    steps: int,
    heat: float,
    seed: int,
) -> tuple[Ints, Ints, float]:
    """Places and ranks (position in its pool's list) of the jobs, and the cost.

    `ready[ready_first[p]:ready_first[p + 1]]`: when the units of pool p come free, sorted. `key`: the order of jobs
    that must not be touched (all, without `reorder`; those that are `fixed`, which also go first). `before`: the pool
    of the last plan, -1 for a new job; `position`: its rank then.
    """
    np.random.seed(seed)
    n_jobs, n_pools = run.shape
    lists = np.zeros((n_pools, n_jobs + 1), dtype=np.int64)
    trial = np.zeros((2, n_jobs + 1), dtype=np.int64)
    count = np.zeros(n_pools, dtype=np.int64)
    heads = np.zeros(n_pools, dtype=np.int64)  # how many of each list are fixed
    cost = np.zeros(n_pools)
    units = np.zeros(len(ready))
    place = before.copy()
    longest = objective == MAKESPAN

    for phase in range(2):
        # First those that keep their place, in their order; then the new ones, each where it costs least.
        if phase == 0:
            order = np.argsort(position if reorder else key, kind="mergesort")
        else:
            best_run = np.zeros(n_jobs)
            for j in range(n_jobs):
                best_run[j] = run[j].min()
            order = np.argsort((-best_run if longest else best_run) if reorder else key, kind="mergesort")
        for job in order:
            if (before[job] >= 0) != (phase == 0):
                continue
            best, where, at_best = math.inf, -1, 0
            for p in range(n_pools):
                if (phase == 0 and p != before[job]) or run[job, p] == math.inf:
                    continue
                if width[job, p] > ready_first[p + 1] - ready_first[p]:
                    continue
                if fixed[job]:
                    at = _by_key(lists[p], heads[p], key, job)
                elif not reorder:
                    at = _by_key(lists[p], count[p], key, job)
                elif phase == 0:
                    at = count[p]
                else:
                    at = _by_length(lists[p], count[p], heads[p], run, width, p, job, longest)
                trial[0, : count[p]] = lists[p, : count[p]]
                insert(trial[0], count[p], job, at)
                mine = ready[ready_first[p] : ready_first[p + 1]]
                new = _judge(trial[0], count[p] + 1, p, run, width, mine, units, age, weight, objective, scale)
                if new - cost[p] < best or where < 0:
                    best, where, at_best = new - cost[p], p, at
            if where < 0:
                continue
            insert(lists[where], count[where], job, at_best)
            count[where] += 1
            heads[where] += 1 if fixed[job] else 0
            cost[where] += best
            place[job] = where

    latest = np.zeros(n_pools)
    for p in range(n_pools):
        mine = ready[ready_first[p] : ready_first[p + 1]]
        cost[p] = _judge(lists[p], count[p], p, run, width, mine, units, age, weight, objective, scale)
        if len(mine) > 0:
            latest[p] = units[: len(mine)].max()
    if longest:
        scale = max(TIGHTER * latest.max(), 1e-9)
        for p in range(n_pools):
            mine = ready[ready_first[p] : ready_first[p + 1]]
            cost[p] = _judge(lists[p], count[p], p, run, width, mine, units, age, weight, objective, scale)
    best_cost = cost.sum()
    best_lists, best_count = lists.copy(), count.copy()
    temperature = heat * (1.0 if longest else best_cost) / max(n_jobs, 1)
    cooling = 1e-3 ** (1.0 / max(steps, 1))
    for _ in range(steps if n_jobs > 0 else 0):
        temperature *= cooling
        job = np.random.randint(n_jobs)
        p = place[job]
        if p < 0:
            continue
        i = 0
        while lists[p, i] != job:
            i += 1
        exchange = np.random.random() < 0.5
        if exchange:
            other = np.random.randint(n_jobs)
            q = place[other]
            if q < 0 or other == job or (q == p and not reorder) or fixed[job] or fixed[other]:
                continue
            if run[job, q] == math.inf or run[other, p] == math.inf:
                continue
        else:
            other = -1
            q = np.random.randint(n_pools)
            if run[job, q] == math.inf or (q == p and (not reorder or fixed[job])):
                continue
        trial[0, : count[p]] = lists[p, : count[p]]
        n_p = count[p]
        if q == p:
            if exchange:
                k = 0
                while lists[p, k] != other:
                    k += 1
                trial[0, i], trial[0, k] = other, job
            else:
                remove(trial[0], n_p, i)
                at = heads[p] + np.random.randint(n_p - heads[p])
                insert(trial[0], n_p - 1, job, at)
            n_q = n_p
        else:
            trial[1, : count[q]] = lists[q, : count[q]]
            n_q = count[q]
            if exchange:
                k = 0
                while lists[q, k] != other:
                    k += 1
                remove(trial[0], n_p, i)
                remove(trial[1], n_q, k)
                _place_in(trial[0], n_p - 1, heads[p], run, width, key, p, other, reorder, fixed, longest, i)
                _place_in(trial[1], n_q - 1, heads[q], run, width, key, q, job, reorder, fixed, longest, k)
            else:
                remove(trial[0], n_p, i)
                n_p -= 1
                _place_in(trial[1], n_q, heads[q], run, width, key, q, job, reorder, fixed, longest, -1)
                n_q += 1
        mine = ready[ready_first[p] : ready_first[p + 1]]
        new_p = _judge(trial[0], n_p, p, run, width, mine, units, age, weight, objective, scale)
        new_q = 0.0
        change = new_p - cost[p]
        if q != p:
            theirs = ready[ready_first[q] : ready_first[q + 1]]
            new_q = _judge(trial[1], n_q, q, run, width, theirs, units, age, weight, objective, scale)
            change += new_q - cost[q]
        if not (change <= 0.0 or (temperature > 0.0 and np.random.random() < math.exp(-change / temperature))):
            continue
        lists[p, :n_p] = trial[0, :n_p]
        count[p], cost[p] = n_p, new_p
        if q != p:
            lists[q, :n_q] = trial[1, :n_q]
            count[q], cost[q] = n_q, new_q
            place[job] = q
            if exchange:
                place[other] = p
            elif fixed[job]:
                heads[p] -= 1
                heads[q] += 1
        total = cost.sum()
        if longest:
            # The goal moves on as soon as it is met.
            if total < 1e-3:
                best_lists[:], best_count[:] = lists, count
                scale *= TIGHTER
                for r in range(n_pools):
                    mine = ready[ready_first[r] : ready_first[r + 1]]
                    cost[r] = _judge(lists[r], count[r], r, run, width, mine, units, age, weight, objective, scale)
                best_cost = cost.sum()
        elif total < best_cost - 1e-9 * abs(best_cost):
            best_cost = total
            best_lists[:], best_count[:] = lists, count
    rank = np.zeros(n_jobs, dtype=np.int64)
    found = np.full(n_jobs, -1, dtype=np.int64)
    for p in range(n_pools):
        for k in range(best_count[p]):
            found[best_lists[p, k]] = p
            rank[best_lists[p, k]] = k
    return found, rank, best_cost


@compiled
def _place_in(
    jobs: Ints,
    count: int,
    head: int,
    run: Floats,
    width: Ints,
    key: Floats,
    pool: int,
    job: int,
    reorder: bool,
    fixed: Flags,
    longest: bool,
    hint: int,
) -> None:
    """Puts a job into a list: by key where order is not ours, else at the hint, by length or anywhere."""
    if fixed[job]:
        at = _by_key(jobs, head, key, job)
    elif not reorder:
        at = _by_key(jobs, count, key, job)
    else:
        draw = np.random.random()
        if hint >= 0 and draw < SAME_TURN:
            at = min(hint, count)
        elif draw < BY_LENGTH:
            at = _by_length(jobs, count, head, run, width, pool, job, longest)
        else:
            at = head + np.random.randint(count - head + 1)
    insert(jobs, count, job, at)


@entry
def expected_starts(run: Floats, width: Ints, ready: Floats, ready_first: Ints, pool: Ints, rank: Ints) -> Floats:
    """When each job starts by such a plan; inf: it has no pool."""
    starts = np.full(len(pool), np.inf)
    units = ready.copy()
    for job in np.argsort(rank, kind="mergesort"):
        p = pool[job]
        if p >= 0:
            mine = units[ready_first[p] : ready_first[p + 1]]
            starts[job] = mine[width[job, p] - 1]
            _give(mine, len(mine), width[job, p], run[job, p])
    return starts
