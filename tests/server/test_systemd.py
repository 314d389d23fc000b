"""What systemd hears from the daemon, and that the files for it are ones it accepts."""

import os
import shutil
import socket
import subprocess

import pytest

from advisor.resources import folder
from advisor.server.notify import Notifier


@pytest.mark.parametrize("address", ["path", "abstract"])
def test_systemd_hears_ready_reloading_stopping_and_the_watchdog(tmp_path, address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(5)
        if address == "abstract":
            systemd.bind(f"\0slurm-advisor-test-{os.getpid()}")
            name = f"@slurm-advisor-test-{os.getpid()}"
        else:
            name = str(tmp_path / "notify")
            systemd.bind(name)
        notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"})
        assert notifier.watchdog_s == 30
        notifier.ready("listening")
        notifier.reloading()
        notifier.alive()
        notifier.stopping()
        heard = [systemd.recv(4096).decode() for _ in range(4)]
    assert heard[0] == "READY=1\nSTATUS=listening"
    assert heard[1].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert heard[2:] == ["WATCHDOG=1", "STOPPING=1"]


def test_without_systemd_nothing_is_sent_and_nothing_fails():
    notifier = Notifier({})
    notifier.ready("listening")
    assert notifier.watchdog_s is None


def test_a_service_manager_that_is_gone_does_not_stop_the_daemon(tmp_path, caplog):
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("listening")
    assert "READY=1" in caplog.text


def test_a_watchdog_meant_for_another_process_is_not_answered(tmp_path):
    env = {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    assert Notifier(env).watchdog_s is None


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path):
    text = (folder("slurm") / "systemd" / "slurm-advisor.service").read_text()
    assert "ExecStart=/usr/bin/advisor serve" in text
    # The verifier wants the program to exist; the test machine need not have it installed there.
    unit = tmp_path / "slurm-advisor.service"
    unit.write_text(text.replace("/usr/bin/advisor serve", "/bin/true serve"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "slurm-advisor.service" not in done.stderr


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_sysusers_makes_the_daemons_user_and_lets_slurm_into_its_group(tmp_path):
    (tmp_path / "etc").mkdir()
    file = folder("slurm") / "systemd" / "slurm-advisor.sysusers.conf"
    done = subprocess.run(["systemd-sysusers", f"--root={tmp_path}", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    groups = (tmp_path / "etc" / "group").read_text()
    assert any(line.startswith("slurm-advisor:") and line.endswith(":slurm") for line in groups.splitlines())


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="systemd-tmpfiles is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders to another user")
def test_tmpfiles_makes_the_folders(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text(
        "root:x:0:0:root:/:/bin/sh\nslurm-advisor:x:990:990::/nonexistent:/bin/false\n"
    )
    (tmp_path / "etc" / "group").write_text("root:x:0:\nslurm-advisor:x:990:\n")
    file = folder("slurm") / "systemd" / "slurm-advisor.tmpfiles.conf"
    done = subprocess.run(
        ["systemd-tmpfiles", "--create", f"--root={tmp_path}", str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    state = (tmp_path / "var/lib/slurm-advisor").stat()
    assert (state.st_uid, state.st_mode & 0o777) == (990, 0o750)
    assert (tmp_path / "run/slurm-advisor").stat().st_mode & 0o777 == 0o755
