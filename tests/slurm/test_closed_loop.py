"""The whole loop on a real Slurm: shadow, collect, retrain, promote, enforce, collect, report, roll back."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.slurm.site import Site, wait_for

APP = "looper"
SCRIPT = '#!/bin/bash\n[ "$SLURM_JOB_PARTITION" = k80 ] && sleep 4 || sleep 1\n'
MODELS = "models"


@pytest.fixture
def versions_apart(site: Site) -> Iterator[Site]:
    """What this test promotes must not decide for the tests after it."""
    yield site
    site.stop()
    shutil.rmtree(site.folder / MODELS, ignore_errors=True)


def told(site: Site, *words: str) -> Any:
    done = site.advisor(*words, "--json")
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return json.loads(done.stdout)


def submit(site: Site, count: int, *options: str) -> list[int]:
    words = ("-J", APP, "--gres=gpu:1", "-t", "10", "-o", "/dev/null", *(options or ("-p", "k80,v100")))
    sent = [site.cluster.sbatch(*words, script=SCRIPT) for _ in range(count)]
    assert all(each.code == 0 for each in sent), sent
    return [each.job_id for each in sent]


def ended(site: Site, jobs: list[int]) -> None:
    for job in jobs:
        site.cluster.wait_job(job, ["COMPLETED"], 90)
    # Accounting hears of an end a little later.
    marks = ",".join("?" * len(jobs))
    sql = f"SELECT count(*) AS n FROM outcomes WHERE state = 'COMPLETED' AND job_id IN ({marks})"

    def collected() -> bool:
        told(site, "collect")
        return bool(site.rows(sql, *jobs)[0]["n"] == len(jobs))

    wait_for("the outcomes in the log", collected, 60)


def test_shadow_collect_retrain_promote_enforce_report_rollback(versions_apart: Site) -> None:
    site = versions_apart
    site.reconfigure(modes={"default": "shadow"})
    jobs = submit(site, 2, "-p", "k80") + submit(site, 2, "-p", "v100") + submit(site, 3)
    ended(site, jobs)
    before = site.database.stat().st_size
    made = told(site, "retrain")
    assert made["promoted"], made["judgement"]
    assert made["models"]["runs"] >= len(jobs) and site.database.stat().st_size >= before
    version = made["version"]
    wait_for("the daemon goes by the version", lambda: site.status()["policy_version"].endswith(f"/{version}"))

    site.stop()
    said_before = site.log.stat().st_size
    site.reconfigure(modes={"default": "enforce"}, policy={"min_gain_s": 1}, experiment={"holdout": 0.2})
    assert site.status()["policy_version"].endswith(f"/{version}")
    # The fresh daemon reads the version in the background; history comes with the poll after that.
    wait_for("the version's run times", lambda: f"those of version {version}" in site.log.read_text()[said_before:])
    now = time.time()
    wait_for("two polls since", lambda: (site.status()["snapshot"]["taken_at"] or 0) > now + 2)
    jobs = submit(site, 6)
    decided = [site.decision(job) for job in jobs]
    assert all(row["policy_version"].endswith(f"/{version}") for row in decided)
    # What it knows of this app's run times is from the version: four seconds or one, not the limit of ten minutes.
    assert all(0 < place["run_s"] < 60 for row in decided for place in json.loads(row["predictions"]))
    ended(site, jobs)

    page = site.folder / "report.html"
    report = told(site, "report", "--html", str(page))
    assert report["decisions"]["enforced"] >= 6 and report["decisions"]["ended"] >= 9
    assert [p["version"] for p in report["promotions"]] == [version]
    assert page.read_text().count("<svg") >= 1

    assert told(site, "models", "rollback")["version"] is None
    wait_for("the daemon goes by no version", lambda: version not in site.status()["policy_version"])
    (job,) = submit(site, 1)
    assert version not in site.decision(job)["policy_version"]
