"""Jobs that share nodes of a real Slurm: the daemon has learned from the log who hurts whom, and keeps them apart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contention import logged
from tests.slurm.site import Site, wait_for

LASTS = "#!/bin/bash\nsleep 60\n"


@pytest.fixture
def learned(site: Site, tmp_path: Path) -> Iterator[Site]:
    """The daemon with a log of its own, in which two apps hurt each other; `gather` runs on one GPU of v1."""
    usual = site.database
    site.stop()
    site.database = tmp_path / "sharing.db"
    logged.seed(site.database)
    site.configure()
    said_before = site.log.read_text().count("slowdowns learned")
    site.start()
    wait_for("slowdowns learned", lambda: site.log.read_text().count("slowdowns learned") > said_before)
    first = site.cluster.sbatch("-J", "gather", "-p", "v100", "--gres=gpu:v100:1", script=LASTS)
    assert site.cluster.wait_job(first.job_id, ["RUNNING"])["NodeList"] == "v1"
    seen = time.time()
    wait_for("a snapshot with it", lambda: (site.status()["snapshot"]["taken_at"] or 0) > seen)
    yield site
    site.cancel_all()
    site.stop()
    site.database = usual


def submit(site: Site, app: str) -> tuple[int, dict[str, str]]:
    sent = site.cluster.sbatch("-J", app, "-p", "v100,p100", "--gres=gpu:1", script=LASTS)
    assert sent.code == 0, sent.err
    return sent.job_id, site.cluster.wait_job(sent.job_id, ["RUNNING"])


def test_two_jobs_that_hurt_each_other_end_on_different_nodes_and_two_that_do_not_may_share(learned: Site) -> None:
    hurt, job = submit(learned, "stream")
    decision = learned.decision(hurt)
    assert job["NodeList"].startswith("p"), decision["why"]
    _, job = submit(learned, "prime")
    assert job["NodeList"] == "v1", "nothing hurts it there, and it is faster there"
    wait_for("the job's token in the log", lambda: learned.advisor("explain", str(hurt)).returncode == 0)
    told = learned.advisor("explain", str(hurt))
    words = " ".join(told.stdout.split())
    assert "slowed down" in words and "beside gather" in words
    story = json.loads(learned.advisor("explain", str(hurt), "--json").stdout)["decision"]
    by_place = {c["name"]: p for c, p in zip(story["candidates"], story["predictions"], strict=True)}
    v100 = next(p for name, p in by_place.items() if name.startswith("v100"))
    assert v100["slowdown"] == pytest.approx(logged.TIMES, rel=0.25)
    assert v100["slowdown_sd"] > 0 and v100["beside"] == ["gather"]
    p100 = next(p for name, p in by_place.items() if name.startswith("p100"))
    assert p100.get("slowdown", 1.0) == 1.0
