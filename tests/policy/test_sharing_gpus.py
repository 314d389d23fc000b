"""The lever `share`: a job whose user allows it gets a part of a GPU where that ends it sooner; nobody else does."""

import msgspec
import pytest

from advisor.cluster.gres import with_shards
from advisor.cluster.types import Gres
from advisor.performance.processors import SHARED_SLOWER
from advisor.performance.waits import Ledger
from advisor.settings import Sharing
from tests.policy.site import NODES, PARTITIONS, advise, running, runs, settings, snapshot, submission

SHARE = settings(levers=("place", "share"))
MAY = "#!/bin/bash\n#ADVISOR app: train\n#ADVISOR share: true\n"
# Every GPU is taken for hours, the k80s by jobs with half of one each; one of these halves is free.
HALVES = tuple(
    msgspec.structs.replace(running(node, 0, None, hours=9, cpus=1), gres=(Gres("shard", 2),))
    for node in ("k1", "k1", "k1", "k2", "k2", "k2", "k2")
)
FULL = (running("v1", 2, "v100", hours=9), *(running(node, 2, "p100", hours=9) for node in ("p1", "p2")), *HALVES)
PAST = {"train": {"v100": runs(1000), "p100": runs(1200), "k80": runs(3000)}}


def shared(config=SHARE, jobs=FULL, history=PAST, **fields):
    request = submission(**{"script_head": MAY, **fields})
    return advise(request, snapshot(*jobs, history=history), config)


def names(decision):
    return [candidate.name for candidate in decision.candidates]


def test_a_job_that_may_share_gets_half_a_gpu_where_whole_ones_are_taken_for_hours():
    decision = shared()
    assert decision.set == {"partition": "k80", "tres_per_node": "gres/shard:2"}
    assert decision.candidates[decision.chosen].shared
    told = decision.predictions[decision.chosen]
    assert told.processor == "k80/shard" and told.wait_s < 60
    assert told.run_s == pytest.approx(3000 * SHARED_SLOWER, rel=0.2)  # it never ran so: there is doubt
    assert "gres/shard:2" in decision.message


def test_the_spelling_is_that_of_the_release():
    assert shared(tres_per_node="gres:gpu:1").set["tres_per_node"] == "gres:shard:2"
    assert shared(tres_per_node="gres:gpu").set["tres_per_node"] == "gres:shard:2"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gres/gpu:1", "gres/shard:3"),
        ("gres:gpu:k80:1", "gres:shard:3"),
        ("gres/gpu=1", "gres/shard=3"),
        ("gres/disk:2,gres/gpu", "gres/disk:2,gres/shard:3"),
    ],
)
def test_only_the_gpu_of_a_request_becomes_shards(before, after):
    assert with_shards(before, 3) == after


@pytest.mark.parametrize("value", ["gres/gpu:2", "gres/disk:1", "gres/gpu:1,gres/gpu:k80:1", ""])
def test_what_does_not_ask_for_one_gpu_cannot_become_shards(value):
    with pytest.raises(ValueError, match="one GPU"):
        with_shards(value, 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"script_head": "#!/bin/bash\n#ADVISOR app: train\n"},
        {"tres_per_node": "gres/gpu:2"},
        {"tres_per_node": None, "tres_per_job": "gres/gpu:1"},
        {"tres_per_node": None, "tres_per_task": "gres/gpu=1", "num_tasks": 1},
        {"shared": 0},  # --exclusive
        {"mem_per_tres": "gres/gpu:1000"},
        {"cpus_per_tres": "gres/gpu:2"},
    ],
    ids=[
        "its user did not say so",
        "two GPUs",
        "--gpus",
        "--gpus-per-task",
        "--exclusive",
        "--mem-per-gpu",
        "--cpus-per-gpu",
    ],
)
def test_no_other_job_is_given_shards(fields):
    assert not any(candidate.shared for candidate in shared(**fields).candidates)


def test_nobody_shares_where_the_site_has_not_turned_the_lever():
    assert not any(candidate.shared for candidate in shared(config=settings()).candidates)


def test_a_whole_gpu_is_taken_where_one_is_free():
    decision = shared(jobs=FULL[1:])
    assert decision.set == {} and decision.predictions[0].processor == "v100"
    assert "k80/k80/shard" in names(decision)


def test_past_runs_on_shards_tell_how_much_sharing_costs():
    history = {"train": {**PAST["train"], "k80/shard": runs(90_000)}}
    decision = shared(history=history)
    told = dict(zip(names(decision), decision.predictions, strict=True))["k80/k80/shard"]
    assert told.run_s == pytest.approx(90_000, rel=0.05)
    assert not decision.candidates[decision.chosen].shared


def test_a_burst_does_not_take_more_parts_than_there_are():
    snap = snapshot(*FULL, history=PAST)
    ledger = Ledger(snap)
    waits = []
    for _ in range(2):
        decision = advise(submission(script_head=MAY), snap, SHARE, ledger=ledger)
        waits.append(decision.predictions[names(decision).index("k80/k80/shard")].wait_s)
    assert waits[0] == 0 and waits[1] == pytest.approx(3000 * SHARED_SLOWER, rel=0.2)


def test_a_gpu_can_be_divided_into_more_parts():
    assert (
        shared(config=msgspec.structs.replace(SHARE, sharing=Sharing(jobs_per_gpu=4))).set["tres_per_node"]
        == "gres/shard:1"
    )
    assert "k80/k80/shard" not in names(shared(config=msgspec.structs.replace(SHARE, sharing=Sharing(jobs_per_gpu=8))))


def test_shards_of_two_types_in_one_partition_are_left_alone():
    """Shards have no type: nobody could say on which GPU the job would end up."""
    mixed = tuple(
        msgspec.structs.replace(node, gres=(Gres("gpu", 2, "p100"), Gres("shard", 8))) if node.name == "p2" else node
        for node in NODES
    )
    request = submission(script_head=MAY, partition="short,k80", time_limit=8)
    found = advise(request, snapshot(*FULL, history=PAST, nodes=mixed, partitions=PARTITIONS), SHARE)
    assert [name for name in names(found) if name.endswith("shard")] == ["k80/k80/shard"]


def test_a_type_that_was_asked_for_is_kept():
    asked = {"tres_per_node": "gres/gpu:p100:1", "partition": "p100,k80"}
    assert not any(candidate.shared for candidate in shared(**asked).candidates)
    asked = {"tres_per_node": "gres/gpu:k80:1", "partition": "short,k80", "time_limit": 8}
    assert "k80/k80/shard" in names(shared(**asked))
