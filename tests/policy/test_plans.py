"""What is remembered from earlier submissions never changes a decision, whatever came before it."""

import random

import msgspec
import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import settings as tuning
from hypothesis import strategies as st

from advisor.performance.processors import load
from advisor.performance.queue import build_snapshot
from advisor.performance.waits import Ledger
from advisor.policy.decision import consider, decide
from advisor.policy.plans import Plans
from advisor.policy.registry import make_policy
from advisor.protocol import SubmitRequest
from advisor.server.requests import Requests
from advisor.settings import Exclude, Modes
from tests.policy import site

HISTORIES = (
    {},
    site.PAST,
    {"train": {"v100": site.runs(5000), "p100": site.runs(300), "k80": site.runs(400)}},
    {"train@ben": {"k80": site.runs(50), "v100": site.runs(60)}, "y": {"p100": site.runs(60), "v100": site.runs(900)}},
)


def without(name):
    return tuple(msgspec.structs.replace(n, states=("DOWN",)) if n.name == name else n for n in site.NODES)


def limited(name, **changes):
    return tuple(msgspec.structs.replace(p, **changes) if p.name == name else p for p in site.PARTITIONS)


STATES = (
    site.state(),
    site.state(*site.BUSY),
    site.state(nodes=without("k2")),
    site.state(nodes=without("v1")),
    site.state(partitions=limited("v100", max_time=60)),
    site.state(partitions=limited("v100", priority_tier=5)),
    site.state(partitions=limited("p100", allow_accounts=("physics",))),
)
SCRIPTS = (
    None,
    "#!/bin/sh\n#ADVISOR app: y\n",
    "#ADVISOR flexible: [partition]\n",
    "#ADVISOR kernels: {a: {on: [v100], work: 1.0e15}}\n",
    "#ADVISOR kernels: {a: {on: [gpu, cpu], work: 2.0e16, memory: 14G}}\n#ADVISOR share: true\n",
    "#ADVISOR off\n",
    "#ADVISOR nonsense\n",
)
SETTINGS = (
    site.settings(holdout=0.3),
    site.settings("advise", exclude=Exclude(users=("ben",), partitions=("two",))),
    site.settings(modes=Modes(default="enforce", users={"cleo": "off"}, partitions={"three": "shadow"})),
)

# Few enough that the same things come again, which is when remembering could go wrong.
jobs = st.fixed_dictionaries(
    {},
    optional={
        "partition": st.sampled_from([None, "short", "v100,p100", "restricted,p100"]),
        "tres_per_node": st.sampled_from(["gres/gpu:2", "gres/gpu:4", "gres/gpu:p100:1", None]),
        "min_nodes": st.just(2),
        "time_limit": st.sampled_from([5, 120, None]),
        "array": st.sampled_from(["0-9", "0-99%5"]),
    },
)
changes = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"user": st.sampled_from(["ben", "cleo"])}),
    st.fixed_dictionaries({"name": st.sampled_from(["x", "y"])}),
    st.fixed_dictionaries({"account": st.sampled_from(["physics", "biology"])}),
    st.fixed_dictionaries({"script_head": st.sampled_from(SCRIPTS)}),
    st.fixed_dictionaries({"array": st.sampled_from(["0-3", "0-19%2", "7", "0-9%0"])}),
    st.just({"dependency": "afterok:1"}),
    st.just({"op": "advise"}),
)
steps = st.tuples(
    st.sampled_from([0, 0, 0, 1]),  # which of the two states
    st.sampled_from([0, 0, 0, 1]),  # which of the two histories
    st.booleans(),  # a new poll
    st.sampled_from([0, 0, 0, 0, 1, 2]),  # which settings
    st.integers(0, 1),  # which of the two jobs
    changes,
)


def two(values):
    return st.lists(values, min_size=2, max_size=2)


@tuning(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    two(st.sampled_from(STATES)), two(st.sampled_from(HISTORIES)), two(jobs), st.lists(steps, min_size=8, max_size=24)
)
def test_a_decision_is_the_same_with_and_without_what_was_remembered(states, histories, kinds, story):
    decoder, plans, table = Requests(), Plans(), load()
    policies = [make_policy(each) for each in SETTINGS]
    snapshots = {}
    ledgers = Ledger(), Ledger()
    for number, (state, history, poll, in_force, kind, change) in enumerate(story):
        place = (state, history)
        if poll or place not in snapshots:
            snapshots[place] = build_snapshot(states[state], histories[history])
        line = msgspec.json.encode(site.submission(**(kinds[kind] | change)))
        config, now = SETTINGS[in_force], site.NOW + number
        remembered = consider(
            decoder.decode(line),
            snapshots[place],
            ledgers[0],
            policies[in_force],
            config,
            random.Random(number),
            now,
            lambda number=number: f"t{number}",
            table,
            plans,
        )
        early = (remembered.token, remembered.mode, remembered.applied, remembered.set, remembered.message)
        anew = decide(
            msgspec.json.decode(line, type=SubmitRequest),
            snapshots[place],
            ledgers[1],
            make_policy(config),
            config,
            random.Random(number),
            now,
            lambda number=number: f"t{number}",
        )
        event("eligible" if anew.eligible else "left alone")
        assert remembered.complete() == anew
        assert early == (anew.token, anew.mode, anew.applied, anew.set if anew.applied else {}, anew.message)


@pytest.mark.parametrize(
    ("down", "nodes", "before", "after"),
    [("v1", 1, {"partition": "v100"}, {"partition": "p100"}), ("p2", 2, {"partition": "p100"}, {})],
    ids=["the last of its kind", "one of two, for a job that needs both"],
)
def test_a_node_that_goes_down_is_noticed_by_jobs_that_were_planned_before(down, nodes, before, after):
    plans, config, table = Plans(), site.settings(), load()
    policy = make_policy(config)
    request = site.submission(min_nodes=nodes, partition="k80,p100,v100" if nodes == 1 else "k80,p100")

    def chosen(snap):
        told = consider(request, snap, None, policy, config, random.Random(0), site.NOW, lambda: "t", table, plans)
        return told.set

    assert chosen(site.snapshot()) == before
    assert chosen(site.snapshot(nodes=without(down))) == after
    assert chosen(site.snapshot()) == before


def test_users_with_other_partitions_do_not_share_a_plan():
    decoder, plans, config, table = Requests(), Plans(), site.settings(), load()
    policy, snap = make_policy(config), site.snapshot()

    def names(account):
        listed = [limits for limits in site.part_list() if account == "physics" or limits.name != "restricted"]
        request = site.submission(partition=None, account=account, tres_per_node="gres/gpu:1", partitions=listed)
        line = msgspec.json.encode(
            msgspec.structs.replace(request, script_head="#ADVISOR flexible: [partition]\n", partition="k80")
        )
        told = consider(
            decoder.decode(line), snap, None, policy, config, random.Random(0), site.NOW, lambda: "t", table, plans
        )
        return {candidate.name for candidate in told.complete().candidates}

    for _ in range(2):
        assert {"restricted/v100", "restricted/p100"} <= names("physics")
        assert not {"restricted/v100", "restricted/p100"} & names("chemistry")


def test_arrays_of_one_script_are_each_as_large_as_they_are():
    plans, config, table, ledger = Plans(), site.settings(), load(), Ledger()
    policy, snap = make_policy(config), site.snapshot()

    def tasks(array):
        request = site.submission(partition="k80,p100,v100", array=array, partitions=listed)
        told = consider(request, snap, ledger, policy, config, random.Random(0), site.NOW, lambda: "t", table, plans)
        return told.complete().features["tasks"]

    listed = site.part_list()
    assert [tasks(array) for array in ("0-3", None, "0-99%5", "0-3")] == [4, 1, 100, 4]
