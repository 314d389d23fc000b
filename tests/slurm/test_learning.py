"""The daemon learns from jobs that really ran: what it expects of the next one comes from them, not from its limit."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.slurm.site import Site, wait_for

APP = "sleeper"
SECONDS = {"k80": 5, "v100": 1}
SCRIPT = "#!/bin/bash\n" + f'[ "$SLURM_JOB_PARTITION" = k80 ] && sleep {SECONDS["k80"]} || sleep {SECONDS["v100"]}\n'


def expectations(site: Site) -> tuple[int, dict[str, dict[str, Any]]]:
    """A job that leaves open where it runs: its id, and what the daemon expects of it on each GPU type."""
    sent = site.cluster.sbatch("-J", APP, "-p", "k80,v100", "--gres=gpu:1", "-t", "60", "--hold", script=SCRIPT)
    assert sent.code == 0, sent.err
    predictions = json.loads(site.decision(sent.job_id)["predictions"])
    return sent.job_id, {place["processor"]: place for place in predictions}


def test_what_ran_on_both_partitions_is_what_is_expected_of_the_next_run(site: Site) -> None:
    _, before = expectations(site)
    assert {place["run_source"] for place in before.values()} == {"time limit"}
    jobs = [
        site.cluster.sbatch("-J", APP, "-p", kind, f"--gres=gpu:{kind}:1", "-t", "60", "-o", "/dev/null", script=SCRIPT)
        for kind in SECONDS
        for _ in range(2)
    ]
    for job in jobs:
        site.cluster.wait_job(job.job_id, ["COMPLETED"])

    def learned() -> tuple[int, dict[str, dict[str, Any]]] | None:
        time.sleep(1)  # a submission for each look
        job_id, found = expectations(site)
        return (job_id, found) if {place["run_source"] for place in found.values()} == {"history"} else None

    job_id, after = wait_for("expectations from history", learned, 60)
    assert 0 < after["v100"]["run_s"] < after["k80"]["run_s"] <= 30, after
    # The daemon looks at the queue once a second: until then it knows the decision but not the job's number.
    told = wait_for(
        "the job is known by its number",
        lambda: t if (t := site.advisor("explain", str(job_id))).returncode == 0 else None,
    )
    assert "history" in told.stdout and "time limit" not in told.stdout, told.stdout
    ran = site.rows("SELECT processor, elapsed FROM outcomes WHERE name = ? AND state = 'COMPLETED'", APP)
    assert len(ran) == len(jobs) and all(row["elapsed"] >= SECONDS[row["processor"]] for row in ran)
