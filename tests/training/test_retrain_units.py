"""The systemd example runs a command that there is, with options that it has."""

from __future__ import annotations

import configparser
import shlex

from click import Context

from advisor.cli import cli
from advisor.resources import folder


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


def test_learning_never_comes_before_answers() -> None:
    service = unit("slurm-advisor-retrain.service")["Service"]
    assert service["Nice"] == "19" and service["Type"] == "oneshot" and service["User"] == "slurm-advisor"
