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
from advisor.sim.placing import (
    account,
    capped,
    enqueue,
    find_now,
    move_up,
    pop_end,
    refused,
    reserve,
    room,
    room_anywhere,
    start_chosen,
)
from advisor.sim.slurmctld import backfill_pass, main_pass
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
    SLURM,
    TAIL,
    Flags,
    Jobs,
    Machine,
    Rules,
    State,
)


@compiled
def _hold(m: Machine, jobs: Jobs, s: State, rules: Rules, job: int, now: float, taken: Flags) -> None:
    """Gives a job that cannot start its reservation, where the rules grant one."""
    best, where = math.inf, -1
    if jobs.options.shape[1] == 1 or jobs.options[job, 1] < 0:
        place = jobs.options[job, 0]
        if not (rules.backfill == EASY and taken[place]):
            reserve(m, jobs, s, job, place, now, True)
            taken[place] = True
        return
    for k in range(jobs.options.shape[1]):
        place = jobs.options[job, k]
        if place < 0:
            break
        if rules.backfill == EASY and taken[place]:
            continue
        time = reserve(m, jobs, s, job, place, now, False)
        if time < best:
            best, where = time, place
    if where >= 0 and s.counters[RESERVED] < len(s.reserved_job):
        reserve(m, jobs, s, job, where, now, True)
        taken[where] = True


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
    closed = np.zeros(len(m.size), dtype=np.bool_)
    most = len(s.reserved_job)
    # Looked at for every job of the queue, so they are kept at hand (see `advisor.sim.placing` on passing tuples).
    options, need, nodes, place_free, queue = jobs.options, jobs.need, jobs.nodes, s.place_free, s.queue
    array, counters, limit = jobs.array, s.counters, jobs.limit
    s.refusals[:] = 0
    i = head
    kept = head
    roomy = head
    while i < last:
        job = queue[i]
        started = False
        open_place = False
        held_back = array[job] >= 0 and capped(jobs, s, job)
        if not held_back:
            for k in range(options.shape[1]):
                place = options[job, k]
                if place < 0:
                    break
                if backfill == CONSERVATIVE or not taken[place]:
                    open_place = True
                elif backfill == FIFO:
                    continue
                if not room(need, place_free, nodes[job], job, place):
                    continue
                if refused(jobs.need, nodes, limit, s.refused, s.refusals[place], job, place):
                    continue
                if find_now(m, jobs, s, job, place, now):
                    start_chosen(m, jobs, s, job, place, now)
                    started = True
                    break
                if not jobs.exclusive[job]:
                    s.refused[place, s.refusals[place] % s.refused.shape[1]] = job
                    s.refusals[place] += 1
        if not started:
            queue[kept] = job
            kept += 1
            # What is free only shrinks during a pass: where nobody behind has room, nothing more can start,
            # and there is no need to work out reservations.
            roomy = max(roomy, i + 1)
            while roomy < last and not room_anywhere(options, need, place_free, nodes, queue[roomy]):
                roomy += 1
            if roomy == last:
                i += 1
                break
            if open_place and backfill == FIFO:
                _close(m, jobs, job, taken, closed)
            elif open_place and counters[RESERVED] < most:
                _hold(m, jobs, s, rules, job, now, taken)
            elif backfill == CONSERVATIVE and not held_back:
                i += 1
                break
        i += 1
    move_up(s, head, kept, i)


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
                    and not capped(jobs, s, job)
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
    """When backfill comes by itself: an interval after it last came, if something has changed since.

    Where nothing has, it looks again every second until something does; Slurm notes changes by the second, also those
    that its schedulers make to jobs that wait.
    """
    interval, coming = rules.backfill_interval_s, s.clock[NEXT_BACKFILL]
    notes = rules.backfill == SLURM and s.counters[TAIL] > s.counters[HEAD] and s.counters[HEAP] > 0
    if s.clock[CHANGED] < math.floor(coming - interval) and not notes:
        return math.inf
    recorded = np.searchsorted(rules.backfills, coming - interval + 1e-6)
    if recorded < len(rules.backfills):
        return float(max(s.clock[NOW], rules.backfills[recorded]))
    return float(coming + max(0.0, math.ceil(s.clock[CHANGED] - coming)))


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
        if rules.backfill_interval_s > 0:
            tick = _next_backfill(s, rules)
        coming = min(time, tick, due if s.counters[DIRTY] > 0 else math.inf)
        if rules.until < coming < math.inf:
            s.clock[NOW] = max(s.clock[NOW], rules.until)
            return -2
        if tick < time and not (s.counters[DIRTY] > 0 and due <= tick):
            s.clock[NOW] = tick
            s.clock[NEXT_BACKFILL] = tick + rules.backfill_interval_s
            if rules.backfill == SLURM:
                started = backfill_pass(m, jobs, s, rules, tick)
                s.clock[NEXT_BACKFILL] += started * rules.backfill_start_s
            else:
                _pass(m, jobs, s, rules, rules.backfill, tick)
            continue
        if s.counters[DIRTY] > 0 and due < time:
            s.clock[NOW] = due
            s.clock[LAST_PASS] = due
            s.counters[DIRTY] = 0
            if rules.decide == SHORTEST_FIRST:
                _shortest_pass(m, jobs, s, due)
            elif s.counters[TAIL] == s.counters[HEAD]:
                pass
            elif rules.backfill == SLURM:
                main_pass(m, jobs, s, rules, due)
                if rules.backfill_interval_s == 0:
                    backfill_pass(m, jobs, s, rules, due)
            else:
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
