"""The learned policy behind the daemon's interface: the arithmetic when untrained, corrected when trained."""

from __future__ import annotations

import logging
import random
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from advisor.performance.processors import load
from advisor.performance.waits import Ledger
from advisor.policy.arithmetic import EarliestFinish
from advisor.policy.decision import decide
from advisor.policy.learned import LearnedPolicy, load_or_arithmetic
from advisor.policy.learned.files import Card, write_model
from advisor.policy.learned.shapes import CANDIDATE_FEATURES, GLOBAL_FEATURES, RANGES, SHAPES, zero_weights
from advisor.policy.plans import plan, read
from advisor.policy.remembered import Remembered
from advisor.policy.workflow import Belonging, Workflows
from tests.policy.site import BUSY, NODES, NOW, running, settings, snapshot, submission

SCRIPT = "#!/bin/bash\n#ADVISOR kernels:\n#ADVISOR   a: {on: [gpu], work: %s, memory: %s}\n"


def choice(snap, **fields):
    """The job's shape and its candidates, as the decision finds them."""
    request = submission(**fields)
    found = plan(request, read(request), snap, settings(), load()).choice
    assert found is not None
    return found


def later(snap, seconds):
    """The same cluster at a later poll."""
    return msgspec.structs.replace(snap, taken_at=snap.taken_at + seconds)


def trained(**changes):
    """Weights that are zero apart from these."""
    weights = zero_weights()
    return weights._replace(**{name: np.asarray(value, dtype=float) for name, value in changes.items()})


def test_without_training_it_predicts_what_the_arithmetic_predicts():
    snap = snapshot(*BUSY)
    found = choice(snap)
    arithmetic = EarliestFinish(load()).predict(found.shape, found.candidates, snap, NOW)
    learned = LearnedPolicy(zero_weights(), load())
    for _ in range(3):  # what it remembers changes nothing
        assert learned.predict(found.shape, found.candidates, snap, NOW) == arithmetic
    assert learned.unsure == 0


def test_a_trained_network_changes_scores_and_nothing_else():
    snap = snapshot(*BUSY)
    found = choice(snap)
    arithmetic = EarliestFinish(load()).predict(found.shape, found.candidates, snap, NOW)
    # Waits count double, run times half.
    policy = LearnedPolicy(trained(head_b3=[np.log(2.0), np.log(0.5)]), load())
    learned = policy.predict(found.shape, found.candidates, snap, NOW)
    for before, after in zip(arithmetic, learned, strict=True):
        assert (after.wait_s, after.run_s, after.reason) == (before.wait_s, before.run_s, before.reason)
        factor = 1.5 * np.tanh(np.log(2.0) / 1.5)
        expected = before.wait_s * np.exp(factor) + before.run_s * before.slowdown * np.exp(-factor)
        assert after.score == pytest.approx(expected)
    assert {p.candidate for p in learned} == {p.candidate for p in arithmetic}


def test_what_it_was_not_trained_for_is_left_to_the_arithmetic():
    snap = snapshot(*BUSY)
    found = choice(snap)
    narrow = np.full(len(CANDIDATE_FEATURES), 0.0)
    policy = LearnedPolicy(trained(head_b3=[1.0, -1.0], range_low=narrow - 0.001, range_high=narrow + 0.001), load())
    arithmetic = EarliestFinish(load()).predict(found.shape, found.candidates, snap, NOW)
    assert policy.predict(found.shape, found.candidates, snap, NOW) == arithmetic
    assert policy.unsure == 1
    far = np.full(len(GLOBAL_FEATURES), 1e6)
    policy = LearnedPolicy(trained(head_b3=[1.0, -1.0], moment_low=far, moment_high=far), load())
    assert policy.predict(found.shape, found.candidates, snap, NOW) == arithmetic
    assert policy.unsure == 1


def test_a_new_snapshot_and_other_pools_are_taken_in():
    policy = LearnedPolicy(trained(head_b3=[0.1, 0.0]), load())
    first = snapshot(*BUSY)
    policy.observe(first)
    second = snapshot(*BUSY, running("k1", 2, "k80", hours=5))
    found = choice(second)
    assert len(policy.predict(found.shape, found.candidates, second, NOW + 60)) == len(found.candidates)
    fewer = snapshot(nodes=tuple(node for node in NODES if node.name != "k2"))
    again = choice(fewer)
    assert len(policy.predict(again.shape, again.candidates, fewer, NOW + 120)) == len(again.candidates)


def remembering(seed=0):
    """A network of random weights, in which everything that it sees counts."""
    rng = np.random.default_rng(seed)
    weights = zero_weights()
    weights = weights._replace(
        **{
            name: rng.normal(size=getattr(weights, name).shape) * 0.2
            for name in weights._fields
            if name not in ("belief", "alone", "belief_parameters", *RANGES)
        }
    )
    return LearnedPolicy(weights, load())


def decided(policy, snap, now, **fields):
    """The scores of the candidates of a submission, which is then on its way."""
    decision = decide(
        submission(**fields), snap, Ledger(snap), policy, settings(), random.Random(1), now, lambda: "t", load()
    )
    return [each.score for each in decision.predictions]


def test_the_same_submissions_in_the_same_order_give_the_same_predictions():
    def told():
        policy = remembering()
        return [decided(policy, later(snapshot(*BUSY), step), NOW + step) for step in range(4)]

    assert told() == told()
    # The second submission knows of the first.
    assert told()[0] != told()[1]


def test_jobs_that_come_between_two_snapshots_are_seen_alike_whichever_is_first():
    policy, snap = remembering(), snapshot(*BUSY)
    first = decided(policy, snap, NOW + 1)
    assert decided(policy, snap, NOW + 1) == first
    assert decided(policy, later(snap, 5), NOW + 1) != first  # there they count


def test_a_dry_run_is_not_remembered_as_a_submission():
    asked, unasked = remembering(), remembering()
    first = snapshot(*BUSY)
    for number in range(3):
        decided(asked, first, NOW + number, op="advise")
    decided(asked, first, NOW + 4)
    decided(unasked, first, NOW + 4)
    then = later(first, 5)
    assert decided(asked, then, NOW + 6) == decided(unasked, then, NOW + 6)


def test_a_network_in_another_process_goes_by_the_same_submissions_when_it_is_told_of_them():
    here, there, untold = remembering(), remembering(), remembering()
    first = snapshot(*BUSY)
    for number in range(3):
        decided(here, first, NOW + number, time_limit=60 * (1 + number))
    told = msgspec.json.decode(msgspec.json.encode(here.remembered()), type=Remembered)
    for each in (there, untold):
        each.observe(first)  # it sees snapshots, and no submission
    there.recall(told)
    then = later(first, 5)
    assert decided(there, then, NOW + 6) == decided(here, then, NOW + 6) != decided(untold, then, NOW + 6)
    other = snapshot(nodes=NODES[1:])
    there.recall(told)  # of other pools
    assert decided(there, later(other, 10), NOW + 12, partition="k80,p100")


def test_looks_at_a_job_that_waits_already_are_not_remembered():
    policy, snap = remembering(), snapshot(*BUSY)
    found = choice(snap)
    for number in range(5):
        policy.predict(found.shape, found.candidates, later(snap, number), NOW + number)
    assert policy.remembered().count == 0


def test_what_came_after_a_job_in_earlier_runs_of_its_workflow_is_told_to_the_network():
    weights = np.zeros(SHAPES["head_w1"])
    weights[CANDIDATE_FEATURES.index("after"), 0] = 1.0
    second, last = np.zeros(SHAPES["head_w2"]), np.zeros(SHAPES["head_w3"])
    second[0, 0], last[0, 1] = 1.0, 0.1  # what comes after makes run times count for more
    snap = snapshot(*BUSY)
    workflows = Workflows()
    for token, app, leaders, begins, run_s in (("a", "train", (), 0.0, 1000.0), ("b", "other", ("a",), 1000.0, 5000.0)):
        belonging = Belonging(workflow="night", leaders=leaders)
        workflows.add(token, "ada", app, belonging, NOW, NOW + begins + run_s, NOW + begins + run_s, run_s)
    assert workflows.belonging("ada", None, "night", "train", snap, NOW + 86_400).tail_s == 5000.0

    def scores(workflows):
        policy = LearnedPolicy(trained(head_w1=weights, head_w2=second, head_w3=last), load())
        at = NOW + 86_400
        decision = decide(
            submission(script_head="#ADVISOR workflow: night\n"), later(snap, 86_400), None, policy, settings(),
            random.Random(1), at, lambda: "t", load(), workflows=workflows,
        )  # fmt: skip
        return [(p.run_s * p.slowdown, p.score - p.wait_s) for p in decision.predictions]

    assert all(counted == pytest.approx(run_s) for run_s, counted in scores(Workflows()))
    known = scores(workflows)
    shortest = min(run_s for run_s, _ in known)
    factor = np.exp(1.5 * np.tanh(0.1 * np.log1p(5000.0 / shortest) / 1.5))
    assert all(counted == pytest.approx(run_s * factor) for run_s, counted in known)


def test_an_annotated_job_is_scored_by_its_graph():
    snap = snapshot(*BUSY, history={})
    rng = np.random.default_rng(1)
    weights = zero_weights()
    weights = weights._replace(
        **{
            name: rng.normal(size=getattr(weights, name).shape)
            for name in ("kernel_w", "head_w1", "head_w2", "head_w3")
        }
    )
    scores = []
    for work, memory in (("8.0e15", "1G"), ("8.0e15", "30G")):
        found = choice(snap, script_head=SCRIPT % (work, memory))
        policy = LearnedPolicy(weights, load())
        plain = EarliestFinish(load()).predict(found.shape, found.candidates, snap, NOW)
        learned = policy.predict(found.shape, found.candidates, snap, NOW)
        scores.append([after.score / before.score for before, after in zip(plain, learned, strict=True)])
    assert scores[0] != scores[1]


def test_a_missing_or_damaged_model_leaves_the_arithmetic_in_charge(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert load_or_arithmetic(tmp_path / "none", load()).name == "earliest-finish"
    assert "the arithmetic decides" in caplog.text
    write_model(tmp_path / "model", zero_weights(), Card("mine"))
    assert load_or_arithmetic(tmp_path / "model", load()).name == "learned"
    (tmp_path / "model" / "weights.safetensors").write_bytes(b"no weights")
    assert load_or_arithmetic(tmp_path / "model", load()).name == "earliest-finish"
    assert load_or_arithmetic(None, load()).name == "earliest-finish"


def test_the_policy_needs_neither_torch_nor_numba():
    code = (
        "import sys, advisor.policy.learned; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numba', 'pgmpy', 'torch_geometric')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_several_jobs_asked_about_in_one_go_are_told_what_each_is_told_alone():
    snap = snapshot(*BUSY)
    asked = [
        choice(snap, **fields)
        for fields in (
            {},
            {"tres_per_node": "gres/gpu:2", "time_limit": 60},
            {"tres_per_node": None, "min_cpus": 4},  # without GPUs
            {"name": "other", "script_head": SCRIPT % ("8.0e15", "1G")},
            {"partition": "v100,p100"},
        )
    ]
    policy, fresh = remembering(), remembering()
    expected = [(each.shape, policy.expect(each.shape, each.candidates, snap, NOW)) for each in asked]
    together = policy.correct(expected, snap, NOW)
    alone = [fresh.score(each.shape, each.candidates, snap, NOW) for each in asked]
    assert [each.predictions for each in together] == [each.predictions for each in alone]
    assert [each.fell_back for each in together] == [each.fell_back for each in alone]
    assert "no GPU" in together[2].fell_back
    plain = EarliestFinish(load()).score(asked[0].shape, asked[0].candidates, snap, NOW)
    assert [p.score for p in together[0].predictions] != [p.score for p in plain.predictions]


def test_of_jobs_asked_about_in_one_go_only_the_strange_ones_are_left_to_the_arithmetic():
    snap = snapshot(*BUSY)
    asked = [choice(snap, time_limit=minutes) for minutes in (60, 600)]
    limit = np.log1p(
        60 * 60 / min(p.run_s for p in EarliestFinish(load()).predict(asked[0].shape, asked[0].candidates, snap, NOW))
    )
    high = np.full(len(CANDIDATE_FEATURES), 1e9)
    low = -high
    low[15], high[15] = limit + 0.1, 1e9
    policy = LearnedPolicy(trained(head_b3=[0.1, 0.0], range_low=low, range_high=high), load())
    expected = [(each.shape, policy.expect(each.shape, each.candidates, snap, NOW)) for each in asked]
    together = policy.correct(expected, snap, NOW)
    assert "limit" in together[0].fell_back
    assert together[1].by is None
    assert policy.unsure == 1
