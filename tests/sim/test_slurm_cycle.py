"""What the simulated slurmctld does between its two schedulers: the quick one after every event, and backfill."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.sim.cluster import Place, SimCluster, SimNode
from advisor.sim.engine import Engine, Scheduler
from advisor.sim.workload import SimJob, Workload
from tests.sim.test_engine import LINE, clusters, gpu_job, small, workloads

SLURM = Scheduler(backfill="slurm", backfill_interval_s=30.0)


def test_backfill_comes_on_its_own_beat_while_the_head_of_the_queue_starts_at_once():
    starts = small(LINE, backfill="conservative", backfill_interval_s=30.0)
    assert starts == {"half": 0, "short": 30, "both": 100, "long": 200}


def test_a_pass_sees_what_happened_after_the_latency_of_a_cycle():
    jobs = (gpu_job("first", 0.5, 2, 10, 10), gpu_job("second", 1, 2, 10, 10))
    assert small(jobs, latency_s=0.25) == {"first": 0.75, "second": 11.0}


def test_nodes_stay_held_while_a_job_completes_but_the_job_has_ended():
    jobs = [gpu_job("first", 0, 2, 10, 10), gpu_job("second", 1, 2, 10, 10)]
    cluster = SimCluster(
        "c", tuple(SimNode(f"n{i}", 4, 100, 1, "v100") for i in range(2)), (Place("p", "v100", (0, 1)),)
    )
    schedule = Engine(cluster, Workload("w", tuple(jobs)), Scheduler(complete_s=0.5)).run()
    assert schedule.end.tolist() == [10.0, 20.5]
    assert schedule.start.tolist() == [0.0, 10.5]


def one_node(*jobs: SimJob, scheduler: Scheduler) -> dict[str, float]:
    cluster = SimCluster("c", (SimNode("n", 8, 1000),), (Place("p", "cpu", (0,)),))
    schedule = Engine(cluster, Workload("w", jobs), scheduler).run()
    return {job.id: float(start) for job, start in zip(jobs, schedule.start, strict=True)}


def cpu_job(name: str, submit: float, cpus: int, run: float, limit: float) -> SimJob:
    return SimJob(id=name, submit=submit, cpus=cpus, run_time={"cpu": run}, time_limit=limit)


SHARING = (
    cpu_job("runs", 0, 5, 100, 100),
    cpu_job("waits", 1, 4, 100, 100),
    cpu_job("small", 2, 2, 400, 400),  # there would be room for it beside both
)


def test_a_reservation_keeps_its_node_whole_as_in_slurm():
    whole = one_node(*SHARING, scheduler=SLURM)
    shared = one_node(*SHARING, scheduler=Scheduler(backfill="conservative", backfill_interval_s=30.0))
    assert shared == {"runs": 0, "waits": 100, "small": 30}
    assert whole == {"runs": 0, "waits": 100, "small": 100}


@pytest.mark.parametrize(("limit", "exact", "by_minutes"), [(20, 30, 30), (50, 30, 100), (80, 100, 100)])
def test_reservations_begin_on_whole_minutes(limit, exact, by_minutes):
    jobs = (*SHARING[:2], cpu_job("brief", 2, 2, 10, limit))
    # The reservation is for 100 s, or in minutes from 60 s on; backfill looks at 30 s.
    assert one_node(*jobs, scheduler=msgspec.structs.replace(SLURM, resolution_s=1.0))["brief"] == exact
    assert one_node(*jobs, scheduler=SLURM)["brief"] == by_minutes


def test_the_shortest_run_of_neighbours_with_room_is_taken():
    nodes = tuple(SimNode(f"{kind}{i}", cpus, 1000, 2, kind) for kind, cpus in (("k", 8), ("p", 12)) for i in range(2))
    cluster = SimCluster(
        "c", nodes, (Place("short", "k", (0, 1)), Place("short", "p", (2, 3)), Place("p", "p", (2, 3)))
    )
    first = SimJob(id="first", submit=0, gpus=1, run_time={"p": 50}, partitions=("p",), time_limit=60)
    second = SimJob(id="second", submit=1, gpus=2, run_time={"k": 5, "p": 5}, partitions=("short",), time_limit=60)
    engine = Engine(cluster, Workload("w", (first, second)), SLURM)
    schedule = engine.run([[2], [0, 1]])
    # k0 and k1 are a run of two; p1 is a run by itself, since p0 has too few GPUs left.
    assert [cluster.nodes[n].name for n in schedule.nodes_of(1)] == ["p1"]


@pytest.mark.parametrize(("elsewhere", "start"), [(False, 120), (True, 30)])
def test_a_job_that_runs_elsewhere_can_put_off_a_reservation(elsewhere, start):
    cluster = SimCluster(
        "c", (SimNode("a", 8, 1000), SimNode("b", 8, 1000)), (Place("a", "cpu", (0,)), Place("b", "cpu", (1,)))
    )
    jobs = (
        cpu_job("ends first", 0, 4, 60, 60),
        cpu_job("ends late", 0, 3, 600, 600),
        cpu_job("waits", 1, 5, 60, 60),
        cpu_job("small", 2, 1, 10, 300),
        *((cpu_job("elsewhere", 3, 1, 97, 97),) if elsewhere else ()),
    )
    engine = Engine(cluster, Workload("w", jobs), SLURM)
    schedule = engine.run([[0], [0], [0], [0], [1]][: len(jobs)])
    # By the limits there is room for "waits" after a minute. Slurm takes those that end within a window off together,
    # asks the next end of all whether to go on, and so comes by "elsewhere" to the job that ends after ten minutes.
    assert schedule.start[3] == start


@pytest.mark.parametrize(("elsewhere_first", "start"), [(True, 120), (False, 30)])
def test_of_jobs_that_end_in_the_same_second_the_one_submitted_first_counts_first(elsewhere_first, start):
    cluster = SimCluster(
        "c", (SimNode("a", 8, 1000), SimNode("b", 8, 1000)), (Place("a", "cpu", (0,)), Place("b", "cpu", (1,)))
    )
    here, elsewhere = cpu_job("here", 0, 4, 60, 60), cpu_job("elsewhere", 0.25, 1, 60, 60)
    if elsewhere_first:
        here, elsewhere = (msgspec.structs.replace(job, submit=at) for job, at in ((here, 0.25), (elsewhere, 0)))
    jobs = (*sorted((here, elsewhere), key=lambda job: job.submit), cpu_job("ends late", 0.5, 3, 600, 600))
    jobs += (cpu_job("waits", 1, 5, 60, 60), cpu_job("small", 2, 1, 10, 300))
    places = [[1] if job.id == "elsewhere" else [0] for job in jobs]
    # As above: only an end that comes after the one here lets the group go on to the job that ends late.
    assert Engine(cluster, Workload("w", jobs), SLURM).run(places).start[4] == pytest.approx(start, abs=0.5)


def test_backfill_looks_every_second_while_there_is_nothing_to_do():
    jobs = (
        cpu_job("long", 0, 5, 200, 200),
        cpu_job("waits", 70.5, 8, 10, 10),
        cpu_job("small", 70.5, 1, 10, 10),
    )
    assert one_node(*jobs, scheduler=SLURM) == {"long": 0, "waits": 200, "small": 71}


SCHEDULERS = st.builds(
    Scheduler,
    backfill=st.sampled_from(("easy", "conservative", "slurm")),
    depth=st.sampled_from((3, 500)),
    reservations=st.sampled_from((1, 64)),
    launch_s=st.sampled_from((0.0, 0.5)),
    complete_s=st.sampled_from((0.0, 0.25)),
    latency_s=st.sampled_from((0.0, 0.125)),
    backfill_interval_s=st.sampled_from((0.0, 2.0, 30.0)),
    resolution_s=st.sampled_from((1.0, 60.0)),
    since_24_11=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(st.data(), SCHEDULERS)
def test_whatever_the_cycle_nothing_is_given_twice_and_every_job_runs(data, scheduler):
    cluster = data.draw(clusters())
    workload = data.draw(workloads(cluster))
    engine = Engine(cluster, workload, scheduler)
    schedule = engine.run()
    number = {job.id: j for j, job in enumerate(workload.jobs)}
    for j, job in enumerate(workload.jobs):
        assert schedule.start[j] >= job.submit
        assert all(schedule.start[j] >= schedule.end[number[other]] + scheduler.complete_s for other in job.depends)
    held = schedule.end + scheduler.complete_s
    for moment in set(schedule.start.tolist()):
        running = [j for j in range(len(workload.jobs)) if schedule.start[j] <= moment < held[j]]
        for i, node in enumerate(cluster.nodes):
            here = [j for j in running if i in schedule.nodes_of(j)]
            assert sum(engine.jobs.need[j, 0] for j in here) <= node.cpus
            assert sum(engine.jobs.need[j, 1] for j in here) <= node.memory_mb
            assert sum(engine.jobs.need[j, 2] for j in here) <= node.gpus
