"""When the tasks of a job array start, and in which of several pools: each where it is free first, as Slurm does it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from advisor.performance.demand import Need
from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import expected_wait

# So many groups of tasks are followed one by one; the rest start at the rate at which the pools then take them.
MAX_STEPS = 64


class Way(NamedTuple):
    """A pool in which a task may start."""

    pool: int
    priority_tier: int
    need: Need  # of one task
    run_s: float  # of one task, in this pool


class Spread(NamedTuple):
    """What becomes of an array over its ways."""

    wait_s: float  # mean over the tasks
    tasks: tuple[int, ...]  # that start by each way


def mean_wait(snapshot: Snapshot, way: Way, now: float, tasks: int) -> float | None:
    """Seconds until a job can start, or the tasks of an array on average; None where the pool is too small."""
    if tasks == 1:
        return expected_wait(snapshot, way.pool, way.priority_tier, way.need, way.run_s, now)
    found = spread(snapshot, [way], now, tasks)
    return found.wait_s if found is not None else None


def spread(snapshot: Snapshot, ways: Sequence[Way], now: float, tasks: int) -> Spread | None:
    """How `tasks` tasks share themselves out among the ways; None where none of them has room for one."""
    slots: list[tuple[float, int, int]] = []  # when, by which way, how many tasks can start then
    for number, way in enumerate(ways):
        slots += ((time, number, many) for time, many in _slots(snapshot, way, now, tasks))
    if not slots:
        return None
    heapify(slots)
    started = [0] * len(ways)
    waited, left = 0.0, tasks
    for _ in range(MAX_STEPS):
        time, number, many = heappop(slots)
        begun = min(many, left)
        started[number] += begun
        waited += begun * (time - now)
        left -= begun
        if not left:
            return Spread(waited / tasks, tuple(started))
        heappush(slots, (time + ways[number].run_s, number, many))
    rates = [sum(many for _, by, many in slots if by == number) / way.run_s for number, way in enumerate(ways)]
    waited += left * (slots[0][0] - now + left / (2 * sum(rates)))
    for number, rate in enumerate(rates):
        started[number] += round(left * rate / sum(rates))
    return Spread(waited / tasks, tuple(started))


def _slots(snapshot: Snapshot, way: Way, now: float, tasks: int) -> list[tuple[float, int]]:
    """When a pool could start tasks, and how many each time, until it has room for all of them side by side."""
    wait = expected_wait(snapshot, way.pool, way.priority_tier, way.need, way.run_s, now)
    if wait is None:
        return []
    tier = snapshot.tier_index(way.priority_tier)
    lines, units = (snapshot.gpu_timelines, way.need.gpus) if way.need.gpus else (snapshot.cpu_timelines, way.need.cpus)
    line = lines[way.pool][tier]
    found: list[tuple[float, int]] = []
    room = 0
    for time, free in zip(line.times, line.cumulative, strict=True):
        now_room = min(free // units, tasks)
        if now_room > room:
            found.append((max(time, now + wait), now_room - room))
            room = now_room
        if room == tasks:
            break
    # A hole between others' reservations lets the first one start before any room is there for good.
    if found[0][0] > now + wait:
        first, many = found[0]
        found[:1] = [(now + wait, 1), *([(first, many - 1)] if many > 1 else [])]
    return found
