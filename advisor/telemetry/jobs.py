"""Which jobs run on this node now, and who they are: by their cgroup, or else by their processes.

A job id alone does not name a run: a requeued job comes back under the same one, so the restart count goes with it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.telemetry import processes
from advisor.telemetry.cgroups import Cgroups, JobCgroup
from advisor.telemetry.notes import Notes


@dataclass(frozen=True, slots=True)
class JobKey:
    """One run of a job on this node."""

    cluster: str
    job_id: int
    restarts: int


@dataclass(slots=True)
class RunningJob:
    """A job with the processes it has now."""

    key: JobKey
    pids: list[int]
    cgroup: JobCgroup | None


class Jobs:
    """The jobs of this node, as they come and go."""

    def __init__(
        self,
        node: str,
        notes: Notes,
        cgroups: Cgroups | None = None,
        proc: Path = processes.PROC,
        scontrol: Sequence[str] = ("scontrol",),
        cluster: str = "",
    ) -> None:
        self._node = node
        self._notes = notes
        self._cgroups = Cgroups(node) if cgroups is None else cgroups
        self._proc = proc
        self._scontrol = tuple(scontrol)
        self._cluster = cluster
        self._sluids: dict[str, int] = {}
        self._keys: dict[tuple[int, str], JobKey] = {}  # job id and SLUID (or cgroup) → who it is

    def now(self) -> list[RunningJob]:
        """Every job that has processes on this node."""
        found = [job for job in self._cgroups.jobs() if self._identify(job)]
        running = [self._job(cgroup.job_id, cgroup.pids(), cgroup) for cgroup in found]
        if not running and not self._cgroups.kept():
            running = [self._job(job_id, pids, None) for job_id, pids in self._listed().items()]
        live = [job for job in running if job.pids]
        names = {(job.key.job_id, job.cgroup.sluid if job.cgroup else "") for job in live}
        self._keys = {name: key for name, key in self._keys.items() if name in names}
        return live

    def _identify(self, job: JobCgroup) -> bool:
        """Gives a cgroup that is named by SLUID its job id; false while that is not known."""
        if job.job_id:
            return True
        known = self._sluids.get(job.sluid)
        if known is None:
            known = processes.job_of_stepd(job.stepd_pids(), self._proc) or self._job_in_environment(job)
            if known is None:
                return False
            self._sluids[job.sluid] = known
            while len(self._sluids) > 10_000:
                self._sluids.pop(next(iter(self._sluids)))
        job.job_id = known
        return True

    def _job_in_environment(self, job: JobCgroup) -> int | None:
        pids = job.pids()
        for pid in pids[:16]:
            variables = processes.environment(pid, self._proc)
            if variables.get("SLURM_JOB_SLUID") == job.sluid and variables.get("SLURM_JOB_ID", "").isdigit():
                return int(variables["SLURM_JOB_ID"])
        owners = {pid: job_id for job_id, listed in self._listed().items() for pid in listed} if pids else {}
        return next((owners[pid] for pid in pids if pid in owners), None)

    def _listed(self) -> dict[int, list[int]]:
        if shutil.which(self._scontrol[0]) is None:
            self._notes.add("jobs", "no scontrol", "jobs without a cgroup of their own cannot be found")
            return {}
        try:
            return processes.listed_pids(self._node, self._scontrol)
        except OSError as error:
            self._notes.add("jobs", "scontrol failed", str(error))
            return {}

    def _job(self, job_id: int, pids: list[int], cgroup: JobCgroup | None) -> RunningJob:
        name = (job_id, cgroup.sluid if cgroup else "")
        key = self._keys.get(name)
        if key is None and pids:
            key = self._keys[name] = self._who(job_id, pids)
        return RunningJob(key or JobKey(self._cluster, job_id, 0), pids, cgroup)

    def _who(self, job_id: int, pids: list[int]) -> JobKey:
        cluster, restarts = self._cluster, 0
        for pid in pids[:16]:
            variables = processes.environment(pid, self._proc)
            if variables.get("SLURM_JOB_ID", variables.get("SLURM_JOBID")) == str(job_id):
                # Users can write what they like here, yet only into the books of their own job.
                count = variables.get("SLURM_RESTART_COUNT", "0")
                restarts = int(count) if count.isdigit() and len(count) < 6 else 0
                cluster = cluster or variables.get("SLURM_CLUSTER_NAME", "")[:64]
                break
        if not cluster:
            cluster = self._cluster = cluster_name(self._scontrol)
        return JobKey(cluster, job_id, restarts)


def cluster_name(scontrol: Sequence[str] = ("scontrol",)) -> str:
    """ClusterName of slurm.conf, or "" where scontrol does not tell."""
    try:
        done = subprocess.run(
            [*scontrol, "show", "config"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "ClusterName":
            return value.strip()
    return ""
