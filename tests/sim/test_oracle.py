"""The oracle: schedules that can be run, as good as the best there is where that is known, and bounds below them."""

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.policy.gavel.matching import match
from advisor.sim.bound import OBJECTIVES, Work, lower_bound
from advisor.sim.cluster import parse_cluster
from advisor.sim.engine import Engine
from advisor.sim.neighbours import AppTable
from advisor.sim.oracle import OracleError, find_best, measured
from advisor.sim.patterns import closer_makespan, closer_shared_makespan
from advisor.sim.planned import Planning, run_planned
from advisor.sim.shared_patterns import least_use
from advisor.sim.simulate import simulate
from advisor.sim.workload import SimJob, Workload

SMALL = parse_cluster("v100=1,k80=2")


def workload(jobs) -> Workload:
    """Jobs from (submit, seconds on v100, seconds on k80, GPUs)."""
    made = [
        SimJob(id=str(i), submit=submit, gpus=gpus, nodes=gpus, run_time={"v100": fast, "k80": slow})
        for i, (submit, fast, slow, gpus) in enumerate(jobs)
    ]
    return Workload("w", tuple(sorted(made, key=lambda job: job.submit)))


@st.composite
def workloads(draw, most=6, wide=False):
    seconds = st.integers(10, 1000).map(float)
    gpus = st.sampled_from((1, 1, 2)) if wide else st.just(1)
    jobs = [
        (float(draw(st.integers(0, 800))), draw(seconds), draw(seconds), draw(gpus))
        for _ in range(draw(st.integers(1, most)))
    ]
    return workload(jobs)


def exhaustive(engine: Engine, objective: str) -> float:
    """The best of all orders and places of one-GPU jobs, each started as soon as its place has a GPU."""
    best = math.inf
    n = len(engine.workload.jobs)
    counts = [1, 2]
    for order in itertools.permutations(range(n)):
        for places in itertools.product((0, 1), repeat=n):
            free = [[0.0] * count for count in counts]
            end = np.zeros(n)
            for j in order:
                line = free[places[j]]
                k = min(range(len(line)), key=line.__getitem__)
                start = max(line[k], engine.jobs.submit[j])
                line[k] = end[j] = start + engine.jobs.run[j, places[j]]
            jct = end - engine.jobs.submit
            value = {"avg_jct": jct.mean(), "makespan": end.max() - engine.jobs.submit.min(), "p99_jct": jct.max()}
            best = min(best, float(value[objective]))
    return best


def assert_runnable(engine, schedule):
    submit = engine.jobs.submit
    assert (schedule.start >= submit).all()
    assert schedule.end == pytest.approx(schedule.start + engine.jobs.run[np.arange(len(submit)), schedule.place])
    moments = sorted({*schedule.start})
    for now in moments:
        on = [j for j in range(len(submit)) if schedule.start[j] <= now < schedule.end[j]]
        used = [node for j in on for node in schedule.nodes_of(j)]
        assert len(used) == len(set(used)), "a GPU was given twice"


@settings(max_examples=12, deadline=None)
@given(workloads(most=4), st.sampled_from(OBJECTIVES))
def test_small_workloads_get_the_best_schedule_there_is(work, objective):
    engine = Engine(SMALL, work)
    found = find_best(engine, objective, effort=0.5)
    assert_runnable(engine, found.schedule)
    best = exhaustive(engine, objective)
    assert found.value_s <= best * 1.001
    assert found.bound_s <= found.value_s * (1 + 1e-6)


@settings(max_examples=15, deadline=None)
@given(workloads(most=12, wide=True), st.sampled_from(OBJECTIVES))
def test_nothing_is_below_the_bound_and_the_oracle_is_no_worse_than_any_rule(work, objective):
    engine = Engine(SMALL, work)
    found = find_best(engine, objective, effort=0.2)
    assert_runnable(engine, found.schedule)
    for rule in ("earliest-finish", "shortest-first", "earliest-start"):
        (outcome,) = simulate(work, SMALL, [rule])
        value = measured(engine, outcome.schedule, objective)
        assert found.bound_s <= value * (1 + 1e-6)
        assert found.value_s <= value * (1.02 if objective != "avg_jct" else 1.0) + 1e-6


@settings(max_examples=12, deadline=None)
@given(workloads(most=4))
def test_the_closer_bound_is_never_above_the_best_schedule_and_never_below_the_plain_one(work):
    together = Workload("w", tuple(msgspec.structs.replace(job, submit=0.0) for job in work.jobs))
    engine = Engine(SMALL, together)
    best = exhaustive(engine, "makespan")
    bound = closer_makespan(Work(engine), best)
    assert lower_bound(engine, "makespan") - 1e-6 <= bound <= best * (1 + 1e-6)


def test_three_jobs_on_two_like_gpus_take_two_turns_whatever_the_area_says():
    cluster = parse_cluster("k80=2")
    engine = Engine(cluster, workload([(0.0, math.inf, 100.0, 1)] * 3))
    assert lower_bound(engine, "makespan") == pytest.approx(150.0, rel=0.01)
    assert closer_makespan(Work(engine), 200.0) == pytest.approx(200.0, rel=0.01)


def test_the_oracle_knows_what_is_still_to_come():
    # A greedy rule starts the long job at once; whoever knows that ten short ones follow lets it wait.
    jobs = [(0.0, 1000.0, 1e6, 1)] + [(1.0 + i, 10.0, 1e6, 1) for i in range(10)]
    cluster = parse_cluster("v100=1,k80=1")
    found = find_best(Engine(cluster, workload(jobs)), "avg_jct")
    assert found.schedule.start[0] >= 100
    (greedy,) = simulate(workload(jobs), cluster, ["shortest-first"])
    assert found.value_s / 3600 < greedy.row.avg_jct_h / 2


def test_jobs_that_wait_for_others_start_after_them():
    jobs = tuple(
        SimJob(
            id=str(i), submit=0.0, gpus=1, run_time={"v100": 100.0, "k80": 150.0}, depends=(str(i - 1),) if i else ()
        )
        for i in range(5)
    )
    found = find_best(Engine(SMALL, Workload("chain", jobs)), "makespan", effort=0.5)
    assert (found.schedule.start[1:] >= found.schedule.end[:-1]).all()
    assert found.value_s == pytest.approx(500.0)


def test_one_unit_jobs_from_the_start_are_matched_exactly():
    rng = np.random.default_rng(0)
    run = rng.uniform(10, 1000, (5, 2))
    _, _, total = match(run)
    best = math.inf
    for places in itertools.product((0, 1), repeat=5):
        value = 0.0
        for unit in (0, 1):
            lengths = sorted(run[j, unit] for j in range(5) if places[j] == unit)
            value += sum(itertools.accumulate(lengths))
        best = min(best, value)
    assert total == pytest.approx(best)


def test_same_seed_same_schedule():
    work = workload([(10.0 * i, 100.0 + 13 * i, 300.0 - 7 * i, 1) for i in range(20)])
    one, two = (find_best(Engine(SMALL, work), "makespan", seed=3, effort=0.1).schedule for _ in range(2))
    assert one.to_bytes() == two.to_bytes()


def test_too_many_jobs_are_refused_with_the_number_allowed():
    work = workload([(0.0, 1.0, 1.0, 1)] * 2001)
    with pytest.raises(OracleError, match=r"2001 jobs are too many.*2,000"):
        find_best(Engine(SMALL, work))


def test_an_empty_workload_has_a_bound_of_nothing():
    assert lower_bound(Engine(SMALL, Workload("none", ())), "avg_jct") == 0.0


def test_the_bound_with_sharing_counts_whole_jobs_two_to_a_gpu():
    # Two GPUs, three jobs alike: beside another each takes 125 s, so that two of them must share, and none ends sooner.
    cluster, table = parse_cluster("v100=2"), AppTable({("x", "x"): 1.25})
    jobs = [SimJob(str(j), 0.0, {"v100": 100.0}, app="x", gpus=1, share=True) for j in range(3)]
    made = Workload("w", tuple(jobs))
    work = Work(Engine(cluster, made))
    use = least_use(made, work, table)
    assert use[:, 0] == pytest.approx(0.625, rel=1e-3)
    assert closer_shared_makespan(work, 140.0, use) == pytest.approx(125.0, rel=0.01)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8))
def test_no_run_that_shares_ends_before_the_bound(seed, n):
    draw = np.random.default_rng(seed)
    cluster = parse_cluster("v100=2,k80=3")
    table = AppTable({(a, b): float(draw.uniform(1.0, 2.2)) for a in "xy" for b in "xy"})
    jobs = []
    for j, wide in enumerate(draw.choice([1, 1, 2], n)):
        run = {"v100": float(draw.integers(100, 900)), "k80": float(draw.integers(100, 900))}
        app = "xy"[draw.integers(2)]
        jobs.append(SimJob(str(j), 0.0, run, app=app, gpus=int(wide), nodes=int(wide), cpus=int(wide), share=True))
    made = Workload("w", tuple(jobs))
    levers, planning = ("place", "order", "share"), Planning(steps_new=200, steps_kept=10)
    end = run_planned(made, cluster, levers, "makespan", contention=table, planning=planning, seed=seed).end.max()
    work = Work(Engine(cluster, made))
    assert closer_shared_makespan(work, end, least_use(made, work, table)) <= end + 1e-6
