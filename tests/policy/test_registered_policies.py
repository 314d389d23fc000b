"""The policies a site can name: rules, Paragon, HEFT and Gavel's, each through the daemon's own decision."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.dfg.graph import Annotation, Edge, Kernel
from advisor.performance.processors import load
from advisor.policy.gavel import PLACED
from advisor.policy.gavel.site import owed, with_owed
from advisor.policy.heft.kernels import makespan
from advisor.policy.heft.ranks import upward_ranks
from advisor.policy.paragon.filtering import complete
from advisor.policy.paragon.rule import inferred
from advisor.policy.registry import POLICIES
from advisor.policy.words import duration
from advisor.settings import PolicySettings
from tests.policy import site

PROCESSORS = load()


def decided(policy, /, *jobs, history=site.PAST, **fields):
    config = site.settings(policy=PolicySettings(name=policy))
    state = site.state(*jobs)
    snap = with_owed(policy, state, site.snapshot(*jobs, history=history), history, PROCESSORS)
    return site.advise(site.submission(**fields), snap, config)


def chosen(decision):
    return decision.candidates[decision.chosen].name


BUSY_V100 = (site.running("v1", 2, "v100", hours=3),)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"learned"}))
def test_every_policy_scores_every_candidate_and_says_why(name):
    decision = decided(name, *BUSY_V100)
    assert decision.policy == name
    assert len(decision.predictions) == len(decision.candidates) > 2
    assert all(math.isfinite(p.score) for p in decision.predictions)
    assert decision.why


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_what_a_person_is_told_is_the_time_and_not_the_score(name):
    decision = decided(name, *BUSY_V100)
    ends = [told.wait_s + told.run_s * told.slowdown for told in decision.predictions]
    saved = ends[0] - ends[decision.chosen]
    if " sooner" in decision.why:
        assert saved > 0 and f"finish {duration(saved)} sooner" in decision.why
    elif " later" in decision.why:
        assert saved < 0 and f"finish {duration(-saved)} later" in decision.why
    if "finish first" in decision.why:
        assert ends[0] == min(ends)


def test_slurm_default_never_changes_a_job():
    assert decided("slurm-default", partition="k80").action == "keep"


def best(decision):
    """The processor of the candidate that the policy likes best."""
    return min(decision.predictions, key=lambda p: (p.score, p.candidate)).processor


def test_fastest_goes_by_the_run_and_earliest_start_by_the_wait():
    history = {"train": {"v100": site.runs(500), "p100": site.runs(1500), "k80": site.runs(6000)}}
    jobs = (*BUSY_V100, *(site.running(node, 2, "p100", hours=1) for node in ("p1", "p2")))
    assert best(decided("fastest", *jobs, history=history)) == "v100"
    assert best(decided("earliest-start", *jobs, history=history)) == "k80"
    assert best(decided("earliest-finish", *jobs, history=history)) == "p100"


def test_random_is_the_same_for_the_same_submission_and_spreads_over_many():
    assert decided("random").chosen == decided("random").chosen
    assert len({best(decided("random", name=f"train{i}")) for i in range(20)}) > 1


def test_paragon_takes_the_fastest_of_what_is_free():
    assert best(decided("paragon")) == "v100"
    assert best(decided("paragon", *BUSY_V100)) == "p100"


def test_paragon_infers_a_type_on_which_the_app_has_never_run():
    # Ten apps that are four times slower on a k80, and one of which only the v100 is known.
    history = {
        f"app-{c}": {"v100": site.runs(100.0 * (i + 1)), "k80": site.runs(400.0 * (i + 1))}
        for i, c in enumerate("abcdefghij")
    }
    history["new"] = {"v100": site.runs(1000)}
    assert inferred(history)["new", "k80"] == pytest.approx(4000, rel=0.2)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(2, 6))
def test_filtering_keeps_what_was_measured_and_fills_the_rest(seed, apps, types):
    rng = np.random.default_rng(seed)
    full = rng.normal(5, 2, (apps, 1)) + rng.normal(0, 1, (1, types))
    table = np.where(rng.random((apps, types)) < 0.5, full, np.nan)
    found = complete(table)
    assert np.isfinite(found).all()
    measured = np.isfinite(table)
    assert (found[measured] == table[measured]).all()


def test_filtering_recovers_a_table_of_rows_and_columns():
    rng = np.random.default_rng(1)
    full = rng.normal(5, 2, (30, 1)) + rng.normal(0, 1, (1, 4))
    table = full.copy()
    table[5:, :] = np.where(rng.random((25, 4)) < 0.5, full[5:, :], np.nan)
    table[5:, 0] = full[5:, 0]
    assert complete(table) == pytest.approx(full, abs=0.05)


def test_ranks_are_the_longest_way_to_the_end():
    ranks = upward_ranks(
        {"a": 1.0, "b": 5.0, "c": 2.0}, {"a": ["b", "c"], "b": ["c"], "c": ["unknown"]}, {("a", "b"): 3.0}
    )
    assert ranks == {"a": 11.0, "b": 7.0, "c": 2.0}


def test_kernels_that_need_not_wait_for_each_other_overlap():
    core = PROCESSORS["cpu"].tflops * 1e12 * 0.3
    gpu = PROCESSORS["v100"].tflops * 1e12 * 0.3
    both = (Kernel("decode", ("cpu",), 100 * core), Kernel("train", ("gpu",), 80 * gpu))
    assert makespan(Annotation(kernels=both), "v100", PROCESSORS) == pytest.approx(100)
    chained = Annotation(kernels=both, edges=(Edge("decode", "train", 20 * 10**9),))
    assert makespan(chained, "v100", PROCESSORS) == pytest.approx(100 + 2 + 80)
    # What may run on either goes where it ends first, not where it was written first.
    either = Annotation(kernels=(Kernel("a", ("cpu", "gpu"), 10 * gpu),))
    assert makespan(either, "v100", PROCESSORS) == pytest.approx(10)
    assert makespan(Annotation(kernels=(Kernel("a", ("h100",), 1.0),)), "v100", PROCESSORS) is None


def test_heft_places_an_annotated_job_where_its_kernels_end_first():
    script = "#!/bin/sh\n#ADVISOR app: fresh\n#ADVISOR kernels:\n#ADVISOR   train: {on: [gpu], work: 4.0e16}\n"
    assert best(decided("heft", history={}, script_head=script)) == "v100"


# Six of an app that needs the v100 and six that do not care, all waiting for any GPU.
APPS = {
    "picky": {"v100": site.runs(1000), "p100": site.runs(4000), "k80": site.runs(30_000)},
    "easy": {"v100": site.runs(1000), "p100": site.runs(1050), "k80": site.runs(1200)},
}
QUEUE = tuple(
    site.pending(
        "k80,p100,v100",
        minutes=240,
        gpus=1,
        name=app,
        user="bob",
        account="chemistry",
        priority=100 - i,
        submit_time=int(site.NOW) - 20,
    )
    for i, app in enumerate(["picky", "easy"] * 6)
)


@pytest.mark.parametrize("name", ["max-min-fairness-aware", "finish-time-fairness-aware", "makespan-aware", "allox"])
def test_who_gains_most_from_the_fast_type_is_owed_it(name):
    state = site.state(*QUEUE)
    found = owed(name, state, site.snapshot(*QUEUE, history=APPS), APPS, PROCESSORS)
    assert set(found) == {"picky", "easy", ""}
    assert found["picky"]["v100"] > found["easy"]["v100"]
    assert found["picky"]["k80"] < found["easy"]["k80"] + 0.5
    # All that wait are owed a place each, the next one too.
    for app in ("picky", "easy"):
        assert sum(found[app].values()) == pytest.approx(7, abs=0.01)


def test_a_submission_goes_where_its_app_is_owed_most():
    assert best(decided("max-min-fairness-aware", *QUEUE, history=APPS, name="picky")) == "v100"


@pytest.mark.parametrize("name", sorted(PLACED))
def test_an_empty_or_odd_queue_is_no_problem(name):
    snap = site.snapshot()
    assert with_owed(name, site.state(), snap, site.PAST, PROCESSORS).owed == {}
    odd = (
        site.running("v1", 2, "v100", hours=1),
        site.pending("cpu", minutes=5),
        site.pending("k80", minutes=9, gpus=1),
    )
    found = with_owed(name, site.state(*odd), site.snapshot(*odd), {}, PROCESSORS).owed
    assert all(math.isfinite(value) for of in found.values() for value in of.values())


def test_other_policies_owe_nothing_and_cost_nothing():
    snap = site.snapshot(*QUEUE)
    assert with_owed("earliest-finish", site.state(*QUEUE), snap, {}, PROCESSORS) is snap


def test_what_is_owed_travels_with_the_snapshot():
    snap = with_owed("makespan-aware", site.state(*QUEUE), site.snapshot(*QUEUE, history=APPS), APPS, PROCESSORS)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(snap), type=type(snap))
    assert again.owed == snap.owed != {}
