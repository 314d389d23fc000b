"""Which source is opened, what the log says about it, and that recordings give back what was saved."""

import importlib.metadata
import logging
import sys

import pytest

from advisor.cluster.commands_source import CommandsSource
from advisor.cluster.pyslurm_source import PyslurmSource, check_usable
from advisor.cluster.recorded import RecordedSource, save
from advisor.cluster.sources import open_source
from advisor.cluster.types import SourceError
from tests.cluster.conftest import RECORDINGS, RELEASES, REPLAY, replaying


def scontrol_script(folder, body):
    """A `scontrol` of our own, first in the PATH."""
    script = folder / "scontrol"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


def test_a_saved_reading_comes_back_equal(state, tmp_path):
    save(state, tmp_path / "cluster.json")
    assert RecordedSource(tmp_path / "cluster.json").read() == state
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"cluster": "x"', "\x00"])
def test_a_file_that_is_no_recording_is_refused(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SourceError, match=r"x\.json is not a recording"):
        RecordedSource(tmp_path / "x.json").read()


def test_a_missing_recording_is_named(tmp_path):
    with pytest.raises(SourceError, match="No such file"):
        RecordedSource(tmp_path / "none.json").read()


def test_a_recording_that_is_given_is_used(tmp_path):
    assert open_source("auto", recording=tmp_path / "x").name == "recorded"
    with pytest.raises(SourceError, match="needs a file"):
        open_source("recorded")


def test_with_a_prefix_the_commands_are_used_and_one_line_says_why_not_pyslurm(caplog):
    caplog.set_level(logging.INFO, "advisor.cluster")
    source = open_source("pyslurm", [sys.executable, str(REPLAY), str(RECORDINGS / RELEASES[0]), "scontrol"])
    assert source.name == "commands"
    assert len(caplog.records) == 1
    assert "slurm.command is set" in caplog.text
    assert len(source.read().nodes) == 7


def test_without_pyslurm_the_commands_are_used_and_one_line_says_so(tmp_path, monkeypatch, caplog):
    scontrol_script(tmp_path, "echo slurm-wlm 99.11.1")  # no pyslurm is made for that
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    caplog.set_level(logging.INFO, "advisor.cluster")
    assert open_source("auto").name == "commands"
    assert len(caplog.records) == 1
    assert "pyslurm" in caplog.text


def test_pyslurm_of_another_release_is_not_imported():
    with pytest.raises(SourceError, match=r"not installed|not made for Slurm 1\.01"):
        check_usable((1, 1))
    assert "pyslurm" not in sys.modules


def test_pyslurm_tells_the_same_as_the_commands():
    try:
        installed = importlib.metadata.version("pyslurm")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("pyslurm is not installed: its part of the contract was not tested")
    major, minor = installed.split(".")[:2]
    try:
        source = PyslurmSource((int(major), int(minor)))
    except SourceError as error:
        pytest.skip(f"pyslurm cannot be used here: {error}")
    told, expected = source.read(), CommandsSource().read()
    assert (told.cluster, told.release) == (expected.cluster, expected.release)
    assert told.partitions == expected.partitions
    assert {node.name: (node.gres, node.usable) for node in told.nodes} == {
        node.name: (node.gres, node.usable) for node in expected.nodes
    }
    assert {(job.job_id, job.states[0], job.gres, job.nodes, job.tasks) for job in told.jobs} == {
        (job.job_id, job.states[0], job.gres, job.nodes, job.tasks) for job in expected.jobs
    }


def test_a_release_that_is_newer_than_we_know_is_read_like_the_newest_and_said_once(tmp_path, caplog):
    script = tmp_path / "prefix"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--version) echo slurm 31.05.0; exit;; esac\n'
        f'exec {sys.executable} {REPLAY} {RECORDINGS / "26.05"} scontrol "$@"\n'
    )
    script.chmod(0o755)
    source = CommandsSource([str(script)])
    first, second = source.read(), source.read()
    assert len(first.nodes) == len(second.nodes) == 7
    assert [record.message for record in caplog.records] == [
        "Slurm 31.05 is newer than this version of slurm-advisor knows; reading it like 26.05"
    ]


def test_a_scontrol_without_json_plugins_is_read_as_text_and_said_once(tmp_path, caplog):
    script = tmp_path / "prefix"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--json*) echo "scontrol: fatal: JSON plugin load failure" >&2; exit 1;; esac\n'
        f'exec {sys.executable} {REPLAY} {RECORDINGS / "24.11"} scontrol "$@"\n'
    )
    script.chmod(0o755)
    source = CommandsSource([str(script)])
    jobs = source.read().jobs
    assert [job.job_id for job in jobs] == [job.job_id for job in replaying("24.11").read().jobs]
    source.read()
    assert len(caplog.records) == 1
    assert "cannot write JSON" in caplog.text


def test_after_a_failure_the_next_reading_works_again(tmp_path):
    switch = tmp_path / "down"
    script = tmp_path / "prefix"
    script.write_text(
        "#!/bin/sh\n"
        f'[ -e {switch} ] && {{ echo "Unable to contact slurm controller (connect failure)" >&2; exit 1; }}\n'
        f'exec {sys.executable} {REPLAY} {RECORDINGS / "24.11"} scontrol "$@"\n'
    )
    script.chmod(0o755)
    source = CommandsSource([str(script)])
    assert len(source.read().jobs) > 20
    switch.touch()
    for _ in range(2):
        with pytest.raises(SourceError, match="Unable to contact slurm controller"):
            source.read()
    switch.unlink()
    assert len(source.read().jobs) > 20


def test_a_scontrol_that_names_no_release_is_refused(tmp_path, monkeypatch):
    scontrol_script(tmp_path, "echo hello")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SourceError, match="names no release"):
        CommandsSource().read()
