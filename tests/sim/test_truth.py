"""What is read from the log of a real run, and how schedules are compared; the real run is in tests/slurm."""

import msgspec
import pytest

from advisor.sim.cluster import Place, SimCluster, SimNode
from advisor.sim.truth.choices import node_choices
from advisor.sim.truth.compare import (
    Times,
    agree,
    ensemble,
    makespan,
    measure,
    real,
    replay,
    simulate,
    slurm_parameters,
    slurm_scheduler,
)
from advisor.sim.truth.drive import DriveError, Ran, drive
from advisor.sim.truth.log import Log, Record, read_log
from advisor.sim.truth.workload import make_workload, sbatch_options
from advisor.sim.workload import SimJob, Workload

# As 24.11 writes it; the fourth digit group is milliseconds.
LOG = """\
[2026-11-16T06:35:14.203] Set debug level to 'debug2'
[2026-11-16T06:35:14.406] _slurm_rpc_submit_batch_job: JobId=1 InitPrio=1 usec=11177
[2026-11-16T06:35:14.483] debug:  sched/backfill: _attempt_backfill: beginning
[2026-11-16T06:35:14.486] sched/backfill: _start_job: Started JobId=1 in p100 on p1
[2026-11-16T06:35:14.829] _slurm_rpc_submit_batch_job: JobId=3 InitPrio=1 usec=1375
[2026-11-16T06:35:16.005] debug:  sched: Running job scheduler for default depth.
[2026-11-16T06:35:16.497] debug:  sched/backfill: _attempt_backfill: beginning
[2026-11-16T06:35:16.601] _job_complete: JobId=1 done
[2026-11-16T06:35:16.650] debug2: _slurm_rpc_epilog_complete: JobId=1 Node=p1 usec=120
[2026-11-16T06:35:17.017] debug:  sched: Running job scheduler for default depth.
[2026-11-16T06:35:17.017] sched: Allocate JobId=3 NodeList=p[1-2] #CPUs=2 Partition=p100
[2026-11-16T06:35:19.135] _job_complete: JobId=3 done
"""


def test_the_log_tells_when_jobs_came_started_where_and_by_whom_and_ended():
    log = read_log(LOG.splitlines())
    first, other = log.jobs[1], log.jobs[3]
    assert other.submit - first.submit == pytest.approx(0.423, abs=1e-6)
    assert (first.by_backfill, first.nodes, first.partition) == (True, ("p1",), "p100")
    assert (other.by_backfill, other.nodes) == (False, ("p1", "p2"))
    assert first.freed - first.end == pytest.approx(0.049, abs=1e-6)
    assert other.freed is None
    assert other.complete
    assert len(log.cycles) == len(log.passes) == 2


def test_latencies_are_measured_not_given():
    log = read_log(LOG.splitlines())
    jobs = tuple(SimJob(id=str(i), submit=0, run_time={"any": 2.0}, time_limit=60) for i in range(2))
    found = measure(Ran((log.jobs[1], log.jobs[3]), log), Workload("w", jobs), nominal_interval_s=2.0)
    assert found.launch_s == pytest.approx((0.115 + 0.118) / 2, abs=1e-6)
    assert found.complete_s == pytest.approx(0.049 / 2, abs=1e-6)
    assert found.cycle_s == pytest.approx(1.012, abs=1e-6)
    assert found.backfill_interval_s == pytest.approx(2.014, abs=1e-6)
    # Two submissions and one end that a look followed; nothing looked after the last end.
    assert found.cycle_latency_s == pytest.approx((1.599 + 1.176 + 0.416) / 3, abs=1e-6)


def test_nodes_are_free_when_all_of_them_have_answered_that_they_are_clean():
    answers = """\
[2026-11-16T06:35:17.017] sched: Allocate JobId=4 NodeList=p[1-2] #CPUs=2 Partition=p100
[2026-11-16T06:35:19.135] _job_complete: JobId=4 done
[2026-11-16T06:35:19.135] debug2: Tree head got back 0 looking for 2
[2026-11-16T06:35:19.138] debug2: Tree head got back 1
[2026-11-16T06:35:19.141] debug2: Tree head got back 2
[2026-11-16T06:35:20.141] debug2: Tree head got back 2
"""
    job = read_log(answers.splitlines()).jobs[4]
    assert job.freed - job.end == pytest.approx(0.006, abs=1e-6)


BEGAN = 1_800_000_000.0  # a whole minute, as every multiple of 60 s is


def one_after_the_other() -> tuple[SimCluster, Workload, Ran]:
    """A real run on one node of jobs that need all of it: each starts with the look that follows an end."""
    cluster = SimCluster("c", (SimNode("a", 4, 1000),), (Place("p", "cpu", (0,)),))
    jobs = tuple(
        SimJob(id=str(i), submit=float(i), cpus=4, run_time={"any": 3.0}, time_limit=60.0, partitions=("p",))
        for i in range(6)
    )
    looks = tuple(BEGAN + 0.45 + i for i in range(40))
    records, free = [], BEGAN
    for i, job in enumerate(jobs):
        start = next(look for look in looks if look > max(free, BEGAN + job.submit))
        free = start + 3.0 + 0.1 * (1 + i % 3)
        records.append(Record(i + 1, BEGAN + job.submit, start, free, free, "p", ("a",)))
    # Backfill comes just after every other look, and finds nothing to do.
    return cluster, Workload("w", jobs), Ran(tuple(records), Log({}, tuple(look + 0.01 for look in looks[::2]), looks))


def test_with_the_times_of_the_real_looks_the_simulator_does_what_slurm_did():
    cluster, workload, ran = one_after_the_other()
    scheduler = slurm_scheduler(measure(ran, workload, 2.0), {"bf_interval": "2", "batch_sched_delay": "0"}, "24.11")
    found = agree(replay(cluster, workload, ran, scheduler), real(ran))
    assert found.makespan_ratio == pytest.approx(1.0, abs=1e-6)
    assert found.wait_error_s == pytest.approx(0.0, abs=1e-6)


def test_simulations_differ_in_what_cannot_be_known_ahead_and_a_seed_gives_the_same_ones():
    cluster, workload, ran = one_after_the_other()
    measured = measure(ran, workload, 2.0)
    assert sorted(measured.launches) == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3], abs=1e-6)
    scheduler = slurm_scheduler(measured, {"bf_interval": "2", "batch_sched_delay": "0"}, "24.11")
    known = ensemble(cluster, workload, ran, scheduler, measured, phases=False, runs=9, seed=1)
    unknown = ensemble(cluster, workload, ran, scheduler, measured, phases=True, runs=9, seed=1)
    assert known == ensemble(cluster, workload, ran, scheduler, measured, phases=False, runs=9, seed=1)
    assert [makespan(times) for times in unknown] == sorted(makespan(times) for times in unknown)
    assert makespan(unknown[-1]) - makespan(unknown[0]) > makespan(known[-1]) - makespan(known[0])
    same = msgspec.structs.replace(measured, launches=(measured.launch_s,))
    certain = ensemble(cluster, workload, ran, scheduler, same, phases=False, runs=3)
    assert makespan(certain[0]) == makespan(certain[-1])
    assert makespan(certain[0]) == pytest.approx(makespan(simulate(cluster, workload, ran, scheduler)))


def test_scheduler_parameters_are_read_by_name():
    text = "SchedulerParameters     = bf_interval=2,bf_continue,sched_interval=2\nSchedulerType = sched/backfill\n"
    assert slurm_parameters(text) == {"bf_interval": "2", "bf_continue": "", "sched_interval": "2"}
    assert slurm_parameters("SchedulerParameters     = (null)\n") == {}


def times(start, nodes=("a", "a", "b")):
    return Times((0.0, 0.0, 0.0), start, tuple(s + 10 for s in start), tuple(frozenset((n,)) for n in nodes))


def test_a_schedule_agrees_with_itself_and_an_overtaking_shows():
    one = times((1.0, 2.0, 3.0))
    same = agree(one, one)
    assert (same.makespan_ratio, same.wait_error_s, same.start_order_agreement) == (1.0, 0.0, 1.0)
    other = agree(times((1.0, 3.0, 2.0), ("a", "b", "b")), one)
    assert other.start_order_agreement == pytest.approx(2 / 3)
    assert other.wait_error_s == pytest.approx(2 / 3)
    assert other.placement == (True, False, True)


def test_a_seed_gives_the_same_jobs_and_every_job_is_spelled_for_sbatch():
    assert make_workload(50, 3) == make_workload(50, 3) != make_workload(50, 4)
    job = next(j for j in make_workload(50, 3).jobs if j.gpus and len(j.partitions) > 1)
    words = sbatch_options(job)
    assert f"--partition={','.join(job.partitions)}" in words
    assert f"--gres=gpu:{job.gpus // job.nodes}" in words


@pytest.mark.parametrize(
    ("release", "node", "right"),
    [("24.11", "a", True), ("24.11", "b", False), ("22.05", "a", False), ("22.05", "b", True)],
)
def test_the_nodes_slurm_took_are_checked_against_the_rule_of_its_release(release, node, right):
    cluster = SimCluster(
        "c", (SimNode("a", 8, 100), SimNode("b", 4, 100), SimNode("c", 4, 100)), (Place("p", "cpu", (0, 1, 2)),)
    )
    jobs = tuple(
        SimJob(id=str(i), submit=0, cpus=cpus, run_time={"any": 5.0}, time_limit=60) for i, cpus in enumerate((8, 4))
    )
    # Only one node has room for the wide job; the other, after that, takes the first, or in 22.05 a narrow one.
    records = (Record(1, 0.0, 0.0, 5.0, 5.0, "p", ("a",)), Record(2, 0.0, 6.0, 11.0, 11.0, "p", (node,)))
    _, workload, ran = one_after_the_other()
    scheduler = slurm_scheduler(measure(ran, workload, 2.0), {}, release)
    assert node_choices(Ran(records, read_log([])), cluster, Workload("w", jobs), scheduler) == [right]


def test_a_real_run_that_fails_says_what_failed():
    class Broken:
        def run(self, *words, user="root", stdin=""):
            import subprocess

            return subprocess.CompletedProcess(words, 1, "", "Unable to contact slurm controller")

    with pytest.raises(DriveError, match=r"scontrol setdebug failed.*Unable to contact"):
        drive(Broken(), make_workload(3, 1))
