"""What a job's processes use, from /proc, and which processes a job has where no cgroup says so.

The kernel adds what a process used to its parent's books when the parent waits for it, so the sum over a job's
processes keeps growing while they come and go; what is lost is a process whose parent is not of the job.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MOST = 1000  # processes of a job that are looked at; beyond that the figures are of these
MOST_THREADS = 1000

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SWITCHES = re.compile(r"voluntary_ctxt_switches:\s+(\d+)")  # matches the nonvoluntary line as well
_TITLE = re.compile(r"slurmstepd: \[(\d+)\.\S+\]")

# Totals: what only grows, as `ProcessTotals` adds it up.
COUNTED = ("cpu.user", "cpu.system", "faults", "faults.major", "io.read", "io.write", "io.read.calls", "io.write.calls")


@dataclass(slots=True)
class Process:
    """One process: totals of its own and of the children it waited for, and what it holds now."""

    pid: int
    parent: int
    born: int  # ticks since boot; with the pid it names a process for good
    totals: dict[str, float]
    memory: float
    threads: int


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """A process, if it still is there. Without IO where that may not be read."""
    folder = proc / str(pid)
    try:
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        numbers = [int(fields[i]) for i in (1, 7, 8, 9, 10, 11, 12, 13, 14, 17, 19, 21)]
    except (OSError, ValueError, IndexError):
        return None
    parent, minor, child_minor, major, child_major, user, system, child_user, child_system, threads, born, rss = numbers
    totals = {
        "cpu.user": (user + child_user) * _TICK,
        "cpu.system": (system + child_system) * _TICK,
        "faults": float(minor + child_minor + major + child_major),
        "faults.major": float(major + child_major),
    }
    try:
        io = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
        totals["io.read"], totals["io.write"] = float(io["read_bytes"]), float(io["write_bytes"])
        totals["io.read.calls"], totals["io.write.calls"] = float(io["rchar"]), float(io["wchar"])
    except (OSError, ValueError, KeyError):
        pass  # no right to read it, or a kernel without task IO accounting
    return Process(pid, parent, born, totals, float(rss * _PAGE), threads)


def switches(pid: int, proc: Path = PROC, most: int = MOST_THREADS) -> dict[int, float]:
    """Context switches of each thread of a process."""
    found: dict[int, float] = {}
    try:
        threads = list((proc / str(pid) / "task").iterdir())
    except OSError:
        return found
    for thread in threads[:most]:
        try:
            text = (thread / "status").read_text(errors="replace")
        except OSError:
            continue  # it has just ended
        numbers = _SWITCHES.findall(text, max(0, text.find("voluntary_ctxt_switches:") - 1))
        found[int(thread.name)] = float(sum(int(number) for number in numbers))
    return found


class ProcessTotals:
    """How much a job's processes have used since the last look."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], Process] = {}
        self._switches: dict[int, float] = {}
        self._looked = False

    def advance(self, processes: Sequence[Process], switched: dict[int, float], fresh: bool) -> dict[str, float]:
        """What was used since the last call; at the first one, everything so far if the job is `fresh`, else nothing.

        Counters that no process tells are left out.
        """
        now = {(p.pid, p.born): p for p in processes}
        used: dict[str, float] = {}
        if self._looked or fresh:
            members = {p.pid for p in processes}
            for name in COUNTED:
                values = [p.totals[name] for p in processes if name in p.totals]
                if values:
                    used[name] = max(0.0, sum(values) - self._carried(name, now, members))
            if switched:
                # A thread's count goes with it, so each thread is compared with itself.
                used["switches"] = sum(max(0.0, n - self._switches.get(t, 0.0)) for t, n in switched.items())
        self._before, self._switches, self._looked = now, switched, True
        return used

    def _carried(self, name: str, now: dict[tuple[int, int], Process], members: set[int]) -> float:
        """What of the last sum is still in this one: processes alive, and those whose parent took over their books."""
        return sum(p.totals.get(name, 0.0) for key, p in self._before.items() if key in now or p.parent in members)


def listed_pids(node: str, program: Sequence[str] = ("scontrol",), timeout_s: float = 10.0) -> dict[int, list[int]]:
    """Processes of each job on this node as its slurmstepds tell; raises `OSError` if scontrol cannot be run."""
    try:
        done = subprocess.run(
            [*program, "listpids", "*", node],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"scontrol listpids did not end within {timeout_s:g} s") from None
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode and "No job steps" not in done.stderr.decode("utf-8", "replace"):
        raise OSError(f"scontrol listpids failed: {done.stderr.decode('utf-8', 'replace').strip()[:200]}")
    return parse_listpids(text)


def parse_listpids(text: str) -> dict[int, list[int]]:
    """The table that `scontrol listpids` prints: PID JOBID STEPID LOCALID GLOBALID."""
    jobs: dict[int, list[int]] = {}
    for line in text.splitlines():
        words = line.split()
        # A task that has not begun yet has the pid -1, or 0.
        if len(words) >= 3 and words[0].isdigit() and words[1].isdigit() and int(words[0]) > 1:
            jobs.setdefault(int(words[1]), []).append(int(words[0]))
    return jobs


def environment(pid: int, proc: Path = PROC) -> dict[str, str]:
    """The environment a process was started with; empty if it may not be read."""
    try:
        raw = (proc / str(pid) / "environ").read_bytes()[: 1 << 20]
    except OSError:
        return {}
    pairs = (item.decode("utf-8", "replace").partition("=") for item in raw.split(b"\0"))
    return {key: value for key, _, value in pairs if key.startswith("SLURM")}


def job_of_stepd(pids: Iterable[int], proc: Path = PROC) -> int | None:
    """The job that a slurmstepd says it serves, in its title: users cannot write there."""
    for pid in pids:
        try:
            title = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        match = _TITLE.match(title)
        if match:
            return int(match[1])
    return None


def boottime_of(process: Process) -> float:
    """When a process began, in seconds since boot."""
    return process.born * _TICK
