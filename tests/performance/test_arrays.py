"""An array that may start in several pools: every task starts where it is free first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from advisor.performance.arrays import Way, mean_wait, spread
from advisor.performance.demand import Need
from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import expected_wait
from tests.policy.site import NOW, pending, running, snapshot

TASK = Need(nodes=1, gpus=1, cpus=1, cpus_per_node=1, memory_per_node=1)
SHARDS = {"k80": 4}  # of one GPU


def ways(base: Snapshot, **run_s: float) -> list[Way]:
    """A way into the pool of each kind of GPU."""
    pools = {pool.processor: pool.index for pool in base.pools}
    return [Way(pools[kind], 1, TASK._replace(gpus=SHARDS.get(kind, 1)), each) for kind, each in run_s.items()]


def test_tasks_take_every_free_gpu_at_once_also_the_slow_ones():
    idle = snapshot()
    found = spread(idle, ways(idle, k80=270, v100=67), NOW, 6)
    assert found is not None
    assert found.tasks == (4, 2) and found.wait_s == 0


def test_when_all_run_the_faster_gpus_come_free_first_and_take_more():
    idle = snapshot()
    found = spread(idle, ways(idle, k80=270, v100=67), NOW, 12)
    assert found is not None
    assert found.tasks == (4, 8)
    assert abs(found.wait_s - (2 * 67 + 2 * 134 + 2 * 201) / 12) < 1e-6


def test_a_busy_pool_takes_its_tasks_when_it_comes_free():
    busy = snapshot(running("v1", 2, "v100", hours=1))
    found = spread(busy, ways(busy, k80=100_000, v100=60), NOW, 6)
    assert found is not None
    assert found.tasks == (4, 2)
    assert abs(found.wait_s - 2 * 3600 / 6) < 1


def test_in_one_pool_tasks_follow_each_other_on_what_is_free():
    busy = snapshot(running("v1", 1, "v100", hours=1))
    way = ways(busy, v100=60)[0]
    assert mean_wait(busy, way, NOW, 1) == 0
    assert mean_wait(busy, way, NOW, 3) == 60, "0, 60 and 120 s on the free one; nobody waits an hour for the other"
    hours = mean_wait(busy, way._replace(run_s=3600.0), NOW, 20)
    assert hours is not None and 4 * 3600 < hours < 6 * 3600, "ten waves on two GPUs, the mean in the middle"


def test_a_waiting_array_of_two_partitions_is_ahead_in_both():
    held = (running("v1", 2, "v100", hours=1), running("k1", 2, "k80", hours=1), running("k2", 2, "k80", hours=1))
    queued = snapshot(*held, pending("k80,v100", minutes=60, gpus=1, tasks=12, job_id=77))
    waits = [mean_wait(queued, way, NOW, 1) for way in ways(queued, k80=3600, v100=3600)]
    assert waits == [3 * 3600, 3 * 3600], "twelve tasks on six GPUs: two rounds of an hour after those that run"
    assert queued.underway[77].end == NOW + 3 * 3600, "who waits for the array waits for its last task"


def test_a_task_that_fits_nowhere_starts_nowhere():
    idle = snapshot()
    wide = [way._replace(need=TASK._replace(gpus=50)) for way in ways(idle, k80=1, v100=1)]
    assert spread(idle, wide, NOW, 3) is None


seconds = st.floats(1, 100_000)


@given(st.integers(1, 100_000), seconds, seconds, st.floats(0, 50))
def test_all_tasks_start_and_a_second_pool_never_makes_them_wait_longer(tasks, slow, fast, hours):
    base = snapshot(running("v1", 2, "v100", hours=hours))
    both = ways(base, k80=slow, v100=fast)
    found = spread(base, both, NOW, tasks)
    alone = spread(base, both[:1], NOW, tasks)
    assert found is not None and alone is not None
    assert abs(sum(found.tasks) - tasks) <= 1, "rounding, where very many are shared out by rates"
    assert 0 <= found.wait_s <= alone.wait_s * 1.05 + 1e-6
    if tasks == 1:
        first = expected_wait(base, both[0].pool, 1, both[0].need, slow, NOW)
        assert first is not None and alone.wait_s == first
