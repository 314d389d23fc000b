"""The systemd example runs a command that there is, with options that it has."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

import yaml
from click import Context
from click.testing import CliRunner

from advisor.cli import cli
from advisor.resources import folder
from advisor.store.database import Database
from tests.training import logs


def unit(name: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string((folder("slurm") / "systemd" / name).read_text())
    return found


def test_the_timer_starts_a_service_whose_command_there_is() -> None:
    assert unit("slurm-advisor-retrain.timer")["Timer"]["OnCalendar"]
    program, command, *options = shlex.split(unit("slurm-advisor-retrain.service")["Service"]["ExecStart"])
    assert program == "/usr/bin/advisor"
    found = cli.get_command(Context(cli), command)
    assert found is not None
    known = {option for parameter in found.params for option in parameter.opts}
    assert set(options) <= known and "--if-drifted" in options


def test_the_timers_command_retrains_when_there_is_drift_and_only_then(tmp_path: Path) -> None:
    path = logs.trial(tmp_path, 500, gain=0.0, kinds=2)
    config = tmp_path / "advisor.yaml"
    config.write_text(yaml.safe_dump({"paths": {"database": str(path)}}))
    words = shlex.split(unit("slurm-advisor-retrain.service")["Service"]["ExecStart"])[1:]

    def fires() -> tuple[str, int]:
        done = CliRunner().invoke(cli, ["--config", str(config), *words])
        assert done.exit_code == 0, done.output
        return done.stdout, len(list((tmp_path / "models").glob("2*")))

    told, versions = fires()
    assert "no drift" in told and versions == 0
    with Database(path) as db, db.transaction() as connection:
        connection.execute(
            "UPDATE outcomes SET elapsed = elapsed * 3, end = start + elapsed * 3 WHERE name = 'app1' AND job_id > 250"
        )
    told, versions = fires()
    assert "gate:" in told and versions == 1
    # By hand, whatever the gate said: drift that a version in force has learned from is no reason for another.
    made = next((tmp_path / "models").glob("2*")).name
    assert CliRunner().invoke(cli, ["--config", str(config), "models", "promote", made]).exit_code == 0
    told, versions = fires()
    assert "no drift since" in told and versions == 1


def test_learning_never_comes_before_answers() -> None:
    service = unit("slurm-advisor-retrain.service")["Service"]
    assert service["Nice"] == "19" and service["Type"] == "oneshot" and service["User"] == "slurm-advisor"
