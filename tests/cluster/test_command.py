"""Running Slurm's commands: what an admin reads when it fails, and that nothing is left behind."""

import os
import sys
import time
from pathlib import Path

import pytest

from advisor.cluster.command import SlurmCommand
from advisor.cluster.types import SourceError


def test_the_environment_is_set_behind_the_prefix():
    # `env -i` forgets what we were given, as `docker exec` and `ssh` do.
    said = SlurmCommand(["env", "-i", f"PATH={os.environ['PATH']}", "SLURM_CLUSTERS=other"]).run("env").decode()
    assert {"LC_ALL=C", "TZ=UTC0", "SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=4096"} <= set(said.split())
    assert "SLURM_CLUSTERS" not in said


def test_a_failing_command_is_named_with_its_status_and_first_message():
    slurm = SlurmCommand()
    with pytest.raises(SourceError) as caught:
        slurm.run("sh", "-c", "echo; echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 3")
    text = str(caught.value)
    assert "exit status 3" in text
    assert "Unable to contact slurm controller" in text
    assert "scontrol ping" in text


def test_a_command_that_is_not_there_says_what_to_do():
    with pytest.raises(SourceError, match="slurm-client"):
        SlurmCommand().run("no-such-command-anywhere")
    with pytest.raises(SourceError, match=r"slurm\.command"):
        SlurmCommand(["no-such-prefix-anywhere"]).run("scontrol", "--version")


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    note = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {note}; wait"
    with pytest.raises(SourceError, match=r"did not finish within 0\.5 s"):
        SlurmCommand((), timeout_s=0.5).run("sh", "-c", script)
    child = Path(f"/proc/{note.read_text().strip()}")
    # The killed child stays for a moment until it is reaped.
    for _ in range(100):
        if not child.exists() or (child / "stat").read_text().split(")")[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the child of the command still runs")


def test_a_command_that_closes_its_output_and_hangs_is_ended_too():
    with pytest.raises(SourceError, match="did not finish"):
        SlurmCommand((), timeout_s=0.5).run("sh", "-c", "exec >&- 2>&-; sleep 60")


def test_a_command_that_prints_without_end_is_stopped():
    with pytest.raises(SourceError, match="more than 100000 bytes"):
        SlurmCommand((), max_output=100_000).run("yes")


def test_output_before_a_failure_is_not_taken_for_an_answer():
    with pytest.raises(SourceError, match="exit status 1"):
        SlurmCommand().run("sh", "-c", "echo NodeName=half; exit 1")


def test_messages_without_end_do_not_fill_the_memory():
    with pytest.raises(SourceError) as caught:
        SlurmCommand().run(sys.executable, "-c", "import sys; sys.stderr.write('x' * 10**7); sys.exit(1)")
    assert len(str(caught.value)) < 1000


def test_user_text_in_the_prefix_is_never_a_shell_word(tmp_path):
    sign = tmp_path / "sign"
    with pytest.raises(SourceError):
        SlurmCommand([f"; touch {sign};"]).run("scontrol")
    assert not sign.exists()
