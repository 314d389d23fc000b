"""What a simulated cluster may never do, whatever the jobs, and what its scheduler does in small cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.sim.cluster import Place, SimCluster, SimNode, parse_cluster
from advisor.sim.embedded import EmbeddedSlurm
from advisor.sim.engine import Engine, ImpossibleJobError, Scheduler
from advisor.sim.workload import SimJob, Workload

TYPES = ("cpu", "v100", "k80")


@st.composite
def clusters(draw, disjoint: bool = False) -> SimCluster:
    nodes = []
    for i in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(TYPES))
        gpus = 0 if kind == "cpu" else draw(st.integers(1, 4))
        nodes.append(SimNode(f"n{i}", draw(st.integers(1, 4)), draw(st.integers(100, 400)), gpus, kind))
    places = []
    for part in range(1 if disjoint else draw(st.integers(1, 3))):
        members = range(len(nodes)) if part == 0 else draw(st.sets(st.integers(0, len(nodes) - 1), min_size=1))
        for kind in TYPES:
            found = tuple(n for n in sorted(members) if nodes[n].processor == kind)
            if found:
                places.append(Place(f"p{part}", kind, found))
    return SimCluster("any", tuple(nodes), tuple(places), "p0")


@st.composite
def workloads(draw, cluster: SimCluster, plain: bool = False) -> Workload:
    jobs = []
    time = 0.0
    for i in range(draw(st.integers(1, 25))):
        time += draw(st.sampled_from((0.0, 0.0, 1.0, 7.5)))
        place = draw(st.sampled_from(cluster.places))
        wanted = draw(st.integers(1, len(place.nodes)))
        least = [min(cluster.nodes[n].cpus for n in place.nodes), min(cluster.nodes[n].gpus for n in place.nodes)]
        run = draw(st.sampled_from((0.0, 1.0, 3.0, 10.0, 40.0)))
        run_time = {place.processor: run}
        if not plain and draw(st.booleans()):
            run_time[draw(st.sampled_from(TYPES))] = run * 2 + 1
        depends = ()
        if i and not plain and draw(st.integers(0, 4)) == 0:
            depends = (str(draw(st.integers(0, i - 1))),)
        array = None if plain else draw(st.sampled_from((None, None, "a", "b")))
        jobs.append(
            SimJob(
                id=str(i),
                submit=time,
                run_time=run_time,
                nodes=wanted,
                cpus=wanted * draw(st.integers(1, max(1, least[0]))),
                memory_mb=wanted * draw(st.integers(0, 100)),
                gpus=wanted * draw(st.integers(0, least[1])) if place.processor != "cpu" else 0,
                time_limit=draw(st.sampled_from((None, 2.0, 15.0, 100.0))),
                priority=0.0 if plain else draw(st.sampled_from((0.0, 0.0, 5.0))),
                exclusive=draw(st.integers(0, 5)) == 0,
                depends=depends,
                array=array,
                array_limit=2 if array else 0,
            )
        )
    return Workload("any", tuple(jobs))


SCHEDULERS = st.builds(
    Scheduler,
    backfill=st.sampled_from(("none", "easy", "conservative")),
    depth=st.sampled_from((1, 3, 500)),
    reservations=st.sampled_from((1, 64)),
    cycle_s=st.sampled_from((0.0, 2.0)),
    launch_s=st.sampled_from((0.0, 0.5)),
)
ORDERS = st.sampled_from(("listed", "earliest-finish", "shortest-first"))


@settings(max_examples=150, deadline=None)
@given(st.data(), SCHEDULERS, ORDERS)
def test_no_resource_is_given_twice_and_every_job_runs_once_after_what_it_waits_for(data, scheduler, order):
    cluster = data.draw(clusters())
    workload = data.draw(workloads(cluster))
    engine = Engine(cluster, workload, scheduler)
    schedule = engine.run(order=order)
    number = {job.id: j for j, job in enumerate(workload.jobs)}
    for j, job in enumerate(workload.jobs):
        nodes = schedule.nodes_of(j)
        place = cluster.places[schedule.place[j]]
        assert len(set(nodes)) == job.nodes
        assert set(nodes) <= set(place.nodes)
        assert schedule.start[j] >= job.submit
        assert all(schedule.start[j] >= schedule.end[number[other]] for other in job.depends)
        seconds = job.seconds_on(place.processor)
        cut = min(seconds, engine.limit[j])
        assert schedule.end[j] - schedule.start[j] == pytest.approx(cut + scheduler.launch_s)
        assert schedule.timed_out[j] == (seconds > engine.limit[j])
    for moment in set(schedule.start.tolist()):
        running = [j for j in range(len(workload.jobs)) if schedule.start[j] <= moment < schedule.end[j]]
        for i, node in enumerate(cluster.nodes):
            here = [j for j in running if i in schedule.nodes_of(j)]
            used = engine.jobs.need[here].sum(axis=0) if here else np.zeros(3)
            assert used[0] <= node.cpus
            assert used[1] <= node.memory_mb
            assert used[2] <= node.gpus
            assert len(here) <= 1 or not any(workload.jobs[j].exclusive for j in here)
        for array in {job.array for job in workload.jobs if job.array}:
            assert sum(workload.jobs[j].array == array for j in running) <= 2


@settings(max_examples=150, deadline=None)
@given(st.data(), SCHEDULERS, ORDERS)
def test_the_same_input_gives_the_same_bytes(data, scheduler, order):
    cluster = data.draw(clusters())
    workload = data.draw(workloads(cluster))
    first, second = (Engine(cluster, workload, scheduler).run(order=order).to_bytes() for _ in range(2))
    assert first == second


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_backfill_never_delays_the_reservation_of_the_first_in_line(data):
    cluster = data.draw(clusters(disjoint=True))
    workload = data.draw(workloads(cluster, plain=True))
    engine = Engine(cluster, workload, Scheduler(backfill="easy"))
    schedule = engine.run()
    held = np.isfinite(schedule.promised)
    assert (schedule.start[held] <= schedule.promised[held]).all()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_without_backfill_nobody_passes_anybody_in_the_same_place(data):
    cluster = data.draw(clusters(disjoint=True))
    workload = data.draw(workloads(cluster, plain=True))
    schedule = Engine(cluster, workload, Scheduler(backfill="none")).run()
    for place in range(len(cluster.places)):
        starts = schedule.start[schedule.place == place]
        assert (np.diff(starts) >= 0).all()


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 6))
def test_the_compiled_engine_and_the_plain_python_one_agree(data, gpus):
    cluster = parse_cluster(f"v100={gpus},k80=2")
    jobs = []
    time = 0.0
    for i in range(data.draw(st.integers(1, 20))):
        time += data.draw(st.sampled_from((0.0, 1.0, 5.0)))
        kind, most = data.draw(st.sampled_from((("v100", gpus), ("k80", 2))))
        size = data.draw(st.integers(1, most))
        run = data.draw(st.sampled_from((1.0, 2.0, 11.0, 30.0)))
        limit = run * data.draw(st.sampled_from((0.5, 1.0, 4.0)))
        jobs.append(
            SimJob(
                id=str(i),
                submit=time,
                run_time={kind: run},
                gpus=size,
                nodes=size,
                cpus=size * 64,  # whole servers, so that leftovers of a node play no part
                time_limit=limit,
                partitions=(kind,),
            )
        )
    schedule = Engine(cluster, Workload("w", tuple(jobs)), Scheduler()).run()
    rows = EmbeddedSlurm(cluster, jobs).run("alone").rows
    assert [row.start for row in rows] == schedule.start.tolist()
    assert [row.end for row in rows] == schedule.end.tolist()


def small(jobs, cluster="v100=2", **options):
    engine = Engine(parse_cluster(cluster), Workload("w", tuple(jobs)), Scheduler(**options))
    schedule = engine.run()
    return {job.id: float(start) for job, start in zip(jobs, schedule.start, strict=True)}


def gpu_job(name, submit, gpus, run, limit=None, **more):
    return SimJob(
        id=name, submit=submit, gpus=gpus, nodes=gpus, cpus=gpus, run_time={"v100": run}, time_limit=limit, **more
    )


LINE = (
    gpu_job("half", 0, 1, 100, 100),
    gpu_job("both", 1, 2, 100, 100),
    gpu_job("long", 2, 1, 500, 500),
    gpu_job("short", 3, 1, 50, 50),
)


def test_easy_lets_a_short_job_pass_but_not_a_long_one():
    assert small(LINE, backfill="easy") == {"half": 0, "short": 3, "both": 100, "long": 200}


def test_without_backfill_all_wait_in_line():
    assert small(LINE, backfill="none") == {"half": 0, "both": 100, "long": 200, "short": 200}


def test_conservative_keeps_every_reservation():
    jobs = (*LINE[:2], gpu_job("third", 2, 2, 50, 50), gpu_job("fits", 3, 1, 90, 90), gpu_job("late", 4, 1, 120, 120))
    starts = small(jobs, backfill="conservative")
    assert starts == {"half": 0, "fits": 3, "both": 100, "third": 200, "late": 250}


def test_a_job_in_several_partitions_starts_where_it_can_first():
    jobs = [
        SimJob(id="a", submit=0, gpus=1, run_time={"v100": 100, "k80": 300}),
        SimJob(id="b", submit=1, gpus=1, run_time={"v100": 100, "k80": 300}),
        SimJob(id="c", submit=2, gpus=1, run_time={"v100": 100, "k80": 300}),
    ]
    engine = Engine(parse_cluster("v100=1,k80=1"), Workload("w", tuple(jobs)))
    schedule = engine.run()
    assert schedule.place.tolist() == [0, 1, 0]
    assert schedule.start.tolist() == [0, 1, 100]


def test_higher_priority_goes_first():
    jobs = (gpu_job("now", 0, 2, 10), gpu_job("low", 1, 2, 10), gpu_job("high", 2, 2, 10, priority=3))
    assert small(jobs) == {"now": 0, "high": 10, "low": 20}


def test_a_scheduler_that_looks_every_30_s_starts_jobs_that_late():
    jobs = (gpu_job("first", 0, 2, 10, 10), gpu_job("second", 1, 2, 10, 10))
    assert small(jobs, cycle_s=30.0) == {"first": 0, "second": 30}


def test_launching_takes_its_time_from_the_nodes():
    jobs = (gpu_job("first", 0, 2, 10, 10), gpu_job("second", 0, 2, 10, 10))
    assert small(jobs, launch_s=1.5) == {"first": 0, "second": 11.5}


def test_a_job_that_fits_nowhere_is_named():
    with pytest.raises(ImpossibleJobError, match=r"'big' \(4 nodes.*fits no place of the cluster \(v100\)"):
        small([gpu_job("big", 0, 4, 10)])


def test_a_limit_beyond_the_partition_s_keeps_a_job_out_of_it():
    nodes = (SimNode("a", 1, 10, 1, "v100"), SimNode("b", 1, 10, 1, "k80"))
    places = (Place("short", "v100", (0,), 60.0), Place("long", "k80", (1,)))
    job = SimJob(id="1", submit=0, gpus=1, time_limit=100, run_time={"v100": 1, "k80": 5})
    schedule = Engine(SimCluster("c", nodes, places), Workload("w", (job,))).run()
    assert places[schedule.place[0]].partition == "long"


def test_python_may_choose_the_place_of_each_job_as_it_arrives():
    jobs = [SimJob(id=str(i), submit=i, gpus=1, run_time={"v100": 5, "k80": 5}) for i in range(4)]
    engine = Engine(parse_cluster("v100=4,k80=4"), Workload("w", tuple(jobs)))
    asked = []

    def alternate(job, now):
        asked.append((job, now))
        return [job % 2]

    assert engine.run_deciding(alternate).place.tolist() == [0, 1, 0, 1]
    assert asked == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
