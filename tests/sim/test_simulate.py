"""Comparing policies on a workload: the rows a user reads, and that the fast paths decide as the daemon does."""

import json
import math
import random
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from advisor.cli.simulate import command
from advisor.sim.cluster import parse_cluster
from advisor.sim.daemon import DaemonChoice
from advisor.sim.engine import Engine
from advisor.sim.heuristics import HEURISTICS
from advisor.sim.picture import draw
from advisor.sim.simulate import UnknownPolicyError, policy_names, simulate
from advisor.sim.traces import read_workload
from advisor.sim.workload import SimJob, Workload

CLUSTER = parse_cluster("v100=2,k80=2")


def mixed(count: int = 60) -> Workload:
    jobs = []
    for i in range(count):
        factor = 8.0 if i % 2 else 1.2
        seconds = 1000.0 + 37 * i
        jobs.append(
            SimJob(id=str(i), submit=300.0 * i, gpus=1, run_time={"v100": seconds, "k80": seconds * factor}, user="ann")
        )
    return Workload("mixed", tuple(jobs))


def rows(policies, workload=None, **options):
    return {o.row.policy: o.row for o in simulate(workload or mixed(), CLUSTER, policies, **options)}


def test_each_policy_gives_a_row_with_all_jobs():
    found = rows(list(HEURISTICS))
    assert list(found) == list(HEURISTICS)
    for row in found.values():
        assert row.jobs == 60
        assert 0 < row.utilisation <= 1
        assert row.avg_wait_h <= row.avg_jct_h <= row.p99_jct_h <= row.makespan_h


def test_knowing_run_times_beats_not_knowing_them():
    found = rows(["random", "earliest-start", "earliest-finish", "fastest"])
    best = found["earliest-finish"].avg_jct_h
    assert best < found["earliest-start"].avg_jct_h
    assert best < found["random"].avg_jct_h
    assert best <= found["fastest"].avg_jct_h


def test_with_limits_only_the_fast_type_is_not_known():
    limited = Workload("w", tuple(SimJob(**{**_fields(job), "time_limit": 40_000.0}) for job in mixed().jobs))
    sees = rows(["earliest-finish"], limited)["earliest-finish"]
    blind = rows(["earliest-finish"], limited, knowledge="limits")["earliest-finish"]
    assert sees.avg_jct_h < blind.avg_jct_h


def _fields(job):
    return {name: getattr(job, name) for name in job.__struct_fields__}


def test_slurm_default_keeps_to_the_named_partition_and_the_default_one():
    jobs = tuple(
        SimJob(id=str(i), submit=0, gpus=1, partitions=named, run_time={"v100": 10, "k80": 10})
        for i, named in enumerate([(), ("k80",), ("k80", "v100"), ("v100",)])
    )
    (outcome,) = simulate(Workload("w", jobs), CLUSTER, ["slurm-default"])
    assert [CLUSTER.places[p].name for p in outcome.schedule.place] == ["v100", "k80", "k80", "v100"]


def test_random_depends_on_the_seed_and_only_on_it():
    def places(seed):
        return simulate(mixed(), CLUSTER, ["random"], seed=seed)[0].schedule.place.tolist()

    assert places(1) == places(1)
    assert places(1) != places(2)


def test_all_tasks_of_an_array_go_to_one_place():
    jobs = tuple(SimJob(id=f"7_{i}", submit=0, gpus=1, array="7", run_time={"v100": 10, "k80": 10}) for i in range(8))
    (outcome,) = simulate(Workload("w", jobs), CLUSTER, ["random"])
    assert len(set(outcome.schedule.place.tolist())) == 1


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(UnknownPolicyError, match="'best'; there are slurm-default"):
        rows(["best"])
    assert "gavel:max_min_fairness_packed" in policy_names()


def test_a_gavel_policy_without_its_table_says_so():
    with pytest.raises(UnknownPolicyError, match="--throughputs"):
        rows(["gavel:fifo"])


def test_the_daemon_s_decisions_do_as_well_as_the_fast_earliest_finish():
    found = rows(["daemon", "earliest-finish", "earliest-start"])
    assert found["daemon"].avg_jct_h < found["earliest-start"].avg_jct_h
    assert found["daemon"].avg_jct_h == pytest.approx(found["earliest-finish"].avg_jct_h, rel=0.05)


def test_the_fast_earliest_finish_chooses_as_the_daemon_s_policy_does():
    """In all but one decision in fifty, by the daemon's own scores; it rounds what is left of running jobs."""
    cluster = parse_cluster("v100=2,p100=1,k80=3")
    decided = differing = 0
    for seed in range(60):
        rng = random.Random(seed)
        jobs = []
        time = 0.0
        for i in range(rng.randint(2, 15)):
            time += rng.randint(0, 500)
            run_time = {kind: float(rng.randint(100, 5000)) for kind in ("v100", "p100", "k80")}
            jobs.append(SimJob(id=str(i), submit=time, gpus=1, run_time=run_time, user="ann"))
        workload = Workload("w", tuple(jobs))
        fast_place = Engine(cluster, workload).run(order="earliest-finish").place
        engine = Engine(cluster, workload)
        daemon = DaemonChoice(engine)

        def follow(job, now, daemon=daemon, fast_place=fast_place):
            nonlocal decided, differing
            daemon(job, now)
            # As submitted the job goes to the default partition, which is therefore no candidate of its own.
            scores = {p.processor: p.score for p in daemon.decisions[-1].predictions}
            assert set(scores) == {"v100", "p100", "k80"}
            ours = cluster.places[fast_place[job]].processor
            decided += 1
            differing += scores[ours] > min(scores.values()) * 1.05 + 10
            return [int(fast_place[job])]

        engine.run_deciding(follow)
    assert decided > 400
    assert differing <= decided / 50, (differing, decided)


def test_the_picture_shows_every_job_and_is_well_formed():
    workload = mixed(20)
    outcomes = simulate(workload, CLUSTER, ["earliest-start", "earliest-finish"])
    text = draw(CLUSTER, workload, [(o.row.policy, o.schedule) for o in outcomes])
    root = ElementTree.fromstring(text)
    titles = [element for element in root.iter() if element.tag.endswith("title")]
    assert len(titles) == 2 * 20
    assert "earliest-finish" in text


def test_a_large_run_is_drawn_as_running_and_waiting():
    workload = read_workload("synthetic:jobs=3500,v100=40,k80=45")
    cluster = parse_cluster("v100=40,k80=45")
    (outcome,) = simulate(workload, cluster, ["earliest-start"])
    root = ElementTree.fromstring(draw(cluster, workload, [("x", outcome.schedule)]))
    assert len([element for element in root.iter() if element.tag.endswith("polyline")]) == 2


def test_words_of_a_trace_cannot_break_the_picture():
    job = SimJob(id="<1>", submit=0, gpus=1, app='"><script>&', run_time={"v100": 5})
    workload = Workload("w", (job,))
    (outcome,) = simulate(workload, CLUSTER, ["earliest-start"])
    ElementTree.fromstring(draw(CLUSTER, workload, [("a<b", outcome.schedule)]))


def test_the_command_prints_rows_as_json_and_draws(tmp_path):
    plot = tmp_path / "out.svg"
    words = ["synthetic:jobs=40,v100=2,k80=2", "--cluster", "v100=2,k80=2", "--policy", "random,earliest-finish"]
    result = CliRunner().invoke(command, [*words, "--plot", str(plot), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert [row["policy"] for row in found] == ["random", "earliest-finish"]
    assert set(found[0]) == {
        "policy",
        "avg_jct_h",
        "p99_jct_h",
        "makespan_h",
        "avg_wait_h",
        "utilisation",
        "jobs",
        "wall_s",
        "jobs_per_s",
    }
    assert plot.read_text().startswith("<svg")


def test_the_command_prints_a_table():
    result = CliRunner().invoke(command, ["synthetic:jobs=40,v100=2,k80=2", "--cluster", "v100=2,k80=2"])
    assert result.exit_code == 0, result.output
    assert "earliest-finish" in result.output
    assert "makespan" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.swf", "--cluster", "v100=1"], "none.swf"),
        (["synthetic:jobs=5,v100=2", "--cluster", "v100"], "--cluster"),
        (["synthetic:jobs=5,v100=2"], "name the cluster"),
        (["synthetic:jobs=5,v100=2", "--cluster", "v100=2", "--policy", "best"], "there is no policy 'best'"),
        (["synthetic:jobs=5,v100=2", "--cluster", "a100=2"], "fits no place"),
    ],
)
def test_wrong_use_of_the_command_is_told_in_a_line(words, said):
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert said in result.output


def test_the_command_backfills_as_slurm_does_when_asked_but_not_with_levers():
    words = ["synthetic:jobs=40,v100=2,k80=2", "--cluster", "v100=2,k80=2", "--backfill", "slurm", "--json"]
    result = CliRunner().invoke(command, [*words, "--policy", "earliest-start"])
    assert result.exit_code == 0, result.output
    # slurmctld looks once a second: hardly a job starts with its submission.
    assert json.loads(result.output)[0]["jobs"] == 40
    assert json.loads(result.output)[0]["avg_wait_h"] > 0
    result = CliRunner().invoke(command, [*words, "--policy", "advisor"])
    assert result.exit_code == 2
    assert "easy or conservative" in result.output


def test_utilisation_and_waits_are_those_of_the_schedule():
    jobs = (
        SimJob(id="1", submit=0, gpus=1, run_time={"v100": 3600}),
        SimJob(id="2", submit=0, gpus=1, run_time={"v100": 3600}),
    )
    (outcome,) = simulate(Workload("w", jobs), parse_cluster("v100=1"), ["earliest-start"])
    row = outcome.row
    assert (row.avg_jct_h, row.p99_jct_h, row.makespan_h, row.avg_wait_h, row.utilisation) == (1.5, 2, 2, 0.5, 1.0)
    assert math.isfinite(row.jobs_per_s)
    assert np.array_equal(outcome.schedule.end, [3600, 7200])
