import pytest

from advisor.settings import Exclude
from tests.policy.site import BUSY, PAST, advise, runs, settings, snapshot, submission

OPEN = [
    ("several partitions", {}, {"partition": "p100"}),
    (
        "one partition with several GPU types, none named",
        {"partition": "short", "time_limit": 10, "name": "quick"},
        {"tres_per_node": "gres/gpu:p100:1"},
    ),
    (
        "several partitions, one of them with several types",
        {"partition": "short,v100", "time_limit": 10, "name": "quick"},
        {"partition": "short", "tres_per_node": "gres/gpu:p100:1"},
    ),
    (
        "a typed request whose user wrote flexible: [gpu_type]",
        {
            "partition": "short",
            "time_limit": 10,
            "tres_per_node": "gres/gpu:v100:1",
            "name": "quick",
            "script_head": "#ADVISOR flexible: [gpu_type]\n",
        },
        {"tres_per_node": "gres/gpu:p100:1"},
    ),
    (
        "one partition whose user wrote flexible: [partition]",
        {"partition": "k80", "environment": {"ADVISOR_DFG": "flexible: [partition]"}},
        {"partition": "p100"},
    ),
    ("a dependency", {"dependency": "afterok:17"}, {"partition": "p100"}),
    ("an array", {"array": "0-2"}, {"partition": "p100"}),
    ("srun or salloc", {"batch": False}, {"partition": "p100"}),
    ("licences", {"licenses": "matlab:1"}, {"partition": "p100"}),
    ("a constraint that the candidate satisfies", {"features": "gpu&[pascal|kepler|volta]"}, {"partition": "p100"}),
    ("a soft constraint", {"prefer": "volta"}, {"partition": "p100"}),
    ("one node to avoid", {"exc_nodes": "p1", "partition": "k80,p100"}, {"partition": "p100"}),
]  # fmt: skip

ALONE = [
    ("het job", {"het_offset": 0}, "heterogeneous"),
    ("reservation", {"reservation": "maint"}, "reservation"),
    ("nodelist", {"req_nodes": "v1"}, "names the nodes"),
    ("clusters", {"clusters": "other"}, "clusters"),
    ("#ADVISOR off", {"script_head": "#!/bin/bash\n#ADVISOR off\n"}, "#ADVISOR off"),
    ("ADVISOR=off", {"environment": {"ADVISOR": "off"}}, "#ADVISOR off"),
    ("partition and type given", {"partition": "v100", "tres_per_node": "gres/gpu:v100:1"}, "were asked for"),
    ("partition given, no GPUs", {"partition": "cpu", "tres_per_node": None}, "no GPUs"),
    ("a constraint that is not understood", {"features": "a&b|c"}, "not understood"),
    ("a constraint that its own partition does not satisfy", {"features": "cpu"}, "can hold it"),
    ("all nodes of a partition to be avoided", {"exc_nodes": "v[1-9]"}, "can hold it"),
    ("two GPU types at once", {"tres_per_node": "gres/gpu:v100:1,gres/gpu:p100:1"}, "more than one kind"),
    ("all the memory of a node", {"min_mem_per_node": 0}, "--mem=0"),
    ("a partition that is not on the user's list", {"partition": "v100,secret"}, "secret"),
    ("a time limit above its own partition's", {"partition": "short,v100", "time_limit": 60}, "time limit"),
    ("more GPUs than a node has", {"tres_per_node": "gres/gpu:3"}, "can hold it"),
    ("no partition, where the default one cannot hold it", {"partition": None}, "can hold it"),
    ("numbers that nobody means", {"num_tasks": -5}, "not a number"),
]  # fmt: skip


QUICK = {"v100": runs(100), "p100": runs(120), "k80": runs(590)}


@pytest.mark.parametrize(("what", "fields", "expected"), OPEN, ids=[row[0] for row in OPEN])
def test_what_the_user_left_open_is_placed(what, fields, expected):
    decision = advise(submission(**fields), snapshot(*BUSY, history={**PAST, "quick": QUICK}))
    assert decision.eligible, decision.why
    assert decision.action == "rewrite", decision.why
    assert decision.set == expected
    if "dependency" in fields:
        assert "not known" in decision.why


@pytest.mark.parametrize(("what", "fields", "because"), ALONE, ids=[row[0] for row in ALONE])
def test_everything_else_is_left_alone_and_says_why(what, fields, because):
    decision = advise(submission(**fields), snapshot(*BUSY))
    assert (decision.action, decision.set, decision.eligible) == ("keep", {}, False)
    assert decision.why.startswith("left alone: ")
    assert because in decision.why


@pytest.mark.parametrize(
    "exclude",
    [
        Exclude(partitions=("v100",)),
        Exclude(accounts=("Chemistry",)),
        Exclude(users=("ada",)),
        Exclude(users=("1001",)),
    ],
)
def test_a_site_can_exclude_partitions_accounts_and_users(exclude):
    decision = advise(submission(), snapshot(*BUSY), settings(exclude=exclude))
    assert not decision.eligible
    assert "the site excludes" in decision.why


def test_no_job_is_sent_to_an_excluded_partition():
    request = submission(partition="v100", environment={"ADVISOR_DFG": "flexible: [partition]"}, time_limit=10)
    everywhere = advise(request, snapshot(*BUSY), settings())
    assert {c.partition for c in everywhere.candidates} == {"v100", "p100", "k80", "short"}
    without = advise(request, snapshot(*BUSY), settings(exclude=Exclude(partitions=("k80",))))
    assert {c.partition for c in without.candidates} == {"v100", "p100", "short"}


def test_shards_are_only_looked_for_where_there_are_shards():
    request = submission(tres_per_node="gres/shard:2", partition="k80,short", time_limit=10)
    decision = advise(request, snapshot(*BUSY))
    assert decision.eligible
    pools = snapshot(*BUSY).pools
    for candidate in decision.candidates:
        assert candidate.set.get("tres_per_node") is None
        assert all(any(g.name == "shard" for g in pools[i].gres_per_node) for i in candidate.pools)
