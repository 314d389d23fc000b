"""The rule behind the levers, on arrays: what a plan may never say, and how close to the best it comes."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from advisor.policy.replan import OBJECTIVES, Sharing, Waiting, plan_pools, plan_sharing


def waiting(run, width=None, fixed=None) -> Waiting:
    run = np.asarray(run, dtype=np.float64)
    n = len(run)
    return Waiting(
        run=run,
        width=np.ones(run.shape, dtype=np.int64) if width is None else np.asarray(width, dtype=np.int64),
        age=np.zeros(n),
        weight=np.ones(n),
        before=np.full(n, -1, dtype=np.int64),
        position=np.zeros(n),
        fixed=np.zeros(n, dtype=np.bool_) if fixed is None else np.asarray(fixed),
    )


def gpus(run, apps, pools, speed, least_gain=1.05) -> tuple[Waiting, Sharing]:
    n = len(run)
    return waiting(run), Sharing(
        pool=np.asarray(pools, dtype=np.int64),
        ready=np.zeros(len(pools)),
        residents=np.full((len(pools), 2), -1, dtype=np.int64),
        left=np.zeros(n),
        age=np.zeros(n),
        weight=np.ones(n),
        app=np.asarray(apps, dtype=np.int64),
        share=np.ones(n, dtype=np.bool_),
        speed=np.asarray(speed, dtype=np.float64),
        before=np.full(n, -1, dtype=np.int64),
        least_gain=least_gain,
    )


def least_total(run, ready) -> float:
    """The least possible sum of completion times: jobs matched to (unit, turn from the end)."""
    columns = [(p, free, turn) for p, times in enumerate(ready) for free in times for turn in range(1, len(run) + 1)]
    cost = np.asarray([[turn * row[p] + free for p, free, turn in columns] for row in run])
    rows, chosen = linear_sum_assignment(np.where(np.isfinite(cost), cost, 1e12))
    return float(cost[rows, chosen].sum())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12))
def test_a_plan_for_the_average_is_within_one_percent_of_the_best_there_is(seed, n):
    draw = np.random.default_rng(seed)
    run = draw.lognormal(3.0, 1.0, (n, 2))
    ready = [np.sort(draw.uniform(0, 30, 2)), np.sort(draw.uniform(0, 30, 1))]
    plan = plan_pools(waiting(run), ready, "avg_jct", reorder=True, steps=20_000, seed=seed)
    total = (plan.start + run[np.arange(n), plan.pool]).sum()
    assert total == pytest.approx(plan.cost)
    assert least_total(run, ready) - 1e-6 <= total <= 1.01 * least_total(run, ready)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(OBJECTIVES), st.booleans())
def test_a_plan_gives_every_job_a_pool_that_can_run_it_and_keeps_the_order_it_may_not_touch(data, objective, reorder):
    n = data.draw(st.integers(1, 12))
    times = st.sampled_from((0.0, 1.0, 5.0, 30.0, np.inf))
    run = np.asarray([[data.draw(times) for _ in range(3)] for _ in range(n)])
    run[:, 2] = np.where(np.isfinite(run).any(axis=1), run[:, 2], 7.0)
    width = np.asarray([[data.draw(st.integers(1, 2))] * 3 for _ in range(n)])
    fixed = np.asarray([data.draw(st.booleans()) for _ in range(n)])
    ready = [np.zeros(2), np.asarray([0.0, 3.0]), np.asarray([1.0, 1.0, 9.0])]
    plan = plan_pools(waiting(run, width, fixed), ready, objective, reorder, steps=300)
    assert (plan.pool >= 0).all()
    assert np.isfinite(run[np.arange(n), plan.pool]).all()
    for pool in range(3):
        here = np.flatnonzero(plan.pool == pool)
        first = here[fixed[here]] if reorder else here
        assert (np.diff(plan.start[first]) >= 0).all()
        if reorder and len(first):
            assert plan.start[here[~fixed[here]]].min(initial=np.inf) >= plan.start[first].min()


def test_the_makespan_goes_down_where_the_average_would_leave_a_straggler():
    # Two long jobs and four short ones on two like units: the long ones must start first.
    run = [[10.0], [10.0], [1.0], [1.0], [1.0], [1.0]]
    ready = [np.zeros(2)]
    span = {
        objective: float((plan.start + np.asarray(run)[:, 0]).max())
        for objective in ("avg_jct", "makespan")
        for plan in [plan_pools(waiting(run), ready, objective, reorder=True, steps=2000)]
    }
    assert span["makespan"] == 12.0
    assert span["avg_jct"] == 12.0


def test_sharing_pairs_those_that_get_on_with_each_other():
    # Apps 0 and 1 get on well, each with itself badly; two GPUs, two jobs of each.
    speed = [[[0.4, 0.9], [0.9, 0.4]]]
    problem, sharing = gpus([[100.0]] * 4, [0, 0, 1, 1], [0, 0], speed)
    plan = plan_sharing(problem, sharing, "makespan", reorder=True, steps=3000)
    assert plan.start.tolist() == [0.0] * 4
    assert sorted(plan.gpu[:2].tolist()) == [0, 1]
    assert sorted(plan.gpu[2:].tolist()) == [0, 1]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 14))
def test_a_plan_that_may_share_ends_no_later_than_the_one_that_may_not_and_being_made_again_makes_it_no_longer(seed, n):
    draw = np.random.default_rng(seed)
    pools = [0, 0, 1, 1]
    run = draw.lognormal(3.0, 1.0, (n, 2))
    problem, sharing = gpus(run, draw.integers(0, 3, n), pools, draw.uniform(0.2, 1.0, (2, 3, 3)))
    problem = msgspec.structs.replace(problem, width=np.repeat(draw.choice([1, 1, 2], (n, 1)), 2, axis=1))
    may = (problem.width[:, 0] == 1) & (draw.random(n) < 0.7)
    alone = msgspec.structs.replace(sharing, share=np.zeros(n, dtype=np.bool_))
    apart = plan_sharing(problem, alone, "makespan", True, 4800, seed)
    units = plan_pools(problem, [np.zeros(2), np.zeros(2)], "makespan", True, 4800, seed)
    assert (units.start + run[np.arange(n), units.pool]).max() == pytest.approx(units.cost)
    shared = plan_sharing(problem, msgspec.structs.replace(sharing, share=may), "makespan", True, 4800, seed)
    assert shared.cost <= apart.cost + 1e-6
    where = np.where(problem.width[:, 0] > 1, shared.pool, shared.gpu)
    again = plan_sharing(
        msgspec.structs.replace(problem, before=shared.pool, position=shared.start),
        msgspec.structs.replace(sharing, share=may, before=where, seats=shared.seats),
        "makespan",
        True,
        480,
        seed + 1,
    )
    assert again.cost <= shared.cost + 1e-6


def test_the_makespan_is_as_short_as_it_can_be_where_wide_and_narrow_jobs_fill_the_units_to_the_end():
    # Four units for ten hours: made by cutting them up, so that ten hours are possible and nothing less is.
    run = [[6.0], [4.0], [10.0], [3.0], [7.0], [5.0], [5.0]]
    width = [[2], [2], [1], [1], [1], [1], [1]]
    problem = waiting([*run, [2.0], [8.0]], [*width, [1], [1]])
    plan = plan_pools(problem, [np.zeros(6)], "makespan", reorder=True, steps=20_000)
    assert plan.cost == pytest.approx(10.0)


def test_a_host_that_would_suffer_keeps_its_gpu_to_itself():
    problem, sharing = gpus([[100.0]] * 2, [0, 1], [0], [[[0.5, 0.3], [0.6, 0.5]]])
    plan = plan_sharing(problem, sharing, "avg_jct", reorder=True, steps=1000)
    assert sorted(plan.start.tolist()) == [0.0, 100.0]


def test_the_same_problem_and_seed_give_the_same_plan():
    run = np.random.default_rng(3).lognormal(3.0, 1.0, (30, 2))
    plans = [plan_pools(waiting(run), [np.zeros(3), np.zeros(2)], "p99_jct", True, 5000, seed=5) for _ in range(2)]
    assert plans[0].pool.tobytes() == plans[1].pool.tobytes()
    assert plans[0].start.tobytes() == plans[1].start.tobytes()
