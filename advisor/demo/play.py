"""Plays the workload on a real Slurm twice: first Slurm alone (the advisor watches in shadow), then advised.

The first pass is also what the advisor learns from: it has never seen these apps before. Every figure
in the closing table is measured by Slurm's own accounting.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import yaml

from advisor.demo.stage import SLURM_ID, Stage, StageError
from advisor.demo.workload import DemoJob
from advisor.server import client
from advisor.server.status import Status


class Ended(msgspec.Struct, frozen=True):
    """How one job of the demonstration went, in seconds."""

    app: str
    processor: str
    wait_s: float
    run_s: float

    @property
    def turnaround_s(self) -> float:
        """From `sbatch` to the end: what the user feels."""
        return self.wait_s + self.run_s


class Submission(msgspec.Struct, frozen=True):
    """One `sbatch` as it happened."""

    at_s: float  # since the pass began
    job: DemoJob
    job_id: str
    told: str  # what sbatch told the user


class Pass(msgspec.Struct, frozen=True):
    """One run of the whole workload."""

    name: str
    jobs: tuple[Ended, ...]
    makespan_s: float
    submissions: tuple[Submission, ...] = ()


Submitted = Callable[[Submission], None]


class Site:
    """A mini-cluster, its daemon and a folder for their settings and log."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage, self.folder = stage, folder
        self.config = folder / "advisor.yaml"
        self.database = folder / "advisor.db"
        self._daemon: subprocess.Popen[bytes] | None = None

    def configure(self, mode: str, poll_s: float = 1.0, collect_s: float = 2.0) -> None:
        """Writes advisor.yaml; a running daemon rereads it."""
        settings = {
            "paths": {"socket": str(self.stage.run_folder / "advisor.sock"), "database": str(self.database)},
            "server": {"allowed_users": ["root", SLURM_ID], "socket_group": SLURM_ID},
            "slurm": {"command": self.stage.command, "source": "commands", "poll_s": poll_s},
            "modes": {"default": mode},
            # The two passes are the comparison here, so no job is held out of the second.
            "experiment": {"holdout": 0.0},
            # Seconds stand for hours here.
            "policy": {"min_gain_s": 1},
            "log": {"collect_s": collect_s},
        }
        self.config.write_text(yaml.safe_dump(settings, sort_keys=False))
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGHUP)
            self._until(f"the daemon is in mode {mode}", lambda: (s := self.status()) is not None and s.mode == mode)

    def start_daemon(self) -> None:
        """Starts `advisor serve` and waits until it knows the cluster."""
        with (self.folder / "daemon.log").open("ab") as log:
            command = [sys.executable, "-m", "advisor", "--config", str(self.config), "serve"]
            self._daemon = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._until("the daemon knows the cluster", self._knows_the_cluster)

    def _knows_the_cluster(self) -> bool:
        status = self.status()
        return status is not None and status.snapshot.taken_at is not None

    def stop_daemon(self) -> None:
        """Ends it; it writes its log out first."""
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(30)
            self._daemon = None

    def advisor(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One `advisor` command with this site's settings."""
        command = [sys.executable, "-m", "advisor", "--config", str(self.config), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def play(self, name: str, jobs: list[DemoJob], submitted: Submitted, waiting: Callable[[int], None]) -> Pass:
        """Submits the workload with plain sbatch, waits for all of it and reads how it went."""
        began = time.time()
        made: list[Submission] = []
        due = 0.0
        for job in jobs:
            due += job.after_s
            time.sleep(max(0.0, began + due - time.time()))
            done = self.stage.sbatch(job.user, job.options, job.script())
            if done.returncode:
                raise StageError(f"sbatch refused a job of the demonstration: {done.stderr.strip()}")
            job_id = done.stdout.strip().split(";")[0]
            made.append(Submission(time.time() - began, job, job_id, done.stderr.strip()))
            submitted(made[-1])
        ids = [submission.job_id for submission in made]
        while left := self._unfinished(ids):
            waiting(len(ids) - left)
            time.sleep(0.5)
        waiting(len(ids))
        return self._read(name, ids, tuple(made))

    def _unfinished(self, ids: list[str]) -> int:
        return len(self.stage.run("squeue", "-h", "-t", "PD,R,CG,CF", "-o", "%i", "-j", ",".join(ids)).stdout.split())

    def _read(self, name: str, ids: list[str], made: tuple[Submission, ...]) -> Pass:
        """From Slurm's own accounting, collected into the log."""
        import sqlite3

        rows: list[sqlite3.Row] = []

        def all_ended() -> bool:
            nonlocal rows
            self.advisor("collect")
            with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True) as log:
                log.row_factory = sqlite3.Row
                marks = ",".join("?" * len(ids))
                rows = log.execute(
                    f"select * from outcomes where job_id in ({marks}) and end is not null", [int(i) for i in ids]
                ).fetchall()
            return len(rows) == len(ids)

        self._until("sacct tells how the jobs ended", all_ended)
        ended = tuple(
            Ended(row["name"], row["processor"], row["start"] - row["submit"], row["end"] - row["start"])
            for row in rows
        )
        makespan = max(row["end"] for row in rows) - min(row["submit"] for row in rows)
        return Pass(name, ended, makespan, made)

    def status(self) -> Status | None:
        """How the daemon is; None while it does not listen yet."""
        assert self._daemon is not None
        if self._daemon.poll() is not None:
            log = (self.folder / "daemon.log").read_text(errors="replace").strip().splitlines()
            raise StageError("the daemon ended: " + (log[-1] if log else "it said nothing"))
        try:
            status = client.status(str(self.stage.run_folder / "advisor.sock"))
        except client.ClientError:
            return None  # it does not listen yet
        return status

    def _until(self, what: str, probe: Callable[[], bool], seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not probe():
            if time.monotonic() > until:
                raise StageError(f"{what}: not within {seconds:g} s; the daemon's log is {self.folder / 'daemon.log'}")
            time.sleep(0.2)
