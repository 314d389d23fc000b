"""What runs with levers may never do, whatever the jobs and the neighbours, and what each lever does in small cases."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.sim import planner
from advisor.sim.cluster import parse_cluster
from advisor.sim.engine import Engine, Scheduler
from advisor.sim.neighbours import AppTable
from advisor.sim.planned import Outage, Planning, run_planned
from advisor.sim.workload import SimJob, Workload
from tests.sim.test_engine import clusters, workloads

SMALL = Planning(steps_new=20, steps_kept=5, round_s=2.0, longest_wait_s=30.0, restart_s=1.0)
LEVERS = st.sampled_from(
    [(), ("place",), ("place", "order"), ("place", "share"), ("place", "order", "share"), ("place", "order", "requeue")]
)
OBJECTIVES = st.sampled_from(("avg_jct", "p99_jct", "makespan"))
# App "" beside itself: to 1.5 times as long.
SLOWER = AppTable({("", ""): 1.5})


def sharing(workload: Workload) -> Workload:
    """Every second job may share, every third may be requeued."""
    jobs = [
        SimJob(**{**{f: getattr(job, f) for f in job.__struct_fields__}, "share": i % 2 == 0, "requeue": i % 3 == 0})
        for i, job in enumerate(workload.jobs)
    ]
    return Workload(workload.name, tuple(jobs))


def pieces(schedule, workload, cluster):
    """(job, node, start, end) of the last run of every job."""
    for j in range(len(workload.jobs)):
        for node in schedule.nodes_of(j):
            yield j, node, schedule.start[j], schedule.end[j]


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(("none", "easy", "conservative")))
def test_without_levers_it_is_the_plain_engine_byte_for_byte(data, backfill):
    cluster = data.draw(clusters())
    workload = data.draw(workloads(cluster))
    scheduler = Scheduler(backfill=backfill, launch_s=data.draw(st.sampled_from((0.0, 0.5))))
    plain = Engine(cluster, workload, scheduler).run()
    assert run_planned(workload, cluster, (), scheduler=scheduler).to_bytes() == plain.to_bytes()


@settings(max_examples=30, deadline=None)
@given(st.data(), LEVERS, OBJECTIVES)
def test_no_lever_over_commits_a_node_or_loses_a_job(data, levers, objective):
    cluster = data.draw(clusters(disjoint=True))
    workload = sharing(data.draw(workloads(cluster)))
    schedule = run_planned(workload, cluster, levers, objective, contention=SLOWER, planning=SMALL)
    engine = Engine(cluster, workload)
    number = {job.id: j for j, job in enumerate(workload.jobs)}
    for j, job in enumerate(workload.jobs):
        nodes = schedule.nodes_of(j)
        place = cluster.places[schedule.place[j]]
        assert len(set(nodes)) == job.nodes
        assert set(nodes) <= set(place.nodes)
        assert schedule.start[j] >= job.submit
        assert schedule.end[j] >= schedule.start[j]
        assert all(schedule.start[j] >= schedule.end[number[other]] for other in job.depends)
        # Alone at the fastest; beside others on the node at most (all others, each 1.5 times) slower.
        seconds = min(job.seconds_on(place.processor), math.inf if job.time_limit is None else job.time_limit)
        assert schedule.end[j] - schedule.start[j] >= seconds - 1e-6 or schedule.timed_out[j]
    for moment in set(schedule.start.tolist()):
        running = [j for j in range(len(workload.jobs)) if schedule.start[j] <= moment < schedule.end[j]]
        for i, node in enumerate(cluster.nodes):
            here = [j for j in running if i in schedule.nodes_of(j)]
            used = engine.jobs.need[here].sum(axis=0) if here else np.zeros(3)
            assert used[0] <= node.cpus
            assert used[1] <= node.memory_mb
            guests = [j for j in here if workload.jobs[j].share and workload.jobs[j].gpus == 1]
            whole = used[2] - len(guests)
            # Two that share fill one GPU; nobody else shares.
            assert whole + math.ceil(len(guests) / 2) <= node.gpus
            if "share" not in levers:
                assert used[2] <= node.gpus
            assert len(here) <= 1 or not any(workload.jobs[j].exclusive for j in here)


@settings(max_examples=20, deadline=None)
@given(st.data(), LEVERS, OBJECTIVES, st.integers(0, 3))
def test_the_same_seed_gives_the_same_bytes(data, levers, objective, seed):
    cluster = data.draw(clusters(disjoint=True))
    workload = sharing(data.draw(workloads(cluster)))
    first, second = (
        run_planned(workload, cluster, levers, objective, contention=SLOWER, planning=SMALL, seed=seed)
        for _ in range(2)
    )
    assert first.to_bytes() == second.to_bytes()
    assert first.held.tobytes() == second.held.tobytes()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30), st.sampled_from("abc")), min_size=1, max_size=12),
    st.dictionaries(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), st.floats(1.0, 3.0)),
)
def test_work_is_conserved_while_neighbours_come_and_go(rows, slowdown):
    rows.sort()
    jobs = [SimJob(str(i), submit, {"cpu": run}, app=app) for i, (submit, run, app) in enumerate(rows)]
    schedule = run_planned(Workload("w", tuple(jobs)), parse_cluster("cpu=2x3"), (), contention=AppTable(slowdown))
    moments = sorted({*schedule.start.tolist(), *schedule.end.tolist()})
    for j, job in enumerate(jobs):
        worked = 0.0
        for begin, end in pairwise(moments):
            if schedule.start[j] <= begin and end <= schedule.end[j]:
                others = [
                    k
                    for k in range(len(jobs))
                    if k != j
                    and schedule.nodes_of(k) == schedule.nodes_of(j)
                    and schedule.start[k] <= begin < schedule.end[k]
                ]
                speed = math.prod(1.0 / slowdown.get((job.app, jobs[k].app), 1.0) for k in others)
                worked += (end - begin) * max(speed, 0.02)
        assert worked == pytest.approx(job.run_time["cpu"], rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.data(), LEVERS, st.booleans())
def test_jobs_on_a_node_that_fails_come_back_or_fail_and_nobody_runs_there_meanwhile(data, levers, requeue):
    cluster = data.draw(clusters(disjoint=True))
    workload = sharing(data.draw(workloads(cluster)))
    outages = [
        Outage(data.draw(st.integers(0, len(cluster.nodes) - 1)), start, start + length, requeue)
        for start, length in data.draw(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=4))
    ]
    schedule = run_planned(workload, cluster, levers, contention=SLOWER, planning=SMALL, outages=outages)
    assert np.isfinite(schedule.end).all()
    for j, node, start, end in pieces(schedule, workload, cluster):
        for outage in outages:
            if outage.node == node and start < outage.end:
                assert end <= outage.start or (schedule.failed[j] and end == outage.start), (j, outage)
    assert requeue or not schedule.requeues.any() or "requeue" in levers
    if requeue:
        assert not schedule.failed.any()


def test_a_node_failure_costs_a_requeued_job_its_work_and_the_restart():
    jobs = Workload("w", (SimJob("1", 0.0, {"cpu": 100.0}),))
    schedule = run_planned(
        jobs, parse_cluster("cpu=1x1"), (), planning=Planning(restart_s=5.0), outages=[Outage(0, 40.0, 60.0)]
    )
    assert (schedule.start[0], schedule.end[0], schedule.requeues[0]) == (60.0, 165.0, 1)


def test_a_checkpoint_saves_what_was_worked_until_then():
    jobs = Workload("w", (SimJob("1", 0.0, {"cpu": 100.0}),))
    planning = Planning(restart_s=5.0, checkpoint_s=15.0)
    schedule = run_planned(jobs, parse_cluster("cpu=1x1"), (), planning=planning, outages=[Outage(0, 40.0, 60.0)])
    assert schedule.end[0] == pytest.approx(60.0 + 5.0 + 70.0)


def test_a_pending_job_moves_to_where_something_came_free():
    # Both expect the fast GPU to be busy for 50 s; its job ends after 5, and the one waiting for the slow one moves.
    jobs = Workload(
        "w",
        (
            SimJob("long", 0.0, {"v100": 5.0}, gpus=1),
            SimJob("slow", 0.0, {"k80": 40.0}, gpus=1),
            SimJob("late", 1.0, {"v100": 30.0, "k80": 31.0}, gpus=1),
        ),
    )
    expected = np.asarray([[50.0, np.inf], [np.inf, 40.0], [30.0, 31.0]])
    cluster = parse_cluster("v100=1,k80=1")
    planning = Planning(round_s=10.0)
    schedule = run_planned(jobs, cluster, ("place",), expected=expected, planning=planning)
    assert schedule.place.tolist() == [0, 1, 0]
    assert schedule.start[2] == 10.0


def test_order_lets_short_jobs_go_first_but_nobody_waits_beyond_the_bound():
    long = SimJob("long", 1.0, {"v100": 50.0}, gpus=1)
    short = [SimJob(f"s{i}", 1.0 + i, {"v100": 10.0}, gpus=1) for i in range(20)]
    jobs = Workload("w", (SimJob("first", 0.0, {"v100": 5.0}, gpus=1), long, *short))
    cluster = parse_cluster("v100=1")
    starved = run_planned(jobs, cluster, ("place", "order"), planning=Planning(round_s=1.0, longest_wait_s=1e9))
    assert starved.start[1] == starved.start.max()
    bounded = run_planned(jobs, cluster, ("place", "order"), planning=Planning(round_s=1.0, longest_wait_s=60.0))
    assert bounded.start[1] - 1.0 <= 60.0 + 10.0 + 1.0
    in_turn = run_planned(jobs, cluster, ("place",), planning=Planning(round_s=1.0))
    assert in_turn.start[1] == 5.0


def test_two_jobs_share_a_gpu_where_that_gains_and_do_not_where_it_loses():
    cluster = parse_cluster("v100=1")
    jobs = Workload("w", tuple(SimJob(a, 0.0, {"v100": 100.0}, app=a, gpus=1, share=True) for a in "xy"))
    levers = ("place", "order", "share")
    good = run_planned(jobs, cluster, levers, contention=AppTable({("x", "y"): 1.25, ("y", "x"): 1.25}))
    assert good.start.tolist() == [0.0, 0.0]
    assert good.end == pytest.approx([125.0, 125.0])
    assert good.held == pytest.approx([62.5, 62.5])
    bad = run_planned(jobs, cluster, levers, contention=AppTable({("x", "y"): 2.5, ("y", "x"): 2.5}))
    assert sorted(bad.end.tolist()) == [100.0, 200.0]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 16))
def test_a_run_for_the_makespan_ends_no_later_than_its_first_plan_said_and_no_plan_is_longer_by_sharing(seed, n):
    draw = np.random.default_rng(seed)
    cluster = parse_cluster("v100=4,k80=5")
    wide = draw.choice([1, 1, 1, 2, 4], n)
    jobs = [
        SimJob(
            str(j),
            0.0,
            {"v100": float(draw.integers(100, 5000)), "k80": float(draw.integers(100, 5000))},
            app="xyz"[draw.integers(3)],
            gpus=int(wide[j]),
            nodes=int(wide[j]),
            cpus=int(wide[j]),
            share=bool(draw.random() < 0.7),
        )
        for j in range(n)
    ]
    table = AppTable({(a, b): float(draw.uniform(1.0, 2.2)) for a in "xyz" for b in "xyz"})
    first = []
    for levers in (("place", "order"), ("place", "order", "share")):
        said: list[float] = []
        with pytest.MonkeyPatch.context() as patch:
            for name in ("plan_pools", "plan_sharing"):
                patch.setattr(planner, name, _noting(getattr(planner, name), said))
            planning = Planning(steps_new=100, steps_kept=20)
            schedule = run_planned(
                Workload("w", tuple(jobs)), cluster, levers, "makespan", contention=table, planning=planning, seed=seed
            )
        first.append(said[0])
        assert schedule.end.max() <= said[0] + 1e-3
    assert first[1] <= first[0] + 1e-3


def test_cpu_jobs_may_wait_beside_gpus_that_are_shared():
    cluster = parse_cluster("cpu=1x2")
    jobs = Workload("w", tuple(SimJob(str(j), 0.0, {"cpu": 10.0}, cpus=2) for j in range(3)))
    schedule = run_planned(jobs, cluster, ("place", "order", "share"), "makespan", contention=SLOWER, planning=SMALL)
    assert sorted(schedule.end.tolist()) == [10.0, 20.0, 30.0]


def _noting(make, said):
    def made(*args, **options):
        plan = make(*args, **options)
        said.append(plan.cost)
        return plan

    return made


def test_a_guest_left_behind_speeds_up_and_keeps_the_gpu():
    cluster = parse_cluster("v100=1")
    jobs = Workload(
        "w",
        (
            SimJob("x", 0.0, {"v100": 40.0}, app="x", gpus=1, share=True),
            SimJob("y", 0.0, {"v100": 80.0}, app="y", gpus=1, share=True),
            SimJob("z", 0.0, {"v100": 10.0}, app="z", gpus=1),
        ),
    )
    table = AppTable({("x", "y"): 1.25, ("y", "x"): 1.25, ("z", "x"): 3.0, ("z", "y"): 3.0})
    schedule = run_planned(jobs, cluster, ("place", "share"), contention=table)
    # x: 40 s at 0.8; y: 40 s done by then, 40 s left alone; z shares with nobody.
    assert schedule.end == pytest.approx([50.0, 90.0, 100.0])


def test_a_job_is_requeued_to_a_much_better_place_and_pays_for_it():
    cluster = parse_cluster("v100=1,k80=1")
    jobs = Workload(
        "w",
        (
            SimJob("a", 0.0, {"v100": 100.0}, gpus=1),
            SimJob("b", 0.0, {"v100": 1000.0, "k80": 10_000.0}, gpus=1, requeue=True),
        ),
    )
    expected = np.asarray([[20_000.0, np.inf], [1000.0, 10_000.0]])  # a is believed to be long, and ends early
    run = {
        levers: run_planned(jobs, cluster, levers, expected=expected) for levers in (("place",), ("place", "requeue"))
    }
    assert run["place",].end[1] == 10_000.0
    assert run["place", "requeue"].requeues.tolist() == [0, 1]
    assert run["place", "requeue"].end[1] == pytest.approx(120.0 + 60.0 + 1000.0)


def test_a_lever_that_does_not_exist_is_named():
    jobs = Workload("w", (SimJob("1", 0.0, {"cpu": 1.0}),))
    cluster = parse_cluster("cpu=1x1")
    with pytest.raises(ValueError, match="no lever 'push'"):
        run_planned(jobs, cluster, ("push",))
    with pytest.raises(ValueError, match="builds on place"):
        run_planned(jobs, cluster, ("order",))
    with pytest.raises(ValueError, match="no objective 'joy'"):
        run_planned(jobs, cluster, ("place",), objective="joy")
    with pytest.raises(ValueError, match="share needs"):
        run_planned(jobs, cluster, ("place", "share"))
