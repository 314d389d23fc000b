"""Expected waits against schedulers that are too simple to be wrong."""

import heapq
from math import inf

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.performance.demand import Need
from advisor.performance.queue import build_snapshot
from advisor.performance.track import Track
from advisor.performance.waits import expected_wait, place, start_on
from tests.performance.clusters import NOW, one_pool, pending, running


def need(gpus: int, cpus: int = 1) -> Need:
    return Need(1, gpus, cpus, cpus, 0)


small = st.integers(1, 6)
minutes = st.integers(1, 50)


@settings(deadline=None)
@given(small, st.lists(minutes, max_size=6), st.lists(minutes, max_size=12))
def test_single_gpu_jobs_start_when_a_heap_says_a_gpu_is_free(gpus, runs, queue):
    runs = runs[:gpus]
    state = one_pool(
        gpus=gpus,
        jobs=[running(minutes=m, gpus=1) for m in runs]
        + [pending(minutes=m, gpus=1, submit_time=i) for i, m in enumerate(queue)],
    )
    free = [0.0] * (gpus - len(runs)) + [m * 60.0 for m in runs]
    heapq.heapify(free)
    for m in queue:
        heapq.heappush(free, heapq.heappop(free) + m * 60.0)
    wait = expected_wait(build_snapshot(state, {}), 0, 1, need(1), 60.0, NOW)
    assert wait == pytest.approx(min(free))


def used(placed, resource, start, end):
    """The most units in use at any time in [start, end)."""
    times = [start] + [job[0] for job in placed if start < job[0] < end]
    return max(sum(job[resource] for job in placed if job[0] <= t < job[1]) for t in times)


jobs = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 8), minutes), max_size=25)


@settings(deadline=None, max_examples=200)
@given(jobs, st.lists(st.tuples(st.integers(1, 4), minutes), max_size=3))
def test_jobs_never_overlap_and_start_no_sooner_than_there_is_room(queue, busy):
    held = 0
    ends = []
    for units, m in busy:
        if held + units <= 4:
            held += units
            ends.append((float(m), units))
    gpu, cpu = Track.occupied(4, ends, 0.0), Track(8, 0.0)
    placed = [(0.0, end, units, 0) for end, units in ends]
    for gpus, cpus, m in queue:
        want, run = need(gpus, cpus), float(m)
        start = start_on(gpu if gpus else None, cpu, want, run, 0.0)
        # The exact answer: the first of the times at which something ends where the job fits throughout.
        possible = sorted({0.0} | {job[1] for job in placed})
        exact = next(
            t for t in possible if used(placed, 2, t, t + run) + gpus <= 4 and used(placed, 3, t, t + run) + cpus <= 8
        )
        tail = max(cpu.tail(cpus), gpu.tail(gpus) if gpus else 0.0)
        assert exact <= start <= tail
        place(gpu if gpus else None, cpu, want, run, 0.0)
        placed.append((start, start + run, gpus, cpus))
        assert used(placed, 2, start, start + run) <= 4
        assert used(placed, 3, start, start + run) <= 8


def test_a_short_job_slips_in_ahead_of_a_large_one_and_a_long_one_does_not():
    state = one_pool(gpus=4, jobs=[running(minutes=60, gpus=3), pending(minutes=60, gpus=4)])
    snapshot = build_snapshot(state, {})
    assert expected_wait(snapshot, 0, 1, need(1), 30 * 60, NOW) == 0
    assert expected_wait(snapshot, 0, 1, need(1), 61 * 60, NOW) == pytest.approx(120 * 60)
    assert expected_wait(snapshot, 0, 1, need(2), 30 * 60, NOW) == pytest.approx(120 * 60)


def test_what_a_pool_does_not_have_has_no_wait():
    snapshot = build_snapshot(one_pool(gpus=2, jobs=[]), {})
    assert expected_wait(snapshot, 0, 1, need(3), 60, NOW) is None
    assert expected_wait(snapshot, 0, 1, need(1, cpus=10**6), 60, NOW) is None


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 3))
def test_an_array_takes_about_the_time_that_its_tasks_take_together(tasks, units):
    cpu = Track(12, 0.0)
    place(None, cpu, need(0, units), 10.0, 0.0, tasks)
    done = cpu.tail(12)
    ideal = -(-tasks // (12 // units)) * 10.0
    assert ideal <= done <= 1.3 * ideal + 20.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 3)), min_size=1, max_size=400))
def test_a_frozen_timeline_is_short_and_never_promises_too_much(ends):
    total = sum(units for _, units in ends)
    track = Track.occupied(total, [(float(end), units) for end, units in ends], 0.0)
    line = track.freeze()
    assert len(line.times) <= 64
    assert sum(line.counts) == total
    assert list(line.times) == sorted(line.times)
    thawed = Track.thaw(line)
    for units in (1, total // 2 or 1, total):
        assert thawed.tail(units) >= track.tail(units)
    assert thawed.tail(total) == track.tail(total)
    assert thawed.tail(total + 1) == inf


@settings(deadline=None, max_examples=300)
@given(jobs, st.integers(0, 5), st.integers(1, 9), st.integers(1, 90), st.integers(0, 200))
def test_a_wait_is_read_off_a_timeline_as_it_would_be_scheduled(queue, gpus, cpus, run_s, now):
    gpu, cpu = Track(4, 0.0), Track(8, 0.0)
    for units, cores, m in queue:
        place(gpu if units else None, cpu, need(units, cores), float(m), 0.0)
    snapshot = build_snapshot(one_pool(gpus=4, jobs=[]), {})
    tiers = len(snapshot.tiers)
    snapshot = msgspec.structs.replace(
        snapshot, gpu_timelines={0: (gpu.freeze(),) * tiers}, cpu_timelines={0: (cpu.freeze(),) * tiers}
    )
    begins = start_on(Track.thaw(gpu.freeze()), Track.thaw(cpu.freeze()), need(gpus, cpus), float(run_s), float(now))
    wait = expected_wait(snapshot, 0, 1, need(gpus, cpus), float(run_s), float(now))
    assert wait == (None if begins == inf else begins - now)
