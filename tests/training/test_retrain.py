"""`advisor retrain`: from a log to a judged version; whatever the log is like, it is never changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
import yaml

from advisor.policy.learned.files import Card, write_model
from advisor.policy.learned.shapes import zero_weights
from advisor.settings import Experiment, Explore, Gate, Modes, Paths, PolicySettings, Settings
from advisor.store import decisions
from advisor.store.copies import copy_log, merge
from advisor.store.database import Database, StoreError, migrations, statements
from advisor.training.retrain import Retrained, RetrainError, retrain
from advisor.training.serving import policy_in_force
from advisor.training.versions import Versions
from tests.store.rows import decision
from tests.training import logs

ROOT = Path(__file__).resolve().parents[2]
NOW = logs.START + 60 * 86_400.0


def settings_of(folder: Path, **more) -> Settings:
    return Settings(paths=Paths(database=str(folder / "advisor.db")), **more)


def state_of(folder: Path) -> dict[str, str]:
    """Every log file and its content; the versions beside it may change."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix != ".yaml"
    }


def weights(found: Retrained) -> dict[str, str]:
    path = Path(found.path)
    manifest = json.loads((path / "manifest.json").read_text())
    return {name: file["sha256"] for name, file in manifest["files"].items()}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> Path:
    """A log of the daemon's own decisions on a simulated site."""
    folder = tmp_path_factory.mktemp("simulated")
    logs.simulated(folder, jobs=220)
    return folder


def copy_of(folder: Path, to: Path) -> Settings:
    (to / "advisor.db").write_bytes((folder / "advisor.db").read_bytes())
    return settings_of(
        to, modes=Modes(default="enforce"), experiment=Experiment(holdout=0.2), explore=Explore(max_regret=0.2)
    )


def test_a_log_becomes_a_version_that_was_judged_and_is_in_force(simulated: Path, tmp_path: Path) -> None:
    settings = copy_of(simulated, tmp_path)
    before = state_of(tmp_path)
    said: list[str] = []
    found = retrain(settings, say=said.append, now=NOW)
    assert found.promoted and found.judgement.verdict == "passed"
    assert found.models.runs == 220 and found.simulated and found.latency and found.judged.evidence
    version = Versions.of(settings).current()
    assert version is not None and version.name == found.version
    assert set(version.manifest.files) == {"run_times.msgpack", "waits.json", "told.json", "contention.json"}
    for heading in ("made", "models", "log", "simulation", "latency", "gate"):
        assert version.card[heading], heading
    assert version.card["gate"]["reasons"] == found.judgement.reasons
    assert state_of(tmp_path) == before and any("simulating" in line for line in said)
    assert not (tmp_path / "models" / ".retrain").exists()


def test_the_same_log_and_seed_give_the_same_weights(simulated: Path, tmp_path: Path) -> None:
    settings = copy_of(simulated, tmp_path)
    first, second = (retrain(settings, seed=7, now=NOW, promote=False) for _ in range(2))
    assert first.version != second.version and weights(first) == weights(second)
    assert first.simulated == second.simulated and first.judged == second.judged


def test_what_the_gate_does_not_pass_stays_beside_with_its_reasons(simulated: Path, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(copy_of(simulated, tmp_path), gate=Gate(latency_ms=1e-6))
    found = retrain(settings, now=NOW)
    assert not found.promoted and found.judgement.verdict == "refused"
    versions = Versions.of(settings)
    assert versions.current() is None
    assert any("latency" in line for line in versions.load(found.version).card["gate"]["reasons"])


def test_a_log_without_probabilities_promotes_nothing_and_says_why(simulated: Path, tmp_path: Path) -> None:
    settings = copy_of(simulated, tmp_path)
    with Database(settings.paths.database) as db, db.transaction() as connection:
        connection.execute("UPDATE decisions SET probabilities = '[]', probability = NULL")
    found = retrain(settings, now=NOW)
    assert not found.promoted and found.judgement.verdict == "refused"
    reasons = Versions.of(settings).load(found.version).card["gate"]["reasons"]
    assert any("no decision in this log has probabilities" in line and "holdout" in line for line in reasons)


def test_the_learned_policy_is_tuned_on_the_site_and_its_weights_are_in_the_version(
    simulated: Path, tmp_path: Path
) -> None:
    write_model(tmp_path / "base", zero_weights(), Card("base"))
    learned = PolicySettings(name="learned", model=str(tmp_path / "base"))
    settings = msgspec.structs.replace(copy_of(simulated, tmp_path), policy=learned)
    found = retrain(settings, now=NOW, promote=False)
    assert found.policy.after_s is not None and found.policy.before_s is not None
    assert found.policy.tuned == (found.policy.after_s < found.policy.before_s)
    versions = Versions.of(settings)
    assert versions.load(found.version).file("policy.safetensors") is not None
    versions.promote(found.version, "to see it served")
    policy, refused = policy_in_force(msgspec.structs.replace(settings, policy=PolicySettings(name="learned")))
    assert policy.name == "learned" and refused is None and policy.version.endswith(f"/{found.version}")


def test_a_run_that_was_killed_goes_on_where_it_was(simulated: Path, tmp_path: Path) -> None:
    settings = copy_of(simulated, tmp_path)
    whole = retrain(settings, seed=3, now=NOW, promote=False)

    class Killed(BaseException):
        pass

    def until_simulation(what: str) -> None:
        if what.startswith("simulating"):
            raise Killed

    with pytest.raises(Killed):
        retrain(settings, seed=3, now=NOW + 5, say=until_simulation)
    with pytest.raises(RetrainError, match="other logs or another seed"):
        retrain(settings, seed=4, resume=True)
    said: list[str] = []
    found = retrain(settings, seed=3, resume=True, say=said.append)
    assert not any(line.startswith(("copying", "fitting")) for line in said)
    assert weights(found) == weights(whole) and found.simulated == whole.simulated


def test_resume_without_anything_to_resume_begins(simulated: Path, tmp_path: Path) -> None:
    assert retrain(copy_of(simulated, tmp_path), resume=True, now=NOW).version


def test_two_retrains_at_once_do_not_go_on_with_each_others_work(simulated: Path, tmp_path: Path) -> None:
    settings = copy_of(simulated, tmp_path)
    refused: list[str] = []

    def meanwhile(what: str) -> None:
        if what.startswith("simulating"):
            with pytest.raises(RetrainError, match="another retrain is at work") as error:
                retrain(settings, resume=True, now=NOW)
            refused.append(str(error.value))

    assert retrain(settings, now=NOW, say=meanwhile, promote=False).version
    assert len(refused) == 1
    assert retrain(settings, now=NOW, promote=False).version, "the next one may"


# Logs that are not as they should be.


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE recipes (name)")
        other.commit()


def no_jobs(path: Path) -> None:
    path.unlink()
    with Database(path) as db:
        decisions.insert_many(db, [decision("t1")])
        db.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def newer(path: Path) -> None:
    with Database(path) as db:
        db.connection.execute("INSERT INTO schema_migrations VALUES (9999, 'future', 0)")


def gone(path: Path) -> None:
    path.unlink()


def clock_of_another_century(path: Path) -> None:
    with Database(path) as db:
        db.connection.execute("UPDATE outcomes SET end = end + 4000000000")


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (cut, "recover"),
        (garbage, "not a log"),
        (empty_file, "advisor collect"),
        (foreign, "not a log of slurm-advisor"),
        (no_jobs, "no job in it has ended"),
        (newer, "upgrade slurm-advisor"),
        (gone, "--log"),
        (clock_of_another_century, "clock"),
    ],
)
def test_a_log_that_cannot_be_learned_from_is_refused_with_what_to_do(tmp_path: Path, harm, complaint: str) -> None:
    path = logs.trial(tmp_path, 40, gain=0.1)
    harm(path)
    before = state_of(tmp_path)
    with pytest.raises(RetrainError) as refused:
        retrain(settings_of(tmp_path), now=NOW)
    assert complaint in str(refused.value) and str(path) in str(refused.value)
    assert state_of(tmp_path) == before
    assert Versions.of(settings_of(tmp_path)).names() == []


def test_a_log_of_an_older_schema_is_migrated_on_the_copy(tmp_path: Path) -> None:
    new = logs.trial(tmp_path, 60, gain=0.1)
    old = tmp_path / "old" / "advisor.db"
    old.parent.mkdir()
    with contextlib.closing(sqlite3.connect(old)) as db:
        for statement in statements(migrations()[0][1].read_text()):
            db.execute(statement)
        db.execute("CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, name TEXT, applied_at REAL)")
        db.execute("INSERT INTO schema_migrations VALUES (1, 'log', 0)")
        db.execute("ATTACH DATABASE ? AS new", (str(new),))
        for table in ("decisions", "outcomes"):
            columns = ", ".join(row[1] for row in db.execute(f"PRAGMA main.table_info({table})"))
            db.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM new.{table}")
        db.commit()
    before = state_of(old.parent)
    copied = copy_log(old, tmp_path / "copy.db", NOW)
    assert copied.outcomes == copied.decisions == 60
    with Database(tmp_path / "copy.db", read_only=True) as db:
        assert db.rows("SELECT count(cpu_s), count(*) FROM outcomes")[0][1] == 60
    assert state_of(old.parent) == before


def test_records_of_a_clock_that_jumped_are_left_out_and_counted(tmp_path: Path) -> None:
    path = logs.trial(tmp_path, 60, gain=0.1)
    with Database(path) as db, db.transaction() as connection:
        connection.execute("UPDATE outcomes SET end = start - 10 WHERE job_id < 3")
        connection.execute("UPDATE outcomes SET end = end + 4000000000 WHERE job_id = 5")
        connection.execute("UPDATE outcomes SET submit = start + 7200 WHERE job_id = 7")
    copied = copy_log(path, tmp_path / "copy.db", NOW)
    assert copied.outcomes == 55 and sum(copied.left_out.values()) == 5
    assert all(why.startswith("a clock jumped") for why in copied.left_out)


def test_logs_of_two_clusters_merge_and_only_the_own_one_is_judged(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    one, other = logs.trial(here, 300, gain=0.1), logs.trial(there, 200, gain=0.1, seed=9)
    with Database(other) as db, db.transaction() as connection:
        connection.execute("UPDATE decisions SET cluster = 'far', token = 'far' || token")
        connection.execute("UPDATE outcomes SET cluster = 'far', token = 'far' || token")
    settings = settings_of(here)
    found = retrain(settings, [one, other], now=NOW, promote=False)
    assert found.models.runs == 500 and found.sources.cluster == "mini"
    assert found.judged.evidence is not None and found.judged.evidence.decisions == 300
    again = retrain(settings, [one, other], cluster="far", now=NOW, promote=False)
    assert again.judged.evidence is not None and again.judged.evidence.decisions == 200
    with pytest.raises(RetrainError, match="no log has jobs of a cluster 'mars'"):
        retrain(settings, [one], cluster="mars", now=NOW)


def test_two_clusters_of_one_name_are_not_merged(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    logs.trial(here, 50, gain=0.1), logs.trial(there, 50, gain=0.1)
    with Database(there / "advisor.db") as db, db.transaction() as connection:
        connection.execute("UPDATE outcomes SET submit = submit + 50")
    copies = []
    for number, folder in enumerate((here, there)):
        copies.append(tmp_path / f"{number}.db")
        copy_log(folder / "advisor.db", copies[-1], NOW)
    with pytest.raises(StoreError, match="two clusters of one name"):
        merge(copies[0], copies[1:])
    copy_log(here / "advisor.db", copies[1], NOW)  # the same log twice is no harm
    assert merge(copies[0], copies[1:]) == {"decisions": 50, "outcomes": 50}


def test_a_copy_is_consistent_while_the_daemon_writes_and_never_holds_it_up(tmp_path: Path) -> None:
    path = logs.trial(tmp_path, 400, gain=0.1)
    stop, waited, written = threading.Event(), [], [0]

    def daemon() -> None:
        with Database(path, busy_timeout_s=0.5) as db:
            while not stop.is_set():
                began = time.monotonic()
                # Two rows at a time: a copy that is not consistent would have an odd number.
                names = [f"new{written[0]}-{half}" for half in (0, 1)]
                decisions.insert_many(db, [decision(name) for name in names])
                waited.append(time.monotonic() - began)
                written[0] += 1

    thread = threading.Thread(target=daemon)
    thread.start()
    try:
        for number in range(10):
            copied = copy_log(path, tmp_path / f"copy{number}.db", NOW)
            assert copied.decisions % 2 == 0
    finally:
        stop.set()
        thread.join()
    assert written[0] > 10


def test_a_killed_command_resumes_and_a_finished_one_tells_json(simulated: Path, tmp_path: Path) -> None:
    copy_of(simulated, tmp_path)
    config = tmp_path / "advisor.yaml"
    config.write_text(yaml.safe_dump({"paths": {"database": str(tmp_path / "advisor.db")}}))
    command = [sys.executable, "-m", "advisor", "--config", str(config), "retrain", "--json", "--seed", "5"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    assert process.stderr is not None
    for line in process.stderr:
        if "fitting waits" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.stderr.close()
    process.wait(timeout=60)
    assert (tmp_path / "models" / ".retrain" / "sources.done").exists()
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, env=env, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "going on with" in done.stderr and "copying" not in done.stderr
    found = json.loads(done.stdout)
    assert found["promoted"] and found["judgement"]["verdict"] == "passed"
