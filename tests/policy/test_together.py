"""Submissions that have come together are decided as if they had come one after the other, to the last figure."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from advisor.cluster.types import Partition
from advisor.performance.processors import load
from advisor.performance.waits import Ledger
from advisor.policy.arithmetic import EarliestFinish
from advisor.policy.decision import Site, consider
from advisor.policy.guarded import Guarded
from advisor.policy.learned import LearnedPolicy
from advisor.policy.learned.shapes import RANGES, zero_weights
from advisor.policy.plans import Plans
from advisor.policy.together import Together
from advisor.policy.workflow import Belonging, Workflows
from advisor.settings import Explore
from tests.policy import site

SCRIPT = "#!/bin/bash\n#ADVISOR kernels:\n#ADVISOR   a: {on: [gpu], work: %s, memory: 2G}\n"
# Beside those of the site, for each kind of GPU a second partition: jobs of two kinds then have no node in common.
PARTITIONS = site.PARTITIONS + tuple(
    Partition(name, nodes, default_time=5, max_time=1440, def_mem_per_cpu=100)
    for name, nodes in (("volta", ("v1",)), ("pascal", ("p1", "p2")), ("kepler", ("k1", "k2")))
)
PLACES = ("v100,volta", "p100,pascal", "k80,kepler", "v100,p100,k80", "p100,k80", "short", "v100", "cpu,shared")
BUSY = st.sets(st.sampled_from(("v1", "p1", "p2", "k1", "k2")))


class Asked(LearnedPolicy):
    """The network, with a list of how many jobs it was asked about at a time."""

    def __init__(self, *given):
        super().__init__(*given)
        self.at_a_time = []

    def correct(self, asked, *given):
        self.at_a_time.append(len(asked))
        return super().correct(asked, *given)


def network():
    rng = np.random.default_rng(3)
    weights = zero_weights()
    return Asked(
        weights._replace(
            **{
                name: rng.normal(size=getattr(weights, name).shape) * 0.3
                for name in weights._fields
                if name not in ("belief", "alone", "belief_parameters", *RANGES)
            }
        ),
        load(),
    )


@st.composite
def submissions(draw):
    gpus = draw(st.sampled_from((0, 1, 1, 2)))
    fields = {
        "partition": draw(st.sampled_from(PLACES)),
        "name": draw(st.sampled_from(("train", "new"))),
        "time_limit": draw(st.sampled_from((5, 60, 600))),
        "tres_per_node": f"gres/gpu:{gpus}" if gpus else None,
        "min_cpus": draw(st.integers(1, 4)),
        "dependency": draw(st.sampled_from((None, None, None, "afterok:1", "afterok:2"))),
        "array": draw(st.sampled_from((None, None, "0-5%2"))),
        "op": draw(st.sampled_from(("submit", "submit", "submit", "advise"))),
    }
    if draw(st.booleans()):
        fields["script_head"] = SCRIPT % draw(st.sampled_from(("1e15", "9e15"))) + draw(
            st.sampled_from(("", "#ADVISOR workflow: night\n"))
        )
    return submission(**fields)


def submission(**fields):
    return site.submission(partitions=site.part_list(PARTITIONS), **fields)


def snapshot(busy, hours):
    jobs = [
        site.running(name, 2, {"v": "v100", "p": "p100", "k": "k80"}[name[0]], hours=hours + number)
        for number, name in enumerate(sorted(busy))
    ]
    return site.snapshot(*jobs, partitions=PARTITIONS)


def standing(policy, config):
    """Everything that decisions are made with, new."""
    rng = random.Random(5)
    made = Guarded(network(), EarliestFinish(load())) if policy == "learned" else EarliestFinish(load())
    workflows = Workflows()
    then = site.NOW - 86_400  # what came after each, the last time the workflow ran
    for token, app, leaders in (("a", "new", ()), ("b", "train", ("a",)), ("c", "last", ("b",))):
        workflows.add(
            token, "ada", app, Belonging(workflow="night", leaders=leaders), then, then + 600, then + 600, 600
        )
    return Site(made, config, rng, lambda: f"{rng.getrandbits(64):016x}", load(), Plans(), workflows=workflows)


@effort(max_examples=60)
@given(
    batches=st.lists(st.lists(submissions(), min_size=1, max_size=9), min_size=1, max_size=3),
    busy=BUSY,
    hours=st.sampled_from((0.5, 4)),
    policy=st.sampled_from(("learned", "earliest-finish")),
    holdout=st.sampled_from((0.0, 0.4)),
    regret=st.sampled_from((0.0, 0.5)),
)
def test_a_batch_is_decided_as_its_jobs_are_one_after_the_other(batches, busy, hours, policy, holdout, regret):
    config = site.settings(holdout=holdout, explore=Explore(max_regret=regret))
    snap = snapshot(busy, hours)
    one, many = standing(policy, config), standing(policy, config)
    ledgers = Ledger(snap), Ledger(snap)
    for number, requests in enumerate(batches):
        now = site.NOW + 1 + number
        together = Together(requests, snap, ledgers[1], many, now)
        for place, request in enumerate(requests):
            alone = consider(
                request, snap, ledgers[0], one.policy, config, one.rng, now, one.new_token, one.processors, one.plans,
                workflows=one.workflows,
            )  # fmt: skip
            ours = together.verdict(place)
            assert (ours.set, ours.applied, ours.message, ours.fell_back) == (
                alone.set, alone.applied, alone.message, alone.fell_back,
            )  # fmt: skip
            assert ours.complete() == alone.complete()
    if policy == "learned":
        event(f"up to {max(many.policy._network.at_a_time, default=0)} at a time")


def decided_together(*requests, policy="learned"):
    config = site.settings()
    snap = snapshot({"v1", "p1", "k1"}, 2)
    many = standing(policy, config)
    together = Together(requests, snap, Ledger(snap), many, site.NOW + 1)
    found = [together.verdict(number).complete() for number in range(len(requests))]
    return found, many.policy._network.at_a_time


def test_jobs_with_no_place_in_common_are_asked_about_in_one_go_and_others_when_it_is_their_turn():
    found, sizes = decided_together(
        submission(partition="v100,volta"),
        submission(partition="cpu,shared", tres_per_node=None),
        submission(partition="k80,kepler"),
        submission(partition="p100,k80"),
        submission(partition="p100,pascal"),
        submission(partition="v100,volta"),
    )
    assert [each.eligible for each in found] == [True] * 6
    # The fourth waits for the third, and with it comes the last, which waited for the first; the fifth for the fourth.
    assert sizes == [3, 2, 1]


def test_a_job_that_cannot_be_decided_harms_none_of_those_it_came_with():
    class Fussy(EarliestFinish):
        def score(self, shape, *given):
            if shape.app == "bad":
                raise ZeroDivisionError("this one")
            return super().score(shape, *given)

    config = site.settings()
    snap = snapshot({"v1"}, 2)
    rng = random.Random(5)
    there = Site(Fussy(load()), config, rng, lambda: "t", load(), Plans())
    requests = [submission(name=name) for name in ("resnet", "bad", "resnet")]
    together = Together(requests, snap, Ledger(snap), there, site.NOW + 1)
    assert together.verdict(0).complete().eligible
    with pytest.raises(ZeroDivisionError):
        together.verdict(1)
    assert together.verdict(2).complete().eligible
    found = Together(requests, snap, Ledger(snap), there, site.NOW + 1).all_at_once()
    assert [isinstance(each, Exception) for each in found] == [False, True, False]
