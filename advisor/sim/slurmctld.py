"""Slurm's two schedulers, step by step as slurmctld goes: the main one and backfill (`Scheduler.backfill="slurm"`).

The main scheduler gives up a partition, with all its nodes, at the first job that cannot start there. Backfill keeps a
table of time slots, each with the nodes that no reservation holds in it, and finds for every job and partition when
and where it could start. Slurm reckons in whole seconds here, and so does this. What the rules are, and where they
were found to matter, stands in docs/truth.md.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.sim.compiled import compiled, entry
from advisor.sim.placing import capped, fits, move_up, room_anywhere, start_chosen
from advisor.sim.slots import NEVER, book, open_throughout, overlaps, slot
from advisor.sim.state import (
    CPUS,
    GPUS,
    HEAD,
    PASSES,
    RESERVED,
    RUNNING,
    TAIL,
    Flags,
    Floats,
    Ints,
    Jobs,
    Machine,
    Rules,
    State,
)


@compiled
def main_pass(m: Machine, jobs: Jobs, s: State, rules: Rules, now: float) -> None:
    """The quick scheduler, which follows submissions and ends."""
    s.counters[RESERVED] = 0
    s.counters[PASSES] += 1
    head, last = s.counters[HEAD], min(s.counters[TAIL], s.counters[HEAD] + rules.depth)
    failed = np.zeros(len(m.partition), dtype=np.bool_)  # by partition
    shut = np.zeros(len(m.size), dtype=np.bool_)
    usable = np.zeros(len(m.size), dtype=np.bool_)
    kept, i = head, head
    while i < last:
        job = s.queue[i]
        started = False
        if not capped(jobs, s, job):
            k = 0
            while k < jobs.options.shape[1] and jobs.options[job, k] >= 0 and not started:
                first, partition = k, m.partition[jobs.options[job, k]]
                k = _nodes_of_partition(m, jobs, job, k, usable)
                if failed[partition]:
                    continue
                for node in range(len(usable)):
                    usable[node] = usable[node] and not shut[node]
                started = _start(m, jobs, s, rules, job, first, usable, now)
                if not started:
                    failed[partition] = True
                    _shut_partition(m, partition, shut)
        if not started:
            s.queue[kept] = job
            kept += 1
        i += 1
        if shut.all():
            break
    move_up(s, head, kept, i)


@compiled
def backfill_pass(m: Machine, jobs: Jobs, s: State, rules: Rules, now: float) -> int:
    """Backfill, which comes by itself: whoever delays nobody's reservation may start. Returns how many did."""
    s.counters[RESERVED] = 0
    s.counters[PASSES] += 1
    head, last = s.counters[HEAD], min(s.counters[TAIL], s.counters[HEAD] + rules.depth)
    grain = rules.resolution_s
    # Slots of time in order, two more for each reservation; `open_nodes` are those without a reservation.
    begins = np.empty(2 * rules.reservations + 3)
    ends = np.empty(2 * rules.reservations + 3)
    open_nodes = np.ones((2 * rules.reservations + 3, len(m.size)), dtype=np.bool_)
    begins[0] = math.floor(now / grain) * grain
    ends[0] = math.floor((math.floor(now) + rules.horizon_s) / grain) * grain
    slots = 1
    usable = np.zeros(len(m.size), dtype=np.bool_)
    kept, i, roomy = head, head, head
    _sort_running(jobs, s)
    while i < last:
        # What is free only shrinks during a pass: where nobody from here on has room, nobody starts any more.
        roomy = max(roomy, i)
        while roomy < last and not room_anywhere(jobs.options, jobs.need, s.place_free, jobs.nodes, s.queue[roomy]):
            roomy += 1
        if roomy == last:
            break
        job = s.queue[i]
        started = False
        if not capped(jobs, s, job):
            k = 0
            while k < jobs.options.shape[1] and jobs.options[job, k] >= 0 and not started:
                first = k
                k = _nodes_of_partition(m, jobs, job, k, usable)
                time = _earliest(m, jobs, s, rules, job, usable, begins, ends, open_nodes, slots, math.floor(now))
                if time == NEVER:
                    continue
                if time <= now:
                    # Which of the nodes without a reservation it gets is decided as for the main scheduler.
                    started = _start(m, jobs, s, rules, job, first, usable, now)
                    _sort_running(jobs, s)
                elif slots < len(begins) - 2:
                    begin, end = slot(rules, time, jobs.limit[job])
                    slots = book(m, jobs, s, job, begin, end, grain, begins, ends, open_nodes, slots)
                    if math.isnan(s.promised[job]):
                        s.promised[job] = time
        if not started:
            s.queue[kept] = job
            kept += 1
        i += 1
    move_up(s, head, kept, i)
    return int(i - kept)


@compiled
def _nodes_of_partition(m: Machine, jobs: Jobs, job: int, k: int, usable: Flags) -> int:
    """Marks the nodes of the partition of the k-th option that the job may use; returns the next partition's option."""
    usable[:] = False
    partition = m.partition[jobs.options[job, k]]
    while k < jobs.options.shape[1] and jobs.options[job, k] >= 0 and m.partition[jobs.options[job, k]] == partition:
        place = jobs.options[job, k]
        for q in range(m.place_first[place], m.place_first[place + 1]):
            usable[m.place_nodes[q]] = True
        k += 1
    return k


@compiled
def _shut_partition(m: Machine, partition: int, shut: Flags) -> None:
    for place in range(len(m.partition)):
        if m.partition[place] == partition:
            for q in range(m.place_first[place], m.place_first[place + 1]):
                shut[m.place_nodes[q]] = True


@compiled
def _start(m: Machine, jobs: Jobs, s: State, rules: Rules, job: int, first: int, usable: Flags, now: float) -> bool:
    """Starts the job on usable nodes, if there are enough; `first` is the first option of their partition."""
    if not _choose(m, jobs, rules, s.free, s.chosen, job, usable):
        return False
    for k in range(first, jobs.options.shape[1]):
        place = jobs.options[job, k]
        for q in range(m.place_first[place], m.place_first[place + 1]):
            if m.place_nodes[q] == s.chosen[0]:
                start_chosen(m, jobs, s, job, place, now)
                return True
    return False


@compiled
def _choose(m: Machine, jobs: Jobs, rules: Rules, free: Ints, chosen: Ints, job: int, usable: Flags) -> bool:
    """Whether enough usable nodes have room; those that Slurm takes go into `chosen`.

    Of the runs of neighbouring nodes with room it takes the narrowest that is wide enough, so that wide gaps stay
    whole, and for the last node the narrowest of the run; where no run is wide enough, the widest, and goes on with
    the rest.
    """
    wanted, found, n = jobs.nodes[job], 0, len(usable)
    taken = np.zeros(n, dtype=np.bool_)
    while found < wanted:
        best, length, width = -1, 0, 0
        begin, here = -1, 0
        for node in range(n + 1):
            if node < n and usable[node] and not taken[node] and _has_room(m, jobs, free, job, node):
                begin, here = (node, 0) if begin < 0 else (begin, here)
                here += _width(jobs, rules, free, job, node)
            elif begin >= 0:
                enough, had_enough = node - begin >= wanted - found, length >= wanted - found
                if best < 0 or (enough and (not had_enough or here < width)) or (not had_enough and here > width):
                    best, length, width = begin, node - begin, here
                begin = -1
        if best < 0:
            return False
        first, last = best, best + min(length, wanted - found)
        if wanted - found == 1:
            for node in range(best, best + length):
                if _width(jobs, rules, free, job, node) < _width(jobs, rules, free, job, first):
                    first = node
            last = first + 1
        for node in range(first, last):
            chosen[found] = node
            taken[node] = True
            found += 1
    return True


@entry
def nodes_taken(m: Machine, jobs: Jobs, rules: Rules, free: Ints, chosen: Ints, job: int, usable: Flags) -> bool:
    """The same, for who wants to know it of one job."""
    return _choose(m, jobs, rules, free, chosen, job, usable)


@compiled
def _width(jobs: Jobs, rules: Rules, free: Ints, job: int, node: int) -> int:
    """The CPUs that Slurm reckons the job could use on a node: what it asked for; before 24.11 as often as it fits."""
    asked = max(jobs.need[job, CPUS], 1)
    if rules.since_24_11 or jobs.need[job, GPUS] > 0:
        return int(asked)
    return int(free[node, CPUS] // asked * asked)


@compiled
def _has_room(m: Machine, jobs: Jobs, free: Ints, job: int, node: int) -> bool:
    if not fits(jobs.need[job], free, node):
        return False
    return bool(not jobs.exclusive[job] or fits(m.size[node], free, node))


@compiled
def _earliest(
    m: Machine,
    jobs: Jobs,
    s: State,
    rules: Rules,
    job: int,
    usable: Flags,
    begins: Floats,
    ends: Floats,
    open_nodes: Flags,
    slots: int,
    clock: float,
) -> float:
    """When the job could start on these nodes beside all reservations; NEVER: not in the time that backfill looks at.

    If now, `usable` is left with the nodes that it may take, else its nodes are in `chosen`.
    """
    of_partition = usable.copy()
    limit = jobs.limit[job]
    later = clock
    while True:
        start, later = later, NEVER
        if start > ends[slots - 1]:
            return NEVER
        usable[:] = of_partition
        later = open_throughout(rules, usable, of_partition, begins, ends, open_nodes, slots, start, start + limit)
        time = NEVER
        if usable.sum() >= jobs.nodes[job]:
            time = _will_run(m, jobs, s, rules, job, usable, start, later, clock)
        if time == NEVER:
            if later == NEVER:
                return NEVER
            continue
        time = max(time, start)
        if time <= clock:
            return time
        begin, end = slot(rules, time, limit)
        # The two tests came in the other order before 24.11, which can end with another slot being tried next.
        if rules.since_24_11 and overlaps(jobs, s, job, begins, ends, open_nodes, slots, begin, end):
            later = time
        elif later != NEVER and time > later:
            continue
        elif time > clock + rules.horizon_s:
            return NEVER
        elif not rules.since_24_11 and overlaps(jobs, s, job, begins, ends, open_nodes, slots, begin, end):
            later = time
        else:
            return time


@compiled
def _will_run(
    m: Machine, jobs: Jobs, s: State, rules: Rules, job: int, usable: Flags, start: float, later: float, clock: float
) -> float:
    """When the job could start on these nodes by the limits of the jobs that run there; its nodes go into `chosen`.

    Slurm takes running jobs off their nodes in groups and tests after each: those that end within a window, which
    doubles from 30 s on. Whether a group goes on is asked of the next running job wherever that runs, so that a job
    elsewhere can lead to one that ends much later.
    """
    newer = rules.since_24_11
    if not (newer and start > clock) and _choose(m, jobs, rules, s.free, s.chosen, job, usable):
        return clock
    s.then[:] = s.free
    running, count = s.running, s.counters[RUNNING]
    i = 0
    if newer:
        while i < count and _planned_end(jobs, s, running[i]) < start:
            _take_off(m, jobs, s, running[i], usable)
            i += 1
        if _choose(m, jobs, rules, s.then, s.chosen, job, usable):
            return clock
    window, bound = rules.window_s, NEVER
    while i < count:
        last = NEVER
        while i < count:
            other = running[i]
            end = _planned_end(jobs, s, other)
            if newer and later != NEVER and end > later:
                count = i
                break
            i += 1
            if not _take_off(m, jobs, s, other, usable):
                continue
            if bound == NEVER:
                bound = (math.floor(end / window) + 1) * window
            last = end
            if i < count and _planned_end(jobs, s, running[i]) > bound + window:
                break
        if last == NEVER:
            break
        if _choose(m, jobs, rules, s.then, s.chosen, job, usable):
            return max(last, clock + 1.0)
        window *= 2
        while i < count and _planned_end(jobs, s, running[i]) > bound + window:
            window *= 2
    return NEVER


@compiled
def _planned_end(jobs: Jobs, s: State, job: int) -> float:
    return float(math.floor(s.start[job]) + jobs.limit[job])


@compiled
def _sort_running(jobs: Jobs, s: State) -> None:
    """By the second in which they end, then by submission; they stand nearly so already."""
    running = s.running
    for i in range(1, s.counters[RUNNING]):
        job, end = running[i], _planned_end(jobs, s, running[i])
        k = i
        while k > 0:
            before = _planned_end(jobs, s, running[k - 1])
            if before < end or (before == end and running[k - 1] < job):
                break
            running[k] = running[k - 1]
            k -= 1
        running[k] = job


@compiled
def _take_off(m: Machine, jobs: Jobs, s: State, job: int, usable: Flags) -> bool:
    """Gives what a running job holds back to `then`; whether any of its nodes is usable."""
    touches = False
    for k in range(jobs.slot_first[job], jobs.slot_first[job + 1]):
        node = s.slots[k]
        if usable[node]:
            touches = True
            for r in range(s.then.shape[1]):
                s.then[node, r] += m.size[node, r] if jobs.exclusive[job] else jobs.need[job, r]
    return touches
