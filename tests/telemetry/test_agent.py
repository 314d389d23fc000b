"""The agent as a whole: small, on the standard library alone, and in the log of a real daemon."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from advisor.cli import cli
from advisor.resources import folder
from advisor.telemetry import gpu, node
from advisor.telemetry.agent import Agent, Options, address
from advisor.telemetry.notes import Notes
from tests.server.daemons import ROOT, Daemon, wait_until

# What the agent imports must be there on a compute node that has Python and nothing else.
IMPORTED = """
import sys
sys.argv = ["agent", "--once", "--period", "0.6", "--spool", {spool!r}, "--node", "n1"]
sys.path.insert(0, {root!r})
from advisor.telemetry import agent
assert agent.main() == 0
ours = sorted(m for m in sys.modules if m.partition(".")[0] == "advisor")
foreign = sorted({{m.partition(".")[0] for m in sys.modules}} - set(sys.stdlib_module_names) - {{"advisor"}})
print([m for m in foreign if not m.startswith("_")], file=sys.stderr)
"""


def test_the_agent_needs_only_the_standard_library(tmp_path):
    program = IMPORTED.format(spool=str(tmp_path), root=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.strip().splitlines()[-1] == "[]"
    sample = json.loads(done.stdout)
    assert sample["node_name"] == "n1" and sample["node"]["cpu.user"] >= 0 and sample["node"]["memory"] > 0


def scontrol(folder, pid):
    path = folder / "scontrol"
    path.write_text(
        f"#!/bin/sh\n[ $1 = show ] && echo 'ClusterName = mini' && exit 0\n"
        f"printf 'PID JOBID STEPID LOCALID GLOBALID\\n{pid} 4711 batch 0 0\\n'\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def busy():
    process = subprocess.Popen(["sh", "-c", "while :; do ls / > /dev/null; done"])
    yield process
    process.kill()
    process.wait()


def test_a_job_is_in_the_daemons_summaries_and_in_its_status(tmp_path, munged, busy):
    (tmp_path / "daemon").mkdir()
    daemon = Daemon(tmp_path / "daemon", telemetry={"listen": "127.0.0.1:0", "munge_socket": munged.socket})
    scontrol(tmp_path, busy.pid)
    try:
        daemon.start()
        listening = wait_until(lambda: daemon.status().telemetry.listening)
        agent = subprocess.Popen(
            [sys.executable, "-m", "advisor.telemetry.agent", "--daemon", listening, "--node", "n1", "--period", "0.6",
             "--deliver", "1", "--spool", str(tmp_path / "spool"), "--munge-socket", munged.socket],
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            wait_until(lambda: daemon.status().telemetry.samples >= 3)
        finally:
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(20) == 0
        status = daemon.status().telemetry
        assert status.nodes == 1 and status.batches >= 1 and status.refused == {} and status.error is None
        found = dict(
            daemon.query(
                "SELECT metric, mean FROM job_summaries WHERE job_id = 4711 AND node = 'n1' AND cluster = 'mini'"
            )
        )
        assert found["cpu.user"] + found["cpu.system"] > 0.05
        assert found["faults"] > 100 and found["switches"] > 5 and found["memory"] > 0
        assert daemon.query("SELECT count(*) FROM node_summaries WHERE metric = 'cpu.user' AND span = 3600")[0][0] >= 1
        # What the agent could not measure here is known to the daemon as well.
        assert ("gpu", "none") in daemon.query("SELECT subject, what FROM agent_notes")
        # The last period was delivered when the agent was stopped.
        assert list((tmp_path / "spool" / "n1").iterdir()) == []
        assert any(line.startswith("telemetry") for line in daemon.status().lines())
    finally:
        daemon.close()


def test_a_daemon_without_an_address_listens_nowhere_and_is_well(tmp_path):
    daemon = Daemon(tmp_path).start()
    try:
        assert daemon.status().telemetry.listening == ""
        assert not any(line.startswith("telemetry") for line in daemon.status().lines())
    finally:
        daemon.close()


def test_a_port_that_is_killed_is_started_again(tmp_path, munged):
    daemon = Daemon(tmp_path, telemetry={"listen": "127.0.0.1:0", "munge_socket": munged.socket}).start()
    try:
        pid = wait_until(lambda: daemon.status().telemetry.pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: daemon.status().telemetry.pid not in (None, pid))
        assert daemon.status().telemetry.restarts == 1
        assert "was killed by signal 9" in daemon.said()
    finally:
        daemon.close()


def test_an_address_that_is_taken_is_a_problem_that_status_names(tmp_path, munged, make_port):
    taken = make_port()
    listen = "{}:{}".format(*taken.address)
    daemon = Daemon(tmp_path, telemetry={"listen": listen, "munge_socket": munged.socket}).start()
    try:
        wait_until(lambda: any("batches are not stored" in problem for problem in daemon.status().problems()))
        assert "cannot be listened on" in daemon.said()
    finally:
        daemon.close()


def test_a_reload_opens_moves_and_closes_the_port(tmp_path, munged):
    daemon = Daemon(tmp_path).start()
    try:
        daemon.configure(telemetry={"listen": "127.0.0.1:0", "munge_socket": munged.socket})
        daemon.signal(signal.SIGHUP)
        pid = wait_until(lambda: daemon.status().telemetry.pid)
        daemon.configure()
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: daemon.status().telemetry.listening == "")
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
    finally:
        daemon.close()


@pytest.mark.parametrize("text", ["", "ctl", "ctl:", ":6815", "ctl:http", "ctl:70000"])
def test_an_address_that_is_none_is_named(text, tmp_path):
    with pytest.raises(ValueError, match="host:port"):
        address(text)
    config = tmp_path / "advisor.yaml"
    config.write_text(f"agent: {{daemon: '{text}'}}\n")
    done = CliRunner().invoke(cli, ["--config", str(config), "agent"])
    assert done.exit_code == 2 and "agent.daemon" in done.output


def test_addresses_may_be_names_and_of_either_kind():
    assert address("ctl:6815") == ("ctl", 6815)
    assert address("[::1]:6815") == ("::1", 6815)


def test_one_period_can_be_looked_at_by_hand(tmp_path):
    config = tmp_path / "advisor.yaml"
    config.write_text(f"agent: {{spool: {tmp_path}/spool, period_s: 0.6, perf: ''}}\n")
    done = CliRunner().invoke(cli, ["--config", str(config), "agent", "--once", "--json", "--node", "n7"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["node_name"] == "n7" and "cpu.user" in shown["node"]


def test_a_period_that_cannot_be_measured_does_not_end_the_agent(tmp_path, caplog):
    agent = Agent(Options(daemon=None, node="n1", period_s=0.6, spool=tmp_path, perf="", scontrol=("false",)))
    measure, calls = agent.sampler.sample, []

    def odd():
        calls.append(time.monotonic())
        if len(calls) == 2:
            raise PermissionError("/proc is odd today")
        return measure()

    agent.sampler.sample = odd
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    wait_until(lambda: agent.spool.waiting())
    agent.stop()
    thread.join(20)
    assert not thread.is_alive() and len(calls) > 3
    assert "the node could not be measured" in caplog.text and "/proc is odd today" in caplog.text


def test_the_gpus_of_a_job_are_those_its_processes_are_on(tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        textwrap.dedent("""\
        #!/bin/sh
        case $1 in
        --query-gpu*) echo 'GPU-a, 90, 1000'; echo 'GPU-b, 10, 500'; echo 'GPU-c, [N/A], 7' ;;
        *) echo 'GPU-a, 11, 600'; echo 'GPU-a, 99, 300'; echo 'GPU-b, 12, 400'; echo 'GPU-b, x, y' ;;
        esac
        """)
    )
    smi.chmod(0o755)
    now, notes = [0.0], Notes()
    gpus = gpu.Gpus(notes, str(smi), clock=lambda: now[0], module="no_such_module")
    found = gpus.now()
    assert gpu.of_job(found, {11, 12}) == {"gpu.busy": 1.0, "gpu.memory": float(1000 << 20)}
    assert gpu.of_job(found, {99}) == {"gpu.busy": 0.9, "gpu.memory": float(300 << 20)}
    assert gpu.of_job(found, {1}) == {}
    assert gpus.now() == []  # nvidia-smi is slow: not again so soon
    assert notes.take() == []


def test_nvml_is_used_where_it_is_installed(tmp_path, monkeypatch):
    (tmp_path / "fake_nvml.py").write_text(
        textwrap.dedent("""
        from types import SimpleNamespace as N
        def nvmlInit(): pass
        def nvmlDeviceGetCount(): return 2
        def nvmlDeviceGetHandleByIndex(i): return i
        def nvmlDeviceGetUtilizationRates(h): return N(gpu=25 * (h + 1))
        def nvmlDeviceGetMemoryInfo(h): return N(used=1000 * (h + 1))
        def nvmlDeviceGetComputeRunningProcesses(h): return [N(pid=10 + h, usedGpuMemory=None if h else 700)]
    """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = gpu.Gpus(Notes(), module="fake_nvml").now()
    assert gpu.of_job(found, {10}) == {"gpu.busy": 0.25, "gpu.memory": 700.0}
    assert gpu.of_job(found, {11}) == {"gpu.busy": 0.5, "gpu.memory": 0.0}


def test_a_node_without_gpus_is_noted_once():
    notes = Notes()
    gpus = gpu.Gpus(notes, "no-such-program", module="no_such_module")
    assert gpus.now() == gpus.now() == []
    assert [(note.subject, note.what) for note in notes.take()] == [("gpu", "none")]


def test_the_nodes_totals_are_rates_of_this_machine():
    before = node.totals()
    began = time.monotonic()
    while time.monotonic() - began < 0.3:
        pass
    rates = node.rates(before, node.totals(), time.monotonic() - began)
    assert 0.1 < rates["cpu.user"] + rates["cpu.system"] < (os.cpu_count() or 1) * 1.5
    assert rates["memory"] > 1 << 20 and rates["switches"] > 0


def test_partitions_are_not_counted_beside_their_disk(tmp_path):
    (tmp_path / "diskstats").write_text(
        "   8  0 sda 10 0 100 0 20 0 200 0 0 0 0\n   8  1 sda1 10 0 100 0 20 0 200 0 0 0 0\n"
        " 259  0 nvme0n1 1 0 7 0 1 0 9 0 0 0 0\n 259 1 nvme0n1p1 1 0 7 0 1 0 9 0 0 0 0\n"
        " 253  0 dm-0 1 0 50 0 1 0 50 0 0 0 0\n   7  0 loop0 1 0 50 0 1 0 50 0 0 0 0\n"
    )
    assert node.totals(tmp_path) == {"disk.read": 107 * 512, "disk.write": 209 * 512}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_agents_unit(tmp_path):
    text = (folder("slurm") / "systemd" / "slurm-advisor-agent.service").read_text()
    assert "ExecStart=/usr/bin/advisor agent" in text
    unit = tmp_path / "slurm-advisor-agent.service"
    unit.write_text(text.replace("/usr/bin/advisor agent", "/bin/true agent"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "slurm-advisor-agent.service" not in done.stderr
