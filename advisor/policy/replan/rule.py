"""The entry to replanning: turns a problem into the arrays of the searches, and their answers into a plan.

`plan_pools` knows pools of like units (levers `place` and `order`); `plan_sharing` knows GPUs one by one and lets two
jobs meet on one (lever `share`). Where the makespan is to be short and the order is free both use the same search.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.policy.replan.gpus import Gpus
from advisor.policy.replan.problem import MAKESPAN, OBJECTIVES, Floats, Ints, Plan, Sharing, Waiting
from advisor.policy.replan.shortest import plan_span

# Temperature at the start, as a part of the cost of one job (makespan: of the overshoot of one job).
_WARM = 0.05
_WARM_SPAN = 3.0
# What a job that shares takes of a GPU, on average over Gavel's measured pairs that are worth it.
_SHARED = 0.7


def plan_pools(
    waiting: Waiting,
    ready: Sequence[Floats],
    objective: str = "avg_jct",
    reorder: bool = False,
    steps: int = 20_000,
    seed: int = 0,
) -> Plan:
    """The plan for pools of units; `ready[pool]`: when its units come free. `reorder`: the order may change too."""
    from advisor.policy.replan.pools import expected_starts, search_pools

    goal = OBJECTIVES.index(objective)
    if goal == MAKESPAN and reorder and not waiting.fixed.any():
        plan = plan_span(waiting, _without_sharing(waiting, ready), steps, seed)
        # A pool's units are any of it: they have no number by which one could wait for them.
        return msgspec.structs.replace(plan, gpu=np.full(len(plan.pool), -1, dtype=np.int64), seats=None)
    times = [np.sort(np.maximum(one, 0.0)) for one in ready]
    first = np.concatenate(([0], np.cumsum([len(one) for one in times]))).astype(np.int64)
    flat = np.concatenate(times) if times else np.zeros(0)
    key = np.arange(len(waiting.age), dtype=np.float64)
    fixed = waiting.fixed if reorder else np.zeros(len(key), dtype=np.bool_)
    width = np.maximum(waiting.width, 1)
    pool, rank, cost = search_pools(
        waiting.run, width, flat, first, waiting.age, waiting.weight, key, fixed, reorder, goal,
        _scale(waiting, waiting.width, len(flat)), waiting.before, waiting.position, steps,
        _WARM_SPAN if goal == MAKESPAN else _WARM, seed,
    )  # fmt: skip
    start = expected_starts(waiting.run, width, flat, first, pool, rank)
    return Plan(pool, start, np.full(len(pool), -1, dtype=np.int64), float(cost))


def plan_sharing(
    waiting: Waiting,
    sharing: Sharing,
    objective: str = "avg_jct",
    reorder: bool = False,
    steps: int = 20_000,
    seed: int = 0,
) -> Plan:
    """The plan for GPUs one by one, on which two jobs may meet."""
    from advisor.policy.replan.units import search_units

    goal = OBJECTIVES.index(objective)
    if goal == MAKESPAN and reorder and not waiting.fixed.any():
        return plan_span(waiting, sharing, steps, seed)
    pending = len(waiting.age)
    fixed = waiting.fixed if reorder else np.zeros(pending, dtype=np.bool_)
    before = _seat_wide_first(waiting, sharing, objective, reorder, steps, seed)
    width = np.maximum(waiting.width.max(axis=1, initial=1), 1)
    gpus = Gpus(
        run=waiting.run,
        width=width,
        left=sharing.left,
        app=sharing.app,
        share=sharing.share,
        pair=sharing.speed,
        pool=sharing.pool,
        ready=np.maximum(sharing.ready, 0.0),
        residents=sharing.residents,
        age=sharing.age,
        weight=sharing.weight,
        key=np.arange(pending, dtype=np.float64),
        fixed=fixed,
        least_gain=float(sharing.least_gain),
        objective=goal,
        reorder=reorder,
    )
    scale = _scale(waiting, waiting.width, len(sharing.pool))
    heat = _WARM_SPAN if goal == MAKESPAN else _WARM
    pool, gpu, start, cost = search_units(gpus, before, waiting.position, scale, steps, heat, seed)
    return Plan(pool, start, gpu, float(cost))


def _without_sharing(waiting: Waiting, ready: Sequence[Floats]) -> Sharing:
    """The pools' units one by one, with nobody on them whom one could join."""
    pool = np.repeat(np.arange(len(ready)), [len(one) for one in ready])
    pending = len(waiting.age)
    return Sharing(
        pool=pool.astype(np.int64),
        ready=np.concatenate([*ready, np.zeros(0)]),
        residents=np.full((len(pool), 2), -1, dtype=np.int64),
        left=np.zeros(pending),
        age=waiting.age,
        weight=waiting.weight,
        app=np.zeros(pending, dtype=np.int64),
        share=np.zeros(pending, dtype=np.bool_),
        speed=np.zeros((len(ready), 1, 1)),
        before=np.full(pending, -1, dtype=np.int64),
    )


def _seat_wide_first(waiting: Waiting, sharing: Sharing, objective: str, reorder: bool, steps: int, seed: int) -> Ints:
    """Pools for new jobs of several GPUs: from a plan in which the others take as much less as sharing saves them."""
    wide = waiting.width.max(axis=1, initial=1) > 1
    if not (wide & (sharing.before < 0)).any():
        return sharing.before
    free = [np.zeros((sharing.pool == p).sum()) for p in range(waiting.run.shape[1])]
    may_share = sharing.share[: len(wide)]
    less = msgspec.structs.replace(waiting, run=np.where(may_share[:, None], waiting.run * _SHARED, waiting.run))
    for gpu, p in enumerate(sharing.pool):
        alone = sharing.residents[gpu, 0]
        until = sharing.ready[gpu] if alone < 0 else sharing.left[alone]
        free[p][int((sharing.pool[:gpu] == p).sum())] = until
    plan = plan_pools(less, free, objective, reorder, steps, seed)
    return np.where(wide & (sharing.before < 0), plan.pool, sharing.before)


def _scale(waiting: Waiting, width: Ints, units: int) -> float:
    """A time of the size of the plan's: all work on its fastest pool, dealt evenly, or the longest JCT at best."""
    if not len(waiting.age):
        return 1.0
    shortest = waiting.run.min(axis=1)
    shortest = np.where(np.isfinite(shortest), shortest, 0.0)
    even = float((shortest * width.min(axis=1)).sum()) / max(units, 1)
    return max(even, float((shortest + waiting.age).max()), 1.0)
