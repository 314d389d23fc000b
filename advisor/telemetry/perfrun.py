"""Runs `perf stat` over one period: one perf for all jobs with a cgroup, one for each job followed by its processes.

perf is started at the beginning of a period and interrupted at its end, when it prints what it counted. What a node
cannot count is found out once, at the start, and noted; a perf that is missing or forbidden is noted and tried again
every hour, since an admin may have changed that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from advisor.telemetry import perf
from advisor.telemetry.events import Rotation
from advisor.telemetry.notes import Notes

SEPARATOR = ";"  # a comma stands in the names of raw events
RETRY_S = 3600.0
# In one period; where there are more, they take turns. With a cgroup a job costs a counter for each event on each core;
# without one it costs a perf of its own, a hundredth of a second of CPU.
MOST_CGROUPS = 16
MOST_RUNS = 4
MOST_PIDS = 256
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """A job as perf can reach it: a cgroup relative to the mount, or processes."""

    cgroup: str = ""
    pids: tuple[int, ...] = ()


class _Run:
    """One perf process."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )

    def finish(self, *, interrupt: bool = True) -> str:
        """Ends it and returns what it printed."""
        if interrupt and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)
        try:
            _, said = self._process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, said = self._process.communicate()
        return said.decode("utf-8", "replace")


class PerfStat:
    """Counts events for the jobs of a node, period by period."""

    def __init__(
        self,
        rotation: Rotation,
        notes: Notes,
        program: str = "perf",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rotation = rotation
        self._notes = notes
        self._program = program
        self._clock = clock
        self._probe_at = -RETRY_S
        self._usable = False
        self._turn = 0
        self._runs: list[tuple[_Run, Mapping[str, int]]] = []  # perf, and cgroup (or "") → job

    def begin(self, targets: Mapping[int, Target]) -> None:
        """Starts to count for these jobs (by the agent's own key); what was begun before is abandoned."""
        self.abandon()
        if not targets or not self._ready():
            return
        events = self._rotation.next()
        if not events:
            return
        by_cgroup = {
            targets[key].cgroup: key for key in self._choose([k for k in targets if targets[k].cgroup], MOST_CGROUPS)
        }
        if by_cgroup:
            # A cgroup's name cannot hold a comma that Slurm made.
            self._start(events, ("-a", "--for-each-cgroup", ",".join(by_cgroup)), by_cgroup)
        for key in self._choose([k for k, target in targets.items() if target.pids and not target.cgroup], MOST_RUNS):
            pids = ",".join(str(pid) for pid in targets[key].pids[:MOST_PIDS])
            self._start(events, ("-p", pids), {"": key})
        self._turn += 1

    def end(self) -> dict[int, list[perf.Reading]]:
        """What was counted since `begin`, by job."""
        counted: dict[int, list[perf.Reading]] = {}
        runs, self._runs = self._runs, []
        for run, jobs in runs:
            said = run.finish()
            readings = perf.parse(said, SEPARATOR)
            if not readings:
                self._failed(said)
            for reading in readings:
                key = jobs.get(reading.cgroup)
                if key is not None:
                    counted.setdefault(key, []).append(reading)
        for readings in counted.values():
            self._note_missing(readings)
        return counted

    def abandon(self) -> None:
        """Ends what runs, without its counts."""
        for run, _ in self._runs:
            run.finish()
        self._runs = []

    def _choose(self, keys: list[int], most: int) -> list[int]:
        if len(keys) <= most:
            return keys
        self._notes.add("perf", "in turns", f"more than {most} jobs run here at once: they are counted in turns")
        start = self._turn * most % len(keys)
        return (sorted(keys) * 2)[start : start + most]

    def _start(self, events: Sequence[str], where: Sequence[str], jobs: Mapping[str, int]) -> None:
        try:
            run = _Run([self._program, "stat", "-x", SEPARATOR, *_selected(events), *where])
        except OSError as error:
            self._off("missing", f"{self._program} cannot be run: {error.strerror or error}")
            return
        self._runs.append((run, jobs))

    def _ready(self) -> bool:
        """Whether perf can be used here; asks the node once, and again an hour after a refusal."""
        if not self._usable and self._clock() - self._probe_at >= RETRY_S:
            self._probe_at = self._clock()
            self._usable = self._probe()
        return self._usable

    def _probe(self) -> bool:
        events = self._rotation.events
        readings, said = self._try(events)
        if said is None:
            return False
        if not readings:
            found = perf.complaint(said)
            if found is None or found[0] != "unknown event":
                self._off(*(found or ("failed", said.strip()[:200] or "it printed nothing")))
                return False
            # One event that this perf has no name for spoils the rest: ask for each by itself.
            for event in events:
                one, said = self._try((event,))
                if not one:
                    why = perf.complaint(said or "") or ("", "this perf has no such event")
                    self._missing(event, "unknown event", why)
                readings += one
        for reading in readings:
            if reading.missing == "not supported":
                self._missing(reading.event, "not supported", ("", "this node's PMU does not have it"))
        return bool(self._rotation.events)

    def _missing(self, event: str, what: str, why: tuple[str, str]) -> None:
        self._notes.add(f"perf.{event}", what, why[1])
        self._rotation.drop((event,))

    def _try(self, events: Sequence[str]) -> tuple[list[perf.Reading], str | None]:
        command = [self._program, "stat", "-x", SEPARATOR, *_selected(events), "-a", "--", "true"]
        try:
            said = _Run(command).finish(interrupt=False)
        except OSError as error:
            self._off("missing", f"{self._program} cannot be run: {error.strerror or error}")
            return [], None
        return perf.parse(said, SEPARATOR), said

    def _failed(self, said: str) -> None:
        found = perf.complaint(said)
        if found is None or found[0] == "gone" or not said.strip():
            return  # the job ended before perf got hold of it
        if found[0] == "no permission":
            self._off(*found)
        else:
            self._notes.add("perf", *found)

    def _off(self, what: str, text: str) -> None:
        self._usable = False
        self._probe_at = self._clock()
        self._notes.add("perf", what, text)

    def _note_missing(self, readings: Sequence[perf.Reading]) -> None:
        # A job that slept all the while counts nothing at all, which is no fault of the counters.
        if not any(reading.value is not None for reading in readings):
            return
        for reading in readings:
            if reading.missing == "not supported":
                self._missing(reading.event, "not supported", ("", "this node's PMU does not have it"))
            elif reading.missing == "not counted":
                self._notes.add(f"perf.{reading.event}", "not counted", "the PMU had no counter free for it")


def _selected(events: Sequence[str]) -> list[str]:
    return [word for event in events for word in ("-e", event)]
