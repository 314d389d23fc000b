"""What the log teaches about sharing a node ends in decisions: those who hurt each other are kept apart."""

import time

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from advisor.cli import cli
from advisor.cluster.types import Gres
from advisor.contention.exposure import Run, exposures
from advisor.contention.shared_runs import SharedRuns
from advisor.performance.queue import build_snapshot
from advisor.performance.slowdowns import MOST, encoded, value
from advisor.performance.snapshot import Snapshot
from advisor.server.sharing import Sharing
from advisor.settings import Capacities, Contention, Settings
from advisor.store import decisions, outcomes
from advisor.store.counters import CounterStore, decode
from advisor.store.database import Database
from tests.contention import logged
from tests.policy import site
from tests.store.rows import decision as decision_row

PAST = {app: {kind: site.runs(seconds) for kind, seconds in logged.ALONE_S.items()} for app in ("stream", "prime")}
MIXED = tuple(
    msgspec.structs.replace(node, gres_allocated=(Gres("gpu", 1, "v100"),), cpus_allocated=2)
    if node.name == "v1"
    else node
    for node in site.NODES
)


def learned(database, *jobs, settings=None, nodes=MIXED):
    """The snapshot of a cluster with these jobs, by a collector that has read the log."""
    sharing = Sharing()
    state = site.state(*jobs, nodes=nodes)
    snapshot = build_snapshot(state, PAST)
    assert sharing.outlook(state, snapshot).slowdowns is None, "nothing was read yet"
    with Database(database) as db:
        sharing.learn(db, settings or Settings())
    found = sharing.outlook(state, snapshot)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Snapshot)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "advisor.db"
    logged.seed(path)
    return path


def gather(node="v1"):
    """It has only just started: no past run was beside this one."""
    job = site.running(node, 1, "v100", hours=2, name="gather")
    return msgspec.structs.replace(job, start_time=int(time.time()))


def chosen(snapshot, app):
    decision = site.advise(site.submission(name=app, partition="v100,p100"), snapshot)
    return decision, decision.predictions[decision.chosen].processor


def test_jobs_that_hurt_each_other_are_kept_apart_and_others_may_share(database):
    snapshot = learned(database, gather())
    hurt, place = chosen(snapshot, "stream")
    assert place == "p100", hurt.why
    alone, place = chosen(snapshot, "prime")
    assert place == "v100", alone.why
    assert chosen(learned(database), "stream")[1] == "v100", "nobody is there"


def test_the_reason_has_the_numbers(database):
    decision, _ = chosen(learned(database, gather()), "stream")
    v100 = next(p for p, c in zip(decision.predictions, decision.candidates, strict=True) if c.partition == "v100")
    assert v100.slowdown == pytest.approx(logged.TIMES, rel=0.2)
    assert 0 < v100.slowdown_sd < 1
    assert v100.beside == ("gather",)
    assert f"slowed down {v100.slowdown:.2f} times beside gather" in v100.reason
    assert v100.score == pytest.approx(v100.wait_s + v100.run_s * v100.slowdown)


def test_explain_shows_the_slowdown_of_each_place_and_its_spread(database, tmp_path):
    decision, _ = chosen(learned(database, gather()), "stream")
    path, config = tmp_path / "log.db", tmp_path / "advisor.yaml"
    config.write_text(f"paths: {{database: {path}}}\n")
    row = decision_row(
        "t9", app="stream", why=decision.why, chosen=decision.chosen, preferred=decision.preferred,
        candidates=msgspec.to_builtins(decision.candidates), predictions=msgspec.to_builtins(decision.predictions),
        probabilities=list(decision.probabilities),
    )  # fmt: skip
    with Database(path) as db:
        decisions.insert_many(db, [row])
    told = CliRunner().invoke(cli, ["--config", str(config), "explain", "t9"], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    v100 = next(p for p, c in zip(decision.predictions, decision.candidates, strict=True) if c.partition == "v100")
    assert f"{v100.slowdown:.2f} ± {v100.slowdown_sd:.2f} times, beside gather" in told.output


def test_a_neighbour_is_known_by_the_app_that_its_annotation_named(tmp_path):
    path = tmp_path / "advisor.db"
    logged.seed(path)
    with Database(path) as db:
        decisions.insert_many(db, [decision_row("tok1", app="gather")])
    job = msgspec.structs.replace(gather(), name="run.sh", admin_comment="advisor=tok1")
    decision, place = chosen(learned(path, job), "stream")
    assert place == "p100", decision.why


def test_what_past_runs_suffered_is_not_counted_twice(database):
    snapshot = learned(database, gather())
    # A third of its runs on v100 were beside gather: the mean of their logs is that much above the one alone.
    assert snapshot.slowdowns.usually("stream", "v100") == pytest.approx(logged.TIMES ** (1 / 3), rel=0.1)
    assert snapshot.slowdowns.usually("prime", "v100") == pytest.approx(1.0, abs=0.05)


def test_a_job_with_nodes_of_its_own_is_slowed_down_by_nobody(database):
    decision = site.advise(
        site.submission(name="stream", partition="v100,p100", shared=0), learned(database, gather(), nodes=site.NODES)
    )
    assert all(p.slowdown == 1.0 for p in decision.predictions)


def test_without_shared_runs_and_without_agents_nothing_changes(tmp_path):
    path = tmp_path / "advisor.db"
    with Database(path) as db:
        alone = [row for row in logged.rows() if row.name == "prime"][:3]
        outcomes.store(db, alone, None, time.time())
    snapshot = learned(path, gather())
    assert snapshot.slowdowns is None and snapshot.beliefs == ()
    plain = build_snapshot(site.state(gather(), nodes=MIXED), PAST)
    one, other = chosen(snapshot, "stream")[0], chosen(plain, "stream")[0]
    assert msgspec.json.encode(one) == msgspec.json.encode(other)


def test_the_setting_turns_it_off(database):
    off = Settings(contention=Contention(slowdown=False))
    assert learned(database, gather(), settings=off).slowdowns is None


def sample(job, cores, io=0.0):
    metrics = {"cpu.user": cores, "cpu.system": 0.0, "memory": 1e9, "io.read": 0.0, "io.write": io}
    return {"job": job, "m": metrics, "cluster": "mini"}


def measured(path, *jobs, node="v1", samples=6):
    """As if an agent had sent so many samples of these jobs."""
    now = time.time()
    batch = {
        "v": 1, "node": node, "boot": "b", "run": "r", "now": now, "cluster": "mini",
        "samples": [
            {"n": n, "t": now - 10 * n, "b": 1000.0 + n, "dt": 10.0, "jobs": list(jobs), "node": {}}
            for n in range(samples)
        ],
    }  # fmt: skip
    with Database(path) as db:
        CounterStore(db).merge([decode(msgspec.json.encode(batch))], now, 7 * 86400)


def test_agents_alone_tell_that_a_disk_is_busy_before_any_outcome(tmp_path):
    job = msgspec.structs.replace(gather(), name="writer")
    path = tmp_path / "advisor.db"
    measured(path, sample(job.job_id, cores=1.0, io=1.9e9))
    snapshot = learned(path, job)
    pool = next(p.index for p in snapshot.pools if p.node_names == ("v1",))
    use, spread = snapshot.beliefs[pool]["disk"]
    assert use == pytest.approx(1.9 / 2, abs=0.05) and spread < 0.1
    assert value(snapshot.slowdowns.others, pool) > 1.05, "a job of which nothing is known may need the disk too"
    faster = Settings(contention=Contention(capacities={"volta": Capacities(disk_gbs=20.0)}))
    quick = learned(path, job, settings=faster)
    assert quick.beliefs[pool]["disk"][0] == pytest.approx(0.095, abs=0.02), "this site has faster disks"
    assert value(quick.slowdowns.others, pool) < value(snapshot.slowdowns.others, pool)


def test_exposure_is_the_share_of_time_and_node_beside_each_app():
    runs = [
        Run("a", "a", "cpu", ("n1",), 0, 100, share=0.5),
        Run("b", "b", "cpu", ("n1",), 50, 150, share=0.25),
        Run("b", "b", "cpu", ("n1", "n2"), 0, 50, share=0.5),
        Run("c", "c", "cpu", ("n3",), 0, 100),
    ]
    around = exposures(runs)
    assert around[0] == pytest.approx({"b": 0.5 * 0.25 + 0.5 * 0.5})
    assert around[1] == pytest.approx({"a": 0.5 * 0.5})
    assert around[2] == pytest.approx({"a": 0.5 / 2})
    assert around[3] == {}


def random_runs(seed, effect, count=240):
    """Pairs of apps on nodes of their own; `effect[a][b]`: log slowdown of a beside b."""
    draw = np.random.default_rng(seed)
    runs = []
    for number in range(count):
        a, b = (int(x) for x in draw.integers(0, len(effect), 2))
        alone = draw.random() < 0.3
        start = 10_000.0 * number
        for me, other in ((a, b), (b, a))[: 1 if alone else 2]:
            slow = 0.0 if alone else effect[me][other]
            runs.append(
                Run(
                    f"app{me}",
                    f"app{me}",
                    "cpu",
                    (f"n{number}",),
                    start,
                    start + 1000 * np.exp(slow + draw.normal(0, 0.05)),
                )
            )
    return runs


def test_effects_are_found_with_honest_spreads():
    draw = np.random.default_rng(3)
    press, feel = draw.uniform(0, 1, 6), draw.uniform(0, 1, 6)
    effect = np.outer(feel, press)
    runs = random_runs(4, effect)
    model = SharedRuns.fitted(runs, exposures(runs))
    off, inside = [], []
    for a in range(6):
        for b in range(6):
            mean, sd = model.log_slowdown(f"app{a}", "cpu", {f"app{b}": 1.0})
            off.append(abs(mean - effect[a, b]))
            inside.append(abs(mean - effect[a, b]) < 2 * sd + 0.02)
    assert np.mean(off) < 0.15 * effect.mean() + 0.03
    assert np.mean(inside) > 0.8


def test_an_app_never_seen_is_told_what_its_neighbours_do_to_others():
    effect = np.zeros((5, 5))
    effect[:, 0] = 0.7  # everybody suffers beside app0
    runs = random_runs(5, effect)
    model = SharedRuns.fitted(runs, exposures(runs))
    bully, sd = model.log_slowdown("stranger", "cpu", {"app0": 1.0})
    gentle, _ = model.log_slowdown("stranger", "cpu", {"app1": 1.0})
    assert bully > 0.25 and bully > gentle + 0.2
    assert sd > model.log_slowdown("app1", "cpu", {"app0": 1.0})[1]


@pytest.mark.parametrize(("alone", "apart"), [(0, 0.1), (3, 0.2)])
def test_what_a_job_felt_beside_some_neighbours_tells_of_one_that_it_never_met(alone, apart):
    effect = np.outer([1.0, 0.05, 0.5, 0.5, 0.5, 0.5], [0.3, 0.3, 0.8, 0.8, 0.8, 0.1])
    met = [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4), (4, 5), (5, 2), (0, 5), (1, 5)]
    draw = np.random.default_rng(8)
    runs, around = [], []
    for me, other in [*met, *((b, a) for a, b in met)] * 6 + [(app, None) for app in range(6)] * alone:
        slow = 0.0 if other is None else effect[me, other]
        runs.append(Run(f"app{me}", f"app{me}", "cpu", ("n",), 0.0, 1000 * np.exp(slow + draw.normal(0, 0.05))))
        around.append({} if other is None else {f"app{other}": 1.0})
    model = SharedRuns.fitted(runs, around)
    tender, _ = model.log_slowdown("app0", "cpu", {"app4": 1.0})
    sturdy, _ = model.log_slowdown("app1", "cpu", {"app4": 1.0})
    assert tender > sturdy + apart


def test_neighbours_are_not_thought_to_help_where_nobody_ever_ran_alone():
    # Beside one it takes three times as long as beside the other: the one hurts, the other does not speed it up.
    draw = np.random.default_rng(2)
    runs, around = [], []
    for other, slow in (("bully", np.log(3.0)), ("quiet", 0.0)) * 8:
        runs.append(Run("job", "job", "cpu", ("n",), 0.0, 1000 * np.exp(slow + draw.normal(0, 0.05))))
        around.append({other: 1.0})
        runs.append(Run(other, other, "cpu", ("n",), 0.0, 500 * np.exp(draw.normal(0, 0.05))))
        around.append({"job": 1.0})
    model = SharedRuns.fitted(runs, around)
    hurt, _ = model.log_slowdown("job", "cpu", {"bully": 1.0})
    spared, _ = model.log_slowdown("job", "cpu", {"quiet": 1.0})
    assert hurt > 0.6 and spared > -0.2


def test_few_runs_teach_little_and_one_absurd_run_less():
    quiet = random_runs(6, np.zeros((3, 3)), count=60)
    absurd = Run("app0", "app0", "cpu", ("n0",), quiet[0].start, quiet[0].start + 80_000)
    runs = [absurd, *quiet]
    model = SharedRuns.fitted(runs, exposures(runs))
    for a in range(3):
        for b in range(3):
            assert abs(model.log_slowdown(f"app{a}", "cpu", {f"app{b}": 1.0})[0]) < 0.1


def test_nobody_shared_nothing_is_learned():
    runs = [Run("a", "a", "cpu", (f"n{i}",), 0, 100 + i) for i in range(5)]
    assert SharedRuns.fitted(runs, exposures(runs)) is None


def test_codes_keep_slowdowns_to_a_percent():
    told = [1.0, 1.004, 1.5, 3.0, 11.0]
    codes = encoded(told)
    assert value(codes, 0) == value(codes, 1) == 1.0
    for index, truth in enumerate(told):
        assert value(codes, index) == pytest.approx(truth, rel=0.006)
    assert value(encoded([1e9]), 0) == pytest.approx(MOST)
    assert value(codes, 99) == 1.0, "a pool that was not there yet"
