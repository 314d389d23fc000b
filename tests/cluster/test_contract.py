"""The same facts from every release: each test reads the recordings of all of them."""

import pytest

from advisor.cluster.types import Gres, Node
from tests.cluster.conftest import RELEASES

NODES = {  # name: cpus, memory, gres
    "c1": (24, 96000, ()),
    "c2": (24, 96000, ()),
    "k1": (8, 32000, (Gres("gpu", 2, "k80"), Gres("shard", 8, "k80"))),
    "k2": (8, 32000, (Gres("gpu", 2, "k80"), Gres("shard", 8, "k80"))),
    "p1": (12, 48000, (Gres("gpu", 2, "p100"),)),
    "p2": (12, 48000, (Gres("gpu", 2, "p100"),)),
    "v1": (16, 64000, (Gres("gpu", 2, "v100"),)),
}


def job(state, name):
    found = [job for job in state.jobs if job.name == name]
    assert len(found) == 1, f"{len(found)} jobs named {name}"
    return found[0]


def test_recordings_of_all_supported_releases_are_there():
    assert {"22.05", "24.11", "26.05"} <= set(RELEASES)


def test_the_cluster_and_its_release_are_known(state, release):
    assert state.cluster == "mini"
    assert state.release == tuple(map(int, release.split(".")))


def test_nodes_have_their_size_and_their_gres_by_type(state):
    assert {n.name: (n.cpus, n.memory_mb, n.gres) for n in state.nodes} == NODES
    assert all(node.sockets == 2 and node.weight == 1 for node in state.nodes)


def test_features_and_partitions_of_a_node_are_known(state):
    (v1,) = (node for node in state.nodes if node.name == "v1")
    assert v1.features == ("gpu", "volta")
    assert set(v1.partitions) == {"v100", "short", "restricted"}


def test_the_drained_and_the_down_node_are_not_usable_and_the_others_are(state):
    assert {node.name for node in state.nodes if not node.usable} == {"k2", "p2"}


def test_a_drain_reason_that_imitates_a_state_changes_nothing(odd):
    (c2,) = (node for node in odd.nodes if node.name == "c2")
    assert c2.states == ("IDLE", "DRAIN")
    assert not c2.usable


def test_what_is_allocated_on_the_nodes_is_what_the_running_jobs_hold(state):
    """Slurm counts it twice, for nodes and for jobs; reading both right makes them equal."""
    running = [job for job in state.jobs if job.running and job.states[0] == "RUNNING"]
    assert sum(job.cpus for job in running) <= sum(node.cpus_allocated for node in state.nodes)
    held = sum(gres.count for job in running for gres in job.gres if gres.name == "gpu")
    used = sum(gres.count for node in state.nodes for gres in node.gres_allocated if gres.name == "gpu")
    assert held == used > 0


def test_partitions_have_their_nodes_and_limits(state):
    parts = {part.name: part for part in state.partitions}
    assert set(parts) == {"cpu", "v100", "p100", "k80", "short", "restricted", "shared"}
    assert set(parts["short"].nodes) == {"v1", "p1", "p2", "k1", "k2"}
    assert parts["short"].max_time == 10
    assert parts["v100"].max_time == 1440
    assert all(part.default_time == 5 and part.up and part.priority_tier == 1 for part in parts.values())
    assert all(part.max_nodes is part.max_cpus_per_node is part.max_mem_per_node is None for part in parts.values())


def test_the_default_partition_is_known(state):
    assert [part.name for part in state.partitions if part.default] == ["cpu"]


def test_only_the_restricted_partition_names_its_accounts(state):
    assert {p.name: p.allow_accounts for p in state.partitions if p.allow_accounts} == {"restricted": ("physics",)}


def test_only_the_shared_partition_oversubscribes(state):
    assert {p.name: p.oversubscribe for p in state.partitions if p.oversubscribe != 1} == {"shared": 2}
    assert not any(part.exclusive for part in state.partitions)


def test_finished_jobs_are_left_out(state):
    names = {job.name for job in state.jobs}
    assert not names & {"timeout", "resnet50", "failed", "killed", "cancelled-running", "cancelled-pending", "sweep"}
    assert all(job.running != job.pending for job in state.jobs)


@pytest.mark.parametrize(
    ("name", "nodes", "cpus", "memory_mb", "gres", "time_limit"),
    [
        ("name with = and spaces", ("v1",), 4, 4096, (Gres("gpu", 1, "v100"),), 120),
        ("gpus-per-task", ("k1",), 1, 300, (Gres("gpu", 1, "k80"),), 5),
        ("shard", ("k1",), 1, 100, (Gres("shard", 2),), 60),
        ("gpus-per-node", ("p1",), 1, 100, (Gres("gpu", 1, "p100"),), 8),
        ("shared", ("c1",), 4, 200, (), 5),
    ],
)
def test_a_running_job_has_its_nodes_and_what_it_holds(state, name, nodes, cpus, memory_mb, gres, time_limit):
    found = job(state, name)
    assert found.running
    assert (found.nodes, found.node_count) == (nodes, len(nodes))
    assert (found.cpus, found.memory_mb, found.gres, found.time_limit) == (cpus, memory_mb, gres, time_limit)
    assert found.start_time is not None
    assert 0 < found.submit_time <= found.start_time < found.submit_time + 600


def test_a_job_over_two_nodes_has_the_gres_of_both(state):
    found = job(state, "gpus-per-job")
    assert found.nodes == ("p1", "v1")
    assert found.gres == (Gres("gpu", 1, "p100"), Gres("gpu", 1, "v100"))


@pytest.mark.parametrize(
    ("name", "partitions", "gres"),
    [
        ("two-partitions", {"v100", "p100"}, (Gres("gpu", 2),)),
        ("any-gpu", {"v100", "p100", "k80"}, (Gres("gpu", 2),)),
        ("per-task", {"p100"}, (Gres("gpu", 2, "p100"),)),
        ("per-socket", {"v100"}, (Gres("gpu", 2),)),
        ("held", {"k80"}, (Gres("gpu", 1),)),
        ("constrained", {"p100"}, (Gres("gpu", 4, "p100"),)),
        ("down-node", {"k80"}, ()),
    ],
)
def test_a_pending_job_tells_where_it_may_go_and_what_it_asks_in_all(state, name, partitions, gres):
    found = job(state, name)
    assert found.pending
    assert set(found.partitions) == partitions
    assert found.gres == gres
    assert found.nodes == ()
    assert found.start_time is None


def test_why_a_job_waits_is_known(state):
    assert job(state, "held").reason == "JobHeldUser"
    assert job(state, "after").reason == "Dependency"
    assert job(state, "after").dependency.startswith("afterok:")
    assert job(state, "too-long").reason == "PartitionTimeLimit"
    assert job(state, "constrained").features == "pascal&gpu"
    assert job(state, "constrained").node_count == 2


def test_who_submitted_a_job_is_known(state):
    found = job(state, "any-gpu")
    assert (found.user, found.account, found.qos) == ("bob", "biology", "normal")


def test_a_pending_array_stands_for_its_pending_tasks(state):
    array = [job for job in state.jobs if job.name == "limited-array"]
    (waiting,) = (job for job in array if job.pending)
    assert (waiting.array_task, waiting.tasks) == ("6,9,20%2", 3)
    started = [job for job in array if job.running]
    assert {job.array_task for job in started} == {"0", "3"}
    assert all(job.tasks == 1 and job.array_job_id == waiting.array_job_id for job in started)
    assert job(state, "array-dependent").tasks == 4


def test_a_requeued_job_waits_again_and_counts_its_restarts(state):
    found = job(state, "requeued-by-failure")
    assert found.pending
    assert found.restarts == 1


def test_a_name_that_imitates_slurms_output_is_only_a_name(odd):
    found = job(odd, "evil UserId=root(0) Priority=1 x=y")
    assert (found.user, found.account, found.states) == ("alice", "physics", ("RUNNING",))
    assert (found.cpus, found.memory_mb, found.gres) == (2, 1500, (Gres("gpu", 1, "v100"),))


def test_the_admin_comment_is_read_to_its_end(odd):
    assert job(odd, "evil UserId=root(0) Priority=1 x=y").admin_comment == "advisor=01HZX3V7K2 note=kept by=hand"


def test_a_line_break_in_a_name_or_comment_makes_no_other_job(odd):
    forged = "two\nJobId=9001 JobName=forged UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=7"
    found = job(odd, forged)
    assert (found.user, found.priority < 9001, found.gres) == ("alice", True, (Gres("gpu", 1),))
    assert not {9001, 9002} & {job.job_id for job in odd.jobs}


def test_a_name_that_is_no_utf8_and_a_comment_that_imitates_a_job_do_no_harm(odd):
    (found,) = (job for job in odd.jobs if job.name.startswith("latin-"))
    assert (found.user, found.states, found.features) == ("alice", ("PENDING",), "volta")
    assert found.gres == (Gres("gpu", 1, "v100"),)


def test_an_exclusive_job_that_runs_is_known(odd):
    assert [(job.nodes, job.cpus) for job in odd.jobs if job.exclusive] == [(("c1",), 24)]


def test_arrays_with_steps_and_long_lists_are_counted(odd):
    arrays = {job.array_task: job.tasks for job in odd.jobs if job.pending and job.array_job_id}
    assert arrays["0-40:2%2"] == 21
    assert arrays["1,3,5-7"] == 5
    (long,) = (tasks for text, tasks in arrays.items() if text.endswith(",45,47,49"))
    assert long == 23


def test_an_unlimited_time_limit_is_none(odd):
    assert [job.reason for job in odd.jobs if job.time_limit is None] == ["PartitionTimeLimit"]


@pytest.mark.parametrize("states", [("IDLE", "DRAIN"), ("DOWN",), ("MIXED", "MAINTENANCE"), ("FUTURE",)])
def test_a_node_in_such_a_state_takes_no_new_job(states):
    assert not Node(name="x", states=states, cpus=1, memory_mb=1).usable
