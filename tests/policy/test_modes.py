import random

import pytest

from advisor.policy.guardrails import draw, resolve_mode
from advisor.settings import Experiment, Modes
from tests.policy.site import BUSY, advise, runs, settings, snapshot, submission

PRECEDENCE = [
    ({}, "shadow"),
    ({"default": "advise"}, "advise"),
    ({"partitions": {"v100": "enforce"}}, "enforce"),
    ({"partitions": {"v100": "enforce"}, "accounts": {"chemistry": "advise"}}, "advise"),
    ({"accounts": {"Chemistry": "advise"}, "users": {"ada": "off"}}, "off"),
    ({"users": {"1001": "enforce"}, "accounts": {"chemistry": "off"}}, "enforce"),
    ({"users": {"bob": "enforce"}}, "shadow"),
]


@pytest.mark.parametrize(("words", "expected"), PRECEDENCE)
def test_the_most_specific_mode_wins(words, expected):
    assert resolve_mode(Modes(**words), submission(partition="v100"), ("v100",)) == expected


def test_of_several_partitions_the_most_cautious_mode_counts():
    modes = Modes(default="enforce", partitions={"v100": "enforce", "p100": "shadow"})
    assert resolve_mode(modes, submission(), ("v100", "p100")) == "shadow"
    assert (
        resolve_mode(Modes(default="shadow", partitions={"v100": "enforce"}), submission(), ("v100", "p100"))
        == "shadow"
    )


def test_a_job_without_a_partition_follows_the_mode_of_the_default_one():
    modes = Modes(partitions={"cpu": "off"})
    decision = advise(submission(partition=None, tres_per_node=None), snapshot(), settings(modes=modes))
    assert decision.mode == "off"
    assert decision.why == "left alone: the mode is off here"


def test_shadow_logs_what_it_would_do_and_says_nothing():
    decision = advise(submission(), snapshot(*BUSY), settings("shadow", holdout=0.05))
    assert (decision.action, decision.set, decision.message, decision.applied) == ("keep", {}, None, False)
    assert decision.candidates[decision.preferred].name == "p100/p100"
    assert decision.probabilities[0] == 1.0
    assert sum(decision.probabilities) == 1.0
    assert (decision.chosen, decision.holdout) == (0, False)
    assert decision.why.startswith("p100/p100: ")


def test_advise_tells_the_user_what_to_type_and_changes_nothing():
    request = submission(partition="short", tres_per_job="gres/gpu:1", tres_per_node=None, time_limit=10, name="quick")
    history = {"quick": {"v100": runs(100), "p100": runs(120), "k80": runs(590)}}
    decision = advise(request, snapshot(*BUSY, history=history), settings("advise"))
    assert (decision.action, decision.set) == ("keep", {})
    assert decision.message is not None
    assert decision.message == (
        "slurm-advisor: you could use --gpus=p100:1 (expected start now, run 2 min; was: start now, run 10 min); "
        "nothing was changed."
    )


def test_enforce_rewrites_and_tells_it_in_one_line():
    decision = advise(submission(), snapshot(*BUSY), settings("enforce"))
    assert decision.action == "rewrite"
    assert decision.applied
    assert decision.message is not None
    assert decision.message == (
        "slurm-advisor: partition k80,p100,v100 -> p100 (expected start now, run 20 min; was: start now, run 1.7 h). "
        "'#ADVISOR off' leaves your jobs alone."
    )


def test_the_control_group_is_the_share_that_was_asked_for():
    snap = snapshot(*BUSY)
    config = settings("enforce", holdout=0.25)
    decisions = [advise(submission(), snap, config, seed=seed) for seed in range(400)]
    untouched = sum(d.holdout for d in decisions)
    assert 70 <= untouched <= 130  # 100 ± 3.5 standard deviations
    for decision in decisions:
        assert decision.probabilities[0] == pytest.approx(0.25)
        assert decision.probabilities[decision.preferred] == pytest.approx(0.75)
        assert decision.applied != decision.holdout
        assert (decision.set == {}) == decision.holdout


def test_where_keep_is_preferred_it_is_certain():
    outcome = draw(0, 3, "enforce", Experiment(holdout=0.05), random.Random(1))
    assert outcome.probabilities == pytest.approx((1.0, 0.0, 0.0))
    assert outcome.chosen == 0
