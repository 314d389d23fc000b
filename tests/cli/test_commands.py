"""The `advisor` command as a user meets it."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from advisor.cli import COMMANDS, cli
from advisor.cli.common import duration

ROOT = Path(__file__).resolve().parents[2]


def advisor(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "advisor", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **env},
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_overview_is_the_commands_own_first_sentence(name: str) -> None:
    command = importlib.import_module(COMMANDS[name][0]).command
    assert (command.help or "").split("\n")[0] == COMMANDS[name][1]


def every_command(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found = [(words, command)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found += every_command(inner, (*words, name))
    return found


@pytest.mark.parametrize(
    ("words", "command"), every_command(cli), ids=lambda v: " ".join(v) if isinstance(v, tuple) else ""
)
def test_every_command_and_option_has_help(words: tuple[str, ...], command: click.Command) -> None:
    assert command.help, words
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{' '.join(words)} {parameter.opts}"


def test_every_command_that_tells_something_has_json() -> None:
    without = {(), ("config",), ("hook",), ("config", "example"), ("serve",), ("contention",), ("models",)}
    for words, command in every_command(cli):
        names = [option for parameter in command.params for option in parameter.opts]
        assert words in without or "--json" in names, words


@pytest.mark.parametrize(
    "words", [["--help"], ["status"], ["check", "--help"], ["config", "show"], ["explain", "1"]], ids=" ".join
)
def test_a_quick_command_imports_nothing_heavy(words: list[str]) -> None:
    """torch and pgmpy take seconds to import; a command that needs neither must not pay for them."""
    assert importlib.util.find_spec("torch"), "the test means nothing where torch is not installed"
    program = (
        "import sys\nfrom advisor.cli import cli\n"
        f"try:\n    cli({words!r}, standalone_mode=False)\nexcept BaseException:\n    pass\n"
        "heavy = {'torch', 'pgmpy', 'torch_geometric', 'numba', 'scipy', 'pandas', 'numpy'} & set(sys.modules)\n"
        "sys.stderr.write('heavy:' + ','.join(sorted(heavy)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stderr.endswith("heavy:"), done.stderr


def test_wrong_use_is_exit_code_2_and_says_what_is_right(tmp_path: Path) -> None:
    assert advisor("no-such-command").returncode == 2
    assert advisor("explain").returncode == 2
    broken = tmp_path / "advisor.yaml"
    broken.write_text("modes: {default: loud}")
    done = advisor("--config", str(broken), "status")
    assert done.returncode == 2 and "modes.default" in done.stderr and str(broken) in done.stderr


def test_what_is_not_well_is_exit_code_1_and_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "advisor.yaml"
    file.write_text(f"paths: {{socket: {tmp_path}/no.sock, database: {tmp_path}/no.db}}")
    status = advisor("--config", str(file), "status")
    assert status.returncode == 1 and "advisor serve" in status.stderr
    explain = advisor("--config", str(file), "explain", "7")
    assert explain.returncode == 1 and "no log" in explain.stderr


def test_config_show_tells_each_value_and_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "advisor.yaml"
    file.write_text("experiment: {holdout: 0.1}")
    done = advisor("--config", str(file), "config", "show", "--json", ADVISOR_SLURM__POLL_S="3")
    rows = {row["key"]: row for row in json.loads(done.stdout)}
    assert rows["experiment.holdout"]["value"] == 0.1
    assert rows["experiment.holdout"]["origin"] == str(file)
    assert rows["slurm.poll_s"]["origin"] == "$ADVISOR_SLURM__POLL_S"
    text = advisor("--config", str(file), "config", "show").stdout
    assert "experiment.holdout" in text and "control group" in text


def test_check_goes_through_every_requirement_and_says_how_to_mend(tmp_path: Path) -> None:
    file = tmp_path / "advisor.yaml"
    file.write_text(
        f"paths: {{socket: {tmp_path}/no.sock, database: {tmp_path}/log.db}}\nslurm: {{command: [/no/such/prefix]}}\n"
    )
    done = advisor("--config", str(file), "check", "--dir", str(tmp_path), "--json")
    assert done.returncode == 1
    findings = json.loads(done.stdout)
    wrong = {f["what"]: f for f in findings if f["verdict"] == "wrong"}
    assert {"Slurm answers", "daemon", "job_submit.lua"} <= set(wrong)
    for finding in wrong.values():
        assert finding["fix"], finding
    text = advisor("--config", str(file), "check", "--dir", str(tmp_path))
    assert text.returncode == 1 and "FAIL" in text.stdout


def test_hook_install_and_show(tmp_path: Path) -> None:
    runner = CliRunner()
    missing = runner.invoke(cli, ["hook", "show", "--dir", str(tmp_path)])
    assert missing.exit_code == 1
    installed = runner.invoke(cli, ["hook", "install", "--dir", str(tmp_path)])
    assert installed.exit_code == 0 and (tmp_path / "advisor.lua").exists() and (tmp_path / "job_submit.lua").exists()
    state = json.loads(runner.invoke(cli, ["hook", "show", "--dir", str(tmp_path), "--json"]).output)
    assert state["module"] == "same as shipped" and state["script"] == "calls the advisor"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (3599, "60 min"),
        (7800, "2 h 10 min"),
        (273_600, "3 d 4 h"),
        (-5, "0 s"),
    ],
)
def test_time_spans_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
