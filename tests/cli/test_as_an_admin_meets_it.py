"""What an admin met on a first installation: each is a fault that once was there."""

import json
import os
import pwd
import socket
import sqlite3
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from advisor import doctor
from advisor.cli import cli
from advisor.cli.common import as_owner_of
from advisor.cli.explain import _decision, _outcomes
from advisor.config import load
from advisor.server import client, saved_run_times
from advisor.server.peers import kept_out
from advisor.settings import Paths, Settings
from advisor.store.database import Database
from tests.store.rows import decision, outcome


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_a_name_that_looks_like_markup_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    _decision(decision("t1", app="x[/y][red]z\x1b[2J", why="because [/bold] of \\"))
    shown = capsys.readouterr().out
    assert "x[/y][red]z\N{REPLACEMENT CHARACTER}[2J of" in shown
    assert "because [/bold] of" in shown


def test_of_a_large_array_the_tasks_are_counted_not_all_listed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        outcome(f"7_{task}", job_id=100 + task, state="FAILED" if task == 900 else "COMPLETED") for task in range(1000)
    ]
    _outcomes(rows)
    shown = capsys.readouterr().out
    assert shown.count("\n") < 40
    assert "970 more tasks" in shown and "999 COMPLETED, 1 FAILED" in shown


def test_a_log_in_a_closed_folder_is_told_by_every_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "advisor.db"
    file = tmp_path / "advisor.yaml"
    file.write_text(f"paths: {{database: {path}}}")
    real = Path.stat

    def refuse(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refuse)
    for words in (("explain", "7"), ("report",)):
        done = run("--config", file, *words)
        assert done.exit_code == 1 and "Permission denied; run this as root" in done.output, done.output
    assert doctor._database(path).verdict == "wrong"


def test_check_tells_of_a_log_that_a_newer_version_wrote(tmp_path: Path) -> None:
    path = tmp_path / "advisor.db"
    Database(path).close()
    assert doctor._database(path).verdict == "ok"
    with sqlite3.connect(path) as database:
        database.execute("insert into schema_migrations values (99, 'later', 0)")
    found = doctor._database(path)
    assert found.verdict == "wrong" and "newer slurm-advisor" in found.seen and "upgrade" in found.fix


def test_the_shipped_settings_file_is_seen_although_every_key_is_commented(tmp_path: Path) -> None:
    file = tmp_path / "advisor.yaml"
    file.write_text(run("config", "example").output)
    assert load(file, {}).file == str(file)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("modes: {default: off}", "modes.default", "off"),
        ("modes: {users: {alice: off, 1000: enforce}}", "modes.users", {"alice": "off", "1000": "enforce"}),
        ("server: {allowed_users: [root, 64030], socket_group: 64030}", "server.allowed_users", ["root", "64030"]),
        ("server: {allowed_users: [root, 64030], socket_group: 64030}", "server.socket_group", "64030"),
        ("modes:", "modes.default", "shadow"),
        ("contention: {slowdown: off}", "contention.slowdown", False),
    ],
)
def test_settings_may_be_written_as_the_manual_writes_them(tmp_path: Path, text: str, key: str, value: object) -> None:
    file = tmp_path / "advisor.yaml"
    file.write_text(text)
    done = run("--config", file, "config", "show", "--json")
    assert {row["key"]: row["value"] for row in json.loads(done.output)}[key] == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modes: {default: loud}", "one of: off, shadow, advise, enforce"),
        ("modes: {partitions: {gpu: Enforce}}", "one of: off, shadow, advise, enforce"),
        ("levers: [ordr]", "one of: place, order, share, requeue"),
        ("modes: {defalt: shadow}", "did you mean modes.default?"),
        ("mode: {default: shadow}", "did you mean modes?"),
    ],
)
def test_a_wrong_setting_is_answered_with_what_would_be_right(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "advisor.yaml"
    file.write_text(text)
    done = run("--config", file, "status")
    assert done.exit_code == 2 and said in done.output
    # What the message points at must work while the file is wrong.
    assert "advisor config example" in done.output
    assert run("--config", file, "config", "example").exit_code == 0


def test_check_tells_when_slurmctlds_user_cannot_open_the_socket(tmp_path: Path) -> None:
    me, nobody = pwd.getpwuid(os.geteuid()).pw_name, "nobody"
    path = Path(os.path.relpath(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o660)
        assert kept_out(me, path, ("root",)) is None
        assert "server.allowed_users" in (kept_out(nobody, path, ("root",)) or "")
        refused = kept_out(nobody, path, ("root", nobody)) or ""
        assert "every job passes unchanged" in refused and "server.socket_group" in refused
        path.chmod(0o666)
        for folder in path.absolute().parents:
            if not folder.stat().st_mode & stat.S_IXOTH:
                assert str(folder) in (kept_out(nobody, path, (nobody,)) or "")
                break
        else:
            assert kept_out(nobody, path, (nobody,)) is None
    assert "does not know" in (kept_out("no-such-user-here", path, ()) or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may work as somebody else")
def test_what_root_writes_beside_the_log_belongs_to_the_logs_owner(tmp_path: Path) -> None:
    """Else the daemon could neither read nor replace a version that root made."""
    nobody = pwd.getpwnam("nobody")
    for path in (*tmp_path.parents, tmp_path):
        if path.is_relative_to("/tmp"):
            path.chmod(path.stat().st_mode | 0o711)
    tmp_path.chmod(0o777)
    log = tmp_path / "advisor.db"
    log.touch()
    os.chown(log, nobody.pw_uid, nobody.pw_gid)
    child = os.fork()
    if not child:
        as_owner_of(log)
        (tmp_path / "models").mkdir()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "models").stat().st_uid == nobody.pw_uid


def test_a_model_folder_of_somebody_else_does_not_stop_the_daemon_from_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", refuse)
    assert saved_run_times.load(Settings(paths=Paths(database=str(tmp_path / "advisor.db")))) is None


def test_status_tells_of_the_disable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a daemon that is well and counts no submissions is a riddle."""
    disable = tmp_path / "disable"
    file = tmp_path / "advisor.yaml"
    file.write_text(f"paths: {{disable: {disable}}}")
    monkeypatch.setattr(client, "status", lambda path: SimpleNamespace(lines=lambda: ["daemon"], well=lambda: True))
    assert "disabled" not in run("--config", file, "status").output
    disable.touch()
    done = run("--config", file, "status")
    assert done.exit_code == 0 and f"{disable} is there: every job passes unchanged" in done.output
