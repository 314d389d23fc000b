"""Backfill's table of reservations: slots of time in order, each with the nodes that no reservation holds in it.

`begins[j]`, `ends[j]` and `open_nodes[j]` are slot j; `advisor.sim.slurmctld` fills the table and asks it.
"""

from __future__ import annotations

import math

from advisor.sim.compiled import compiled
from advisor.sim.state import Flags, Floats, Jobs, Machine, Rules, State

NEVER = -1.0  # instead of a time: there is none


@compiled
def open_throughout(
    rules: Rules,
    usable: Flags,
    of_partition: Flags,
    begins: Floats,
    ends: Floats,
    open_nodes: Flags,
    slots: int,
    start: float,
    end: float,
) -> float:
    """Leaves in `usable` what no reservation holds from start to end; returns when to try again if that will not do."""
    later = NEVER
    for j in range(slots):
        if ends[j] > start and j + 1 < slots and later == NEVER:
            for node in range(len(usable)):
                if of_partition[node] and open_nodes[j + 1, node] and not (usable[node] and open_nodes[j, node]):
                    later = ends[j]
                    break
        if ends[j] <= start:
            continue
        if begins[j] > end:
            if rules.since_24_11 and later == NEVER and j + 2 < slots:
                later = ends[j + 1]
            break
        for node in range(len(usable)):
            usable[node] = usable[node] and open_nodes[j, node]
    return later


@compiled
def slot(rules: Rules, time: float, limit: float) -> tuple[float, float]:
    """From when to when a reservation stands in the table: whole minutes (bf_resolution)."""
    grain = rules.resolution_s
    end = time + limit + (grain - 1.0 if rules.since_24_11 else 0.0)
    return math.floor(time / grain) * grain, math.floor(end / grain) * grain


@compiled
def overlaps(
    jobs: Jobs,
    s: State,
    job: int,
    begins: Floats,
    ends: Floats,
    open_nodes: Flags,
    slots: int,
    begin: float,
    end: float,
) -> bool:
    """Whether another reservation holds one of the `chosen` nodes between these times."""
    for j in range(slots):
        if ends[j] > begin and begins[j] < end:
            for k in range(jobs.nodes[job]):
                if not open_nodes[j, s.chosen[k]]:
                    return True
    return False


@compiled
def book(
    m: Machine,
    jobs: Jobs,
    s: State,
    job: int,
    begin: float,
    end: float,
    grain: float,
    begins: Floats,
    ends: Floats,
    open_nodes: Flags,
    slots: int,
) -> int:
    """Takes the `chosen` nodes, whole, out of the table between these times; returns how many slots it has now."""
    begin = max(begin, begins[0])
    end = max(end, begin + grain)
    j = 0
    while j < slots and ends[j] < begin:
        j += 1
    if j == slots:
        return slots
    if ends[j] > begin:
        slots = _split(begins, ends, open_nodes, slots, j, begin)
    before = j
    j += 1
    while j < slots:
        if end < ends[j]:
            slots = _split(begins, ends, open_nodes, slots, j, end)
        for k in range(jobs.nodes[job]):
            open_nodes[j, s.chosen[k]] = False
        if ends[j] == end:
            break
        j += 1
    # Slots that came out alike are joined, one pair each time, as Slurm does.
    for k in range(max(before - 1, 0), min(j + 1, slots - 1)):
        if (open_nodes[k] == open_nodes[k + 1]).all():
            ends[k] = ends[k + 1]
            for r in range(k + 1, slots - 1):
                begins[r], ends[r] = begins[r + 1], ends[r + 1]
                open_nodes[r] = open_nodes[r + 1]
            return slots - 1
    return slots


@compiled
def _split(begins: Floats, ends: Floats, open_nodes: Flags, slots: int, j: int, time: float) -> int:
    for r in range(slots, j, -1):
        begins[r], ends[r] = begins[r - 1], ends[r - 1]
        open_nodes[r] = open_nodes[r - 1]
    begins[j + 1], ends[j] = time, time
    return slots + 1
