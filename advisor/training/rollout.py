"""The simulator that training uses, compiled: pools, the policy inside, and forks.

Jobs take units of a pool in the order of submission, so a job's start and end are settled when it is placed, and a
decision costs microseconds; what comes out is checked in the real simulator. `episode` forks the run at chosen
decisions: each of the job's places is forced in turn and the same jobs follow, placed by the same policy, so that the
difference between two forks is the decision's own doing and nothing else's.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.policy.learned.shapes import CANDIDATE_FEATURES, Floats, Ints
from advisor.sim.expecting import give_units
from advisor.training.compiled_forward import (
    ALONE,
    MOMENT_HIGH,
    MOMENT_LOW,
    POOL_HIGH,
    POOL_LOW,
    RANGE_HIGH,
    RANGE_LOW,
    embed_topology,
    remember,
    residuals,
    value,
    within,
)
from advisor.training.machine_code import inner, machine_code
from advisor.training.observed import RAW, in_use, see_moment, see_places, timeline
from advisor.training.world import (
    AFTER,
    ASKED,
    BELIEF,
    BELIEF_SPREAD,
    BEST_FOR,
    BEST_WORK,
    COUNT,
    END,
    EXPECTED,
    FAMILIAR,
    GAP_FAST,
    GAP_SLOW,
    GRAPH,
    LAST_SUBMIT,
    LAST_TICK,
    LIMIT,
    LOG_RUN,
    LOG_RUN_SQUARED,
    NEW,
    RUN,
    SENSITIVITY,
    SLOW,
    SLOWER,
    SPREAD,
    START,
    SUBMIT,
    TRUE,
    WORK,
    State,
    World,
    copied,
)

# Submissions between two looks at the whole cluster: what a poll is in the daemon.
EVERY = 8
# What a fork adds up.
AVG_JCT, P99, MAKESPAN, FAIRNESS = range(4)
FEATURES = len(CANDIDATE_FEATURES)


@inner
def look(world: World, s: State, w: Floats, job: int, now: float) -> None:
    """A poll: the pools' features as they are now, the cluster's moment, and what the network makes of both."""
    pools = len(world.units)
    usual = s.usual
    run_s = max(usual[RUN], 1e-9)
    rate = 1.0 / max(usual[GAP_SLOW], 1e-9) if usual[GAP_SLOW] > 0 else 0.0
    busy, in_all, waits, queued, believed = 0.0, 0.0, 0.0, 0.0, 0.0
    for p in range(pools):
        n = float(world.units[p])
        timeline(world, s, p, now)
        wait = s.line[0] - now
        used, waiting = in_use(world, s, p, now)
        row = s.pools[p]
        row[0], row[1], row[2] = world.figures[p, 0], world.figures[p, 1], world.figures[p, 2]
        row[3] = math.log(n / 8.0)
        row[4] = used / n
        row[5] = math.log1p(wait / run_s)
        row[6] = math.log1p(waiting / n)
        row[7] = s.by_pool[p, SLOWER]
        row[8] = s.by_pool[p, BEST_FOR]
        row[9] = math.log1p(rate * s.by_pool[p, BEST_WORK] / n)
        row[10] = world.pair[job, p, BELIEF]
        row[11] = world.pair[job, p, BELIEF_SPREAD]
        busy += used
        in_all += n
        waits += n * wait
        queued += waiting
        believed += row[10] / pools
    moments = s.moments
    for t in range(moments.shape[0] - 1):
        moments[t] = moments[t + 1]
    moment = moments[moments.shape[0] - 1]
    moment[0] = math.log1p(rate * usual[WORK] / in_all)
    moment[1] = busy / in_all
    moment[2] = math.log1p(waits / in_all / run_s)
    moment[3] = math.log1p(queued / in_all)
    moment[4] = math.log(usual[GAP_SLOW] / usual[GAP_FAST]) if usual[GAP_FAST] > 0 else 0.0
    moment[5] = math.log1p((now - usual[LAST_TICK]) / run_s) if usual[COUNT] > 0 else 0.0
    moment[6] = math.sqrt(max(usual[LOG_RUN_SQUARED] - usual[LOG_RUN] ** 2, 0.0))
    moment[7] = believed
    if w[ALONE] == RAW:
        see_moment(moment)
    usual[LAST_TICK] = now
    usual[FAMILIAR] = 1.0 if within(w, MOMENT_LOW, MOMENT_HIGH, moment) else 0.0
    for p in range(pools):
        if not within(w, POOL_LOW, POOL_HIGH, s.pools[p]):
            usual[FAMILIAR] = 0.0
    remember(w, moments, s.memory)
    embed_topology(w, s.pools, world.sources, world.targets, world.edges, moment, s.topology)


@inner
def note(world: World, s: State, job: int, now: float) -> None:
    """Folds a submission into the running averages; the first few count as a plain mean."""
    usual = s.usual
    count = usual[COUNT]
    best, where = math.inf, 0
    for p in range(len(world.units)):
        if world.pair[job, p, EXPECTED] < best:
            best, where = world.pair[job, p, EXPECTED], p
    asked = world.job[job, ASKED]
    slow = 1.0 / min(count + 1.0, 64.0)
    if count > 0:
        gap = max(now - usual[LAST_SUBMIT], 1e-3)
        usual[GAP_SLOW] += (gap - usual[GAP_SLOW]) / min(count, 64.0)
        usual[GAP_FAST] += (gap - usual[GAP_FAST]) / min(count, 8.0)
    usual[LAST_SUBMIT] = now
    usual[RUN] += slow * (best - usual[RUN])
    usual[LOG_RUN] += slow * (math.log(best) - usual[LOG_RUN])
    usual[LOG_RUN_SQUARED] += slow * (math.log(best) ** 2 - usual[LOG_RUN_SQUARED])
    usual[WORK] += slow * (best * asked - usual[WORK])
    usual[COUNT] = count + 1
    for p in range(len(world.units)):
        row = s.by_pool[p]
        ratio = min(world.pair[job, p, EXPECTED] / best, 20.0)
        row[SLOWER] += slow * (math.log(ratio) - row[SLOWER])
        row[BEST_FOR] += slow * ((1.0 if p == where else 0.0) - row[BEST_FOR])
        row[BEST_WORK] += slow * ((best * asked if p == where else 0.0) - row[BEST_WORK])


@inner
def _ready(world: World, s: State, job: int, now: float) -> float:
    """When the jobs that it waits for are expected to have ended."""
    ready = now
    for k in range(world.parents.shape[1]):
        parent = world.parents[job, k]
        if parent >= 0 and s.times[parent, END] > now:
            ready = max(ready, s.times[parent, START] + world.pair[parent, s.place[parent], EXPECTED])
    return ready


@inner
def describe(world: World, s: State, job: int, now: float, table: Floats) -> None:
    """For each pool: wait, run time (inf: cannot), then the candidate's features."""
    pools = len(world.units)
    asked = int(world.job[job, ASKED])
    ready = _ready(world, s, job, now)
    best_run, first, first_at = math.inf, math.inf, 0
    for p in range(pools):
        table[p, 1] = world.pair[job, p, EXPECTED]
        if not math.isfinite(table[p, 1]):
            continue
        timeline(world, s, p, now)
        table[p, 0] = max(s.line[asked - 1], ready) - now
        best_run = min(best_run, table[p, 1])
        if table[p, 0] + table[p, 1] < first:
            first, first_at = table[p, 0] + table[p, 1], p
    usual = max(s.usual[RUN], 1e-9) if s.usual[COUNT] > 0 else best_run
    for p in range(pools):
        wait, run_s = table[p, 0], table[p, 1]
        if not math.isfinite(run_s):
            continue
        row = table[p, 2:]
        row[0] = math.log1p(wait / best_run)
        row[1] = math.log(run_s / best_run)
        row[2] = math.log1p(wait / usual)
        row[3] = math.log(run_s / usual)
        row[4] = row[1] - s.by_pool[p, SLOWER]
        row[5] = math.log((wait + run_s) / first)
        row[6] = 1.0 if p == first_at else 0.0
        row[7] = world.pair[job, p, SPREAD]
        row[8] = math.log(world.pair[job, p, SLOW])
        row[9] = world.pair[job, p, BELIEF] * world.job[job, SENSITIVITY]
        row[10] = world.pair[job, p, BELIEF_SPREAD] * world.job[job, SENSITIVITY]
        row[11] = asked / world.units[p]
        row[12] = math.log1p((world.units[p] - in_use(world, s, p, now)[0]) / asked)
        row[13] = math.log1p(world.job[job, AFTER] / best_run)
        row[14] = world.job[job, NEW]
        row[15] = math.log1p(world.job[job, LIMIT] / best_run)


@inner
def score(world: World, s: State, w: Floats, job: int, table: Floats, learned: bool, out: Floats) -> int:
    """Expected finish in each pool as the network corrects it, inf where it cannot run; the least's index."""
    best = 0
    both = np.zeros(2)
    if w[ALONE] == RAW:
        see_places(world, s, job, s.usual[LAST_SUBMIT], table)
    # What the network was not trained for is left to the arithmetic.
    asked = learned and s.usual[FAMILIAR] > 0.0
    for p in range(len(world.units)):
        if math.isfinite(table[p, 1]) and not within(w, RANGE_LOW, RANGE_HIGH, table[p, 2:]):
            asked = False
    for p in range(len(world.units)):
        out[p] = math.inf
        if math.isfinite(table[p, 1]):
            if asked:
                residuals(w, table[p, 2:], FEATURES, s.topology, p, s.memory, world.job[job, GRAPH:], both)
                if w[ALONE] > 0.0:
                    out[p] = world.scale * (math.exp(3.0 * both[0]) + math.exp(3.0 * both[1]))
                else:
                    out[p] = table[p, 0] * math.exp(both[0]) + table[p, 1] * math.exp(both[1])
            else:
                out[p] = table[p, 0] + table[p, 1]
        if out[p] < out[best]:
            best = p
    return best


@inner
def send(world: World, s: State, job: int, pool: int, now: float) -> None:
    """Places the job; its start and end are settled by what was placed before."""
    ready = now
    for k in range(world.parents.shape[1]):
        if world.parents[job, k] >= 0:
            ready = max(ready, s.times[world.parents[job, k], END])
    n, asked = world.units[pool], int(world.job[job, ASKED])
    start = give_units(s.free[pool], n, asked, ready, world.pair[job, pool, TRUE])
    s.times[job, START] = start
    s.times[job, END] = start + world.pair[job, pool, TRUE]
    s.place[job] = pool
    s.active[pool, s.held[pool]] = job
    s.held[pool] += 1


@inner
def _cost(world: World, s: State, first: int, last: int, objective: int, tail: float) -> float:
    """What the jobs from first to last cost, in usual run times; jobs before them are not touched by a later one.

    `tail`: how much more a job costs the longer it is in the system, as its square in usual times there.
    """
    total, latest = 0.0, 0.0
    for j in range(first, last + 1):
        seconds = s.times[j, END] - world.job[j, SUBMIT]
        latest = max(latest, s.times[j, END])
        by_usual = seconds / world.usual
        if objective == FAIRNESS:
            best = math.inf
            for p in range(len(world.units)):
                best = min(best, world.pair[j, p, TRUE])
            by_usual = seconds / best
            seconds = by_usual * world.scale
        if objective == P99:
            # The long ones count: a smooth stand-in for the tail.
            total += world.usual / world.scale * by_usual**3 / 9.0
        else:
            total += seconds / world.scale * (1.0 + tail * by_usual**2)
    return float(latest / world.scale if objective == MAKESPAN else total)


@machine_code
def weigh(world: World, s: State, w: Floats, job: int, now: float, learned: bool, table: Floats, found: Floats) -> int:
    """Where the policy would send the job; and, written to `table` and `found`, what `describe` and `score` tell."""
    if learned and job % EVERY == 0:
        look(world, s, w, job, now)
    describe(world, s, job, now, table)
    note(world, s, job, now)
    return score(world, s, w, job, table, learned, found)


@machine_code
def decide(world: World, s: State, w: Floats, job: int, now: float, learned: bool) -> int:
    """Where the policy would send the job."""
    pools = len(world.units)
    return weigh(world, s, w, job, now, learned, np.zeros((pools, 2 + FEATURES)), np.zeros(pools))


@machine_code
def expected_start(world: World, s: State, job: int, pool: int, now: float) -> float:
    """When the job would start in the pool."""
    timeline(world, s, pool, now)
    return float(max(s.line[int(world.job[job, ASKED]) - 1], _ready(world, s, job, now)))


@machine_code
def roll_on(world: World, s: State, w: Floats, first: int, last: int, learned: bool) -> None:
    """Places these jobs by the policy's first choice."""
    for job in range(first, last + 1):
        now = world.job[job, SUBMIT]
        send(world, s, job, decide(world, s, w, job, now, learned), now)


@machine_code
def episode(
    world: World,
    s: State,
    w: Floats,
    fork_at: Ints,  # ascending jobs
    horizon: int,
    objective: int,
    tail: float,
    rolling: bool,  # forks go on with the network; else with the arithmetic
    temperature: float,  # 0: the first choice; else by softmax
    uniform: Floats,  # [job] what chance decides by
    bootstrap: float,  # how much the critic's word on a fork's last state counts
    out_table: Floats,  # [fork, pool, 2 + features]
    out_cost: Floats,  # [fork, pool], inf where it cannot run
    out_pools: Floats,  # [fork, pool, pool features]
    out_moments: Floats,  # [fork, tick, global features]
) -> None:
    """Places the whole workload, forking where told."""
    pools, jobs = len(world.units), len(world.job)
    table, found = np.zeros((pools, 2 + FEATURES)), np.zeros(pools)
    fork = 0
    for job in range(jobs):
        now = world.job[job, SUBMIT]
        if job % EVERY == 0:
            look(world, s, w, job, now)
        describe(world, s, job, now, table)
        note(world, s, job, now)
        choice = score(world, s, w, job, table, True, found)
        if fork < len(fork_at) and fork_at[fork] == job:
            last = min(job + horizon, jobs - 1)
            for p in range(pools):
                out_cost[fork, p] = math.inf
                if math.isfinite(found[p]):
                    other = copied(s)
                    send(world, other, job, p, now)
                    roll_on(world, other, w, job + 1, last, rolling)
                    out_cost[fork, p] = _cost(world, other, job, last, objective, tail)
                    if bootstrap > 0.0 and last < jobs - 1:
                        look(world, other, w, last, world.job[last, SUBMIT])
                        out_cost[fork, p] += bootstrap * value(w, other.topology, other.memory)
            out_table[fork] = table
            out_pools[fork] = s.pools
            out_moments[fork] = s.moments
            fork += 1
        if temperature > 0.0:
            least = found[choice]
            total = 0.0
            for p in range(pools):
                total += math.exp((least - found[p]) / (temperature * least))
            left = uniform[job] * total
            for p in range(pools):
                if math.isfinite(found[p]):
                    choice = p
                    left -= math.exp((least - found[p]) / (temperature * least))
                    if left <= 0.0:
                        break
        send(world, s, job, choice, now)
