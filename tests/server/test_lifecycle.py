"""Start, reload, stop: what an admin and systemd see."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.daemons import PROGRAM, ROOT, submission, wait_until


def process_is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_systemd_is_told_ready_once_the_socket_listens_even_without_slurm(make_daemon, tmp_path):
    daemon = make_daemon()
    daemon.recording.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        daemon.start(wait=False, env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2000000"})
        assert systemd.recv(4096).startswith(b"READY=1\nSTATUS=enforce mode")
        with daemon.hook() as hook:  # it answers at once: keep
            assert hook.ask().action == "keep"
        heard = {systemd.recv(4096) for _ in range(2)}
        assert heard == {b"WATCHDOG=1"}
        daemon.signal(signal.SIGHUP)
        lines = []
        while not any(line.startswith(b"READY=1") for line in lines):
            lines.append(systemd.recv(4096))
        assert any(line.startswith(b"RELOADING=1") for line in lines)
        assert daemon.stop() == 0
        systemd.setblocking(False)
        rest = []
        try:
            while True:
                rest.append(systemd.recv(4096))
        except BlockingIOError:
            pass
        assert b"STOPPING=1" in rest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_writes_everything_out_and_leaves_no_socket_and_no_child(daemon, number):
    collector = daemon.status().collector.pid
    with daemon.hook() as hook:
        tokens = {hook.ask().token for _ in range(200)}
        daemon.signal(number)
        assert daemon.process.wait(timeout=20) == 0
    assert {row[0] for row in daemon.query("select token from decisions")} == tokens
    assert not daemon.socket.exists()
    wait_until(lambda: process_is_gone(collector))


def test_what_has_arrived_before_the_stop_is_answered(daemon):
    with daemon.hook() as hook:
        hook.ask()
        daemon.signal(signal.SIGSTOP)
        for _ in range(20):
            hook.send(submission())
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGCONT)
        replies = [hook.read() for _ in range(20)]
        assert all(reply.token for reply in replies)
        assert daemon.process.wait(timeout=20) == 0
        with pytest.raises(ConnectionResetError):
            hook.ask()
    assert daemon.query("select count(*) from decisions") == [(21,)]


def test_reloading_takes_new_settings_without_dropping_the_connection(daemon):
    with daemon.hook() as hook:
        assert hook.ask().action == "rewrite"
        daemon.configure(modes={"default": "shadow"})
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: daemon.status().mode == "shadow")
        assert hook.ask().action == "keep"
    status = daemon.status()
    assert status.reloaded_at and status.reload_error is None
    wait_until(lambda: daemon.query("select count(*) from decisions") == [(2,)])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("modes: {default: sometimes}", "sometimes"),
        ("modes: [", "not valid YAML"),
        ("policy: {name: crystal-ball}", "crystal-ball"),
    ],
)
def test_a_reload_of_bad_settings_keeps_the_old_ones_and_says_so(daemon, text, complaint):
    good = daemon.config.read_text()
    daemon.config.write_text(text)
    daemon.signal(signal.SIGHUP)
    status = wait_until(lambda: (status := daemon.status()).reload_error and status)
    assert complaint in status.reload_error
    assert not status.well()
    assert any("earlier settings serve" in problem for problem in status.problems())
    assert complaint in daemon.said()
    with daemon.hook() as hook:
        assert hook.ask().action == "rewrite"
    daemon.config.write_text(good)
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.status().reload_error is None)


def test_a_second_daemon_on_the_same_socket_is_refused_and_the_first_serves_on(daemon):
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(daemon.config)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "already serves here" in done.stderr
    assert "Traceback" not in done.stderr
    with daemon.hook() as hook:
        assert hook.ask().action == "rewrite"


def test_a_daemon_killed_outright_leaves_no_child_and_its_successor_takes_the_socket(daemon):
    collector = daemon.status().collector.pid
    daemon.kill()
    wait_until(lambda: process_is_gone(collector))
    assert daemon.socket.exists()
    daemon.start()
    with daemon.hook() as hook:
        assert hook.ask().action == "rewrite"


def test_nothing_is_imported_from_the_folder_the_daemon_runs_in(make_daemon):
    daemon = make_daemon()
    for module in ("argparse", "select", "yaml"):
        (daemon.folder / f"{module}.py").write_text("import pathlib; pathlib.Path('planted').touch()")
    daemon.start()
    assert not (daemon.folder / "planted").exists()
