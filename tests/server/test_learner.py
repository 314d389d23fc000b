"""What the daemon knows of run times and waits as its log grows."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from advisor.performance.model.files import encode
from advisor.performance.runtime import expected
from advisor.performance.told import encode as encode_told
from advisor.performance.told import shipped
from advisor.server.learner import FEW_RUNS, Learner, RunningJob
from advisor.settings import Paths, Settings
from advisor.store import decisions, outcomes
from advisor.store.database import Database
from advisor.training.versions import Versions
from tests.performance.runs import PROCESSORS, fitted, site
from tests.store.rows import decision, outcome

SITE = ("v100", "p100", "k80", "cpu")


@pytest.fixture
def db(tmp_path: Path):
    with Database(tmp_path / "advisor.db") as opened:
        yield opened


def beside(folder: Path) -> Settings:
    """Settings of a daemon that keeps its models in this folder."""
    return Settings(paths=Paths(database=str(folder / "advisor.db")))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return beside(tmp_path)


def ended(number: int, app: str, gpu: str, seconds: int, **fields):
    end = 10_000 + number
    given = {"name": app, "processor": gpu, "gpus": 1, "elapsed": seconds, "start": end - seconds, "end": end}
    return outcome(number, number, log_elapsed=math.log(seconds), user="ann", **(given | fields))


def a_week(db: Database) -> None:
    rows = [
        ended(100 * a + 10 * g + i, f"app{chr(97 + a)}", gpu, int(1000 * (a + 1) * factor * (0.8, 0.95, 1.1, 1.3)[i]))
        for a in range(6)
        for g, (gpu, factor) in enumerate((("v100", 1.0), ("p100", 1.5)))
        for i in range(4)
    ]
    outcomes.store(db, rows, None, 0.0)


def told(history, app: str, gpu: str, gpus: int = 1):
    return expected(app, "ann", gpu, 86_400.0, None, history, PROCESSORS, gpus=gpus)


def test_an_app_is_known_on_processors_where_it_has_never_run(db: Database, settings: Settings) -> None:
    a_week(db)
    history = Learner().history(db, settings, SITE)
    here, there = told(history, "appa", "v100"), told(history, "appa", "k80")
    assert here.seconds == pytest.approx(1000, rel=0.25)
    assert (here.source, here.detail) == ("history", "4 past runs of appa")
    assert there.source == "history elsewhere"
    assert there.seconds > 1.8 * here.seconds
    assert there.sd_log > here.sd_log


def test_a_job_that_ends_counts_at_once(db: Database, settings: Settings) -> None:
    a_week(db)
    learner = Learner()
    before = told(learner.history(db, settings, SITE), "appa", "v100")
    outcomes.store(db, [ended(5000 + i, "appa", "v100", 4000) for i in range(12)], None, 0.0)
    history = learner.history(db, settings, SITE)
    after = told(history, "appa", "v100")
    assert after.detail == "16 past runs of appa"
    assert after.seconds > 2 * before.seconds
    assert told(history, "appb", "v100").detail == "4 past runs of appb"
    assert learner.history(db, settings, SITE) is history  # nothing new, nothing done


def test_a_numbered_job_that_never_ran_is_expected_like_its_kind(db: Database, settings: Settings) -> None:
    a_week(db)
    outcomes.store(db, [ended(6000 + i, f"sweep_{i}", "v100", 300) for i in range(1, 20)], None, 0.0)
    found = told(Learner().history(db, settings, SITE), "sweep_77", "v100")
    assert found.source == "similar jobs"
    assert found.seconds == pytest.approx(300, rel=0.5)


def test_jobs_that_still_run_count_as_at_least_so_long(db: Database, tmp_path: Path) -> None:
    a_week(db)
    running = [RunningJob("appa", "ann", "v100", 1, 4, 2500.0)] * 4
    without, with_them = (
        told(Learner().history(db, beside(tmp_path / name), SITE, jobs), "appa", "v100").seconds
        for name, jobs in (("without", []), ("with", running))
    )
    assert with_them > 1.2 * without


def test_without_numpy_the_plain_means_serve_and_that_is_said_once(
    db: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a_week(db)
    for name in [name for name in sys.modules if name.startswith("advisor.performance.model.")]:
        if name != "advisor.performance.model.names":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    learner = Learner()
    for _ in range(2):
        history = learner.history(db, settings, SITE)
    assert history["appa"]["v100"].count == 4 and not history["appa"]["v100"].modelled
    assert len([record for record in caplog.records if "plain means" in record.message]) == 1


def test_the_model_is_saved_beside_the_log(db: Database, settings: Settings, tmp_path: Path) -> None:
    a_week(db)
    Learner().history(db, settings, SITE)
    card = (tmp_path / "models" / "run-times" / "card.yaml").read_text()
    assert "apps: 6" in card and "runs: 48" in card


def test_a_restart_goes_on_from_the_saved_model_with_what_has_ended_since(
    db: Database, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    a_week(db)
    before = told(Learner().history(db, settings, SITE), "appa", "v100")
    outcomes.store(db, [ended(5000 + i, "appa", "v100", 4000) for i in range(12)], None, 0.0)
    caplog.set_level("INFO")
    after = told(Learner().history(db, settings, SITE), "appa", "v100")
    assert after.detail == "16 past runs of appa" and after.seconds > 2 * before.seconds
    assert "run times of 48 runs loaded" in caplog.text and "fitted" not in caplog.text


def test_what_was_learned_outlives_the_log(db: Database, settings: Settings, tmp_path: Path) -> None:
    a_week(db)
    known = told(Learner().history(db, settings, SITE), "appa", "v100")
    with Database(tmp_path / "begun-anew.db") as empty:
        assert told(Learner().history(empty, settings, SITE), "appa", "v100") == known


def test_a_damaged_model_is_refused_with_a_reason_and_the_one_before_serves(
    db: Database, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_week(db)
    learner = Learner()
    learner.history(db, settings, SITE)
    outcomes.store(db, [ended(7000 + i, "appz", "v100", 500) for i in range(FEW_RUNS)], None, 0.0)
    learner.history(db, settings, SITE)  # takes them in, and is now due for a refit
    whole = told(learner.history(db, settings, SITE), "appz", "v100")
    files = tmp_path / "models" / "run-times"
    assert "runs: 98" in (files / "card.yaml").read_text()
    assert "runs: 48" in (files / "previous" / "card.yaml").read_text()
    (files / "run_times.msgpack").write_bytes((files / "run_times.msgpack").read_bytes()[:-100])
    served = told(Learner().history(db, settings, SITE), "appz", "v100")
    assert "refused" in caplog.text and "not the file that card.yaml tells of" in caplog.text
    assert "the run-time model before it serves" in caplog.text
    assert served.detail == whole.detail and served.seconds == pytest.approx(whole.seconds, rel=0.2)
    (files / "previous" / "card.yaml").write_text("{")
    again = told(Learner().history(db, settings, SITE), "appz", "v100")
    assert "fitted anew" in caplog.text and again.seconds == pytest.approx(whole.seconds, rel=0.2)
    Learner().history(db, settings, SITE)  # and what it saved can be used again
    assert caplog.text.count("fitted anew") == 1


def test_a_record_that_comes_late_counts_and_counts_once(db: Database, settings: Settings) -> None:
    a_week(db)
    learner = Learner()
    learner.history(db, settings, SITE)
    now = 20_000
    outcomes.store(db, [ended(now, "appa", "v100", 1000)], None, 0.0)
    learner.history(db, settings, SITE)
    late = [ended(now - 600, "appa", "v100", 1000), ended(now + 90_000, "appa", "v100", 1000, end=10_000 + now)]
    outcomes.store(db, late, None, 0.0)
    for _ in range(2):
        assert told(learner.history(db, settings, SITE), "appa", "v100").detail == "7 past runs of appa"


def test_a_record_from_a_clock_that_is_ahead_hides_nothing(db: Database, settings: Settings) -> None:
    a_week(db)
    learner = Learner()
    learner.history(db, settings, SITE)
    outcomes.store(db, [ended(14_000, "appb", "v100", 1000, end=2**40)], None, 0.0)
    learner.history(db, settings, SITE)
    outcomes.store(db, [ended(15_000, "appa", "v100", 1000)], None, 0.0)
    assert told(learner.history(db, settings, SITE), "appa", "v100").detail == "5 past runs of appa"


def test_annotations_are_corrected_as_shipped_until_a_version_has_learned_from_them(
    db: Database, settings: Settings, tmp_path: Path
) -> None:
    learner = Learner()
    a_week(db)
    learner.history(db, settings, SITE)
    assert learner.told() == shipped()
    mine = msgspec.structs.replace(shipped(), own=0.5, runs=7)
    files = {"run_times.msgpack": encode(fitted(site(1, apps=3, runs=2))), "told.json": encode_told(mine)}
    versions = Versions.of(settings)
    versions.write("v1", files, {}, created_at=1.0, cluster="mini", policy="earliest-finish")
    versions.promote("v1", "a test")
    learner.history(db, settings, SITE)
    assert learner.told() == mine


def test_waits_that_are_always_longer_than_expected_are_corrected(db: Database) -> None:
    assert Learner().waits(db) == {}
    predictions = [{"candidate": 0, "wait_s": 600.0}]
    decisions.insert_many(
        db, [decision(f"t{i}", decided_at=1000.0 + i, chosen=0, predictions=predictions) for i in range(80)]
    )
    outcomes.store(
        db,
        [
            ended(i, "appa", "v100", 100, token=f"t{i}", partition="busy", submit=8000 + i, start=8000 + i + 2400)
            for i in range(80)
        ],
        None,
        0.0,
    )
    table = Learner().waits(db)
    assert table["busy"][2][0] > 1500  # of ten minutes expected


def test_the_hot_path_and_the_daemon_do_without_numpy() -> None:
    code = (
        "import sys, advisor.server.daemon, advisor.server.bookkeeping, advisor.policy.arithmetic;"
        "sys.exit('numpy' in sys.modules or 'scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
