"""Earliest expected finish at submission, compiled: list scheduling of what runs and waits ahead in each place.

The same arithmetic as `advisor.policy`'s earliest-finish policy on the daemon's snapshot; a test holds the two
together.
"""

from __future__ import annotations

import math

from advisor.sim.compiled import compiled
from advisor.sim.state import (
    CPUS,
    GPUS,
    HEAD,
    RUNNING,
    TAIL,
    Floats,
    Jobs,
    Machine,
    State,
)


@compiled
def give_units(units: Floats, n: int, wanted: int, not_before: float, seconds: float) -> float:
    """Books the first `wanted` of n sorted unit times; the start. The order stays sorted."""
    start = max(not_before, units[wanted - 1])
    end = start + seconds
    # Merge: the units behind move up, the booked ones go in where their end belongs.
    k = wanted
    while k < n and units[k] < end:
        units[k - wanted] = units[k]
        k += 1
    for z in range(k - wanted, k):
        units[z] = end
    return float(start)


@compiled
def expected_start(m: Machine, jobs: Jobs, s: State, job: int, place: int, now: float) -> float:
    """When the job would start in the place if everything ahead takes what is expected of it.

    List scheduling over units (GPUs where the job asks for any, else CPUs): first what runs there,
    then what waits ahead for this place, in order.
    """
    unit = GPUS if jobs.need[job, GPUS] > 0 else CPUS
    n = 0
    for q in range(m.place_first[place], m.place_first[place + 1]):
        n += m.size[m.place_nodes[q], unit]
    for k in range(n):
        s.units[k] = now
    for i in range(s.counters[RUNNING]):
        other = s.running[i]
        if s.place[other] == place:
            wanted = jobs.nodes[other] * jobs.need[other, unit]
            left = s.start[other] + jobs.expected[other, place] - now
            if 0 < wanted <= n:
                give_units(s.units, n, wanted, now, max(left, 0.0))
    for i in range(s.counters[HEAD], s.counters[TAIL]):
        other = s.queue[i]
        if jobs.priority[other] < jobs.priority[job]:
            break
        wanted = jobs.nodes[other] * jobs.need[other, unit]
        if jobs.options[other, 0] == place and 0 < wanted <= n and other != job:
            give_units(s.units, n, wanted, now, jobs.expected[other, place])
    wanted = jobs.nodes[job] * jobs.need[job, unit]
    return float(s.units[wanted - 1])


@compiled
def choose_earliest_finish(m: Machine, jobs: Jobs, s: State, job: int, now: float) -> int:
    """Of the job's options, the one with the earliest expected finish; the first of equals."""
    best, where = math.inf, -1
    for k in range(jobs.options.shape[1]):
        place = jobs.options[job, k]
        if place < 0:
            break
        if not math.isfinite(jobs.run[job, place]):
            continue
        finish = expected_start(m, jobs, s, job, place, now) + jobs.expected[job, place]
        if finish < best:
            best, where = finish, place
    return int(where)
