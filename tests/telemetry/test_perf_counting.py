"""Real perf on real processes; and a perf that is missing, forbidden, or does not know an event."""

import contextlib
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from advisor.telemetry.events import SOFTWARE, Cpu, EventGroup, Rotation, events_wanted, groups_of
from advisor.telemetry.notes import Notes
from advisor.telemetry.perfrun import MOST_RUNS, PerfStat, Target

DATA = Path(__file__).resolve().parents[1] / "data" / "perf"
INTEL = Cpu("GenuineIntel", 6, 106, 64, 4)
needs_perf = pytest.mark.skipif(
    shutil.which("perf") is None
    or subprocess.run(["perf", "stat", "-a", "-e", "task-clock", "true"], capture_output=True).returncode != 0,
    reason="perf is not installed, or this user may not count",
)
V2 = Path("/sys/fs/cgroup/unified" if Path("/sys/fs/cgroup/unified").is_dir() else "/sys/fs/cgroup")


@pytest.fixture
def busy():
    process = subprocess.Popen(["sh", "-c", "while :; do ls / > /dev/null; done"])
    yield process
    process.kill()
    process.wait()


def said(notes):
    return {(note.subject, note.what) for note in notes.take()}


def counts(perf, seconds):
    """Lets every perf that was begun count for so long: on a busy machine one takes longer to start than to count."""
    until = time.monotonic() + 60
    for run, _ in perf._runs:
        process = run._process
        while process.poll() is None and not any("perf_event" in name for name in open_files(process.pid)):
            assert time.monotonic() < until, "perf does not begin to count"
            time.sleep(0.01)
    time.sleep(seconds)


def open_files(pid):
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            yield str(link.readlink())


def program(folder, text):
    """A perf that prints this and fails."""
    (folder / "said").write_text(text)
    path = folder / "perf"
    path.write_text(f"#!/bin/sh\necho run >> {folder}/runs\ncat {folder}/said >&2\nexit 255\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@needs_perf
def test_a_jobs_processes_are_counted_over_the_period(busy):
    notes = Notes()
    perf = PerfStat(Rotation(events_wanted(INTEL)), notes)
    perf.begin({7: Target(pids=(busy.pid,))})
    counts(perf, 0.5)
    counted = {reading.event: reading for reading in perf.end()[7]}
    assert counted["page-faults"].value > 100
    assert counted["task-clock"].value > 10
    assert counted["task-clock"].running_ns == counted["task-clock"].enabled_ns > 0
    # Children that were born meanwhile are in it: the shell itself hardly switches.
    assert counted["context-switches"].value > 5
    assert perf.end() == {}


@needs_perf
@pytest.mark.skipif(
    os.geteuid() != 0 or not (V2 / "cgroup.procs").exists() or not os.access(V2, os.W_OK),
    reason="only root may make a cgroup",
)
def test_jobs_with_cgroups_are_counted_by_one_perf_each_by_itself():
    top = V2 / f"advisor-test-{os.getpid()}"
    names = {1: top / "job_1", 2: top / "job_2"}
    for folder in (top, *names.values()):
        folder.mkdir()
    process = subprocess.Popen(["sh", "-c", "while :; do ls / > /dev/null; done"])
    try:
        (names[1] / "cgroup.procs").write_text(str(process.pid))
        perf = PerfStat(Rotation([]), Notes())
        perf.begin({key: Target(cgroup=str(folder.relative_to(V2))) for key, folder in names.items()})
        counts(perf, 0.5)
        counted = perf.end()
        assert {r.event: r.value for r in counted[1]}["page-faults"] > 100
        assert {r.missing for r in counted[2]} == {"not counted"}
    finally:
        process.kill()
        process.wait()
        time.sleep(0.1)
        for folder in (*names.values(), top):
            folder.rmdir()


@needs_perf
def test_what_this_node_does_not_have_is_noted_once_and_not_asked_for_again(busy):
    notes = Notes()
    rotation = Rotation([EventGroup("odd", ("no-such-event", "page-faults", "alignment-faults"))])
    perf = PerfStat(rotation, notes)
    for _ in range(2):
        perf.begin({1: Target(pids=(busy.pid,))})
        counts(perf, 0.2)
        assert {r.event for r in perf.end()[1] if r.value is not None} >= {"page-faults", "task-clock"}
    found = said(notes)
    assert ("perf.no-such-event", "unknown event") in found
    assert "no-such-event" not in rotation.events and "alignment-faults" in rotation.events
    assert said(notes) == set()


@needs_perf
def test_a_job_that_ended_in_the_meantime_is_no_fault():
    process = subprocess.Popen(["true"])
    notes = Notes()
    perf = PerfStat(Rotation([]), notes)
    perf.begin({1: Target(pids=(process.pid,))})
    process.wait()
    perf.begin({1: Target(pids=(process.pid,))})
    time.sleep(0.2)
    perf.end()
    assert said(notes) == set()


def test_a_node_without_perf_is_noted_once(tmp_path):
    notes = Notes()
    perf = PerfStat(Rotation(events_wanted(INTEL)), notes, str(tmp_path / "nowhere"))
    for _ in range(3):
        perf.begin({1: Target(pids=(os.getpid(),))})
        assert perf.end() == {}
    assert said(notes) == {("perf", "missing")}


@pytest.mark.parametrize("release", ["6.1", "6.12", "7.2"])
@pytest.mark.parametrize("file", ["paranoid", "seccomp"])
def test_a_perf_that_is_forbidden_is_noted_once_and_tried_again_after_an_hour(tmp_path, release, file):
    notes, now = Notes(), [0.0]
    path = program(tmp_path, (DATA / release / f"{file}.txt").read_text())
    perf = PerfStat(Rotation(events_wanted(INTEL)), notes, path, clock=lambda: now[0])
    for now[0] in (0.0, 10.0, 3000.0):
        perf.begin({1: Target(pids=(1,))})
    assert (tmp_path / "runs").read_text().count("run") == 1
    now[0] = 3700.0
    perf.begin({1: Target(pids=(1,))})
    assert (tmp_path / "runs").read_text().count("run") == 2
    assert said(notes) == {("perf", "no permission")}


def test_groups_take_turns_and_software_events_are_always_counted():
    rotation = Rotation([EventGroup("a", ("cycles", "x")), EventGroup("b", ("cycles", "y"))])
    turns = [rotation.next() for _ in range(4)]
    assert turns[0] == turns[2] == (*SOFTWARE, "cycles", "x")
    assert turns[1] == turns[3] == (*SOFTWARE, "cycles", "y")


def test_a_group_of_which_nothing_new_is_left_takes_no_turn():
    rotation = Rotation(events_wanted(INTEL))
    rotation.drop(["LLC-loads", "LLC-load-misses", "LLC-stores", "stalled-cycles-frontend", "stalled-cycles-backend"])
    turns = {rotation.next() for _ in range(20)}
    assert (*SOFTWARE, "cycles", "instructions") not in turns
    assert any("cache-misses" in turn for turn in turns)


def test_a_node_without_a_pmu_still_counts_software_events():
    rotation = Rotation(events_wanted(INTEL))
    rotation.drop([event for event in rotation.events if event not in SOFTWARE])
    assert rotation.next() == SOFTWARE


def test_each_group_fits_the_counters():
    for counters in (2, 4, 6):
        for group in events_wanted(Cpu("AuthenticAMD", 25, 1, 64, counters)):
            assert len(group.events) - 2 <= counters  # cycles and instructions have their own


def test_an_admins_groups_may_hold_raw_events():
    (group,) = groups_of(["cycles, cpu/event=0xd1,umask=0x20/ ,instructions"])
    assert group.events == ("cycles", "cpu/event=0xd1,umask=0x20/", "instructions")
    assert groups_of([" , "]) == []


def test_more_jobs_than_can_be_counted_take_turns(tmp_path):
    # A perf that only says whom it was asked to count.
    path = tmp_path / "perf"
    path.write_text(
        f'#!/bin/sh\nfor last; do :; done\necho "$last" >> {tmp_path}/asked\necho "1;;page-faults;5;100.00" >&2\n'
    )
    path.chmod(0o755)
    notes = Notes()
    perf = PerfStat(Rotation([]), notes, str(path))
    targets = {key: Target(pids=(1000 + key,)) for key in range(10)}
    for _ in range(3):
        perf.begin(targets)
        time.sleep(0.4)
        assert len(perf.end()) == MOST_RUNS
    assert set((tmp_path / "asked").read_text().split()) == {"true", *(str(1000 + key) for key in targets)}
    assert said(notes) == {("perf", "in turns")}
