"""A Docker engine that answers: the one there is, or one installed and started here and stopped again on request."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TextIO

from control.basics import STATE, alone, fail, install, run, say, tail

_in_use: TextIO | None = None  # open, so that its lock is held


def answers() -> bool:
    return run("docker", "version", "--format", "{{.Server.Version}}", timeout=20).returncode == 0


def ensure() -> None:
    """An engine that answers while this process lives; one started here is remembered, to be stopped again."""
    _use(fcntl.LOCK_SH)
    if answers():
        return
    if os.geteuid() == 0:
        with alone("start of the engine"):
            if not answers():
                _install_and_start()
    else:
        fail("no Docker engine answers and only root can start one: run this as root, or join the docker group")


def _use(how: int) -> None:
    """Notes that this process uses the engine, alone or with others, as long as it lives."""
    global _in_use
    STATE.mkdir(parents=True, exist_ok=True)
    _in_use = (STATE / "engine.use").open("w")
    fcntl.flock(_in_use, how)


def _install_and_start() -> None:
    if not shutil.which("docker") or not shutil.which("dockerd"):
        # apparmor: a kernel that has it on refuses containers whose profile cannot be loaded.
        install("docker.io", "iptables", "apparmor", "ca-certificates")
        if answers():
            return
    _mount_cgroups()
    _start()


def _mount_cgroups() -> None:
    """Does what systemd would have done, on a machine without it."""
    cgroups = Path("/sys/fs/cgroup")
    if not cgroups.is_dir():
        fail("this machine has no /sys/fs/cgroup, without which no Docker engine works")
    if not any(cgroups.iterdir()):
        if not shutil.which("cgroupfs-mount"):
            install("cgroupfs-mount")
        run("cgroupfs-mount")


def _start() -> None:
    log = STATE / "log" / "dockerd.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    say(f"no Docker engine answers: starting dockerd (log: {log})")
    with log.open("w") as out:
        engine = subprocess.Popen(
            ["dockerd"], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    _pid_file().write_text(f"{engine.pid}\n")
    deadline = time.monotonic() + 60
    while not answers():
        ended = engine.poll() is not None
        if ended or time.monotonic() > deadline:
            if not ended:
                engine.terminate()
                try:
                    engine.wait(10)
                except subprocess.TimeoutExpired:
                    engine.kill()
            _pid_file().unlink(missing_ok=True)
            how = f"ended with exit code {engine.returncode}" if ended else "did not answer within 60 s"
            fail(f"dockerd {how}: {_reason(log)} (log: {log})", details=tail(log, 10))
        time.sleep(0.2)


def _reason(log: Path) -> str:
    """The line in which dockerd says why it gave up: usually its last."""
    lines = [line for line in tail(log, 50).splitlines() if line.strip()]
    telling = [line for line in lines if "failed to" in line or "level=fatal" in line or "permitted" in line]
    return (telling or lines or ["it said nothing"])[-1].strip()[:300]


def _pid_file() -> Path:
    return STATE / "dockerd.pid"


def started_here() -> int | None:
    """The process of the dockerd that was started here, if it is still that one."""
    try:
        pid = int(_pid_file().read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except (OSError, ValueError):
        return None
    return pid if command.endswith(b"dockerd") else None


def stop() -> None:
    """Stops the engine if it was started here and nothing runs in it any more."""
    pid = started_here()
    if pid is None:
        _pid_file().unlink(missing_ok=True)
        if answers():
            say("the Docker engine was not started by this script: it is left running")
        return
    try:
        _use(fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("the Docker engine is left running, for a cluster that is just starting")
        return
    others = run("docker", "ps", "--format", "{{.Names}}").stdout.split()
    if others:
        say(f"the Docker engine is left running, for {', '.join(others)}")
        return
    _pid_file().unlink(missing_ok=True)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    say(f"stopped the engine started here (process {pid})")
