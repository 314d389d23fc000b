"""What a test does at a site: submit as a user, look at jobs, run the daemon, read its log."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from advisor.server import client

ROOT = Path(__file__).resolve().parents[2]
SLURM_ID = 64030  # the slurm user of Debian's packages, as which slurmctld connects

# What the user computes, in the words of the annotation: much faster on a v100 than on a k80.
HEAVY = """#!/bin/bash
#ADVISOR app: heavy
#ADVISOR kernels: {train: {on: [gpu], work: 3.0e+14}}
sleep 1
"""
PLAIN = "#!/bin/bash\nsleep 1\n"
PATIENT = "if type(advisor) == 'table' then advisor.configure{timeout_ms = 500} end\n"


class Submitted(NamedTuple):
    """What sbatch, srun or salloc said."""

    code: int
    out: str
    err: str

    @property
    def job_id(self) -> int:
        match = re.search(r"(?:batch job|job allocation|job) (\d+)", self.out + self.err)
        assert match, f"no job id in: {self.out!r} {self.err!r}"
        return int(match[1])


def wait_for(what: str, probe: Callable[[], Any], seconds: float = 60) -> Any:
    until = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < until, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)


class Cluster:
    """One mini-cluster of `scripts/cluster`."""

    def __init__(self, release: str) -> None:
        self.release = release
        self.name = f"test{release.replace('.', '')}-{os.getpid()}"
        self.container = f"slurm-advisor-{self.name}"
        self.apps = itertools.count(1)
        # Jobs can run this Python and this checkout, where it is not the system's own.
        self.mounted = sys.base_prefix not in ("/", "/usr", "/usr/local")
        places = {Path(place).resolve() for place in (sys.prefix, sys.base_prefix, ROOT)} if self.mounted else set()
        outer = sorted(place for place in places if not places & set(place.parents))
        self._mounts = [word for place in outer for word in ("--mount", str(place))]

    def script(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([ROOT / "scripts/cluster", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"scripts/cluster {' '.join(words)}: {done.stderr}"
        return done

    def up(self) -> None:
        self.script("up", "--slurm", self.release, "--name", self.name, *self._mounts)
        facts = json.loads(self.script("status", "--json").stdout)[self.name]
        self.run_folder, self.etc_folder = Path(facts["run"]), Path(facts["etc"])
        self.command: list[str] = facts["command"]
        self._enter: dict[str, list[str]] = facts["users"]

    def down(self) -> None:
        self.script("down", "--name", self.name, "--engine")  # the engine only if it was started for the tests

    def run(
        self, *words: str, user: str = "root", stdin: str | bytes = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        variables = ["env", *(f"{key}={value}" for key, value in env.items())] if env else []
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run([*self._enter[user], *variables, *words], input=data, capture_output=True, check=False)
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    def ok(self, *words: str, **options: Any) -> str:
        done = self.run(*words, **options)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def sbatch(
        self, *options: str, user: str = "alice", script: str | bytes = PLAIN, env: dict[str, str] | None = None
    ) -> Submitted:
        if isinstance(script, str):
            # Nothing is to be learnt from one test for the next: each submission is of an app never seen.
            script = script.replace("app: heavy", f"app: heavy{next(self.apps)}")
        done = self.run("sbatch", *options, user=user, stdin=script, env=env)
        return Submitted(done.returncode, done.stdout, done.stderr)

    def job(self, job_id: int | str) -> dict[str, str]:
        """`scontrol show job` as a map; values with spaces lose nothing that the tests look at."""
        text = self.ok("scontrol", "-o", "-d", "show", "job", str(job_id)).splitlines()[0]
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def wait_job(self, job_id: int, states: Sequence[str], seconds: float = 60) -> dict[str, str]:
        def probe() -> dict[str, str] | None:
            job = self.job(job_id)
            return job if job["JobState"] in states else None

        found = wait_for(f"job {job_id} in {states}", probe, seconds)
        assert isinstance(found, dict)
        return found

    def touch_hook(self) -> None:
        """A new mtime makes slurmctld load the script anew: the hook forgets its connection and its breaker."""
        self.ok("touch", "/etc/slurm/job_submit.lua")
        time.sleep(1.1)  # mtimes are compared in whole seconds
        self.ok("touch", "/etc/slurm/job_submit.lua")

    def controller_log(self) -> str:
        return self.ok("cat", "/var/log/slurm/slurmctld.log")


class Site:
    """A mini-cluster with the hook on, and the daemon that advises it."""

    settings: dict[str, Any]

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.config = folder / "advisor.yaml"
        self.database = folder / "advisor.db"
        self.socket = cluster.run_folder / "advisor.sock"
        self.log = folder / "daemon.log"
        self.daemon: subprocess.Popen[bytes] | None = None

    # settings and the daemon

    def configure(self, **sections: Any) -> None:
        self.settings = {
            "paths": {
                "socket": str(self.socket),
                "database": str(self.database),
                "disable": str(self.cluster.etc_folder / "disable"),
            },
            "server": {"allowed_users": ["root", str(SLURM_ID)], "socket_group": str(SLURM_ID)},
            "slurm": {"command": self.cluster.command, "source": "commands", "poll_s": 1},
            "modes": {"default": "enforce"},
            "experiment": {"holdout": 0.0},
            "policy": {"min_gain_s": 5},
            "log": {"collect_s": 2},
        }
        for name, section in sections.items():
            self.settings[name] = {**self.settings.get(name, {}), **section} if isinstance(section, dict) else section
        self.config.write_text(yaml.safe_dump(self.settings))

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "advisor", "--config", str(self.config), "serve"],
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        wait_for("the daemon has a snapshot", self.has_snapshot)

    def has_snapshot(self) -> bool:
        assert self.daemon is not None
        assert self.daemon.poll() is None, self.log.read_text()
        try:
            return client.status(str(self.socket)).snapshot.taken_at is not None
        except client.ClientError:
            return False  # it does not listen yet

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.daemon is not None:
            self.daemon.send_signal(how)
            self.daemon.wait(30)
            self.daemon = None

    def reconfigure(self, **sections: Any) -> None:
        """New settings for a fresh daemon."""
        self.stop()
        self.configure(**sections)
        self.start()

    def reset(self) -> None:
        """An empty queue, a hook that remembers no failure, a daemon with the usual settings and no past."""
        began = int(time.time())
        self.cancel_all()
        (self.cluster.etc_folder / "disable").unlink(missing_ok=True)
        self.reconfigure()
        # The script is loaded anew when its mtime is later, in whole seconds, than the last load.
        wait_for("the next second", lambda: int(time.time()) > began)
        self.cluster.ok("touch", "/etc/slurm/job_submit.lua")

    def advisor(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "advisor", "--config", str(self.config), *words],
            capture_output=True, text=True, check=False, cwd=ROOT, input=stdin,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        found = msgspec.to_builtins(client.status(str(self.socket)))
        assert isinstance(found, dict)
        return found

    # the hook

    def enable_hook(self, folder: Path | None = None) -> None:
        """The shipped hook and sample, unless a folder with another job_submit.lua is given.

        The time-out is longer than the shipped 20 ms: what is tested here are decisions, on machines where
        the daemon may have to wait for a core.
        """
        if folder is None:
            folder = self.folder / "hook"
            folder.mkdir(exist_ok=True)
            for name in ("advisor.lua", "job_submit.lua"):
                text = (ROOT / "slurm" / name).read_text()
                if name == "job_submit.lua":
                    text = text.replace("function slurm_job_submit", PATIENT + "function slurm_job_submit", 1)
                (folder / name).write_text(text)
        self.cluster.script("hook", "--name", self.cluster.name, str(folder))
        if self.daemon is not None:
            self.wait_fresh()

    def wait_fresh(self) -> None:
        """Until the daemon has seen all nodes well, after slurmctld was restarted."""
        wait_for(
            "nodes are back", lambda: not re.search(r"unk|\*|down", self.cluster.ok("sinfo", "-h", "-N", "-o", "%T"))
        )
        now = time.time()
        wait_for("a snapshot of that", lambda: (self.status()["snapshot"]["taken_at"] or 0) > now)

    # the log

    def rows(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, arguments)]

    def decision(self, job_id: int) -> dict[str, Any]:
        """The logged decision of a job, found by the token that the job carries."""
        token = self.token(job_id)
        assert token, f"job {job_id} carries no token"
        found = wait_for("the decision in the log", lambda: self.rows("select * from decisions where token = ?", token))
        row = found[0]
        assert isinstance(row, dict)
        return row

    def token(self, job_id: int) -> str | None:
        match = re.search(r"advisor=([\w-]+)", self.cluster.job(job_id).get("AdminComment", ""))
        return match[1] if match else None

    def cancel_all(self) -> None:
        self.cluster.run("scancel", "--user", "alice")
        self.cluster.run("scancel", "--user", "bob")
        wait_for("an empty queue", lambda: not self.cluster.ok("squeue", "-h").strip())
