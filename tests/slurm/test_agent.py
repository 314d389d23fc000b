"""Real jobs that do different things, under the agent: each has its own summary in SQLite, and they differ."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import RELEASES
from tests.slurm.site import ROOT, Cluster, Site, wait_for

NODE = "c1"
# What each job does; the words are stress-ng's own.
BEHAVIOURS = {
    "cpu": "--cpu 1 --cpu-method matrixprod",
    "bandwidth": "--stream 1 --stream-l3-size 160M",
    "cache": "--cache 1",
    "io": "--hdd 1 --hdd-bytes 64M --temp-path /tmp",
    "switches": "--switch 1",
    "idle": None,
}
SECONDS = 24


class LoadedCluster(Cluster):
    """A mini-cluster with stress-ng, perf and Python inside, and the agent's package."""

    def __init__(self, release: str) -> None:
        super().__init__(release)
        self.name = f"load{release.replace('.', '')}-{os.getpid()}"
        self.container = f"slurm-advisor-{self.name}"

    def script(self, *words: str) -> subprocess.CompletedProcess[str]:
        return super().script(*words, *(["--load"] if words[0] == "up" else []))

    def install_agent(self) -> None:
        self.ok("mkdir", "-p", "/opt/slurm-advisor/advisor")
        for source in (ROOT / "advisor/__init__.py", ROOT / "advisor/telemetry"):
            copied = subprocess.run(
                ["docker", "cp", "--quiet", str(source), f"{self.container}:/opt/slurm-advisor/advisor/"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert copied.returncode == 0, copied.stderr

    def gateway(self) -> str:
        """This host, as the container reaches it."""
        form = "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}"
        done = subprocess.run(
            ["docker", "inspect", "--format", form, self.container], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


@pytest.fixture(scope="module", params=RELEASES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    cluster = LoadedCluster(request.param)
    cluster.up()
    site = Site(cluster, tmp_path_factory.mktemp(f"agent-{cluster.release}"))
    try:
        cluster.install_agent()
        unmunge = ["docker", "exec", "-i", cluster.container, "unmunge"]
        site.configure(telemetry={"listen": f"{cluster.gateway()}:0", "unmunge": unmunge}, modes={"default": "shadow"})
        site.start()
        yield site
    finally:
        site.stop()
        cluster.down()


class RunningAgent:
    """The agent of one node, inside the container, by the plain entry point."""

    def __init__(self, site: Site, node: str, user: str = "root", period: float = 2) -> None:
        self.site, self.node, self.user = site, node, user
        listening = wait_for("the telemetry port", lambda: site.status()["telemetry"]["listening"])
        words = [
            "--daemon", listening, "--node", node, "--period", str(period), "--deliver", "3",
            "--spool", f"/tmp/spool-{user}-{node}",
        ]  # fmt: skip
        self.log = site.folder / f"agent-{user}-{node}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["docker", "exec", "--user", user, "--env", "PYTHONPATH=/opt/slurm-advisor", site.cluster.container,
                 "sh", "-c", 'echo $$ > "$0"; exec python3 -m advisor.telemetry.agent "$@"', f"/tmp/pid-{user}-{node}",
                 *words],
                stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> str:
        """Ends the agent, which delivers what is left; returns what it said."""
        self.site.cluster.run("sh", "-c", f"kill $(cat /tmp/pid-{self.user}-{self.node})")
        assert self.process.wait(60) == 0, self.log.read_text()
        return self.log.read_text()


def submit(cluster: Cluster, behaviour: str) -> int:
    words = BEHAVIOURS[behaviour]
    what = f"stress-ng {words} --timeout {SECONDS}" if words else f"sleep {SECONDS}"
    script = f"#!/bin/bash\n{what}\n"
    submitted = cluster.sbatch("-J", behaviour, "-p", "cpu", "-w", NODE, "-o", "/dev/null", script=script)
    assert submitted.code == 0, submitted.err
    return submitted.job_id


@pytest.fixture(scope="module")
def measured(loaded: Site) -> dict[str, dict[str, float]]:
    """Each behaviour's summary: metric → mean. Two at a time, as there may be no more cores than that."""
    cluster = loaded.cluster
    agent = RunningAgent(loaded, NODE)
    jobs: dict[str, int] = {}
    try:
        for pair in (("cpu", "idle"), ("io", "switches"), ("bandwidth", "cache")):
            for behaviour in pair:
                jobs[behaviour] = submit(cluster, behaviour)
            for behaviour in pair:
                cluster.wait_job(jobs[behaviour], ["COMPLETED"], SECONDS + 60)
        # What was measured is on its way, however busy the disk is that all of them share.
        known = "SELECT count(DISTINCT job_id) AS n FROM job_summaries"
        wait_for("all of them in the summaries", lambda: loaded.rows(known)[0]["n"] == len(jobs), 180)
    finally:
        said = agent.stop()
    print(said)
    found: dict[str, dict[str, float]] = {}
    for behaviour, job_id in jobs.items():
        rows = loaded.rows("SELECT metric, mean, n FROM job_summaries WHERE job_id = ? AND node = ?", job_id, NODE)
        assert rows, f"nothing is known of job {job_id} ({behaviour})"
        assert max(row["n"] for row in rows) >= 4
        found[behaviour] = {row["metric"]: row["mean"] for row in rows}
    return found


def cores(metrics: dict[str, float]) -> float:
    return metrics["cpu.user"] + metrics["cpu.system"]


def in_the_kernel(metrics: dict[str, float]) -> float:
    """The kernel's share of a job's time. What a job's start takes of it depends on the machine and on what else runs,
    so a job is told by its share beside another's, not by how large it is."""
    return metrics["cpu.system"] / cores(metrics)


def test_each_job_is_in_the_summaries_under_its_own_id_and_cluster(loaded: Site, measured: dict[str, Any]) -> None:
    rows = loaded.rows("SELECT DISTINCT cluster, node, restarts, job_id FROM job_summaries")
    assert {(row["cluster"], row["node"], row["restarts"]) for row in rows} == {("mini", NODE, 0)}
    assert len(rows) == len(BEHAVIOURS) == len(measured)


def test_a_job_that_computes_is_told_from_one_that_sleeps(measured: dict[str, dict[str, float]]) -> None:
    assert cores(measured["cpu"]) > 10 * cores(measured["idle"])
    assert measured["cpu"]["cpu.user"] > measured["cpu"]["cpu.system"]
    busy = [m for name, m in measured.items() if name != "idle"]
    for metric in ("memory", "threads"):
        assert measured["idle"][metric] < min(m[metric] for m in busy)


def test_a_job_that_writes_is_told_by_its_io(measured: dict[str, dict[str, float]]) -> None:
    others = [measured[name]["io.write"] for name in measured if name != "io"]
    assert measured["io"]["io.write"] > 1e6
    assert measured["io"]["io.write"] > 50 * max(others)
    assert in_the_kernel(measured["io"]) > 2 * in_the_kernel(measured["cpu"])


def test_a_job_that_passes_messages_is_told_by_its_context_switches(measured: dict[str, dict[str, float]]) -> None:
    others = [m["switches"] for name, m in measured.items() if name != "switches"]
    assert measured["switches"]["switches"] > 5 * max(others)
    assert in_the_kernel(measured["switches"]) > max(0.5, 2 * in_the_kernel(measured["cpu"]))


def test_a_job_that_streams_through_memory_is_told_from_one_that_thrashes_the_cache(
    measured: dict[str, dict[str, float]],
) -> None:
    # Without a PMU bandwidth and misses cannot be counted; what the jobs work in can: arrays larger than any cache, or
    # a cache full, which is as large as the machine's own.
    assert measured["bandwidth"]["memory"] > 1.2 * max(measured[name]["memory"] for name in ("cache", "cpu"))
    for name in ("bandwidth", "cache"):
        assert cores(measured[name]) > 10 * cores(measured["idle"])
        assert measured[name]["io.write"] < measured["io"]["io.write"] / 50


def test_the_node_itself_is_summarised_by_the_hour(loaded: Site, measured: dict[str, Any]) -> None:
    rows = loaded.rows("SELECT metric, n FROM node_summaries WHERE node = ? AND span = 3600", NODE)
    assert {"cpu.user", "memory", "switches"} <= {row["metric"] for row in rows}


def test_what_cannot_be_counted_in_a_container_is_recorded_as_that(loaded: Site, measured: dict[str, Any]) -> None:
    notes = {(row["subject"], row["what"]) for row in loaded.rows("SELECT subject, what FROM agent_notes")}
    assert ("gpu", "none") in notes
    # Docker forbids perf inside a container unless it has the capability.
    perf = loaded.rows("SELECT count(*) AS n FROM job_summaries WHERE metric = 'perf.task-clock'")[0]["n"]
    assert perf > 0 or ("perf", "no permission") in notes


def test_nothing_was_doubled_or_refused(loaded: Site, measured: dict[str, Any]) -> None:
    received = loaded.rows("SELECT sum(last - first + 1) AS n FROM received_samples")[0]["n"]
    wait_for("the count in the status", lambda: loaded.status()["telemetry"]["samples"] == received > 0)
    telemetry = loaded.status()["telemetry"]
    assert telemetry["refused"] == {} and telemetry["error"] is None
    most = loaded.rows("SELECT max(n) AS n, max(samples) AS samples FROM job_counters JOIN job_nodes ON id = job_node")
    assert most[0]["n"] == most[0]["samples"] <= received


def test_accounting_tells_the_same_of_their_steps(loaded: Site, measured: dict[str, Any]) -> None:
    def used() -> dict[str, float]:
        rows = loaded.rows("SELECT name, cpu_s FROM outcomes WHERE state = 'COMPLETED' AND cpu_s IS NOT NULL")
        return {row["name"]: row["cpu_s"] for row in rows}

    wait_for("every outcome", lambda: set(BEHAVIOURS) <= set(used()))
    cpu_s = used()
    assert cpu_s["cpu"] > 5 * cpu_s["idle"]
    batch = loaded.rows(
        "SELECT o.name, s.user_s, s.max_rss_mb FROM steps AS s JOIN outcomes AS o USING (cluster, db_index) "
        "WHERE s.step = 'batch'"
    )
    assert {row["name"] for row in batch} >= set(BEHAVIOURS)
    assert {row["name"]: row["user_s"] for row in batch}["cpu"] > 1


def test_an_ordinary_user_of_the_cluster_is_refused(loaded: Site) -> None:
    before = loaded.rows("SELECT count(*) AS n FROM received_samples")[0]["n"]
    agent = RunningAgent(loaded, "c2", user="alice", period=1)
    try:
        wait_for("a refusal", lambda: loaded.status()["telemetry"]["refused"].get("credential"))
    finally:
        said = agent.stop()
    assert "may not send batches" in said
    assert "was refused (credential)" in Path(loaded.log).read_text()
    assert loaded.rows("SELECT count(*) AS n FROM received_samples")[0]["n"] == before


def test_a_job_that_runs_while_the_daemon_is_away_is_delivered_when_it_is_back(loaded: Site) -> None:
    agent = RunningAgent(loaded, NODE, period=1)
    try:
        listening = loaded.status()["telemetry"]["listening"]
        loaded.stop()
        job = loaded.cluster.sbatch("-p", "cpu", "-w", NODE, "-o", "/dev/null", script="#!/bin/bash\nsleep 6\n").job_id
        loaded.cluster.wait_job(job, ["COMPLETED"], 60)
        loaded.settings["telemetry"]["listen"] = listening
        loaded.configure(telemetry=loaded.settings["telemetry"], modes={"default": "shadow"})
        loaded.start()
        wait_for("its summary", lambda: loaded.rows("SELECT 1 FROM job_summaries WHERE job_id = ?", job), 90)
    finally:
        agent.stop()
    (row,) = loaded.rows("SELECT n FROM job_summaries WHERE job_id = ? AND metric = 'memory'", job)
    assert row["n"] >= 3
