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
    Flags,
    Floats,
    Ints,
    Jobs,
    Machine,
    Rules,
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


# More units than any place has.
UNBOUNDED = 1 << 40


# Small functions take the arrays they read, not the tuples that hold them: passing a tuple counts a
# reference for each of its arrays, which costs more than the work.
@compiled
def _fits(need: Ints, free: Ints, node: int) -> bool:
    return bool(need[0] <= free[node, 0] and need[1] <= free[node, 1] and need[2] <= free[node, 2])


@compiled
def _spares(need: Ints, starts: Floats, count: int, spare: Ints, node: int, begin: float, end: float) -> bool:
    """Whether these needs on this node from begin to end leave every reservation that starts in between as it is."""
    for r in range(count):  # noqa: SIM110 - numba has no all()
        if begin <= starts[r] < end and not _fits(need, spare[r], node):
            return False
    return True


@compiled
def _change(table: Ints, row: int, need: Ints, sign: int) -> None:
    for k in range(RESOURCES):
        table[row, k] += sign * need[k]


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
            if not _fits(jobs.need[job], size, node):
                continue
            need = size[node]
        if _fits(need, free, node) and _spares(need, starts, count, spare, node, now, end):
            chosen[found] = node
            found += 1
            if found == wanted:
                return True
    return False


@compiled
def _in_place(m: Machine, place: int, node: int) -> bool:
    for q in range(m.node_first[node], m.node_first[node + 1]):  # noqa: SIM110 - numba has no any()
        if m.node_places[q] == place:
            return True
    return False


@compiled
def tightest(m: Machine, jobs: Jobs, s: State, job: int, first: int, now: float, closed: Flags) -> int:
    """Of the places of one partition (options from `first` on), that which Slurm takes for a job of one node; -1: none.

    Slurm looks at runs of neighbouring nodes with room and takes the run with the fewest free CPUs, so that wide
    gaps stay whole. Between nodes of one kind this is the first with room; between kinds it is not.
    """
    options, need, end = jobs.options, jobs.need[job], now + jobs.limit[job]
    starts, count, spare = s.reserved_start, s.counters[RESERVED], s.spare
    partition = m.partition[options[job, first]]
    best, where = UNBOUNDED, -1
    run, begin = 0, -1
    for node in range(len(m.size) + 1):
        found = -1
        if node < len(m.size) and _fits(need, s.free, node) and _spares(need, starts, count, spare, node, now, end):
            for k in range(first, options.shape[1]):
                place = options[job, k]
                if place < 0 or m.partition[place] != partition:
                    break
                if not closed[place] and _in_place(m, place, node):
                    found = place
                    break
        if found >= 0:
            if begin < 0:
                run, begin = 0, found
            run += s.free[node, CPUS]
        elif begin >= 0:
            if run < best:
                best, where = run, begin
            begin = -1
    return int(where)


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
                    if jobs.reserves_whole[job]:
                        need = m.size[node]
                    _change(s.left, node, need, -1)


@compiled
def _find_then(m: Machine, jobs: Jobs, s: State, job: int, place: int, time: float, busy_first: bool) -> bool:
    """Whether the job fits in the place from a time on; the nodes, busy ones first or in order, go into `chosen`."""
    need = jobs.need[job]
    end = time + jobs.limit[job]
    _less_reserved(m, jobs, s, time)
    free, left, spare = s.free, s.left, s.spare
    starts, count = s.reserved_start, s.counters[RESERVED]
    found = 0
    # Nodes that are free now are left to backfill as far as possible.
    for turn in range(2 if busy_first else 1):
        for q in range(m.place_first[place], m.place_first[place + 1]):
            node = m.place_nodes[q]
            if jobs.exclusive[job]:
                if not _fits(jobs.need[job], m.size, node):
                    continue
                need = m.size[node]
            if (
                (not busy_first or _fits(need, free, node) == (turn == 1))
                and _fits(need, left, node)
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
def _ends_together(
    m: Machine, jobs: Jobs, s: State, place: int, i: int, bound: float, window: float
) -> tuple[float, float, float]:
    """The last end of the next running jobs of a place, from the i-th on, that Slurm takes off its nodes together.

    It rounds the first end up to the window, takes all that end within the window after that, and doubles the window
    each time the job still does not fit. Returns the end, that bound, and the window for the next time.
    """
    last = math.inf
    for k in range(i, s.counters[RUNNING]):
        other = s.running[k]
        if not _in_place(m, place, s.slots[jobs.slot_first[other]]):
            continue
        end = s.start[other] + jobs.limit[other]
        if bound == -math.inf:
            bound = (math.floor(end / window) + 1) * window
        if last < math.inf and end > bound + window:
            break
        while end > bound + window:
            window *= 2
        last = end
    return last, bound, window if last == math.inf else 2 * window


@compiled
def reserve(m: Machine, jobs: Jobs, s: State, job: int, place: int, now: float, rules: Rules, commit: bool) -> float:
    """The earliest start of the job in the place by the users' limits; with commit, books it."""
    window = rules.window_s
    s.then[:] = s.free
    start, limit, running, need, nodes = s.start, jobs.limit, s.running, jobs.need, jobs.nodes
    exclusive, slots, first, then, size = jobs.exclusive, s.slots, jobs.slot_first, s.then, m.size
    # At most this much of the place is free by then; looking at its nodes one by one can wait until it would do.
    cpus, gpus = s.place_free[place, CPUS], s.place_free[place, GPUS]
    i = 0
    time = now
    bound = -math.inf
    while True:
        upcoming = math.inf
        if window > 0:
            upcoming, bound, window = _ends_together(m, jobs, s, place, i, bound, window)
        elif i < s.counters[RUNNING]:
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
            and _find_then(m, jobs, s, job, place, time, window == 0)
        ):
            break
    if commit:
        _book(m, jobs, s, job, time, now, rules)
    return float(time)


@compiled
def _book(m: Machine, jobs: Jobs, s: State, job: int, time: float, now: float, rules: Rules) -> None:
    """Writes the reservation on the nodes in `chosen`, `then` holding what the running jobs leave by then."""
    new = s.counters[RESERVED]
    end = time + jobs.limit[job]
    promised = time
    grain = rules.resolution_s
    if grain > 0:
        time = max(now, math.floor(time / grain) * grain)
        steps = math.ceil(end / grain) if rules.resolution_up else math.floor(end / grain)
        end = max(steps * grain, time + grain)
    s.reserved_job[new] = job
    s.reserved_start[new] = time
    s.reserved_end[new] = end
    s.reserved_nodes[new, :] = False
    for k in range(jobs.nodes[job]):
        s.reserved_nodes[new, s.chosen[k]] = True
    # Reservations made before that start while this one lasts have less to spare now.
    for r in range(new):
        if time <= s.reserved_start[r] < end:
            _spend(m, jobs, s, job, r, jobs.reserves_whole[job])
    s.counters[RESERVED] = new + 1
    _less_reserved(m, jobs, s, time)
    s.spare[new] = s.left
    if math.isnan(s.promised[job]):
        s.promised[job] = promised
