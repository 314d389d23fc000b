"""Where and when a job can start, compiled: nodes now, reservations later, and the books of both.

Everything here works on the arrays of `advisor.sim.state`; `advisor.sim.core` calls it for each job of a pass.
"""

from __future__ import annotations

import math

from advisor.sim.compiled import compiled
from advisor.sim.state import (
    CPUS,
    GPUS,
    HEAD,
    HEAP,
    RESERVED,
    RESOURCES,
    RUNNING,
    TAIL,
    Floats,
    Ints,
    Jobs,
    Machine,
    State,
)


@compiled
def push_end(counters: Ints, times: Floats, heap: Ints, time: float, job: int) -> None:
    """Adds a true end to the heap: earliest first, then the earlier job."""
    i = counters[HEAP]
    counters[HEAP] = i + 1
    while i > 0:
        parent = (i - 1) // 2
        if times[parent] < time or (times[parent] == time and heap[parent] < job):
            break
        times[i], heap[i] = times[parent], heap[parent]
        i = parent
    times[i], heap[i] = time, job


@compiled
def pop_end(counters: Ints, times: Floats, heap: Ints) -> int:
    """Takes the job that ends next off the heap."""
    first = heap[0]
    n = counters[HEAP] - 1
    counters[HEAP] = n
    time, job = times[n], heap[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and (
            times[child + 1] < times[child] or (times[child + 1] == times[child] and heap[child + 1] < heap[child])
        ):
            child += 1
        if time < times[child] or (time == times[child] and job < heap[child]):
            break
        times[i], heap[i] = times[child], heap[child]
        i = child
    times[i], heap[i] = time, job
    return int(first)


@compiled
def enqueue(counters: Ints, queue: Ints, priority: Floats, job: int) -> None:
    """Puts an eligible job into the queue: higher priority first, then the order of submission."""
    i = counters[TAIL]
    counters[TAIL] = i + 1
    while i > counters[HEAD]:
        other = queue[i - 1]
        if priority[other] > priority[job] or (priority[other] == priority[job] and other < job):
            break
        queue[i] = other
        i -= 1
    queue[i] = job


@compiled
def capped(jobs: Jobs, s: State, job: int) -> bool:
    """Whether as many tasks of the job's array run as may."""
    array = jobs.array[job]
    return bool(array >= 0 and 0 < jobs.array_limit[array] <= s.array_running[array])


@compiled
def room(need: Ints, place_free: Ints, nodes: int, job: int, place: int) -> bool:
    """Whether the place as a whole has what the job needs; its nodes one by one may still not."""
    return bool(
        nodes * need[job, 0] <= place_free[place, 0]
        and nodes * need[job, 1] <= place_free[place, 1]
        and nodes * need[job, 2] <= place_free[place, 2]
    )


@compiled
def room_anywhere(options: Ints, need: Ints, place_free: Ints, nodes: Ints, job: int) -> bool:
    """Whether any of the job's places as a whole has what it needs."""
    for k in range(options.shape[1]):
        if options[job, k] < 0:
            break
        if room(need, place_free, nodes[job], job, options[job, k]):
            return True
    return False


@compiled
def move_up(s: State, head: int, kept: int, seen: int) -> None:
    """Of the queue from head to seen, those up to kept still wait: they move up, so a pass costs what it looked at."""
    moved = seen - kept
    if moved > 0:
        for k in range(kept - 1, head - 1, -1):
            s.queue[k + moved] = s.queue[k]
        s.counters[HEAD] = head + moved


# More units than any place has.
UNBOUNDED = 1 << 40


# Small functions take the arrays they read, not the tuples that hold them: passing a tuple counts a
# reference for each of its arrays, which costs more than the work.
@compiled
def fits(need: Ints, free: Ints, node: int) -> bool:
    """Whether a node has this much of everything."""
    return bool(need[0] <= free[node, 0] and need[1] <= free[node, 1] and need[2] <= free[node, 2])


@compiled
def _spares(need: Ints, starts: Floats, count: int, spare: Ints, node: int, begin: float, end: float) -> bool:
    """Whether these needs on this node from begin to end leave every reservation that starts in between as it is."""
    for r in range(count):  # noqa: SIM110 - numba has no all()
        if begin <= starts[r] < end and not fits(need, spare[r], node):
            return False
    return True


@compiled
def _change(table: Ints, row: int, need: Ints, sign: int) -> None:
    for k in range(RESOURCES):
        table[row, k] += sign * need[k]


@compiled
def refused(need: Ints, nodes: Ints, limit: Floats, table: Ints, count: int, job: int, place: int) -> bool:
    """Whether a job that wants no more, for no longer, found no nodes in the place in this pass: nor will this one.

    During a pass nodes only fill up, and reservations only become more.
    """
    for k in range(min(count, table.shape[1])):
        other = table[place, k]
        if (
            nodes[other] <= nodes[job]
            and limit[other] <= limit[job]
            and need[other, 0] <= need[job, 0]
            and need[other, 1] <= need[job, 1]
            and need[other, 2] <= need[job, 2]
        ):
            return True
    return False


@compiled
def account(m: Machine, jobs: Jobs, s: State, job: int, sign: int) -> None:
    """Takes (sign -1) or gives back (+1) what a job holds on its nodes."""
    need = jobs.need[job]
    for k in range(jobs.slot_first[job], jobs.slot_first[job + 1]):
        node = s.slots[k]
        if jobs.exclusive[job]:
            need = m.size[node]
        _change(s.free, node, need, sign)
        for q in range(m.node_first[node], m.node_first[node + 1]):
            _change(s.place_free, m.node_places[q], need, sign)


@compiled
def find_now(m: Machine, jobs: Jobs, s: State, job: int, place: int, now: float) -> bool:
    """Whether the place takes the job now and every reservation stays as it is; the nodes go into `chosen`."""
    if not math.isfinite(jobs.run[job, place]):
        return False
    wanted = jobs.nodes[job]
    need = jobs.need[job]
    whole = jobs.exclusive[job]
    free, size, nodes, chosen = s.free, m.size, m.place_nodes, s.chosen
    starts, count, spare = s.reserved_start, s.counters[RESERVED], s.spare
    end = now + jobs.limit[job]
    found = 0
    for q in range(m.place_first[place], m.place_first[place + 1]):
        node = nodes[q]
        if whole:
            if not fits(jobs.need[job], size, node):
                continue
            need = size[node]
        if fits(need, free, node) and _spares(need, starts, count, spare, node, now, end):
            chosen[found] = node
            found += 1
            if found == wanted:
                return True
    return False


@compiled
def start_chosen(m: Machine, jobs: Jobs, s: State, job: int, place: int, now: float) -> None:
    """Starts the job on the nodes in `chosen`."""
    first = jobs.slot_first[job]
    for k in range(jobs.nodes[job]):
        s.slots[first + k] = s.chosen[k]
    s.start[job] = now
    s.place[job] = place
    account(m, jobs, s, job, -1)
    end = now + jobs.limit[job]
    for r in range(s.counters[RESERVED]):
        if end > s.reserved_start[r]:
            _spend(m, jobs, s, job, r, jobs.exclusive[job])
    s.end[job] = now + jobs.run[job, place]
    push_end(s.counters, s.heap_time, s.heap_job, s.end[job], job)
    if jobs.array[job] >= 0:
        s.array_running[jobs.array[job]] += 1
    running, start, limit = s.running, s.start, jobs.limit
    i = s.counters[RUNNING]
    s.counters[RUNNING] = i + 1
    while i > 0 and start[running[i - 1]] + limit[running[i - 1]] > end:
        running[i] = running[i - 1]
        i -= 1
    running[i] = job


@compiled
def _spend(m: Machine, jobs: Jobs, s: State, job: int, r: int, whole: bool) -> None:
    """A reservation has less to spare on the nodes in `chosen`, which this job now holds at its start."""
    need = jobs.need[job]
    for k in range(jobs.nodes[job]):
        if whole:
            need = m.size[s.chosen[k]]
        _change(s.spare[r], s.chosen[k], need, -1)


@compiled
def _less_reserved(m: Machine, jobs: Jobs, s: State, time: float) -> None:
    """Into `left`: what the running jobs leave (`then`) less what the reservations hold at a time."""
    s.left[:] = s.then
    for r in range(s.counters[RESERVED]):
        if s.reserved_start[r] <= time < s.reserved_end[r]:
            job = s.reserved_job[r]
            need = jobs.need[job]
            for node in range(len(m.size)):
                if s.reserved_nodes[r, node]:
                    if jobs.exclusive[job]:
                        need = m.size[node]
                    _change(s.left, node, need, -1)


@compiled
def _find_then(m: Machine, jobs: Jobs, s: State, job: int, place: int, time: float) -> bool:
    """Whether the job fits in the place from a time on; the nodes, busy ones first, go into `chosen`."""
    need = jobs.need[job]
    end = time + jobs.limit[job]
    _less_reserved(m, jobs, s, time)
    free, left, spare = s.free, s.left, s.spare
    starts, count = s.reserved_start, s.counters[RESERVED]
    found = 0
    # Nodes that are free now are left to backfill as far as possible.
    for turn in range(2):
        for q in range(m.place_first[place], m.place_first[place + 1]):
            node = m.place_nodes[q]
            if jobs.exclusive[job]:
                if not fits(jobs.need[job], m.size, node):
                    continue
                need = m.size[node]
            if (
                fits(need, free, node) == (turn == 1)
                and fits(need, left, node)
                and _spares(need, starts, count, spare, node, time, end)
            ):
                s.chosen[found] = node
                found += 1
                if found == jobs.nodes[job]:
                    return True
    return False


@compiled
def _release(then: Ints, nodes: Ints, need: Ints, size: Ints, whole: bool) -> None:
    """Adds to `then` what a running job will give back on its nodes."""
    for k in range(len(nodes)):
        _change(then, nodes[k], size[nodes[k]] if whole else need, 1)


@compiled
def reserve(m: Machine, jobs: Jobs, s: State, job: int, place: int, now: float, commit: bool) -> float:
    """The earliest start of the job in the place by the users' limits; with commit, books it."""
    s.then[:] = s.free
    start, limit, running, need, nodes = s.start, jobs.limit, s.running, jobs.need, jobs.nodes
    exclusive, slots, first, then, size = jobs.exclusive, s.slots, jobs.slot_first, s.then, m.size
    # At most this much of the place is free by then; looking at its nodes one by one can wait until it would do.
    cpus, gpus = s.place_free[place, CPUS], s.place_free[place, GPUS]
    i = 0
    time = now
    while True:
        upcoming = math.inf
        if i < s.counters[RUNNING]:
            upcoming = start[running[i]] + limit[running[i]]
        for r in range(s.counters[RESERVED]):
            if time < s.reserved_end[r] < upcoming:
                upcoming = s.reserved_end[r]
        if upcoming == math.inf:
            return math.inf
        time = upcoming
        while i < s.counters[RUNNING] and start[running[i]] + limit[running[i]] <= time:
            other = running[i]
            whole = exclusive[other]
            _release(then, slots[first[other] : first[other + 1]], need[other], size, whole)
            cpus += UNBOUNDED if whole else nodes[other] * need[other, CPUS]
            gpus += UNBOUNDED if whole else nodes[other] * need[other, GPUS]
            i += 1
        if (
            nodes[job] * need[job, CPUS] <= cpus
            and nodes[job] * need[job, GPUS] <= gpus
            and _find_then(m, jobs, s, job, place, time)
        ):
            break
    if commit:
        _book(m, jobs, s, job, time)
    return float(time)


@compiled
def _book(m: Machine, jobs: Jobs, s: State, job: int, time: float) -> None:
    """Writes the reservation on the nodes in `chosen`, `then` holding what the running jobs leave by then."""
    new = s.counters[RESERVED]
    end = time + jobs.limit[job]
    s.reserved_job[new] = job
    s.reserved_start[new] = time
    s.reserved_end[new] = end
    s.reserved_nodes[new, :] = False
    for k in range(jobs.nodes[job]):
        s.reserved_nodes[new, s.chosen[k]] = True
    # Reservations made before that start while this one lasts have less to spare now.
    for r in range(new):
        if time <= s.reserved_start[r] < end:
            _spend(m, jobs, s, job, r, jobs.exclusive[job])
    s.counters[RESERVED] = new + 1
    _less_reserved(m, jobs, s, time)
    s.spare[new] = s.left
    if math.isnan(s.promised[job]):
        s.promised[job] = time
