"""Starts real daemons in a folder, on a recorded cluster, and talks to them as the hook does."""

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import yaml

from advisor import protocol
from advisor.cluster.recorded import save
from advisor.cluster.types import ClusterState, Gres, Job, Node, Partition
from advisor.server import client

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (
    "import sys, pathlib; from advisor import config; from advisor.server.daemon import run; "
    "path = pathlib.Path(sys.argv[1]); sys.exit(run(config.load(path), path, log_level='debug'))"
)


def wait_until(condition, seconds=20.0, every=0.02):
    """The first true value of `condition()`; fails the test when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(every)
    raise AssertionError(f"still not so after {seconds} s: {condition}")


def cluster(jobs=(), taken_at=None):
    """Two partitions of GPUs, of which the old one is full for two hours, and one of CPUs."""
    now = time.time() if taken_at is None else taken_at
    nodes = [
        Node(
            name=f"old{n}",
            states=("ALLOCATED",),
            cpus=16,
            memory_mb=64000,
            gres=(Gres("gpu", 2, "v100"),),
            partitions=("old",),
            cpus_allocated=16,
            gres_allocated=(Gres("gpu", 2, "v100"),),
        )
        for n in range(2)
    ]
    nodes += [
        Node(
            name=f"new{n}",
            states=("IDLE",),
            cpus=16,
            memory_mb=64000,
            gres=(Gres("gpu", 2, "a100"),),
            partitions=("new",),
        )
        for n in range(2)
    ]
    nodes += [Node(name="cpu0", states=("IDLE",), cpus=32, memory_mb=128000, partitions=("cpu",))]
    running = [
        Job(
            job_id=1 + n,
            states=("RUNNING",),
            name="long",
            user="zoe",
            partitions=("old",),
            start_time=int(now) - 60,
            time_limit=120,
            nodes=(f"old{n}",),
            cpus=16,
            memory_mb=1000,
            gres=(Gres("gpu", 2, "v100"),),
        )
        for n in range(2)
    ]
    return ClusterState(
        cluster="test",
        release=(24, 11),
        taken_at=now,
        nodes=tuple(nodes),
        partitions=(
            Partition(name="old", nodes=("old0", "old1"), default=True, max_time=2880),
            Partition(name="new", nodes=("new0", "new1"), max_time=2880),
            Partition(name="cpu", nodes=("cpu0",), max_time=2880),
        ),
        jobs=(*running, *jobs),
    )


def submission(**fields):
    """A plain `sbatch --gres=gpu:1` without a partition, as the hook tells it."""
    request = {
        "v": protocol.VERSION,
        "uid": 1000,
        "user": "alice",
        "account": "physics",
        "name": "train",
        "tres_per_node": "gres/gpu:1",
        "time_limit": 60,
        "min_cpus": 1,
        "min_nodes": 1,
        "partitions": [
            {"name": "old", "default": True, "max_time": 2880},
            {"name": "new", "max_time": 2880},
            {"name": "cpu", "max_time": 2880},
        ],
        **fields,
    }
    return msgspec.json.encode(request)


class Hook:
    """A persistent connection, as slurmctld holds one."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._file.close()
        self._socket.close()

    def send(self, line):
        try:
            self._socket.sendall(line + b"\n")
        except BrokenPipeError:
            raise ConnectionResetError("the daemon has closed the connection") from None

    def read(self):
        line = self._file.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the daemon closed the connection")
        return msgspec.json.decode(line, type=protocol.Reply)

    def ask(self, line=None):
        self.send(submission() if line is None else line)
        return self.read()


class Daemon:
    """`advisor serve` in a folder of its own."""

    def __init__(self, folder, **sections):
        self.folder = folder
        self.socket = folder / "run" / "advisor.sock"
        self.database = folder / "state" / "advisor.db"
        self.recording = folder / "cluster.json"
        self.config = folder / "advisor.yaml"
        self.journal = folder / "journal.txt"
        self.sections = sections
        self.process = None
        self.record()
        self.configure()

    def record(self, *jobs, taken_at=None):
        save(cluster(jobs, taken_at), self.recording)

    def configure(self, **more):
        settings = {
            "paths": {"socket": str(self.socket), "database": str(self.database)},
            "slurm": {"source": "recorded", "recording": str(self.recording), "poll_s": 0.2},
            "modes": {"default": "enforce"},
            "experiment": {"holdout": 0.0},
            "log": {"collect_s": 0.3},
        }
        for section, values in [*self.sections.items(), *more.items()]:
            settings[section] = {**settings.get(section, {}), **values}
        self.config.write_text(yaml.safe_dump(settings))

    def start(self, *, wait=True, env=None):
        with self.journal.open("ab") as journal:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, str(self.config)],
                stderr=journal,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
                cwd=self.folder,
            )
        if wait:
            wait_until(lambda: self.answers() and self.status().snapshot.taken_at)
        return self

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{self.said()}")
        try:
            return client.ping(self.socket)
        except client.ClientError:
            return False

    def status(self):
        return client.status(self.socket)

    def said(self):
        return self.journal.read_text(errors="replace")

    def hook(self):
        return Hook(self.socket)

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(timeout=20)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def query(self, sql, *values):
        with contextlib.closing(sqlite3.connect(self.database)) as database:
            return database.execute(sql, values).fetchall()

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
