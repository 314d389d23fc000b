"""What a simulation that begins with a site's log of earlier jobs knows, and from where."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from advisor.cli.simulate import command
from advisor.sim.cluster import parse_cluster
from advisor.sim.engine import Engine
from advisor.sim.history import played
from advisor.sim.knowledge import believe
from advisor.sim.neighbours import PairTable
from advisor.sim.planner import left_of
from advisor.sim.simulate import simulate
from advisor.sim.traces.gavel import Throughputs
from advisor.sim.traces.gavel_like import from_text
from advisor.sim.workload import SimJob, TraceError, Workload
from advisor.store import decisions, outcomes
from advisor.store.database import Database
from tests.store.rows import decision, outcome

CLUSTER = parse_cluster("v100=2,p100=2,k80=2")
SPEED = {"lm (batch 5)": (10.0, 6.0, 2.0), "lm (batch 80)": (4.0, 2.0, 0.5), "a3c": (1.0, 1.0, 0.9), "gan": (8, 3, 1)}
ALONE = {kind: {(app, 1): float(s[i]) for app, s in SPEED.items()} for i, kind in enumerate(("v100", "p100", "k80"))}
BESIDE = {
    kind: {
        a: {b: (0.6 * sa, 0.6 * sb) if a[0] != "gan" else (0.0, 0.0) for b, sb in row.items()} for a, sa in row.items()
    }
    for kind, row in ALONE.items()
}
TABLE = Throughputs(ALONE, BESIDE)


def earlier(jobs=120, seed=3):
    return from_text(f"gavel:jobs={jobs},seed={seed}", TABLE, CLUSTER)


def now(count=40):
    return Workload("now", from_text(f"gavel:jobs={count},seed=9,load=50", TABLE, CLUSTER).jobs)


def test_with_a_log_run_times_are_known_before_the_first_job_ends():
    engine = Engine(CLUSTER, now())
    believe(engine, "learned")
    blind = abs(_off(engine)).mean()
    engine = Engine(CLUSTER, now())
    believe(engine, "learned", played(earlier(), CLUSTER))
    assert abs(_off(engine)).mean() < min(0.15, blind / 3)


def _off(engine):
    return np.log(engine.jobs.expected / engine.true_run)


def test_a_log_brings_the_levers_close_to_knowing_everything():
    hours = {}
    for kind, log in (("oracle", None), ("nothing", None), ("log", played(earlier(300), CLUSTER))):
        knowledge = "oracle" if kind == "oracle" else "learned"
        (found,) = simulate(
            now(), CLUSTER, ["advisor"], knowledge=knowledge, levers=("place", "order"), history=log, throughputs=TABLE
        )
        hours[kind] = found.row.avg_jct_h
    assert hours["log"] < 1.05 * hours["oracle"]
    assert hours["log"] < hours["nothing"]


def test_earlier_jobs_went_wherever_a_place_was_free():
    log = played(earlier(60), CLUSTER)
    assert len(log.runs) == 60
    assert {run.processor for run in log.runs} == {"v100", "p100", "k80"}
    assert all(run.log_work is not None for run in log.runs)
    assert not log.pairs


def test_a_log_with_sharing_tells_what_jobs_kept_of_their_speed():
    truth = PairTable(TABLE)
    log = played(earlier(80), CLUSTER, truth)
    assert len(log.runs) == 80
    of_app = {job.app: job for job in earlier(80).jobs}
    assert log.pairs
    for (mine, other, processor), share in log.pairs.items():
        assert share == pytest.approx(truth.pair(of_app[mine], of_app[other], processor))
    assert any(share == 0.0 for share in log.pairs.values()), "two that do not fit are in the log too"


def test_wide_jobs_have_their_gpus_alone_in_a_shared_log():
    jobs = tuple(
        SimJob(
            id=str(n), submit=0.0, app="a3c", gpus=2 if n % 2 else 1, run_time={"v100": 100.0}, share=True, steps=9.0
        )
        for n in range(8)
    )
    log = played(Workload("mixed", jobs), parse_cluster("v100=2"), PairTable(TABLE))
    assert sorted(run.units for run in log.runs) == [1, 1, 1, 1, 2, 2, 2, 2]


def test_a_run_beyond_its_time_is_expected_to_go_on_the_longer_the_less_is_known():
    sure, unsure = left_of(1000.0, 0.05, 1500.0), left_of(1000.0, 0.6, 1500.0)
    assert 0 < sure < unsure
    assert left_of(1000.0, 0.05, 400.0) == pytest.approx(600.0, rel=0.02)


def invoke(*words):
    result = CliRunner().invoke(command, list(words))
    assert result.exit_code == 0, result.output
    return json.loads(result.output)[0]


SYNTHETIC = ("synthetic:jobs=40,load=3,v100=2,k80=2", "--cluster", "v100=2,k80=2", "--levers", "place", "--json")


def test_history_may_be_another_trace():
    words = (*SYNTHETIC, "--knowledge", "learned")
    assert invoke(*words)["avg_jct_h"] != invoke(*words, "--history", "synthetic:jobs=200,v100=2,k80=2")["avg_jct_h"]


def test_history_may_be_the_site_s_own_log(tmp_path):
    path = tmp_path / "advisor.db"
    with Database(path) as db:
        decisions.insert_many(db, [decision(f"t{n}", app="resnet50", annotation={"work": 10.0}) for n in range(8)])
        outcomes.store(
            db,
            [
                outcome(n, n, start=1000, elapsed=500, processor="v100", gpus=1, user="u", token=f"t{n}")
                for n in range(8)
            ],
            None,
            0.0,
        )
    assert invoke(*SYNTHETIC, "--knowledge", "learned", "--history", str(path))["jobs"] == 40


def test_history_without_learning_is_refused():
    result = CliRunner().invoke(command, [*SYNTHETIC, "--history", "synthetic"])
    assert result.exit_code == 2 and "--history is for --knowledge learned" in result.output


@pytest.mark.parametrize("text", ["gavel:jobs=0", "gavel:hobs=3", "gavel:jobs=many"])
def test_a_wrong_recipe_of_earlier_jobs_is_explained(text):
    with pytest.raises(TraceError):
        from_text(text, TABLE, CLUSTER)


def test_the_same_recipe_makes_the_same_jobs_at_the_load_asked_for():
    assert earlier() == earlier()
    assert earlier(seed=4) != earlier()
    jobs = earlier(400).jobs
    offered = sum(sum(job.run_time.values()) / len(job.run_time) for job in jobs)
    assert offered / (jobs[-1].submit * CLUSTER.gpus) == pytest.approx(1.0, rel=0.2)
    assert math.isclose(jobs[0].run_time["v100"], jobs[0].steps / ALONE["v100"][jobs[0].app, 1])
