"""The simulator's inner loop, compiled: events in order of time, and after each the scheduler's pass.

A pass goes through the pending jobs in order. A job that cannot start gets a reservation at the
earliest time the users' limits allow (EASY: the first such job of each place; conservative: all);
later jobs may start only where they leave every reservation as it is.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.sim.compiled import compiled, entry
from advisor.sim.expecting import choose_earliest_finish
from advisor.sim.placing import account, enqueue, find_now, pop_end, reserve, start_chosen, tightest
from advisor.sim.state import (
    CHANGED,
    CONSERVATIVE,
    CPUS,
    DIRTY,
    DIRTY_SINCE,
    EARLIEST_FINISH,
    EASY,
    ENDED,
    FIFO,
    HEAD,
    HEAP,
    LAST_PASS,
    NEXT_BACKFILL,
    NEXT_SUBMIT,
    NOW,
    PASSES,
    RESERVED,
    RUNNING,
    SHORTEST_FIRST,
    TAIL,
    Flags,
    Ints,
    Jobs,
    Machine,
    Rules,
    State,
)


@compiled
def _capped(jobs: Jobs, s: State, job: int) -> bool:
    array = jobs.array[job]
    return bool(array >= 0 and 0 < jobs.array_limit[array] <= s.array_running[array])


@compiled
def _hold(m: Machine, jobs: Jobs, s: State, rules: Rules, job: int, now: float, taken: Flags) -> None:
    """Gives a job that cannot start its reservation, where the rules grant one."""
    best, where = math.inf, -1
    if jobs.options.shape[1] == 1 or jobs.options[job, 1] < 0:
        place = jobs.options[job, 0]
        if not (rules.backfill == EASY and taken[place]):
            reserve(m, jobs, s, job, place, now, rules, True)
            taken[place] = True
        return
    for k in range(jobs.options.shape[1]):
        place = jobs.options[job, k]
        if place < 0:
            break
        # In Slurm, one for each partition that the job names.
        if rules.whole_nodes and where >= 0 and m.partition[place] != m.partition[where]:
            if s.counters[RESERVED] < len(s.reserved_job):
                reserve(m, jobs, s, job, where, now, rules, True)
            best, where = math.inf, -1
        if rules.backfill == EASY and taken[place]:
            continue
        time = reserve(m, jobs, s, job, place, now, rules, False)
        if time < best:
            best, where = time, place
    if where >= 0 and s.counters[RESERVED] < len(s.reserved_job):
        reserve(m, jobs, s, job, where, now, rules, True)
        taken[where] = True


@compiled
def _room(need: Ints, place_free: Ints, nodes: int, job: int, place: int) -> bool:
    """Whether the place as a whole has what the job needs; its nodes one by one may still not."""
    return bool(
        nodes * need[job, 0] <= place_free[place, 0]
        and nodes * need[job, 1] <= place_free[place, 1]
        and nodes * need[job, 2] <= place_free[place, 2]
    )


@compiled
def _room_anywhere(options: Ints, need: Ints, place_free: Ints, nodes: Ints, job: int) -> bool:
    for k in range(options.shape[1]):
        if options[job, k] < 0:
            break
        if _room(need, place_free, nodes[job], job, options[job, k]):
            return True
    return False


@compiled
def _several_kinds(options: Ints, partition: Ints, job: int, k: int) -> bool:
    """Whether the k-th place of a job is the first of several of one partition."""
    here = partition[options[job, k]]
    if k + 1 == options.shape[1] or options[job, k + 1] < 0 or partition[options[job, k + 1]] != here:
        return False
    return bool(k == 0 or partition[options[job, k - 1]] != here)


@compiled
def _pass(m: Machine, jobs: Jobs, s: State, rules: Rules, backfill: int, now: float) -> None:
    """One run of the scheduler over the queue, with one of the ways to overtake."""
    s.counters[RESERVED] = 0
    s.counters[PASSES] += 1
    if not s.free[:, CPUS].any():
        return
    head, tail = s.counters[HEAD], s.counters[TAIL]
    n_places = len(m.place_first) - 1
    last = min(tail, head + rules.depth)
    taken = np.zeros(n_places, dtype=np.bool_)
    nowhere = np.zeros(n_places, dtype=np.bool_)
    closed = np.zeros(len(m.size), dtype=np.bool_)
    most = len(s.reserved_job)
    # Looked at for every job of the queue, so they are kept at hand (see `advisor.sim.placing` on passing tuples).
    options, need, nodes, place_free, queue = jobs.options, jobs.need, jobs.nodes, s.place_free, s.queue
    array, counters = jobs.array, s.counters
    i = head
    kept = head
    roomy = head
    while i < last:
        job = queue[i]
        started = False
        open_place = False
        capped = array[job] >= 0 and _capped(jobs, s, job)
        if not capped:
            for k in range(options.shape[1]):
                place = options[job, k]
                if place < 0:
                    break
                several = rules.whole_nodes and nodes[job] == 1 and _several_kinds(options, m.partition, job, k)
                if backfill != CONSERVATIVE and taken[place]:
                    if backfill == FIFO and not several:
                        continue
                else:
                    open_place = True
                if several:
                    place = tightest(m, jobs, s, job, k, now, taken if backfill == FIFO else nowhere)
                    if place < 0:
                        continue
                if _room(need, place_free, nodes[job], job, place) and find_now(m, jobs, s, job, place, now):
                    start_chosen(m, jobs, s, job, place, now)
                    started = True
                    break
        if not started:
            queue[kept] = job
            kept += 1
            # What is free only shrinks during a pass: where nobody behind has room, nothing more can start,
            # and there is no need to work out reservations.
            roomy = max(roomy, i + 1)
            while roomy < last and not _room_anywhere(options, need, place_free, nodes, queue[roomy]):
                roomy += 1
            if roomy == last:
                i += 1
                break
            if open_place and backfill == FIFO:
                _close(m, jobs, job, taken, closed)
            elif open_place and counters[RESERVED] < most:
                _hold(m, jobs, s, rules, job, now, taken)
            elif backfill == CONSERVATIVE and not capped:
                i += 1
                break
        i += 1
    # The survivors move up against the untouched rest, so a pass costs what it looked at.
    moved = i - kept
    if moved > 0:
        for k in range(kept - 1, head - 1, -1):
            s.queue[k + moved] = s.queue[k]
        s.counters[HEAD] = head + moved


@compiled
def _close(m: Machine, jobs: Jobs, job: int, taken: Flags, closed: Flags) -> None:
    """Without backfill nobody passes a waiting job in its places, nor in places that share their nodes."""
    for k in range(jobs.options.shape[1]):
        place = jobs.options[job, k]
        if place < 0:
            break
        for q in range(m.place_first[place], m.place_first[place + 1]):
            node = m.place_nodes[q]
            if not closed[node]:
                closed[node] = True
                for z in range(m.node_first[node], m.node_first[node + 1]):
                    taken[m.node_places[z]] = True


@compiled
def _shortest_pass(m: Machine, jobs: Jobs, s: State, now: float) -> None:
    """Fills what is free, always with the pending job and place that promise the shortest run."""
    s.counters[RESERVED] = 0
    s.counters[PASSES] += 1
    while True:
        best, at, where = math.inf, -1, -1
        for place in range(len(m.place_first) - 1):
            if s.place_free[place, CPUS] == 0:
                continue
            for i in range(s.counters[HEAD], s.counters[TAIL]):
                job = s.queue[i]
                if (
                    jobs.expected[job, place] < best
                    and not _capped(jobs, s, job)
                    and find_now(m, jobs, s, job, place, now)
                ):
                    best, at, where = jobs.expected[job, place], i, place
        if at < 0:
            return
        job = s.queue[at]
        find_now(m, jobs, s, job, where, now)
        start_chosen(m, jobs, s, job, where, now)
        for k in range(at, s.counters[HEAD], -1):
            s.queue[k] = s.queue[k - 1]
        s.counters[HEAD] += 1


@compiled
def _finish(m: Machine, jobs: Jobs, s: State, job: int) -> None:
    account(m, jobs, s, job, 1)
    i = 0
    while s.running[i] != job:
        i += 1
    n = s.counters[RUNNING] - 1
    s.counters[RUNNING] = n
    for k in range(i, n):
        s.running[k] = s.running[k + 1]
    s.counters[ENDED] += 1
    if jobs.array[job] >= 0:
        s.array_running[jobs.array[job]] -= 1
    for k in range(jobs.follower_first[job], jobs.follower_first[job + 1]):
        other = jobs.followers[k]
        s.waits_for[other] -= 1
        if s.waits_for[other] == 0 and other < s.counters[NEXT_SUBMIT]:
            enqueue(s.counters, s.queue, jobs.priority, other)


@entry
def submit(jobs: Jobs, s: State, job: int) -> None:
    """Lets a decided job into the queue, or leaves it to its dependencies."""
    s.counters[NEXT_SUBMIT] = job + 1
    if s.waits_for[job] == 0:
        enqueue(s.counters, s.queue, jobs.priority, job)


@compiled
def _next_pass(s: State, rules: Rules) -> float:
    """When the next pass comes after what happened."""
    recorded = np.searchsorted(rules.passes, s.clock[DIRTY_SINCE])
    if recorded < len(rules.passes):
        return float(max(s.clock[NOW], rules.passes[recorded]))
    due = max(s.clock[DIRTY_SINCE] + rules.latency_s, s.clock[LAST_PASS] + rules.cycle_s)
    if rules.beat_s > 0:
        due = max(s.clock[DIRTY_SINCE], s.clock[LAST_PASS] + rules.cycle_s) - rules.latency_s
        # A pass that came with a beat is not a bit past it.
        due = math.ceil(due / rules.beat_s - 1e-9) * rules.beat_s + rules.latency_s
    return float(max(s.clock[NOW], due))


@compiled
def _next_backfill(s: State, rules: Rules) -> float:
    """When backfill comes by itself: on its beat, and only after something has changed since it last came."""
    interval, coming = rules.backfill_interval_s, s.clock[NEXT_BACKFILL]
    if s.clock[CHANGED] < coming - interval:
        return math.inf
    recorded = np.searchsorted(rules.backfills, max(s.clock[NOW], coming - interval + 1e-6))
    if recorded < len(rules.backfills):
        return float(rules.backfills[recorded])
    if coming < s.clock[NOW]:
        coming += math.ceil((s.clock[NOW] - coming) / interval) * interval
    return float(coming)


@entry
def run(m: Machine, jobs: Jobs, s: State, rules: Rules) -> int:
    """Runs until all is done (-1), with `callback` until a submission must be decided (its job), or `until` (-2)."""
    n_jobs = len(jobs.submit)
    while True:
        arriving = s.counters[NEXT_SUBMIT]
        time_submit = jobs.submit[arriving] if arriving < n_jobs else math.inf
        time_end = s.heap_time[0] if s.counters[HEAP] > 0 else math.inf
        time = min(time_submit, time_end)
        # What happened since the last pass waits for the next one, which comes a cycle later at the earliest.
        due = _next_pass(s, rules)
        tick = math.inf
        if rules.backfill_interval_s > 0 and s.counters[TAIL] > s.counters[HEAD]:
            tick = _next_backfill(s, rules)
        coming = min(time, tick, due if s.counters[DIRTY] > 0 else math.inf)
        if rules.until < coming < math.inf:
            s.clock[NOW] = max(s.clock[NOW], rules.until)
            return -2
        if tick < time and not (s.counters[DIRTY] > 0 and due <= tick):
            s.clock[NOW] = tick
            s.clock[NEXT_BACKFILL] = tick + rules.backfill_interval_s
            _pass(m, jobs, s, rules, rules.backfill, tick)
            continue
        if s.counters[DIRTY] > 0 and due < time:
            s.clock[NOW] = due
            s.clock[LAST_PASS] = due
            s.counters[DIRTY] = 0
            if rules.decide == SHORTEST_FIRST:
                _shortest_pass(m, jobs, s, due)
            elif s.counters[TAIL] > s.counters[HEAD]:
                _pass(m, jobs, s, rules, FIFO if rules.backfill_interval_s > 0 else rules.backfill, due)
            continue
        if time == math.inf:
            return -1
        s.clock[NOW] = max(time, s.clock[NOW])
        s.clock[CHANGED] = s.clock[NOW]
        if s.counters[DIRTY] == 0:
            s.counters[DIRTY] = 1
            s.clock[DIRTY_SINCE] = s.clock[NOW]
        if time_end <= time_submit:
            _finish(m, jobs, s, pop_end(s.counters, s.heap_time, s.heap_job))
            continue
        if rules.callback:
            return int(arriving)
        if rules.decide == EARLIEST_FINISH:
            jobs.options[arriving, 0] = choose_earliest_finish(m, jobs, s, arriving, time)
            if jobs.options.shape[1] > 1:
                jobs.options[arriving, 1] = -1
        submit(jobs, s, arriving)
