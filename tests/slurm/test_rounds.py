"""Pending jobs on a real Slurm are looked at again, and moved to where they end first."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.slurm.site import HEAVY, ROOT, Site, wait_for

ROUNDS = {"every_s": 1, "min_gain_s": 5, "rest_s": 60}
# The user lets the advisor override what the command line fixes.
FLEXIBLE = HEAVY.replace("#ADVISOR app", "#ADVISOR flexible: [partition, gpu_type]\n#ADVISOR app")


# Nothing is to be learnt from how the jobs of other tests ended: a log of its own that reads no accounting of before.
UNLEARNED = {"since_days": 1e-5, "collect_s": 3600}


@pytest.fixture
def busy(site: Site) -> Iterator[Site]:
    """Every GPU is taken: for ten minutes, longer on the older ones."""
    for partition, nodes, minutes in (("v100", 1, 10), ("p100", 2, 20), ("k80", 2, 30)):
        sent = site.cluster.sbatch(
            "-p", partition, "-N", str(nodes), "--exclusive", "-t", str(minutes), "-J", f"all-{partition}",
            script="#!/bin/bash\n#ADVISOR off\nsleep 1800\n",
        )  # fmt: skip
        site.cluster.wait_job(sent.job_id, ["RUNNING"])
    usual = site.database
    site.database = site.folder / f"rounds-{next(site.cluster.apps)}" / "advisor.db"
    site.database.parent.mkdir()
    yield site
    site.database = usual


def look_again(site: Site, **sections: Any) -> None:
    """A daemon that looks at pending jobs every second."""
    site.reconfigure(rounds=ROUNDS, log=UNLEARNED, **sections)


def free(site: Site, partition: str) -> None:
    site.cluster.ok("scancel", "--partition", partition, "--state", "RUNNING")


def moves(site: Site, job_id: int) -> list[dict[str, Any]]:
    """Those of which the outcome is known."""
    return site.rows("select * from moves where job_id = ? and outcome <> 'sent' order by id", job_id)


def rounds_after(site: Site, count: int = 2) -> None:
    """Until so many whole rounds have gone by."""
    before = site.status()["rounds"]["rounds"]
    wait_for("the next rounds", lambda: site.status()["rounds"]["rounds"] > before + count)


def test_a_pending_job_is_moved_to_where_it_ends_first_and_runs_there(busy: Site) -> None:
    site = busy
    # In the control group: submitted while everyone is in it.
    look_again(site, experiment={"holdout": 1.0})
    control = site.cluster.sbatch("-p", "v100", "--gres=gpu:1", "-t", "5", script=FLEXIBLE)
    assert site.decision(control.job_id)["holdout"]
    look_again(site)
    fixed = site.cluster.sbatch("-p", "v100", "--gres=gpu:1", "-t", "5", script=HEAVY)
    held = site.cluster.sbatch("-p", "v100", "--gres=gpu:1", "-t", "5", "--hold", script=FLEXIBLE)
    sent = site.cluster.sbatch("-p", "v100", "--gres=gpu:1", "-t", "5", script=FLEXIBLE)
    assert site.cluster.job(sent.job_id)["Partition"] == "v100"
    rounds_after(site)
    assert not moves(site, sent.job_id), "it waits where it is expected to end first"

    free(site, "p100")
    job = site.cluster.wait_job(sent.job_id, ["RUNNING", "COMPLETED"])
    assert job["NodeList"][0] == "p"
    (move,) = wait_for("the move in the log", lambda: moves(site, sent.job_id))
    assert (move["lever"], move["from_place"], move["outcome"]) == ("place", "keep", "ok")
    assert move["probability"] == 1.0 and move["gain_s"] > 5 and move["token"] == site.token(sent.job_id)
    assert json.loads(move["after"])["partition"] == job["Partition"]
    assert site.status()["rounds"]["outcomes"]["place"]["ok"] >= 1

    said = site.advisor("explain", str(sent.job_id))
    assert said.returncode == 0 and f"moved: as submitted → {move['to_place']}" in " ".join(said.stdout.split())
    assert "rounds (place)" in site.advisor("status").stdout
    rounds_after(site)
    for other in (control, fixed, held):
        assert site.cluster.job(other.job_id)["Partition"] == "v100" and not moves(site, other.job_id)


def test_in_shadow_nothing_is_moved_and_the_log_says_what_would_be(busy: Site) -> None:
    site = busy
    look_again(site, modes={"default": "shadow"})
    sent = site.cluster.sbatch("-p", "v100", "--gres=gpu:1", "-t", "5", script=FLEXIBLE)
    assert not site.decision(sent.job_id)["applied"]
    free(site, "p100")
    (move,) = wait_for("the thought in the log", lambda: moves(site, sent.job_id))
    assert (move["mode"], move["outcome"]) == ("shadow", "would")
    rounds_after(site)
    assert site.cluster.job(sent.job_id)["Partition"] == "v100"
    assert len(moves(site, sent.job_id)) == 1, "it is said once, not in every round"


# How users ask for GPUs of a type that they let the advisor change. In the mixed partition nothing else changes.
ASKED = {
    "gres": ["--gres=gpu:v100:1"],
    "gpus": ["--gpus=v100:1"],
    "gpus-per-node": ["--gpus-per-node=v100:1"],
    "gpus-per-task": ["--ntasks=1", "--gpus-per-task=v100:1"],
}
TYPE_FLEXIBLE = HEAVY.replace("#ADVISOR app", "#ADVISOR flexible: [gpu_type]\n#ADVISOR app")


def test_a_move_names_another_gpu_type_where_the_release_takes_that(busy: Site) -> None:
    site = busy
    look_again(site)
    sent = {
        form: site.cluster.sbatch("-p", "short", "-t", "5", *words, script=TYPE_FLEXIBLE)
        for form, words in ASKED.items()
    }
    for form, one in sent.items():
        assert site.decision(one.job_id)["eligible"], form
    free(site, "p100")
    if site.cluster.release == "22.05":
        rounds_after(site)
        for one in sent.values():
            assert not moves(site, one.job_id), "22.05 takes no other type for a pending job"
        return
    for form, one in sent.items():
        job = site.cluster.wait_job(one.job_id, ["RUNNING", "COMPLETED"])
        assert (job["Partition"], job["NodeList"][0]) == ("short", "p"), form
        (move,) = wait_for("the move in the log", lambda job_id=one.job_id: moves(site, job_id))
        assert move["outcome"] == "ok", form


def test_the_lever_order_lets_the_short_job_go_first(busy: Site) -> None:
    pytest.importorskip("numba")
    site = busy
    # The daemon would have it made in the background, and go without a plan until then.
    subprocess.run([sys.executable, "-m", "advisor.server.rounds.planning"], check=True, cwd=ROOT)
    look_again(site, levers=["place", "order"])
    both = ("-p", "v100", "--gres=gpu:2")
    long = site.cluster.sbatch(*both, "-t", "30", script=FLEXIBLE.replace("3.0e+14", "3.0e+15"))
    short = site.cluster.sbatch(*both, "-t", "5", script=FLEXIBLE)
    (move,) = wait_for("a turn exchanged", lambda: moves(site, short.job_id))
    assert (move["lever"], move["outcome"]) == ("order", "ok")
    points = json.loads(move["after"])["points"]
    job = site.cluster.job(short.job_id)
    assert points > 0 and int(job["Nice"]) == -points
    assert int(job["Priority"]) > int(site.cluster.job(long.job_id)["Priority"])
    rounds_after(site)
    assert len(moves(site, short.job_id)) == 1, "once is enough"
    free(site, "v100")
    site.cluster.wait_job(short.job_id, ["RUNNING", "COMPLETED"])
    assert site.cluster.job(long.job_id)["JobState"] == "PENDING"


def test_a_running_job_that_allows_it_is_requeued_to_a_much_better_place(busy: Site) -> None:
    site = busy
    free(site, "k80")
    for job_id in site.cluster.ok("squeue", "-h", "-t", "RUNNING", "-p", "v100,p100", "-o", "%i").split():
        site.cluster.ok("scontrol", "update", f"JobId={job_id}", "TimeLimit=20:00:00")
    look_again(site, levers=["place", "requeue"])
    hours = FLEXIBLE.replace("3.0e+14", "2.0e+16").replace("sleep 1\n", "sleep 1800\n")
    hours = hours.replace("#ADVISOR app", "#ADVISOR requeue: true\n#ADVISOR app")
    sent = site.cluster.sbatch("-p", "k80", "--gres=gpu:1", "-t", "23:00:00", script=hours)
    site.cluster.wait_job(sent.job_id, ["RUNNING"])
    rounds_after(site)
    assert not moves(site, sent.job_id), "nothing is free"
    free(site, "p100")
    (move,) = wait_for("the requeue", lambda: moves(site, sent.job_id))
    assert (move["lever"], move["outcome"]) == ("requeue", "ok"), move["said"]
    job = site.cluster.job(sent.job_id)
    assert (job["JobState"], job["Restarts"]) == ("PENDING", "1")
    assert job["Partition"] == json.loads(move["after"])["partition"] != "k80"
