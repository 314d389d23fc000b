"""Finds jobs by the cgroups that slurmd makes for them, and reads CPU, memory and IO from there.

Three layouts are known: cgroup v1 (`CONTROLLER/slurm/uid_U/job_N`), cgroup v2 (`…/slurmstepd.scope/job_N`) and, from
Slurm 26.05, v2 keyed by SLUID (`…/slurmstepd.scope/s0123456789ABC`), whose job id the caller has to find. With several
slurmd on a host the names carry the node's (`slurm_NODE`, `NODE_slurmstepd.scope`); other nodes' are left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V1_CONTROLLERS = ("memory", "cpuacct", "cpu,cpuacct", "freezer", "cpuset", "devices")

_JOB = re.compile(r"job_(\d+)$")
_SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}$")  # Crockford's alphabet: no I, L, O, U
_SCOPE = re.compile(r"(?:(?P<node>.+)_)?slurmstepd\.scope$")
_DEEPEST = 4  # slices between the mount and the scope (a container's own, a site's CgroupSlice)


@dataclass(slots=True)
class JobCgroup:
    """A job's cgroup, or under v1 its cgroups, one for each controller."""

    job_id: int  # 0: known by its SLUID only
    sluid: str
    folders: dict[str, Path] = field(default_factory=dict)  # v2: {"": path}
    perf_name: str = ""  # as `perf stat --for-each-cgroup` wants it; "" under v1, where Slurm makes none for perf

    def pids(self) -> list[int]:
        """Every user process of the job; slurmstepd itself is left out."""
        for folder in self.folders.values():
            found = [pid for path in _below(folder) if path.name != "slurm" for pid in _procs(path)]
            if found:
                return found
        return []

    def stepd_pids(self) -> list[int]:
        """The slurmstepd of each step (v2 keeps them in folders of their own)."""
        folder = self.folders.get("")
        return [pid for path in _below(folder) if path.name == "slurm" for pid in _procs(path)] if folder else []

    def usage(self) -> dict[str, float]:
        """What the cgroup counts: totals since it was made (`cpu.user` …), and memory now. Without what it lacks."""
        v2 = self.folders.get("")
        return _usage_v2(v2) if v2 is not None else _usage_v1(self.folders)


class Cgroups:
    """The jobs' cgroups on this node."""

    def __init__(self, node: str, root: Path = ROOT) -> None:
        self._node = node
        self._root = root
        self._scopes: list[tuple[Path, Path]] | None = None  # mount of v2, scope

    def jobs(self) -> list[JobCgroup]:
        """Every job that has a cgroup now."""
        return [*self._v2(), *self._v1()]

    def kept(self) -> bool:
        """Whether slurmd keeps cgroups for jobs here; true also while no job runs, once there was one."""
        return bool(self._scopes) or any(
            (self._root / controller / name).is_dir()
            for controller in V1_CONTROLLERS
            for name in ("slurm", f"slurm_{self._node}")
        )

    def _v2(self) -> Iterator[JobCgroup]:
        # The scope is made with the first job and stays; until then it is looked for.
        if not self._scopes or not all(scope.is_dir() for _, scope in self._scopes):
            self._scopes = self._find_scopes()
        for mount, scope in self._scopes:
            for folder in _folders(scope):
                job, sluid = _JOB.match(folder.name), _SLUID.match(folder.name)
                if job or sluid:
                    yield JobCgroup(
                        int(job[1]) if job else 0,
                        folder.name if sluid else "",
                        {"": folder},
                        str(folder.relative_to(mount)),
                    )

    def _find_scopes(self) -> list[tuple[Path, Path]]:
        for mount in (self._root, self._root / "unified"):
            if (mount / "cgroup.controllers").exists():
                return [(mount, scope) for scope in self._scopes_below(mount, _DEEPEST)]
        return []

    def _scopes_below(self, folder: Path, depth: int) -> Iterator[Path]:
        for child in _folders(folder):
            match = _SCOPE.match(child.name)
            if match and match["node"] in (None, self._node):
                yield child
            elif depth > 1 and (child.name.endswith((".slice", ".scope")) or depth == _DEEPEST):
                yield from self._scopes_below(child, depth - 1)

    def _v1(self) -> Iterator[JobCgroup]:
        jobs: dict[int, JobCgroup] = {}
        for controller in V1_CONTROLLERS:
            for name in ("slurm", f"slurm_{self._node}"):
                for user in _folders(self._root / controller / name):
                    for folder in _folders(user):
                        match = _JOB.match(folder.name)
                        if match:
                            job = jobs.setdefault(int(match[1]), JobCgroup(int(match[1]), ""))
                            job.folders[controller] = folder
        yield from jobs.values()


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [path / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # not there, or gone with its job just now


def _below(folder: Path) -> Iterator[Path]:
    yield folder
    for child in _folders(folder):
        yield from _below(child)


def _procs(folder: Path) -> list[int]:
    return [int(word) for word in _read(folder / "cgroup.procs").split() if word.isdigit()]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _table(text: str) -> dict[str, float]:
    """Lines of a name and a number."""
    table = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdigit():
            table[name] = float(number)
    return table


def _usage_v2(folder: Path) -> dict[str, float]:
    usage: dict[str, float] = {}
    cpu = _table(_read(folder / "cpu.stat"))
    memory = _table(_read(folder / "memory.stat"))
    _take(usage, cpu, {"user_usec": ("cpu.user", 1e-6), "system_usec": ("cpu.system", 1e-6)})
    _take(usage, memory, {"pgfault": ("faults", 1), "pgmajfault": ("faults.major", 1), "anon": ("memory.anonymous", 1)})
    current = _read(folder / "memory.current").strip()
    if current.isdigit():
        usage["memory"] = float(current)
    io = _read(folder / "io.stat")
    if io:  # only where a site enables the io controller for jobs
        for key, name in (("rbytes", "io.read"), ("wbytes", "io.write")):
            usage[name] = float(sum(int(n) for n in re.findall(rf"\b{key}=(\d+)", io)))
    return usage


def _usage_v1(folders: dict[str, Path]) -> dict[str, float]:
    usage: dict[str, float] = {}
    accounting = folders.get("cpuacct") or folders.get("cpu,cpuacct")
    if accounting is not None:
        cpu = _table(_read(accounting / "cpuacct.stat"))
        tick = 1 / os.sysconf("SC_CLK_TCK")
        _take(usage, cpu, {"user": ("cpu.user", tick), "system": ("cpu.system", tick)})
    if "memory" in folders:
        memory = _table(_read(folders["memory"] / "memory.stat"))
        wanted = {"total_pgfault": "faults", "total_pgmajfault": "faults.major", "total_rss": "memory.anonymous"}
        _take(usage, memory, {key: (name, 1) for key, name in wanted.items()})
        current = _read(folders["memory"] / "memory.usage_in_bytes").strip()
        if current.isdigit():
            usage["memory"] = float(current)
    return usage


def _take(usage: dict[str, float], table: dict[str, float], wanted: dict[str, tuple[str, float]]) -> None:
    for key, (name, unit) in wanted.items():
        if key in table:
            usage[name] = table[key] * unit
