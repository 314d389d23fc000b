from math import log

import msgspec
import pytest

from advisor.cluster.types import ClusterState, Gres, Node, Partition
from advisor.performance.demand import Demand, Need, need_on
from advisor.performance.queue import MAX_TIERS, build_snapshot
from advisor.performance.snapshot import RunTimes, Snapshot
from advisor.performance.waits import expected_wait
from tests.performance.clusters import NOW, one_pool, pending, running

ONE_GPU = Need(1, 1, 1, 1, 0)


def wait(state, history=None, tier=1, need=ONE_GPU, run_s=36_000.0):
    found = expected_wait(build_snapshot(state, history or {}), 0, tier, need, run_s, NOW)
    return None if found is None else found / 60


@pytest.mark.parametrize(
    "reason",
    ["Dependency", "JobHeldUser", "JobHeldAdmin", "BeginTime", "QOSMaxJobsPerUserLimit", "AssocGrpGRES", "Reservation"],
)
def test_a_job_that_slurm_passes_over_is_not_ahead(reason):
    assert wait(one_pool(gpus=1, jobs=[pending(minutes=60, gpus=1, reason=reason)])) == 0
    assert wait(one_pool(gpus=1, jobs=[pending(minutes=60, gpus=1, reason="Resources")])) == 60


def test_a_job_that_begins_later_is_not_ahead():
    later = pending(minutes=60, gpus=1, eligible_time=int(NOW) + 3600)
    assert wait(one_pool(gpus=1, jobs=[later])) == 0


def test_only_what_is_left_of_a_running_jobs_limit_counts():
    assert wait(one_pool(gpus=1, jobs=[running(minutes=60, gpus=1, ago=1800)])) == 30
    over = wait(one_pool(gpus=1, jobs=[running(minutes=60, gpus=1, ago=7200)]))
    assert 0 < over < 1  # it must end any moment


def test_past_runs_tell_when_a_running_job_ends_and_how_long_a_waiting_one_takes():
    history = {"short": {"v100": RunTimes(20, log(600), 0.05)}}
    state = one_pool(gpus=1, jobs=[running(minutes=600, gpus=1, ago=300, name="short")])
    assert 4 < wait(state, history) < 8
    late = one_pool(gpus=1, jobs=[running(minutes=600, gpus=1, ago=3000, name="short")])
    assert wait(late, history) > 1  # longer than ever before: it is not expected to end at once
    queue = one_pool(gpus=1, jobs=[pending(minutes=600, gpus=1, name="short")])
    assert 9 < wait(queue, history) < 12
    of_somebody = {**history, "short@ada": {"v100": RunTimes(5, log(6000), 0.05)}}
    assert wait(one_pool(gpus=1, jobs=[pending(minutes=600, gpus=1, name="short", user="ada")]), of_somebody) > 90


def test_who_waits_or_runs_with_more_gpus_than_usual_is_expected_to_end_sooner():
    # An hour on one GPU, a quarter on four as it was seen, and between the two by the slope.
    usual = RunTimes(20, log(3600), 0.05, True, 0.0, -1.0, sizes=((4, log(900), 0.05),))
    history = {"train": {"v100": usual}}
    for gpus, minutes in ((1, 60), (2, 30), (4, 15)):
        queue = one_pool(gpus=gpus, jobs=[pending(minutes=600, gpus=gpus, name="train")])
        assert wait(queue, history) == pytest.approx(minutes, rel=0.02)
        busy = one_pool(gpus=gpus, jobs=[running(minutes=600, gpus=gpus, ago=60, name="train")])
        assert wait(busy, history) == pytest.approx(minutes - 1, rel=0.02)


def test_higher_tiers_go_first_and_do_not_see_lower_ones():
    partitions = (Partition("main", ("n",), priority_tier=1), Partition("urgent", ("n",), priority_tier=10))
    jobs = [pending(minutes=60, gpus=1, priority=9), pending(minutes=30, gpus=1, partitions=("urgent",))]
    state = one_pool(gpus=1, jobs=jobs, partitions=partitions)
    assert wait(state, tier=10) == 30
    assert wait(state, tier=1) == 90
    assert build_snapshot(state, {}).tiers == (10, 1)


def test_many_tiers_are_merged_and_each_partition_still_finds_its_own():
    partitions = tuple(Partition(f"p{i}", ("n",), priority_tier=i) for i in range(1, 40))
    snapshot = build_snapshot(one_pool(gpus=1, jobs=[], partitions=partitions), {})
    assert len(snapshot.tiers) <= MAX_TIERS
    assert [snapshot.tier_index(i) for i in (39, 1, 1000, 0)] == [
        0,
        len(snapshot.tiers) - 1,
        0,
        len(snapshot.tiers) - 1,
    ]


def test_an_array_stands_for_its_tasks_and_respects_its_own_limit():
    assert wait(one_pool(gpus=2, jobs=[pending(minutes=10, gpus=1, tasks=8)])) == 40
    limited = one_pool(gpus=2, jobs=[pending(minutes=10, gpus=1, tasks=8, array_task="0-7%1")])
    assert wait(limited) == 0


def test_memory_fills_a_node_like_cpus_do():
    hog = running(minutes=60, cpus=1, memory_mb=64_000)
    state = one_pool(gpus=0, cpus=8, jobs=[hog])
    assert wait(state, need=Need(1, 0, 1, 1, 0)) == 60


def test_an_exclusive_job_takes_the_whole_node():
    state = one_pool(gpus=2, jobs=[running(minutes=60, cpus=1, exclusive=True)])
    assert wait(state) == 60
    whole = (Partition("main", ("n",), exclusive=True),)
    assert wait(one_pool(gpus=2, jobs=[running(minutes=60, cpus=1)], partitions=whole)) == 60


def test_more_in_use_than_there_is_frees_nothing_until_it_is_less():
    # OverSubscribe=FORCE:2: sixteen CPUs' worth of jobs on eight.
    jobs = [running(minutes=m, cpus=4) for m in (10, 20, 30, 40)]
    state = one_pool(gpus=0, cpus=8, jobs=jobs)
    assert wait(state, need=Need(1, 0, 1, 1, 0)) == 30


def sharded(jobs):
    """A node of two GPUs in four shards each."""
    node = Node("n", ("MIXED",), 64, 64_000, (Gres("gpu", 2, "v100"), Gres("shard", 8)))
    return ClusterState("tiny", (24, 11), NOW, (node,), (Partition("main", ("n",), default=True),), tuple(jobs))


def shards(job, count):
    return msgspec.structs.replace(job, gres=(Gres("shard", count),))


def on_shards(state, **asked):
    """The wait of a submission that asks for GPUs or shards, in minutes."""
    snapshot = build_snapshot(state, {})
    need = need_on(Demand(**asked), snapshot.pools[0])
    return None if need is None else expected_wait(snapshot, 0, 1, need, 36_000.0, NOW) / 60


def test_a_gpu_of_which_shards_are_in_use_is_not_free():
    whole, half = {"gpus": 1}, {"gres": (Gres("shard", 2),)}
    jobs = [shards(running(minutes=60), 4), shards(running(minutes=30), 4)]
    assert on_shards(sharded([]), **whole) == on_shards(sharded([]), **half) == 0
    assert on_shards(sharded(jobs[:1]), **whole) == on_shards(sharded(jobs[:1]), **half) == 0
    assert on_shards(sharded(jobs), **whole) == on_shards(sharded(jobs), **half) == 30


def test_shards_of_a_gpu_that_somebody_has_whole_are_not_free():
    jobs = [running(minutes=60, gpus=1), running(minutes=20, gpus=1)]
    assert on_shards(sharded(jobs), gres=(Gres("shard", 4),)) == 20
    assert on_shards(sharded(jobs[:1]), gres=(Gres("shard", 4),)) == 0
    assert on_shards(sharded([]), gres=(Gres("shard", 9),)) is None


def test_a_waiting_job_for_shards_is_ahead_for_as_long_as_such_jobs_run_on_shards():
    history = {"tiny": {"v100/shard": RunTimes(20, log(600), 0.05), "cpu": RunTimes(20, log(60_000), 0.05)}}
    line = [shards(pending(minutes=600, name="tiny"), 8)]
    snapshot = build_snapshot(sharded(line), history)
    need = need_on(Demand(gpus=1), snapshot.pools[0])
    assert 9 < expected_wait(snapshot, 0, 1, need, 36_000.0, NOW) / 60 < 12
    assert snapshot.waiting == (1,)


def nodes(count, **more):
    return tuple(Node(f"n{i}", more.get("states", ("IDLE",)), 8, 1000, (Gres("gpu", 2, "v100"),)) for i in range(count))


def site(made, jobs=()):
    names = tuple(node.name for node in made)
    return ClusterState("x", (24, 11), NOW, made, (Partition("main", names),), tuple(jobs))


def test_like_nodes_are_one_pool_and_only_usable_ones_count():
    made = (
        *nodes(5),
        Node("bad", ("IDLE", "DRAIN"), 8, 1000, (Gres("gpu", 2, "v100"),)),
        Node("other", ("IDLE",), 16, 1000),
    )
    snapshot = build_snapshot(site(made), {})
    assert [(pool.nodes, pool.processor, pool.gpus_per_node) for pool in snapshot.pools] == [
        (5, "v100", 2),
        (1, "cpu", 0),
    ]
    assert snapshot.pools_of == {"main": (0, 1)}
    assert snapshot.gpu_types_of == {"main": ("v100",)}


def test_a_pool_keeps_its_index_when_others_come_and_go():
    first = build_snapshot(site((*nodes(2), Node("c", ("IDLE",), 16, 1000))), {})
    second = build_snapshot(site((Node("new", ("IDLE",), 32, 1000), Node("c", ("IDLE",), 16, 1000))), {}, first)
    assert [(p.index, p.cpus_per_node, p.nodes) for p in second.pools] == [(0, 8, 0), (1, 16, 1), (2, 32, 1)]
    assert second.pools_of["main"] == (1, 2)


def test_a_job_over_several_pools_loads_them_all():
    made = (*nodes(1), Node("big", ("IDLE",), 16, 1000, (Gres("gpu", 2, "v100"),)))
    wide = pending(minutes=60, gpus=4, node_count=2, cpus=2)
    snapshot = build_snapshot(site(made, [wide]), {})
    for pool in (0, 1):
        assert expected_wait(snapshot, pool, 1, ONE_GPU, 36_000, NOW) == 3600


def test_tokens_of_live_jobs_are_found_beside_what_other_tools_write():
    jobs = [
        pending(minutes=1, admin_comment="advisor=abc123"),
        running(minutes=1, admin_comment='{"x": 1} advisor=d-e_f;other'),
        pending(minutes=1, admin_comment="myadvisor=no"),
    ]
    assert build_snapshot(one_pool(gpus=1, jobs=jobs), {}).tokens == {"abc123", "d-e_f"}


def test_a_snapshot_survives_the_pipe_and_says_how_full_the_pools_are():
    history = {"app": {"v100": RunTimes(3, 5.0, 0.2)}}
    jobs = [running(minutes=60, gpus=1), pending(minutes=5, gpus=2), pending(minutes=5, gpus=2, tasks=3)]
    snapshot = build_snapshot(one_pool(gpus=2, jobs=jobs), history)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=Snapshot) == snapshot
    assert (snapshot.load, snapshot.waiting, snapshot.queued, snapshot.running) == ((0.5,), (4,), 4, 1)


def test_an_empty_cluster_is_a_snapshot_too():
    empty = ClusterState("x", (22, 5), NOW, (), (), ())
    snapshot = build_snapshot(empty, {})
    assert snapshot.pools == ()
    assert snapshot.tiers == (1,)
