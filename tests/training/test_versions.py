"""Versions as an admin meets them: listed, shown, promoted, rolled back, refused when damaged."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import cli
from advisor.performance.model.files import encode
from advisor.performance.wait_model import encode as encode_waits
from advisor.performance.wait_model import learned
from advisor.server.learner import Learner
from advisor.settings import Paths, Settings
from advisor.store import outcomes
from advisor.store.database import Database
from advisor.training.serving import InForce, policy_in_force, run_times
from advisor.training.versions import VersionError, Versions
from tests.performance.runs import fitted, site
from tests.server.daemons import Daemon, submission, wait_until

FILES = {"run_times.msgpack": encode(fitted(site(1, apps=3, runs=2))), "waits.json": encode_waits(learned([]))}


def write(versions: Versions, name: str, files: dict[str, bytes] | None = None, **about):
    given = {"created_at": 1_700_000_000.0, "cluster": "mini", "policy": "earliest-finish"} | about
    return versions.write(name, FILES if files is None else files, {"gate": {"verdict": "passed"}}, **given)


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path / "models")


def run(tmp_path: Path, *words: str):
    file = tmp_path / "advisor.yaml"
    file.write_text(yaml.safe_dump({"paths": {"database": str(tmp_path / "advisor.db")}}))
    return CliRunner().invoke(cli, ["--config", str(file), "models", *words])


def test_versions_are_listed_shown_promoted_and_rolled_back(tmp_path: Path, versions: Versions) -> None:
    assert "advisor retrain" in run(tmp_path, "list").output
    write(versions, "v1")
    write(versions, "v2")
    assert json.loads(run(tmp_path, "list", "--json").output)["current"] is None
    assert run(tmp_path, "promote", "v1").output == "in force: v1\n"
    assert run(tmp_path, "promote", "v2").exit_code == 0
    listed = run(tmp_path, "list").output
    assert "* v2" in listed and "  v1" in listed and "passed" in listed
    shown = json.loads(run(tmp_path, "show", "--json").output)
    assert shown["version"] == "v2" and shown["card"] == {"gate": {"verdict": "passed"}}
    assert run(tmp_path, "rollback").output == "in force: v1; it was v2\n"
    assert "no version" in run(tmp_path, "rollback").output
    last = run(tmp_path, "rollback")
    assert last.exit_code == 1 and "nothing to go back from" in last.output


def test_going_back_twice_goes_back_two_steps(versions: Versions) -> None:
    for name in ("v1", "v2", "v3"):
        write(versions, name)
        versions.promote(name, "gate")
    assert versions.rollback().version == "v2"
    assert versions.rollback().version == "v1"
    versions.promote("v3", "again")
    assert versions.rollback().version == "v1"


def test_a_version_never_changes_and_holds_no_pickles(versions: Versions) -> None:
    write(versions, "v1")
    with pytest.raises(VersionError, match="never changes"):
        write(versions, "v1")
    with pytest.raises(VersionError, match="may not stand in a version"):
        write(versions, "v2", {"policy.pt": pickle.dumps({})})
    with pytest.raises(VersionError, match="may not stand in a version"):
        write(versions, "v2", {"../escape.json": b"{}"})
    with pytest.raises(VersionError, match="no name"):
        versions.promote("../v1", "x")


def damage_weights(path: Path) -> None:
    file = path / "run_times.msgpack"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(bytes(content))


def cut_short(path: Path) -> None:
    (path / "run_times.msgpack").write_bytes(FILES["run_times.msgpack"][:-10])


def lose_a_file(path: Path) -> None:
    (path / "waits.json").unlink()


def other_format(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))


def foreign(path: Path) -> None:
    (path / "manifest.json").write_text('["something", "else"]')


def other_card(path: Path) -> None:
    (path / "card.yaml").write_text("{ not yaml")


def moved(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"name": "v9"}))


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (damage_weights, "damaged"),
        (cut_short, "damaged"),
        (lose_a_file, "No such file"),
        (other_format, "format 99"),
        (foreign, "damaged"),
        (other_card, "no YAML"),
        (moved, "mixed up"),
    ],
)
def test_a_damaged_or_foreign_version_is_refused_with_a_reason(tmp_path: Path, versions, harm, complaint) -> None:
    harm(write(versions, "v1").path)
    done = run(tmp_path, "promote", "v1")
    assert done.exit_code == 1 and complaint in done.output
    listed = json.loads(run(tmp_path, "list", "--json").output)["versions"]
    assert complaint in listed[0]["damaged"]
    assert versions.pointer().version is None


@given(st.binary(max_size=300))
def test_any_bytes_as_weights_are_refused_not_executed(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        versions = Versions(folder)
        found = write(versions, "v1", {"run_times.msgpack": content})
        with pytest.raises(VersionError, match=r"run_times\.msgpack"):
            run_times(found, Settings())


def test_a_version_that_went_bad_after_it_was_promoted_does_not_stop_what_serves(tmp_path: Path, versions) -> None:
    settings = Settings(paths=Paths(database=str(tmp_path / "advisor.db")))
    in_force = InForce()
    assert not in_force.changed(settings)
    write(versions, "v1")
    versions.promote("v1", "gate")
    assert in_force.changed(settings) and in_force.version and in_force.version.name == "v1"
    damage_weights(write(versions, "v2").path)
    pointer = msgspec.json.decode((versions.models / "current.json").read_bytes())
    pointer["promotions"].append({"version": "v2", "at": 1.0})
    (versions.models / "current.json").write_bytes(msgspec.json.encode(pointer))
    assert not in_force.changed(settings) and in_force.version.name == "v1"
    policy, refused = policy_in_force(settings)
    assert policy.name == "earliest-finish" and refused and "damaged" in refused
    versions.rollback() if versions.pointer().version == "v1" else versions.promote("v1", "back")
    assert policy_in_force(settings)[0].version.endswith("/v1")


def test_run_times_are_those_of_the_version_brought_up_to_date_with_what_ended_since(tmp_path: Path, versions) -> None:
    settings = Settings(paths=Paths(database=str(tmp_path / "advisor.db")))
    write(versions, "v1", ended_until=5000)
    versions.promote("v1", "gate")
    rows = [
        outcomes.OutcomeRow(
            cluster="mini", db_index=str(i), job=str(i), job_id=i, submit=100, start=200, end=end, elapsed=seconds,
            state="COMPLETED", name=app, user="user0", processor="v100", gpus=1,
        )
        for i, (end, app, seconds) in enumerate(((4000, "old", 77), (6000, "fresh", 900), (6001, "fresh", 950)), 1)
    ]  # fmt: skip
    with Database(tmp_path / "advisor.db") as db:
        outcomes.store(db, rows, None, 0.0)
        learner = Learner()
        history = learner.history(db, settings, ("v100", "k80"))
        assert "appa" in history and "fresh" in history and "old" not in history
        versions.rollback()
        history = learner.history(db, settings, ("v100", "k80"))
        assert "appa" not in history and "old" in history


def test_the_daemon_takes_a_promoted_version_up_without_dropping_a_decision(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    versions = Versions(daemon.database.parent / "models")
    write(versions, "v1")
    try:
        daemon.start()
        assert "/v1" not in daemon.status().policy_version
        with daemon.hook() as hook:
            replies = [hook.ask()]
            versions.promote("v1", "gate")

            def taken_up() -> bool:
                replies.append(hook.ask())
                return daemon.status().policy_version.endswith("/v1")

            wait_until(taken_up)
            wait_until(lambda: "are those of version v1" in daemon.said())
            damage_weights(write(versions, "v2").path)
            pointer = msgspec.json.decode((versions.models / "current.json").read_bytes())
            pointer["promotions"].append({"version": "v2", "at": 1.0})
            part = versions.models / "part"
            part.write_bytes(msgspec.json.encode(pointer))
            part.replace(versions.models / "current.json")
            status = wait_until(lambda: (status := daemon.status()).reload_error and status)
            assert "damaged" in status.reload_error and status.policy_version.endswith("/v1")
            replies.append(hook.ask(submission(name="after")))
        assert all(reply.token and not reply.error for reply in replies)
        assert daemon.stop() == 0
        assert daemon.query("select count(*) from decisions") == [(len(replies),)]
        assert daemon.query("select policy_version from decisions where name = 'after'")[0][0].endswith("/v1")
    finally:
        daemon.close()
