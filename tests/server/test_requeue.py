"""The lever requeue: a running job starts again elsewhere where its user allows it and it ends much sooner."""

import time

import msgspec
import pytest

from advisor.cluster.command import SlurmCommand
from advisor.server.rounds import acting
from advisor.settings import Modes
from tests.policy.site import runs
from tests.server.test_rounds import Site, busy

RESTARTABLE = {"ADVISOR_DFG": "{flexible: [partition], requeue: true}"}
SLOW_HERE = {"train": {"k80": runs(20_000), "p100": runs(2_000), "v100": runs(1_000)}}


def running_on_k80(folder, environment=RESTARTABLE, ran_s=600, **more):
    """A job that had to be sent to a k80, and runs there."""
    site = Site(folder, **{"levers": ("place", "requeue"), **more})
    site.history = SLOW_HERE
    site.submit(7, partition="k80", environment=environment)
    job = site.pending.pop()
    site.running = [busy("v1"), busy("p1"), busy("p2"), busy("k2")]
    site.running.append(
        msgspec.structs.replace(
            job, states=("RUNNING",), partitions=("k80",), nodes=("k1",), start_time=int(time.time() - ran_s)
        )
    )
    site.change(7, JobState="RUNNING", Partition="k80", Requeue="1")
    return site


def test_a_job_that_allows_it_is_requeued_to_a_place_that_is_free(tmp_path):
    site = running_on_k80(tmp_path)
    site.rounds()
    assert not site.moves(7), "nothing better is free"
    site.free("v1")
    site.rounds()
    (move,) = site.moves(7)
    assert (move.lever, move.to_place, move.outcome) == ("requeue", "v100/v100", "ok")
    assert "nobody waits for it" in move.why and move.gain_s > 15_000
    assert ["requeue", "7"] in site.asked()
    assert (site.job(7)["JobState"], site.job(7)["Partition"]) == ("PENDING", "v100")


STAYS = {
    "its user did not say so": {"environment": {"ADVISOR_DFG": "flexible: [partition]"}},
    "the site did not say so": {"levers": ("place",)},
    "it is nearly done": {"ran_s": 19_500},
    "only in shadow": {"modes": Modes(default="shadow")},
}


@pytest.mark.parametrize("case", STAYS)
def test_a_running_job_is_left_alone_where(tmp_path, case):
    site = running_on_k80(tmp_path, **STAYS[case])
    site.free("v1")
    site.rounds(2)
    assert not any("requeue" in words for words in site.asked())
    assert [move.outcome for move in site.moves(7)] == (["would"] if case == "only in shadow" else [])


def test_a_place_that_a_pending_job_waits_for_is_not_taken(tmp_path):
    site = running_on_k80(tmp_path)
    for number in (8, 9):
        site.submit(number, partition="v100", environment={})
    site.free("v1")
    site.rounds()
    assert not site.moves(7)


def test_a_requeue_that_slurm_refuses_or_takes_by_half_is_told(tmp_path):
    site = Site(tmp_path)
    slurm = SlurmCommand(site.settings.slurm.command, 20.0)
    after = {"partition": "v100", "tres_per_node": "gres/gpu:1"}
    job = {"JobState": "RUNNING", "Partition": "k80", "TresPerNode": "gres/gpu:1"}
    site.tell({"7": {**job, "Requeue": "0"}})
    assert acting.requeue(slurm, 7, "k80", after).outcome == "refused"
    assert site.job(7)["JobState"] == "RUNNING"
    site.tell({"7": {**job, "Requeue": "1", "_refuses": "Partition"}})
    result = acting.requeue(slurm, 7, "k80", after)
    assert result.outcome == "half done" and "not sent elsewhere" in result.said
    site.tell({"7": {**job, "JobState": "COMPLETING", "Requeue": "1"}})
    assert acting.requeue(slurm, 7, "k80", after).outcome == "refused"
