"""A job that may share a GPU gets shards of one on a real Slurm, and runs beside the job that has the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.site import HEAVY, Site, wait_for

OFF = "#!/bin/bash\n#ADVISOR off\nsleep 1800\n"
MAY_SHARE = HEAVY.replace("#ADVISOR app", "#ADVISOR share: true\n#ADVISOR app")


@pytest.fixture
def half_free(site: Site) -> Iterator[Site]:
    """Every GPU is taken, but for half of one on k1."""
    taken = [
        ("-p", "v100", "--exclusive"),
        ("-p", "p100", "-N", "2", "--exclusive"),
        ("-p", "k80", "-w", "k2", "--exclusive"),
        ("-p", "k80", "-w", "k1", "--gres=gpu:1"),
        ("-p", "k80", "-w", "k1", "--gres=shard:2"),
    ]
    for options in taken:
        sent = site.cluster.sbatch(*options, "-t", "30", script=OFF)
        site.cluster.wait_job(sent.job_id, ["RUNNING"])
    usual = site.database
    site.database = site.folder / f"share-{next(site.cluster.apps)}" / "advisor.db"
    site.database.parent.mkdir()
    yield site
    site.database = usual


def test_a_job_that_may_share_runs_at_once_beside_another_and_one_that_may_not_waits(half_free: Site) -> None:
    site = half_free
    site.reconfigure(levers=["share"], log={"since_days": 1e-5})
    asked = ("-p", "v100,p100,k80", "--gres=gpu:1", "-t", "30")
    alone = site.cluster.sbatch(*asked, "--hold", script=HEAVY)
    assert "shard" not in site.cluster.job(alone.job_id).get("TresPerNode", "")

    sent = site.cluster.sbatch(*asked, script=MAY_SHARE)
    assert "shard:2" in sent.err
    job = site.cluster.wait_job(sent.job_id, ["RUNNING", "COMPLETED"])
    assert job["NodeList"] == "k1" and job["Partition"] == "k80"
    assert job["TresPerNode"].replace(":", "/").startswith("gres/shard/2")

    site.cluster.wait_job(sent.job_id, ["COMPLETED"])
    outcome = wait_for(
        "its outcome", lambda: site.rows("select processor, gpu_type from outcomes where job_id = ?", sent.job_id)
    )
    assert (outcome[0]["processor"], outcome[0]["gpu_type"]) == ("k80/shard", "k80")
