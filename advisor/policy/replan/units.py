"""Which GPU each pending job should wait for, where two jobs may share one: annealing over lists, one list a GPU.

A list is judged by playing it through (`advisor.policy.replan.slots`), those that run already included, so a guest
pays for slowing its host. Jobs of several GPUs go before the others.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.policy.replan.gpus import Gpus, Lists
from advisor.policy.replan.lists import OVER_SQUARED, TAIL_POWER, TIGHTER, insert, remove
from advisor.policy.replan.machine_code import compiled, entry
from advisor.policy.replan.problem import MAKESPAN, P99_JCT, Floats, Ints
from advisor.policy.replan.slots import play

WIDE_MOVES = 0.2  # they cost the judging of whole pools


@compiled
def _play(g: Gpus, v: Lists, gpu: int, jobs: Ints, count: int, goal: float, note: bool) -> tuple[float, float]:
    """What a GPU's list costs, and when its last job ends. With `note`, the starts of its jobs are written down."""
    for k in range(count):
        if g.run[jobs[k], g.pool[gpu]] == math.inf:
            return math.inf, math.inf
    end = play(g, v, gpu, jobs, count, note)
    cost = 0.0
    for k in range(-2, count):
        if k >= 0:
            job = jobs[k]
        else:
            job = g.residents[gpu, k + 2]
            if job < 0 or v.begin[gpu] != v.base[gpu]:
                continue
        if g.objective == P99_JCT:
            cost += ((g.age[job] + v.ended[job]) / goal) ** TAIL_POWER
        else:
            cost += g.weight[job] * v.ended[job]
    if g.objective == MAKESPAN:
        over = max(0.0, end / goal - 1.0)
        cost = cost * 1e-6 / goal + over + OVER_SQUARED * over * over
    return cost, end


@compiled
def _where(g: Gpus, jobs: Ints, count: int, job: int, pool: int) -> int:
    """Where a job belongs in a list: in the order of keys, or by its length behind those that are fixed."""
    at = 0
    if g.fixed[job] or not g.reorder:
        while at < count and (g.fixed[jobs[at]] or not g.reorder) and g.key[jobs[at]] <= g.key[job]:
            at += 1
        return at
    mine = g.run[job, pool]
    while at < count:
        other = g.run[jobs[at], pool]
        if not g.fixed[jobs[at]] and (other < mine if g.objective == MAKESPAN else other > mine):
            break
        at += 1
    return at


@compiled
def _behind_fixed(g: Gpus, jobs: Ints, count: int, at: int) -> int:
    while at < count and g.fixed[jobs[at]]:
        at += 1
    return at


@compiled
def _seat_wide(g: Gpus, v: Lists, pool: int, goal: float) -> float:
    """Gives the wide jobs of a pool, in order, the GPUs that come free first; what that costs."""
    n = 0
    for u in range(len(g.pool)):
        if g.pool[u] == pool:
            v.begin[u] = v.base[u]
            n += 1
    cost = 0.0
    taken = np.zeros(len(g.pool), dtype=np.bool_)
    for k in range(v.wide_count[pool]):
        job = v.wide[pool, k]
        if g.width[job] > n or g.run[job, pool] == math.inf:
            return math.inf
        taken[:] = False
        start = 0.0
        for _ in range(g.width[job]):
            best = -1
            for u in range(len(g.pool)):
                if g.pool[u] == pool and not taken[u] and (best < 0 or v.begin[u] < v.begin[best]):
                    best = u
            taken[best] = True
            start = max(start, v.begin[best])
        end = start + g.run[job, pool]
        for u in range(len(g.pool)):
            if taken[u]:
                v.begin[u] = end
        v.start[job] = start
        if g.objective == P99_JCT:
            cost += ((g.age[job] + end) / goal) ** TAIL_POWER
        else:
            cost += g.weight[job] * end * (1e-6 / goal if g.objective == MAKESPAN else 1.0)
    return cost


@compiled
def _begin(g: Gpus, v: Lists, before: Ints, position: Floats, goal: float, unit: Ints, pool: Ints) -> None:
    """Those that were planned keep their place in their order; then the new ones, each where it costs least."""
    n_units, n_pools, pending = len(g.pool), g.pair.shape[0], len(g.width)
    size = np.zeros(pending)
    for j in range(pending):
        size[j] = g.run[j].min()
    by_key = np.argsort(g.key, kind="mergesort")
    by_size = np.argsort(-size if g.objective == MAKESPAN else size, kind="mergesort")
    for job in np.argsort(-size, kind="mergesort") if g.reorder else by_key:
        best, where = math.inf, -1
        for p in range(n_pools):
            if g.width[job] <= 1 or g.run[job, p] == math.inf or (before[job] >= 0 and before[job] != p):
                continue
            v.wide[p, v.wide_count[p]] = job
            v.wide_count[p] += 1
            if _seat_wide(g, v, p, goal) < math.inf and v.start[job] + g.run[job, p] < best:
                best, where = v.start[job] + g.run[job, p], p
            v.wide_count[p] -= 1
        if where >= 0:
            v.wide[where, v.wide_count[where]] = job
            v.wide_count[where] += 1
            pool[job] = where
    for p in range(n_pools):
        _seat_wide(g, v, p, goal)
    trial = np.zeros(pending + 1, dtype=np.int64)
    cost = np.zeros(n_units)
    for phase in range(2):
        order = by_key
        if g.reorder:
            order = np.argsort(position, kind="mergesort") if phase == 0 else by_size
        for job in order:
            if g.width[job] > 1 or (before[job] >= 0) != (phase == 0):
                continue
            best, where, at_best = math.inf, -1, 0
            for u in range(n_units):
                p = g.pool[u]
                if p < 0 or (phase == 0 and u != before[job]) or g.run[job, p] == math.inf:
                    continue
                at = v.length[u]
                if phase == 1 or not g.reorder or g.fixed[job]:
                    at = _where(g, v.jobs[u], v.length[u], job, p)
                trial[: v.length[u]] = v.jobs[u, : v.length[u]]
                insert(trial, v.length[u], job, at)
                if v.length[u] == 0 and cost[u] == 0.0:
                    cost[u], _ = _play(g, v, u, trial, 0, goal, False)
                new, _ = _play(g, v, u, trial, v.length[u] + 1, goal, False)
                if new - cost[u] < best or where < 0:
                    best, where, at_best = new - cost[u], u, at
            if where >= 0:
                insert(v.jobs[where], v.length[where], job, at_best)
                v.length[where] += 1
                cost[where] += best
                unit[job], pool[job] = where, g.pool[where]


@compiled
def _accept(change: float, temperature: float) -> bool:
    return bool(change <= 0.0 or (temperature > 0.0 and np.random.random() < math.exp(-change / temperature)))


@compiled
def _move_wide(
    g: Gpus, v: Lists, job: int, cost: Floats, wide_cost: Floats, pool: Ints, goal: float, heat: float
) -> bool:
    """A wide job changes its pool or its turn: all GPUs of the pools it touches are judged again."""
    p, q = pool[job], np.random.randint(len(v.wide_count))
    if g.run[job, q] == math.inf:
        return False
    i = 0
    while v.wide[p, i] != job:
        i += 1
    remove(v.wide[p], v.wide_count[p], i)
    v.wide_count[p] -= 1
    at = np.random.randint(v.wide_count[q] + 1) if g.reorder else _where(g, v.wide[q], v.wide_count[q], job, q)
    insert(v.wide[q], v.wide_count[q], job, at)
    v.wide_count[q] += 1
    saved = v.begin.copy()
    new = cost.copy()
    new_p, new_q = _seat_wide(g, v, p, goal), _seat_wide(g, v, q, goal)
    change = new_q - wide_cost[q] + (new_p - wide_cost[p] if q != p else 0.0)
    for u in range(len(g.pool)):
        if (g.pool[u] == p or g.pool[u] == q) and change < math.inf:
            new[u], _ = _play(g, v, u, v.jobs[u], v.length[u], goal, False)
            change += new[u] - cost[u]
    if _accept(change, heat):
        pool[job] = q
        wide_cost[p], wide_cost[q] = new_p, new_q
        cost[:] = new
        return True
    v.begin[:] = saved
    remove(v.wide[q], v.wide_count[q], at)
    v.wide_count[q] -= 1
    insert(v.wide[p], v.wide_count[p], job, i)
    v.wide_count[p] += 1
    return False


@compiled
def _move(g: Gpus, v: Lists, job: int, cost: Floats, unit: Ints, trial: Ints, goal: float, heat: float) -> bool:
    """A job goes to another GPU or another turn, or changes places with another one."""
    p = unit[job]
    i = 0
    while v.jobs[p, i] != job:
        i += 1
    other, k = -1, 0
    if np.random.random() < 0.5:
        other = np.random.randint(len(g.width))
        if other == job or g.width[other] > 1 or unit[other] < 0 or g.fixed[job] or g.fixed[other]:
            return False
        q = unit[other]
        if g.run[other, g.pool[p]] == math.inf:
            return False
        while v.jobs[q, k] != other:
            k += 1
    else:
        q = np.random.randint(len(g.pool))
    if g.pool[q] < 0 or g.run[job, g.pool[q]] == math.inf or (q == p and (not g.reorder or g.fixed[job])):
        return False
    n_p, n_q = v.length[p], v.length[q]
    trial[0, :n_p] = v.jobs[p, :n_p]
    if q == p and other >= 0:
        trial[0, i], trial[0, k] = other, job
    elif q == p:
        remove(trial[0], n_p, i)
        at = _behind_fixed(g, trial[0], n_p - 1, np.random.randint(n_p))
        insert(trial[0], n_p - 1, job, at)
    else:
        trial[1, :n_q] = v.jobs[q, :n_q]
        remove(trial[0], n_p, i)
        n_p -= 1
        if other >= 0:
            remove(trial[1], n_q, k)
            n_q -= 1
            at = _where(g, trial[0], n_p, other, g.pool[p])
            if g.reorder and np.random.random() < 0.6:
                at = _behind_fixed(g, trial[0], n_p, min(i, n_p))
            insert(trial[0], n_p, other, at)
            n_p += 1
        at = _where(g, trial[1], n_q, job, g.pool[q])
        if g.reorder and not g.fixed[job] and np.random.random() < 0.6:
            at = _behind_fixed(g, trial[1], n_q, min(k, n_q) if other >= 0 else np.random.randint(n_q + 1))
        insert(trial[1], n_q, job, at)
        n_q += 1
    new_p, _ = _play(g, v, p, trial[0], n_p, goal, False)
    change, new_q = new_p - cost[p], 0.0
    if q != p:
        new_q, _ = _play(g, v, q, trial[1], n_q, goal, False)
        change += new_q - cost[q]
    if not _accept(change, heat):
        return False
    v.jobs[p, :n_p] = trial[0, :n_p]
    v.length[p], cost[p] = n_p, new_p
    if q != p:
        v.jobs[q, :n_q] = trial[1, :n_q]
        v.length[q], cost[q] = n_q, new_q
        unit[job] = q
        if other >= 0:
            unit[other] = p
    return True


@entry
def search_units(
    g: Gpus, before: Ints, position: Floats, scale: float, steps: int, heat: float, seed: int
) -> tuple[Ints, Ints, Floats, float]:
    """Pools, GPUs (-1: several) and starts of the pending jobs, and the cost.

    `before`: the GPU of the last plan (a job of several GPUs: its pool), -1 for a new job; `position`: its rank then.
    """
    np.random.seed(seed)
    n_units, n_pools, pending = len(g.pool), g.pair.shape[0], len(g.width)
    longest = g.objective == MAKESPAN
    v = Lists(
        np.zeros((n_units, pending + 1), dtype=np.int64),
        np.zeros(n_units, dtype=np.int64),
        np.zeros((n_pools, pending + 1), dtype=np.int64),
        np.zeros(n_pools, dtype=np.int64),
        np.zeros(n_units),
        np.zeros(n_units),
        np.full(pending, np.inf),
        np.zeros(len(g.left)),
    )
    cost, wide_cost = np.zeros(n_units), np.zeros(n_pools)
    trial = np.zeros((2, pending + 1), dtype=np.int64)
    unit = np.full(pending, -1, dtype=np.int64)
    pool = np.full(pending, -1, dtype=np.int64)
    for u in range(n_units):
        _, v.base[u] = _play(g, v, u, v.jobs[u], 0, scale, False)
        v.begin[u] = v.base[u]
    _begin(g, v, before, position, scale, unit, pool)

    goal, best_cost, temperature = scale, math.inf, 0.0
    best_jobs, best_count = v.jobs.copy(), v.length.copy()
    best_wide, best_wide_count = v.wide.copy(), v.wide_count.copy()
    cooling = 1e-3 ** (1.0 / max(steps, 1))
    fresh = True
    turn = 0
    while True:
        if fresh:
            # The makespan's goal moves on as soon as it is met.
            latest = 0.0
            for u in range(n_units):
                _, end = _play(g, v, u, v.jobs[u], v.length[u], goal, False)
                latest = max(latest, end)
            goal = max(TIGHTER * latest, 1e-9) if longest else goal
            for p in range(n_pools):
                wide_cost[p] = _seat_wide(g, v, p, goal)
            for u in range(n_units):
                cost[u], _ = _play(g, v, u, v.jobs[u], v.length[u], goal, False)
            if turn == 0:
                temperature = heat * (1.0 if longest else cost.sum() + wide_cost.sum()) / max(pending, 1)
            best_cost = math.inf
            fresh = False
        total = cost.sum() + wide_cost.sum()
        if total < best_cost - 1e-9 * abs(total):
            # A makespan's plan is only kept where it is shorter: that is when the goal moves.
            if not longest or best_cost == math.inf:
                best_jobs[:], best_count[:] = v.jobs, v.length
                best_wide[:], best_wide_count[:] = v.wide, v.wide_count
            best_cost = total
        while turn < steps and pending > 0:
            turn += 1
            temperature *= cooling
            job = np.random.randint(pending)
            if pool[job] >= 0 and g.width[job] > 1:
                if np.random.random() < WIDE_MOVES and _move_wide(g, v, job, cost, wide_cost, pool, goal, temperature):
                    break
            elif unit[job] >= 0 and _move(g, v, job, cost, unit, trial, goal, temperature):
                break
        if turn >= steps or pending == 0:
            break
        if longest:
            fresh = cost.sum() + wide_cost.sum() < 1e-3

    v.jobs[:], v.length[:], v.wide[:], v.wide_count[:] = best_jobs, best_count, best_wide, best_wide_count
    v.start[:] = np.inf
    unit[:], pool[:] = -1, -1
    for p in range(n_pools):
        _seat_wide(g, v, p, goal)
        pool[v.wide[p, : v.wide_count[p]]] = p
    for u in range(n_units):
        _play(g, v, u, v.jobs[u], v.length[u], goal, True)
        for k in range(v.length[u]):
            unit[v.jobs[u, k]], pool[v.jobs[u, k]] = u, g.pool[u]
    return pool, unit, v.start, best_cost
