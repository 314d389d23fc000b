"""Nothing in the submit path can hurt a submission."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm import fakes
from tests.slurm.site import HEAVY, Site, wait_for

OPEN = ["-p", "k80,v100", "--gres=gpu:1", "--hold"]


@pytest.fixture
def no_daemon(site: Site) -> Iterator[Site]:
    site.stop()
    site.socket.unlink(missing_ok=True)
    site.cluster.touch_hook()
    yield site
    site.cluster.touch_hook()


def assert_submits_unchanged(site: Site, count: int = 3) -> None:
    for _ in range(count):
        sent = site.cluster.sbatch(*OPEN, script=HEAVY)
        assert sent.code == 0, sent.err
        job = site.cluster.job(sent.job_id)
        assert job["Partition"] == "k80,v100"
        assert "v100" not in job.get("TresPerNode", "")
        assert "advisor" not in job.get("AdminComment", "")


def test_with_no_daemon_every_submission_succeeds_unchanged(no_daemon: Site) -> None:
    assert_submits_unchanged(no_daemon, 5)


@pytest.mark.parametrize(
    "behaviour",
    [
        fakes.hung,
        fakes.dies_in_the_middle,
        fakes.garbage,
        fakes.half_a_line,
        fakes.another_version,
        fakes.forbidden_field,
    ],
    ids=lambda b: b.__name__.replace("_", " "),
)
def test_a_daemon_that_misbehaves_changes_nothing(no_daemon: Site, behaviour: fakes.Behaviour) -> None:
    with fakes.FakeDaemon(no_daemon.socket, behaviour) as fake:
        assert_submits_unchanged(no_daemon, 4)
        assert fake.connections >= 1, "the hook did ask"


def test_with_the_daemon_hung_the_breaker_opens_after_three_and_says_so_once(no_daemon: Site) -> None:
    site = no_daemon
    lines_before = len(site.cluster.controller_log().splitlines())
    with fakes.FakeDaemon(site.socket, fakes.hung) as fake:
        loop = "for i in $(seq 50); do sbatch -Q --hold -p k80,v100 --gres=gpu:1 --wrap true || exit 1; done"
        done = site.cluster.run("sh", "-c", loop, user="alice")
        assert done.returncode == 0, done.stderr
        assert fake.connections == 3, "three time-outs in all; the other 47 submissions did not wait"
    told = [line for line in site.cluster.controller_log().splitlines()[lines_before:] if "advisor" in line]
    assert len(told) <= 4, told
    jobs = site.cluster.ok("squeue", "-h", "-o", "%P", "-u", "alice").split()
    assert jobs == ["k80,v100"] * 50


def test_when_the_daemon_comes_back_advice_comes_back(no_daemon: Site) -> None:
    """The breaker lets one submission try again after its 30 s; no restart of slurmctld is needed."""
    site = no_daemon
    assert_submits_unchanged(site, 4)
    site.start()

    def advised() -> bool:
        sent = site.cluster.sbatch(*OPEN, script=HEAVY)
        assert sent.code == 0
        return site.cluster.job(sent.job_id)["Partition"] == "v100"

    def breaker_closed() -> bool:
        time.sleep(1)
        return advised()

    wait_for("advice after the breaker's pause", breaker_closed, 45)


def test_a_restarted_daemon_is_asked_again_at_once(site: Site) -> None:
    assert site.cluster.job(site.cluster.sbatch(*OPEN, script=HEAVY).job_id)["Partition"] == "v100"
    site.stop()
    site.start()
    assert site.cluster.job(site.cluster.sbatch(*OPEN, script=HEAVY).job_id)["Partition"] == "v100"


HOSTILE = {
    "4 MiB": "#!/bin/bash\n#ADVISOR app: big\n" + "# x\n" * 10 + ": " + "y" * (4 << 20) + "\n",
    "invalid UTF-8": b"#!/bin/bash\n#ADVISOR app: \xff\xfe\xc3\x28\ntrue\n",
    "yaml bomb": "#!/bin/bash\n#ADVISOR a: &a [x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"#ADVISOR {c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + "true\n",
    "10,000 kernels": "#!/bin/bash\n#ADVISOR kernels:\n"
    + "".join(f"#ADVISOR   k{i}: {{on: [gpu]}}\n" for i in range(10_000))
    + "true\n",
    "a cycle": "#!/bin/bash\n#ADVISOR kernels: {a: {on: [gpu]}, b: {on: [gpu]}}\n"
    "#ADVISOR edges: [[a, b], [b, a]]\ntrue\n",
    "deep nesting": "#!/bin/bash\n#ADVISOR app: " + "[" * 20_000 + "\ntrue\n",
    "SQL": '#!/bin/bash\n#ADVISOR app: "x\'); DROP TABLE decisions; --"\ntrue\n',
    "shell": "#!/bin/bash\n#ADVISOR app: '$(touch /tmp/owned) `touch /tmp/owned`; touch /tmp/owned'\ntrue\n",
    "python tag": "#!/bin/bash\n#ADVISOR app: !!python/object/apply:os.system ['touch /tmp/owned']\ntrue\n",
}
SAYS_LINE = {"yaml bomb", "a cycle", "deep nesting", "python tag", "10,000 kernels"}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_scripts_go_through_and_the_message_names_the_line(site: Site, kind: str) -> None:
    sent = site.cluster.sbatch(*OPEN, script=HOSTILE[kind])
    (site.cluster.etc_folder / "disable").touch()
    alone = site.cluster.sbatch(*OPEN, script=HOSTILE[kind])
    assert sent.code == alone.code, f"Slurm alone: {alone.err}; with the advisor: {sent.err}"
    if sent.code == 0:
        assert site.token(sent.job_id), "the daemon answered"
        if kind in SAYS_LINE:
            assert "line " in sent.err and "slurm-advisor" in sent.err, sent.err
    assert site.cluster.run("test", "-e", "/tmp/owned").returncode == 1
    assert site.rows("select count(*) as n from decisions")[0]["n"] > 0


def test_hostile_text_in_every_field_is_only_text(site: Site) -> None:
    evil = "'; DROP TABLE decisions; -- $(touch /tmp/owned) `touch /tmp/owned` \" \\ \t %s %n"
    options = ["-J", evil, f"--comment={evil}", f"--wckey={evil}"]
    sent = site.cluster.sbatch(*OPEN, *options, script=HEAVY, env={"ADVISOR_APP": evil, "ADVISOR_DFG": evil})
    assert sent.code == 0, sent.err
    assert site.decision(sent.job_id)
    for field in ("--qos", "--account", "-p", "--constraint", "--licenses", "--dependency", "--prefer"):
        with_hook = site.cluster.sbatch("--hold", field, evil, script=HEAVY)
        (site.cluster.etc_folder / "disable").touch()
        alone = site.cluster.sbatch("--hold", field, evil, script=HEAVY)
        (site.cluster.etc_folder / "disable").unlink()
        assert with_hook.code == alone.code, field
    assert site.cluster.run("test", "-e", "/tmp/owned").returncode == 1
    assert site.status()["log"]["last_error"] is None


def test_the_daemons_memory_stays_bounded_under_hostile_scripts(site: Site) -> None:
    assert site.daemon is not None

    def resident() -> int:
        assert site.daemon is not None
        return int(Path(f"/proc/{site.daemon.pid}/statm").read_text().split()[1]) * 4096

    before = resident()
    for _ in range(5):
        for kind in ("yaml bomb", "10,000 kernels", "deep nesting"):
            site.cluster.sbatch(*OPEN, script=HOSTILE[kind])
    assert resident() - before < 64 << 20


def test_killing_the_daemon_during_a_thousand_submissions_loses_no_submission(site: Site) -> None:
    script = "for i in $(seq 1000); do sbatch -Q --hold -p k80,v100 --gres=gpu:1 --wrap true || exit 1; done"
    with subprocess.Popen(
        ["docker", "exec", "--user", "alice", "--workdir", "/home/alice", site.cluster.container, "sh", "-c", script],
        stderr=subprocess.PIPE,
    ) as loop:
        for _ in range(3):
            time.sleep(2)
            if loop.poll() is not None:
                break
            site.stop(signal.SIGKILL)
            site.cluster.touch_hook()  # the hook forgets its breaker: as many decisions as possible are at risk
            site.start()
        _, errors = loop.communicate(timeout=300)
    assert loop.returncode == 0, errors
    listed = site.cluster.ok("squeue", "-h", "-o", "%i", "-u", "alice").split()
    assert len(listed) == 1000, "every submission is in the queue"

    comments = site.cluster.ok("scontrol", "-o", "show", "job")
    used = {word.split("advisor=")[1] for word in comments.split() if "advisor=" in word}
    assert len(used) > 100

    def accounted_for() -> bool:
        logged = {row["token"] for row in site.rows("select token from decisions")}
        lost = {row["token"] for row in site.rows("select token from lost_decisions")}
        return used <= logged | lost and site.status()["log"]["lost"] == len(lost)

    wait_for("every decision whose reply was used is in the log or counted as lost", accounted_for, 90)
    with sqlite3.connect(site.database) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
