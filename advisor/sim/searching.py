"""The oracle's inner loop, compiled: decodes sequences of jobs into schedules, and improves them by small moves.

A sequence for each group of places that share nodes gives the order in which its jobs start; each starts as soon as its
nodes are free after the one before it. Every schedule can be written like that. Moves put a job elsewhere in
its sequence or into another place, or exchange two; simulated annealing decides which are kept.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from advisor.sim.compiled import compiled, entry
from advisor.sim.state import RESOURCES, Floats, Ints, Jobs, Machine

# What is to be least.
AVERAGE, MAKESPAN, P99 = 0, 1, 2
# The weight of the average beside makespan or p99, so that a move which helps neither yet still has a direction.
BESIDE = 0.02


class Search(NamedTuple):
    """Sequences, and the schedule that they give."""

    group: Ints  # [place] which sequence its jobs are in
    sequence: Ints  # [group, position] jobs
    length: Ints  # [group]
    position: Ints  # [job] in its sequence
    place: Ints  # [job]
    start: Floats
    end: Floats
    array_of: Ints  # [job] -1, or the number of its array if that has a limit
    before_first: Ints  # jobs that must end before job j: before[before_first[j]:before_first[j + 1]]
    before: Ints
    # Scratch.
    free: Ints  # [node, resource]
    chosen: Ints
    heap_time: Floats
    heap_job: Ints
    slots: Ints  # nodes of each job, as in `Jobs.slot_first`
    array_running: Ints


@compiled
def _push(times: Floats, heap: Ints, count: int, time: float, job: int) -> int:
    i = count
    while i > 0:
        parent = (i - 1) // 2
        if times[parent] <= time:
            break
        times[i], heap[i] = times[parent], heap[parent]
        i = parent
    times[i], heap[i] = time, job
    return count + 1


@compiled
def _pop(times: Floats, heap: Ints, count: int) -> int:
    n = count - 1
    time, job = times[n], heap[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and times[child + 1] < times[child]:
            child += 1
        if time <= times[child]:
            break
        times[i], heap[i] = times[child], heap[child]
        i = child
    times[i], heap[i] = time, job
    return n


@compiled
def _fit(m: Machine, jobs: Jobs, q: Search, job: int) -> bool:
    """Whether the place has the job's nodes now; they are then in `chosen`."""
    wanted, found = jobs.nodes[job], 0
    place = q.place[job]
    for z in range(m.place_first[place], m.place_first[place + 1]):
        node = m.place_nodes[z]
        fits = True
        for r in range(RESOURCES):
            left = q.free[node, r]
            if left < jobs.need[job, r] or (jobs.exclusive[job] and left < m.size[node, r]):
                fits = False
                break
        if fits:
            q.chosen[found] = node
            found += 1
            if found == wanted:
                return True
    return False


@compiled
def _take(m: Machine, jobs: Jobs, q: Search, job: int, sign: int) -> None:
    for z in range(jobs.slot_first[job], jobs.slot_first[job + 1]):
        node = q.slots[z]
        for r in range(RESOURCES):
            q.free[node, r] -= sign * (m.size[node, r] if jobs.exclusive[job] else jobs.need[job, r])


@compiled
def decode(m: Machine, jobs: Jobs, q: Search, group: int) -> None:
    """Works out starts and ends of one sequence."""
    count, now = 0, -math.inf
    for place in range(len(m.place_first) - 1):
        if q.group[place] == group:
            for z in range(m.place_first[place], m.place_first[place + 1]):
                node = m.place_nodes[z]
                for r in range(RESOURCES):
                    q.free[node, r] = m.size[node, r]
    if len(q.array_running):
        q.array_running[:] = 0
    for i in range(q.length[group]):
        job = q.sequence[group, i]
        now = max(now, jobs.submit[job])
        for z in range(q.before_first[job], q.before_first[job + 1]):
            now = max(now, q.end[q.before[z]])
        array = q.array_of[job]
        while True:
            while count > 0 and q.heap_time[0] <= now:
                ended = q.heap_job[0]
                count = _pop(q.heap_time, q.heap_job, count)
                _take(m, jobs, q, ended, -1)
                if q.array_of[ended] >= 0:
                    q.array_running[q.array_of[ended]] -= 1
            if (array < 0 or q.array_running[array] < jobs.array_limit[jobs.array[job]]) and _fit(m, jobs, q, job):
                break
            now = q.heap_time[0]
        q.start[job] = now
        q.end[job] = now + jobs.run[job, q.place[job]]
        for k in range(jobs.nodes[job]):
            q.slots[jobs.slot_first[job] + k] = q.chosen[k]
        _take(m, jobs, q, job, 1)
        if array >= 0:
            q.array_running[array] += 1
        count = _push(q.heap_time, q.heap_job, count, q.end[job], job)


@compiled
def _value(jobs: Jobs, q: Search, objective: int) -> float:
    n = len(q.end)
    average = 0.0
    for j in range(n):
        average += q.end[j] - jobs.submit[j]
    average /= n
    if objective == AVERAGE:
        return float(average)
    if objective == MAKESPAN:
        return float(q.end.max() - jobs.submit.min() + BESIDE * average)
    at = math.ceil(0.99 * (n - 1))
    jct = np.sort(q.end - jobs.submit)
    # The few above it count a little, so that they do not drift to the end of time.
    return float(jct[at] + BESIDE * average)


@compiled
def _out(q: Search, group: int, at: int) -> int:
    job = q.sequence[group, at]
    for i in range(at, q.length[group] - 1):
        q.sequence[group, i] = q.sequence[group, i + 1]
        q.position[q.sequence[group, i]] = i
    q.length[group] -= 1
    return int(job)


@compiled
def _in(q: Search, group: int, at: int, job: int) -> None:
    for i in range(q.length[group], at, -1):
        q.sequence[group, i] = q.sequence[group, i - 1]
        q.position[q.sequence[group, i]] = i
    q.sequence[group, at] = job
    q.position[job] = at
    q.length[group] += 1


@compiled
def _near(q: Search, group: int, time: float) -> int:
    """The position in a sequence at which jobs start around some time."""
    low, high = 0, q.length[group]
    while low < high:
        middle = (low + high) // 2
        if q.start[q.sequence[group, middle]] < time:
            low = middle + 1
        else:
            high = middle
    return int(low)


@compiled
def _possible(jobs: Jobs, job: int) -> Ints:
    return np.flatnonzero(np.isfinite(jobs.run[job])).astype(np.int64)


@entry
def evaluate(m: Machine, jobs: Jobs, q: Search, objective: int) -> float:
    """The objective of the sequences as they are."""
    for group in range(len(q.length)):
        decode(m, jobs, q, group)
    return float(_value(jobs, q, objective))


@compiled
def _ordered(q: Search, group: int) -> bool:
    """Whether nobody stands before a job that must end first."""
    for i in range(q.length[group]):
        job = q.sequence[group, i]
        for z in range(q.before_first[job], q.before_first[job + 1]):
            if q.position[q.before[z]] > i:
                return False
    return True


@entry
def anneal(m: Machine, jobs: Jobs, q: Search, objective: int, moves: int, seed: int, hot: float, cold: float) -> float:
    """Tries so many moves from the present sequences; leaves the best ones it has seen, and gives their objective.

    `hot`, `cold`: temperatures at the start and the end, in parts of the objective.
    """
    np.random.seed(seed)
    n = len(q.end)
    now = evaluate(m, jobs, q, objective)
    best = now
    kept_sequence, kept_length, kept_place = q.sequence.copy(), q.length.copy(), q.place.copy()
    depends = len(q.before) > 0
    old_start, old_end = q.start.copy(), q.end.copy()
    for move in range(moves):
        temperature = now * hot * (cold / hot) ** (move / moves)
        job = np.random.randint(n)
        place, at = q.place[job], q.position[job]
        group = q.group[place]
        other, other_place, other_group, other_at = -1, place, group, 0
        if np.random.random() < 0.6:
            choices = _possible(jobs, job)
            other_place = choices[np.random.randint(len(choices))]
            other_group = q.group[other_place]
            around = _near(q, other_group, q.start[job])
            _out(q, group, at)
            most = q.length[other_group]
            if np.random.random() < 0.5:
                to = min(max(around + np.random.randint(-4, 5), 0), most)
            else:
                to = np.random.randint(most + 1)
            _in(q, other_group, to, job)
            q.place[job] = other_place
        else:
            other = np.random.randint(n)
            other_place, other_at = q.place[other], q.position[other]
            other_group = q.group[other_place]
            if (
                other == job
                or not math.isfinite(jobs.run[job, other_place])
                or not math.isfinite(jobs.run[other, place])
            ):
                continue
            q.sequence[group, at], q.sequence[other_group, other_at] = other, job
            q.position[job], q.position[other] = other_at, at
            q.place[job], q.place[other] = other_place, place
        good = not depends or _ordered(q, group)
        value = math.inf
        if good:
            old_start[:], old_end[:] = q.start, q.end
            decode(m, jobs, q, group)
            if other_group != group:
                decode(m, jobs, q, other_group)
            value = _value(jobs, q, objective)
        if value <= now or np.random.random() < math.exp((now - value) / temperature):
            now = value
            if now < best:
                best = now
                kept_sequence[:], kept_length[:], kept_place[:] = q.sequence, q.length, q.place
            continue
        if other >= 0:
            q.sequence[group, at], q.sequence[other_group, other_at] = job, other
            q.position[job], q.position[other] = at, other_at
            q.place[job], q.place[other] = place, other_place
        else:
            _out(q, other_group, q.position[job])
            _in(q, group, at, job)
            q.place[job] = place
        if good:
            q.start[:], q.end[:] = old_start, old_end
    q.sequence[:], q.length[:], q.place[:] = kept_sequence, kept_length, kept_place
    for group in range(len(q.length)):
        for i in range(q.length[group]):
            q.position[q.sequence[group, i]] = i
    return evaluate(m, jobs, q, objective)
