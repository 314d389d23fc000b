"""The small Slurm without root: the same workload alone and with the daemon's decisions."""

import random

import pytest

from advisor.performance.snapshot import RunTimes
from advisor.sim.cluster import parse_cluster
from advisor.sim.embedded import ENFORCING, EmbeddedSlurm, compare, submission
from advisor.sim.workload import SimJob

CLUSTER = parse_cluster("v100=2,k80=2")


def mixed(count: int, seed: int = 0) -> list[SimJob]:
    """Jobs that gain a lot from a v100 beside jobs that gain little."""
    draw = random.Random(seed)
    jobs = []
    for i in range(count):
        app, factor = draw.choice([("resnet", 8.0), ("lstm", 1.1)])
        seconds = draw.uniform(50, 70)
        jobs.append(
            SimJob(
                id=str(i),
                submit=i * 20.0,
                app=app,
                user="ann",
                gpus=1,
                cpus=2,
                memory_mb=1000,
                time_limit=900,
                partitions=("v100", "k80"),
                run_time={"v100": seconds, "k80": seconds * factor},
            )
        )
    return jobs


KNOWN = {
    "resnet": {"v100": RunTimes(20, 4.1, 0.1), "k80": RunTimes(20, 6.2, 0.1)},
    "lstm": {"v100": RunTimes(20, 4.1, 0.1), "k80": RunTimes(20, 4.2, 0.1)},
}


def test_jobs_that_gain_most_get_the_fast_gpus_and_all_finish_sooner():
    outcome = compare(mixed(80), CLUSTER, history=KNOWN)
    assert outcome.advised.mean_completion_s < 0.9 * outcome.alone.mean_completion_s
    fast = {row.job.app for row in outcome.advised.rows if row.processor == "v100"}
    slow = [row.job.app for row in outcome.advised.rows if row.processor == "k80"]
    assert "resnet" in fast
    assert slow.count("lstm") > slow.count("resnet")


def test_a_rewritten_job_runs_where_the_decision_said():
    outcome = compare(mixed(60), CLUSTER, history=KNOWN)
    rewritten = [row for row in outcome.advised.rows if row.decision and row.decision.action == "rewrite"]
    assert rewritten
    for row in rewritten:
        chosen = row.decision.candidates[row.decision.chosen]
        assert row.partition == chosen.partition
        assert chosen.gpu_type in (None, row.processor)


def test_without_decisions_nothing_is_changed():
    outcome = compare(mixed(40), CLUSTER, settings=type(ENFORCING)(), history=KNOWN)  # shadow by default
    alone = [(row.job.id, row.partition, row.start, row.end) for row in outcome.alone.rows]
    assert [(row.job.id, row.partition, row.start, row.end) for row in outcome.advised.rows] == alone
    assert any(row.decision and row.decision.preferred for row in outcome.advised.rows)


def test_the_same_seed_gives_the_same_schedule():
    assert compare(mixed(40), CLUSTER, seed=3) == compare(mixed(40), CLUSTER, seed=3)


def test_runs_that_ended_are_known_to_later_decisions():
    outcome = compare(mixed(80), CLUSTER)
    last = outcome.advised.rows[-1].decision
    assert last is not None
    assert {p.run_source for p in last.predictions} == {"history"}


def test_a_job_past_its_limit_is_ended_there():
    job = SimJob(id="1", submit=0, app="long", gpus=1, time_limit=60, run_time={"v100": 500})
    row = EmbeddedSlurm(CLUSTER, [job]).run("alone").rows[0]
    assert (row.end - row.start, row.timed_out) == (60, True)


def test_dependencies_wait_and_start_after_their_job():
    jobs = [
        SimJob(id="a", submit=0, gpus=1, time_limit=100, run_time={"v100": 50}),
        SimJob(id="b", submit=1, gpus=1, time_limit=100, run_time={"v100": 50}, depends=("a",)),
    ]
    rows = EmbeddedSlurm(CLUSTER, jobs).run("alone").rows
    assert rows[1].start == rows[0].end


def test_a_short_job_overtakes_only_where_the_first_in_line_is_not_delayed():
    cluster = parse_cluster("v100=2")
    jobs = [
        SimJob(id="half", submit=0, gpus=1, time_limit=100, run_time={"v100": 100}),
        SimJob(id="both", submit=1, gpus=2, nodes=2, cpus=2, time_limit=100, run_time={"v100": 100}),
        SimJob(id="long", submit=2, gpus=1, time_limit=500, run_time={"v100": 500}),
        SimJob(id="short", submit=3, gpus=1, time_limit=50, run_time={"v100": 50}),
    ]
    start = {row.job.id: row.start for row in EmbeddedSlurm(cluster, jobs).run("alone").rows}
    assert start == {"half": 0, "short": 3, "both": 100, "long": 200}


def test_a_job_that_fits_nowhere_is_named():
    job = SimJob(id="big", submit=0, gpus=4, time_limit=60, run_time={"v100": 5})
    with pytest.raises(ValueError, match="'big' can never start"):
        EmbeddedSlurm(CLUSTER, [job]).run("alone")


def test_the_request_says_what_the_hook_would_say():
    job = SimJob(
        id="1", submit=0, app="x", gpus=2, nodes=2, cpus=4, memory_mb=2000, time_limit=90, run_time={"v100": 5}
    )
    request = submission(job, [])
    assert (request.tres_per_node, request.time_limit, request.min_nodes) == ("gres/gpu:1", 2, 2)
    assert (request.min_cpus, request.min_mem_per_node, request.partition) == (4, 1000, None)
