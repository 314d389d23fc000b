"""The cluster that retraining simulates is made of the log, whatever the log holds."""

import pytest

from advisor.settings import Settings
from advisor.store import outcomes
from advisor.store.database import Database
from advisor.training.calibrated import compare, read_site
from tests.store.rows import outcome

NODES = {"k80": "k1", "p100": "p1", "k80/shard": "k1", "k80+p100": "k1,p1", "cpu": "p1"}


@pytest.mark.parametrize("odd", ["k80/shard", "k80+p100", "cpu"])
def test_jobs_that_the_simulated_cluster_cannot_hold_are_left_out(tmp_path, odd):
    """They used to end `advisor retrain`: parts of GPUs, two kinds of nodes, no GPU where there are some."""
    with Database(tmp_path / "advisor.db") as db:
        rows = []
        for number in range(60):
            kind = ("k80", "p100", odd, "cpu")[number % 4]
            nodes = "c1" if number % 4 == 3 else NODES[kind]
            rows.append(
                outcome(
                    number,
                    job_id=number,
                    submit=number * 100,
                    start=number * 100,
                    end=number * 100 + 50,
                    elapsed=50,
                    partition=nodes[0],
                    processor=kind,
                    nodes=nodes,
                    node_count=len(nodes.split(",")),
                    gpus=0 if kind in ("k80/shard", "cpu") else len(nodes.split(",")),
                    cpus=2,
                    name="train",
                    user="ada",
                )
            )
        outcomes.store(db, rows, None, 10_000.0)
        site = read_site(db, "mini")
    assert site is not None
    assert {job.processor for job in site.jobs} == {"k80", "p100", "cpu"} and len(site.jobs) == 45
    compare(site, {}, {}, {}, Settings(), 0, histories=1)
