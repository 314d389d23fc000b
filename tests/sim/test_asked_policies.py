"""Policies that are asked while the simulation runs, and what they know: Paragon, HEFT, Gavel's without preemption."""

import itertools
import json
import sys

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from advisor.cli import cli
from advisor.cli.simulate import command
from advisor.policy.gavel import PLACED
from advisor.sim.cluster import parse_cluster
from advisor.sim.engine import Engine
from advisor.sim.knowledge import Learned, believe
from advisor.sim.simulate import simulate
from advisor.sim.workload import SimJob, Workload
from tests.cluster.conftest import RECORDINGS, RELEASES, REPLAY

CLUSTER = parse_cluster("v100=2,k80=2")
FACTOR = {"fast": 8.0, "even": 1.1}


def mixed(count=60, gap=200.0) -> Workload:
    """Two apps in turn: one needs the fast type, the other does not."""
    jobs = []
    for i in range(count):
        app = "fast" if i % 2 else "even"
        seconds = 900.0 + 11 * (i % 7)
        run_time = {"v100": seconds, "k80": seconds * FACTOR[app]}
        jobs.append(
            SimJob(
                id=str(i), submit=gap * i, gpus=1, app=app, user="ann", run_time=run_time, time_limit=36_000.0,
                partitions=("v100", "k80"), share=True,
            )
        )  # fmt: skip
    return Workload("mixed", tuple(jobs))


def rows(policies, work=None, **options):
    found = simulate(work or mixed(), CLUSTER, policies, **options)
    return {o.row.policy: o for o in found}


@pytest.mark.parametrize("name", ["paragon", "heft", "max-min-fairness-aware", "allox", "makespan-aware"])
def test_all_jobs_run_once_and_never_before_their_submission(name):
    (outcome,) = simulate(mixed(), CLUSTER, [name])
    schedule = outcome.schedule
    assert outcome.row.jobs == 60
    assert (schedule.start >= [job.submit for job in mixed().jobs]).all()
    for node in range(4):
        on = sorted((schedule.start[j], schedule.end[j]) for j in range(60) if node in schedule.nodes_of(j))
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(on))


@pytest.mark.parametrize("name", sorted(PLACED))
def test_every_optimisation_policy_places_the_whole_workload(name):
    (outcome,) = simulate(mixed(20), CLUSTER, [name])
    assert outcome.row.jobs == 20


@pytest.mark.parametrize("name", ["max-min-fairness", "finish-time-fairness", "makespan", "shortest-job-first"])
def test_knowing_what_types_can_do_helps(name):
    found = rows([name, f"{name}-aware"])
    assert found[f"{name}-aware"].row.avg_jct_h < found[name].row.avg_jct_h


def test_optimisation_policies_give_the_fast_type_to_those_who_need_it():
    (outcome,) = simulate(mixed(), CLUSTER, ["max-min-fairness-aware"])
    place = np.asarray(outcome.schedule.place)
    needs = np.asarray([job.app == "fast" for job in mixed().jobs])
    assert (place[needs] == 0).mean() > (place[~needs] == 0).mean() + 0.3


def test_allox_places_and_orders_better_than_first_come_first_served():
    found = rows(["allox", "earliest-start"])
    assert found["allox"].row.avg_jct_h < found["earliest-start"].row.avg_jct_h


def test_allox_refuses_jobs_of_several_gpus():
    job = SimJob(id="1", submit=0, gpus=2, nodes=2, run_time={"v100": 5.0})
    with pytest.raises(ValueError, match="one GPU only"):
        simulate(Workload("w", (job,)), CLUSTER, ["allox"])


def test_paragon_sends_a_job_to_the_free_type_on_which_apps_like_it_are_fast():
    (outcome,) = simulate(mixed(gap=2000.0), CLUSTER, ["paragon"])
    assert set(outcome.schedule.place[1::2].tolist()) == {0}  # never busy: always the fast type
    assert np.allclose(outcome.schedule.start, [job.submit for job in mixed(gap=2000.0).jobs])


def test_paragon_takes_what_is_free_rather_than_wait():
    (outcome,) = simulate(mixed(gap=1.0), CLUSTER, ["paragon"])
    assert sorted(outcome.schedule.start[:4] - np.arange(4.0)) == pytest.approx([0, 0, 0, 0], abs=31)


def test_heft_runs_the_long_chain_first():
    def job(name, depends=(), seconds=100.0):
        return SimJob(id=name, submit=0.0, gpus=1, run_time={"v100": seconds}, depends=depends, app=name)

    chain = [job("a"), *(job(f"a{i}", (("a" if i == 1 else f"a{i - 1}"),)) for i in range(1, 5))]
    single = [job(f"s{i}", seconds=150.0) for i in range(8)]
    cluster = parse_cluster("v100=2")
    work = Workload("w", (*single, *chain))
    heft, fifo = (simulate(work, cluster, [name])[0].row.makespan_h for name in ("heft", "earliest-start"))
    assert heft < fifo


def test_with_learned_knowledge_the_run_gets_better_than_with_limits_only():
    found = {
        knowledge: rows(["earliest-finish", "shortest-first"], mixed(120), knowledge=knowledge)
        for knowledge in ("oracle", "learned", "limits")
    }
    jct = {k: found[k]["earliest-finish"].row.avg_jct_h for k in found}
    assert jct["oracle"] <= jct["learned"] < jct["limits"]
    short = {k: found[k]["shortest-first"].row.avg_jct_h for k in found}
    assert short["learned"] < short["limits"] * 1.05


def test_learned_knowledge_starts_from_nothing_and_comes_close():
    engine = Engine(CLUSTER, mixed(40))
    truth = engine.true_run.copy()
    learned = believe(engine, "learned")
    assert isinstance(learned, Learned)
    before = engine.jobs.expected.copy()
    assert np.array_equal(engine.true_run, truth)
    assert not np.allclose(before, truth, rtol=0.2)
    for j in range(30):
        learned.take(j, "v100" if j % 3 else "k80", float(truth[j, 0 if j % 3 else 1]))
    learned.expect()
    off = np.abs(np.log(engine.jobs.expected[30:] / truth[30:]))
    assert off.max() < np.abs(np.log(before[30:] / truth[30:])).max()
    assert np.median(off) < 0.25


def test_beliefs_leave_alone_what_cannot_run():
    work = Workload("w", (SimJob(id="1", submit=0, gpus=1, run_time={"v100": 50.0}),))
    for knowledge in ("learned", "limits"):
        engine = Engine(CLUSTER, work)
        believe(engine, knowledge)
        assert np.isinf(engine.jobs.expected[0, 1])
        assert np.isfinite(engine.jobs.expected[0, 0])


@pytest.mark.parametrize("name", ["paragon", "heft", "fastest", "random", "earliest-start", "slurm-default"])
@pytest.mark.parametrize("knowledge", ["learned", "limits"])
def test_policies_run_with_every_kind_of_knowledge(name, knowledge):
    (outcome,) = simulate(mixed(30), CLUSTER, [name], knowledge=knowledge)
    assert outcome.row.jobs == 30


def test_learning_is_the_same_each_time():
    one, two = (simulate(mixed(40), CLUSTER, ["earliest-finish"], knowledge="learned")[0].schedule for _ in range(2))
    assert one.to_bytes() == two.to_bytes()


def invoke(*words):
    result = CliRunner().invoke(command, list(words))
    assert result.exit_code == 0, result.output
    return result.output


SYNTHETIC = ("synthetic:jobs=30,v100=2,k80=2", "--cluster", "v100=2,k80=2")


def test_the_oracle_s_row_has_its_bound_and_no_other_row_has():
    text = invoke(*SYNTHETIC, "--policy", "oracle,earliest-finish", "--objective", "makespan", "--json")
    oracle, rule = json.loads(text)
    assert oracle["objective"] == "makespan"
    assert 0 < oracle["bound_h"] <= oracle["makespan_h"] <= rule["makespan_h"]
    assert set(oracle) - set(rule) == {"bound_h", "objective"}


def test_the_table_tells_the_bound_in_a_sentence():
    assert "no schedule without preemption or sharing has a avg_jct below" in invoke(*SYNTHETIC, "--policy", "oracle")


def test_levers_add_the_advisor_to_the_policies(tmp_path):
    plot = tmp_path / "out.svg"
    words = ("--policy", "earliest-start", "--levers", "place,order", "--plot", str(plot), "--json")
    first, second = json.loads(invoke(*SYNTHETIC, *words))
    assert (first["policy"], second["policy"]) == ("earliest-start", "advisor[place,order]")
    assert second["avg_jct_h"] <= first["avg_jct_h"]
    assert "advisor[place,order]" in plot.read_text()
    (only,) = json.loads(invoke(*SYNTHETIC, "--levers", "place", "--knowledge", "learned", "--json"))
    assert only["policy"] == "advisor[place]"


def test_an_unknown_lever_is_named():
    result = CliRunner().invoke(command, [*SYNTHETIC, "--levers", "place,push"])
    assert result.exit_code == 2
    assert "there is no lever 'push'; there are place, order, share, requeue" in result.output


@pytest.mark.parametrize("release", RELEASES)
def test_the_cluster_can_be_the_one_that_slurm_shows(release, tmp_path):
    config = tmp_path / "advisor.yaml"
    slurm = {"source": "commands", "command": [sys.executable, str(REPLAY), str(RECORDINGS / release), "scontrol"]}
    config.write_bytes(msgspec.json.encode({"slurm": slurm}))
    trace = tmp_path / "jobs.jsonl"
    kinds = {"v100": 100.0, "p100": 150.0, "k80": 400.0}
    lines = [{"id": i, "submit": i, "gpus": 1, "run_time": kinds, "time_limit": 500} for i in range(12)]
    trace.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    words = ["--config", str(config), "simulate", str(trace), "--from-slurm", "--policy", "fastest", "--json"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.output)
    assert row["jobs"] == 12
    # The recorded cluster has two v100: twelve jobs of 100 s, one a second, run two at a time.
    assert row["makespan_h"] * 3600 == pytest.approx(601, abs=1)
    refused = CliRunner().invoke(cli, [*words, "--cluster", "v100=1"])
    assert refused.exit_code == 2
    assert "exclude each other" in refused.output


def test_a_slurm_that_does_not_answer_is_told_in_a_line(tmp_path):
    config = tmp_path / "advisor.yaml"
    config.write_text("slurm: {source: commands, command: [/nonexistent/prefix]}\n")
    words = ["--config", str(config), "simulate", "synthetic:jobs=5,v100=2", "--from-slurm"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 1
    assert "/nonexistent/prefix" in result.output
