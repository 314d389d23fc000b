"""Many agents at once, a port that is killed again and again, copies and disorder: every sample is counted once."""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from advisor.settings import Settings
from advisor.store.database import Database
from advisor.telemetry.courier import Courier
from advisor.telemetry.spool import Spool

ROOT = Path(__file__).resolve().parents[2]
AGENTS = 16
SAMPLES = 40
COPIES = 3  # agents whose spool was restored from a copy, and who send all of it again


class PortProcess:
    """The port as the daemon starts it, on an address that outlives it."""

    def __init__(self, folder, munged):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.address = taken.getsockname()[:2]
        self.database = folder / "advisor.db"
        telemetry = {"listen": f"127.0.0.1:{self.address[1]}", "munge_socket": munged.socket}
        given = {"paths": {"database": str(self.database)}, "telemetry": telemetry}
        self._settings = msgspec.json.encode(msgspec.convert(given, Settings)) + b"\n"
        self._journal = folder / "port.log"
        self.process = None

    def start(self):
        with self._journal.open("ab") as journal:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "advisor.server.telemetry_port"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=journal,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(self._settings)
            self.process.stdin.flush()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self._journal.read_text()
            with contextlib.suppress(OSError), socket.create_connection(self.address, timeout=5):
                return
            time.sleep(0.02)
        raise AssertionError(self._journal.read_text())

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(20)


@pytest.fixture
def port(tmp_path, munged):
    made = PortProcess(tmp_path, munged)
    made.start()
    yield made
    made.kill()


class Agent(threading.Thread):
    """Makes samples and delivers them, as an agent does, hastily; some find their spool restored from a copy."""

    def __init__(self, folder, port, munge, number):
        super().__init__(name=f"n{number}", daemon=True)
        self._random = random.Random(number)
        self._folder = folder / self.name
        # A segment of a few samples, so that there are many, and they leave in any order.
        self.spool = Spool(self._folder, "boot", f"boot.{number}", segment=600)
        self.courier = Courier(self.spool, munge, port.address, self.name, "boot", cluster="mini", timeout_s=5.0)
        self._copied = number < COPIES
        self.trouble = []

    def run(self):
        for sample in range(SAMPLES):
            self.spool.add(self._sample(sample))
            if self._random.random() < 0.3:
                self._deliver()
            if self._copied and sample == SAMPLES // 2:
                shutil.copytree(self._folder, f"{self._folder}.copy")
            time.sleep(self._random.uniform(0.0, 0.04))
        if self._copied:
            for path in Path(f"{self._folder}.copy").iterdir():
                shutil.copy(path, self._folder / f"again-{path.name}")
        self._disorder()
        until = time.monotonic() + 90
        while self.spool.waiting() and time.monotonic() < until:
            if not self._deliver():
                time.sleep(self._random.uniform(0.0, 0.1))

    def _deliver(self):
        try:
            return self.courier.deliver()
        except Exception as error:  # an agent's own thread would log it; here it fails the test
            self.trouble.append(repr(error))
            return False

    def _disorder(self):
        for path in self._folder.glob("*.jsonl"):
            at = self._random.uniform(1e9, 1.7e9)
            os.utime(path, (at, at))

    @staticmethod
    def _sample(number):
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        metrics = {"cpu.user": float(number + 1)}
        return {"t": time.time(), "b": now, "dt": 1.0, "jobs": [{"job": 7, "m": metrics}], "node": {"memory": 1.0}}


def test_every_sample_of_many_agents_is_counted_once_however_often_the_port_dies(tmp_path, port, munged):
    agents = [Agent(tmp_path / "spools", port, munged.munge(), number) for number in range(AGENTS)]
    for agent in agents:
        agent.start()
    for pause in (0.5, 0.2, 0.7):
        time.sleep(pause)
        port.kill()
        time.sleep(pause / 2)
        port.start()
    for agent in agents:
        agent.join(120)
    assert [agent.name for agent in agents if agent.is_alive() or agent.spool.waiting()] == []
    assert [trouble for agent in agents for trouble in agent.trouble] == []
    port.end()  # what it has taken is written first
    with Database(port.database) as db:
        nodes = {
            row["node"]: (row["n"], row["n"] * row["mean"])
            for row in db.rows("SELECT node, n, mean FROM job_summaries WHERE metric = 'cpu.user'")
        }
        ranges = db.rows("SELECT node, first, last FROM received_samples ORDER BY node, first")
    total = SAMPLES * (SAMPLES + 1) / 2
    assert nodes == {agent.name: (SAMPLES, pytest.approx(total)) for agent in agents}
    assert [tuple(row) for row in ranges] == sorted((agent.name, 0, SAMPLES - 1) for agent in agents)
    assert sum(agent.courier.refused for agent in agents) == 0


def test_a_batch_that_the_daemon_cannot_take_now_does_not_hold_up_those_behind_it(tmp_path, make_port, munged):
    from advisor.server import telemetry_writer

    port = make_port()
    agent = Agent(tmp_path / "spools", port, munged.munge(), 99)
    for number in range(6):
        agent.spool.add(agent._sample(number))
    merge = telemetry_writer.CounterStore.merge

    def refusing(self, batches, *more):
        if any(sample.n == 0 for batch in batches for sample in batch.samples):
            raise OverflowError("odd")
        return merge(self, batches, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telemetry_writer.CounterStore, "merge", refusing)
        assert not agent.courier.deliver()  # the first one is refused, and goes to the end
        assert agent.courier.pause_s(10.0) <= 3 * 10.0 * 1.2
        assert not agent.courier.deliver()
        ((first,),) = port.rows("SELECT min(first) FROM received_samples")
        assert first > 0
    assert agent.courier.deliver()
    assert port.rows("SELECT first, last FROM received_samples") == [(0, 5)]


def test_a_batch_that_the_tables_refuse_for_good_is_dropped_with_a_reason(tmp_path, make_port, munged, caplog):
    from advisor.server import telemetry_writer
    from advisor.store.database import RowError

    port = make_port()
    agent = Agent(tmp_path / "spools", port, munged.munge(), 98)
    agent.spool.add(agent._sample(0))

    def refusing(self, batches, *more):
        raise RowError("NOT NULL constraint failed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telemetry_writer.CounterStore, "merge", refusing)
        assert agent.courier.deliver()
    assert (agent.courier.refused, agent.spool.waiting()) == (1, 0)
    assert "NOT NULL constraint failed" in caplog.text
    assert port.status().refused == {"malformed": 1}
