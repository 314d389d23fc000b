import msgspec
import pytest

from advisor.cluster.types import Partition
from advisor.performance.waits import Ledger
from advisor.policy.words import duration, starts
from advisor.settings import PolicySettings
from tests.policy.site import (
    BUSY,
    NODES,
    NOW,
    PARTITIONS,
    advise,
    part_list,
    running,
    runs,
    settings,
    snapshot,
    submission,
)

ANYWHERE = {"environment": {"ADVISOR_DFG": "flexible: [partition]"}}


def test_a_job_goes_where_its_past_runs_say_it_finishes_first():
    decision = advise(submission(), snapshot(*BUSY))
    assert decision.candidates[decision.preferred].name == "p100/p100"
    assert decision.predictions[0].processor == "k80"  # where Slurm alone would start it
    assert "8 past runs of train" in decision.why
    idle = advise(submission(), snapshot())
    assert idle.candidates[idle.preferred].name == "v100/v100"


def test_a_faster_gpu_is_not_worth_a_longer_wait():
    full = snapshot(*BUSY, running("p2", 1, "p100", hours=3))
    decision = advise(submission(), full)
    assert decision.action == "keep"
    assert decision.predictions[1:][1].wait_s == pytest.approx(3 * 3600)


def test_a_partition_whose_nodes_are_drained_does_not_keep_the_job_from_the_others():
    """Slurm takes such a job and starts it in another of its partitions; so it is still worth telling in which."""
    drained = tuple(msgspec.structs.replace(n, states=("IDLE", "DRAIN")) if n.name == "v1" else n for n in NODES)
    there = snapshot(*BUSY, nodes=drained)
    decision = advise(submission(), there)
    assert decision.candidates[decision.preferred].name == "p100/p100"
    assert "v100/v100" not in [candidate.name for candidate in decision.candidates]
    # Where no partition of it has a node now, or one never had a node for it, Slurm says what becomes of it.
    for alone in ({"partition": "v100"}, {"min_nodes": 2, "max_nodes": 2, "partition": "v100,p100"}):
        assert "no usable nodes of partition v100 can hold it" in advise(submission(**alone), there).why


def test_slurms_own_choice_is_predicted_by_tier_then_order_then_weight():
    assert advise(submission(partition="v100,k80"), snapshot()).predictions[0].processor == "v100"
    assert advise(submission(partition="k80,v100"), snapshot()).predictions[0].processor == "k80"
    assert advise(submission(partition="short", time_limit=10), snapshot()).predictions[0].processor == "k80"
    first = tuple(msgspec.structs.replace(p, priority_tier=9) if p.name == "v100" else p for p in PARTITIONS)
    decision = advise(submission(partition="k80,v100"), snapshot(partitions=first))
    assert decision.predictions[0].processor == "v100"


def test_an_unknown_job_is_not_sent_to_a_slower_gpu_than_its_user_could_have_got():
    request = submission(partition="v100", name="unknown", **ANYWHERE)
    decision = advise(request, snapshot(*BUSY))
    assert {c.partition for c in decision.candidates} >= {"v100", "k80"}
    assert decision.action == "keep"
    assert "time limit" in decision.why


def test_a_run_longer_than_the_limit_is_no_gain_unless_the_job_has_it_anyway():
    slow = {"train": {"v100": runs(1000), "p100": runs(4000), "k80": runs(4000)}}
    request = submission(partition="v100", time_limit=60, **ANYWHERE)
    assert advise(request, snapshot(*BUSY, history=slow)).action == "keep"
    everywhere = {"train": dict.fromkeys(("v100", "p100", "k80"), runs(4000))}
    decision = advise(request, snapshot(*BUSY, history=everywhere))
    assert decision.action == "rewrite"
    assert decision.predictions[decision.chosen].wait_s == 0


@pytest.mark.parametrize(
    "least", [PolicySettings(min_gain=0.9, min_gain_s=0), PolicySettings(min_gain=0.0, min_gain_s=6000)]
)
def test_a_gain_below_the_least_changes_nothing(least):
    decision = advise(submission(), snapshot(*BUSY), settings(policy=least))
    assert decision.action == "keep"
    assert decision.eligible
    assert "would save only" in decision.why


@pytest.mark.parametrize(("age", "expected"), [(0.0, "rewrite"), (179.0, "rewrite"), (181.0, "keep")])
def test_past_a_limit_a_stale_snapshot_means_keep(age, expected):
    decision = advise(submission(), snapshot(*BUSY), now=NOW + age)
    assert decision.action == expected
    assert ("old" in decision.why) == (expected == "keep")


def test_before_the_first_poll_everything_is_kept():
    decision = advise(submission(), None)
    assert decision.action == "keep"
    assert "not known yet" in decision.why


def test_without_a_time_limit_only_partitions_with_the_same_default_are_candidates():
    other = tuple(msgspec.structs.replace(p, default_time=30) if p.name == "p100" else p for p in PARTITIONS)
    request = submission(
        partition="v100",
        time_limit=None,
        **ANYWHERE,
        partitions=part_list(other),
    )
    decision = advise(request, snapshot(*BUSY, partitions=other))
    assert {c.partition for c in decision.candidates} == {"v100", "k80", "short"}


def test_without_memory_only_partitions_with_the_same_default_are_candidates():
    other = tuple(msgspec.structs.replace(p, def_mem_per_cpu=2000) if p.name == "p100" else p for p in PARTITIONS)
    asked = {"partition": "v100", **ANYWHERE}
    without = advise(submission(**asked), snapshot(*BUSY, partitions=other))
    assert "p100" not in {c.partition for c in without.candidates}
    given = advise(submission(**asked, min_mem_per_node=4000), snapshot(*BUSY, partitions=other))
    assert "p100" in {c.partition for c in given.candidates}


def test_a_partition_that_gives_whole_nodes_is_no_candidate_for_a_job_that_did_not_ask_for_them():
    other = tuple(msgspec.structs.replace(p, exclusive=True) if p.name == "p100" else p for p in PARTITIONS)
    asked = {"partition": "v100", **ANYWHERE}
    shared = advise(submission(**asked), snapshot(*BUSY, partitions=other))
    assert "p100" not in {c.partition for c in shared.candidates}
    whole = advise(submission(**asked, shared=0), snapshot(*BUSY, partitions=other))
    assert "p100" in {c.partition for c in whole.candidates}


def test_a_user_without_rights_is_never_sent_to_a_partition():
    asked = {"partition": "v100", **ANYWHERE}
    chemistry = advise(submission(**asked), snapshot(*BUSY))
    assert "restricted" not in {c.partition for c in chemistry.candidates}
    physics = advise(submission(**asked, account="physics"), snapshot(*BUSY))
    assert "restricted" in {c.partition for c in physics.candidates}
    listed = [limits for limits in part_list() if limits.name in ("v100", "p100")]
    few = advise(submission(**asked, partitions=listed), snapshot(*BUSY))
    assert {c.partition for c in few.candidates} == {"v100", "p100"}


def test_a_qos_that_a_partition_does_not_admit_keeps_the_job_away():
    limited = tuple(msgspec.structs.replace(p, allow_qos=("urgent",)) if p.name == "k80" else p for p in PARTITIONS)
    asked = {"partition": "v100", **ANYWHERE}
    normal = advise(submission(**asked), snapshot(*BUSY, partitions=limited))
    assert "k80" not in {c.partition for c in normal.candidates}
    urgent = advise(submission(**asked, qos="urgent"), snapshot(*BUSY, partitions=limited))
    assert "k80" in {c.partition for c in urgent.candidates}


def test_a_cpu_job_stays_off_gpu_nodes_and_off_shared_cores():
    full = [running(node, 0, None, hours=9, cpus=24) for node in ("c1", "c2")]
    decision = advise(submission(partition=None, tres_per_node=None), snapshot(*full))
    assert [c.name for c in decision.candidates] == ["keep"]
    shares = submission(partition=None, tres_per_node=None, environment={"ADVISOR_DFG": "share: true"})
    assert [c.name for c in advise(shares, snapshot(*full)).candidates] == ["keep", "shared/cpu"]


def test_kernels_that_name_a_gpu_type_only_go_there():
    head = "#ADVISOR kernels:\n#ADVISOR   train: {on: [p100], work: 1.0e15}\n"
    decision = advise(submission(script_head=head), snapshot(*BUSY))
    assert [c.name for c in decision.candidates] == ["keep", "p100/p100"]
    large = "#ADVISOR kernels:\n#ADVISOR   train: {on: [gpu], work: 1.0e15, memory: 20G}\n"
    decision = advise(submission(script_head=large), snapshot(*BUSY))
    assert [c.name for c in decision.candidates] == ["keep", "v100/v100"]


def test_a_bad_annotation_is_told_with_its_line_and_the_job_is_placed_without_it():
    decision = advise(submission(script_head="#!/bin/bash\n#ADVISOR kernels: {\n"), snapshot(*BUSY))
    assert decision.action == "rewrite"
    assert decision.annotation_error is not None
    assert decision.message is not None
    assert "line" in decision.message
    assert "-> p100" in decision.message
    kept = advise(submission(script_head="#ADVISOR kernels: {\n", reservation="x"), snapshot(*BUSY))
    assert kept.message == kept.annotation_error


def test_a_burst_spreads_over_the_pools_that_bookings_fill():
    base = snapshot(history={"train": dict.fromkeys(("v100", "p100", "k80"), runs(3000))})
    ledger = Ledger(base)
    chosen = []
    for number in range(10):
        decision = advise(submission(), base, ledger=ledger, seed=number)
        chosen.append(decision.predictions[decision.chosen].processor)
    # Ten GPUs there are: two v100, four p100, four k80. Without bookings all ten would go to one type.
    assert sorted(chosen) == ["k80"] * 4 + ["p100"] * 4 + ["v100"] * 2
    assert len(ledger) == 10


def test_a_dry_run_books_nothing():
    base = snapshot(*BUSY)
    ledger = Ledger(base)
    advise(submission(op="advise"), base, ledger=ledger)
    assert len(ledger) == 0


ARRAY = {"partition": "k80,v100", "array": "0-5", "name": "sweep"}
SWEEP = {"sweep": {"v100": runs(67), "k80": runs(270)}}


def test_an_array_is_not_left_to_start_wherever_a_slow_gpu_is_free():
    """Left alone, four of the six tasks would start at once on k80s, and be done long after the last on a v100."""
    decision = advise(submission(**ARRAY), snapshot(history=SWEEP))
    assert decision.candidates[decision.chosen].partition == "v100"
    kept = decision.predictions[0]
    assert {share.processor: share.tasks for share in kept.spread} == {"k80": 4, "v100": 2}
    assert abs(kept.run_s - (4 * 270 + 2 * 67) / 6) < 10
    assert "on k80 (4 tasks) and v100 (2)" in kept.reason


def test_an_array_that_stays_is_booked_wherever_its_tasks_start():
    base = snapshot(history={"sweep": {"v100": runs(270), "k80": runs(270)}})
    ledger = Ledger(base)
    decision = advise(submission(**ARRAY), base, ledger=ledger)
    assert decision.action == "keep"
    later = advise(submission(partition="k80,v100", name="sweep", op="advise"), base, ledger=ledger)
    assert later.predictions[0].wait_s > 200, "all six GPUs are taken by then"
    wider = advise(submission(partition="k80,p100,v100", name="sweep", op="advise"), base, ledger=ledger)
    assert wider.predictions[0].wait_s == 0 and wider.predictions[0].processor == "p100"


def test_the_same_inputs_give_the_same_decision():
    one, two = (advise(submission(array="0-99%5"), snapshot(*BUSY), seed=3) for _ in range(2))
    assert one == two


def test_a_decision_survives_the_log():
    decision = advise(submission(), snapshot(*BUSY))
    text = msgspec.json.encode(decision)
    assert msgspec.json.decode(text, type=type(decision)) == decision
    assert all(isinstance(value, float) for value in decision.features.values())
    assert {"0.wait_s", "0.run_s", "0.load", "queued"} <= set(decision.features)


def test_partitions_with_another_default_than_each_other_are_left_to_slurm():
    mixed = tuple(msgspec.structs.replace(p, default_time=60) if p.name == "k80" else p for p in PARTITIONS)
    decision = advise(submission(time_limit=None, partitions=part_list(mixed)), snapshot(*BUSY, partitions=mixed))
    assert not decision.eligible
    assert "differ" in decision.why


def test_a_partition_whose_minimum_would_raise_the_node_count_is_no_candidate():
    grown = (
        *PARTITIONS,
        Partition("wide", ("k1", "k2"), default_time=5, max_time=1440, min_nodes=2, def_mem_per_cpu=100),
    )
    asked = {"partition": "v100", **ANYWHERE, "partitions": part_list(grown)}
    decision = advise(submission(**asked), snapshot(*BUSY, partitions=grown))
    assert "wide" not in {c.partition for c in decision.candidates}


def test_a_job_larger_than_any_set_of_like_nodes_lies_on_several():
    # p1 is also in `restricted` and p2 is not, so they are pools of their own.
    request = submission(partition="k80,p100", min_nodes=2, max_nodes=2, tres_per_node="gres/gpu:2")
    decision = advise(request, snapshot())
    assert [c.name for c in decision.candidates] == ["keep", "k80/k80", "p100/p100"]
    assert decision.candidates[decision.preferred].name == "p100/p100"
    busy = advise(request, snapshot(running("p1", 1, "p100", hours=2)))
    assert busy.predictions[2].wait_s == pytest.approx(7200)
    assert busy.candidates[busy.chosen].name == "keep"
    assert not advise(submission(partition="k80,p100", min_nodes=3, max_nodes=3), snapshot()).eligible


def test_a_large_jobs_booking_loads_every_pool_it_lies_on():
    base = snapshot()
    ledger = Ledger(base)
    advise(submission(partition="k80,p100", min_nodes=2, max_nodes=2, tres_per_node="gres/gpu:2"), base, ledger=ledger)
    later = advise(submission(partition="p100", time_limit=10, **ANYWHERE), base, ledger=ledger, seed=1)
    assert later.predictions[0].wait_s > 1000


def test_a_span_below_a_second_is_still_a_span():
    assert duration(0.2) == "0 s", "it stands in `would save only …` and `runs ~…`"
    assert starts(0.2) == "starts now"
