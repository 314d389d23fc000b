"""What is in the pools at one moment: when their units come free, what runs and what waits.

Also what a black box is shown of it, to compare with: plain observations, of which the network has to find out by
itself what they mean for a wait or a finish.
"""

from __future__ import annotations

import math

from advisor.policy.learned.shapes import COUNTERS, Floats
from advisor.sim.expecting import give_units
from advisor.training.machine_code import inner
from advisor.training.world import (
    AFTER,
    ASKED,
    COUNTER,
    END,
    EXPECTED,
    LIMIT,
    NEW,
    SENSITIVITY,
    SLOW,
    SPREAD,
    START,
    State,
    World,
)

# What `Weights.alone` says of a network that sees nothing but this.
RAW = 2.0


@inner
def timeline(world: World, s: State, pool: int, now: float) -> None:
    """Into `s.line`: when the pool's units come free if everything ahead takes what is expected of it."""
    n = world.units[pool]
    line = s.line
    for k in range(n):
        line[k] = now
    kept = 0
    for i in range(s.held[pool]):
        job = s.active[pool, i]
        if s.times[job, END] <= now:
            continue
        s.active[pool, kept] = job
        kept += 1
        seconds = world.pair[job, pool, EXPECTED]
        if s.times[job, START] <= now:
            seconds = max(s.times[job, START] + seconds - now, 0.0)
        give_units(line, n, int(world.job[job, ASKED]), now, seconds)
    s.held[pool] = kept


@inner
def in_use(world: World, s: State, pool: int, now: float) -> tuple[float, float]:
    """Units of running jobs, and jobs that wait."""
    used, waiting = 0.0, 0.0
    for i in range(s.held[pool]):
        job = s.active[pool, i]
        if s.times[job, START] > now:
            waiting += 1.0
        elif s.times[job, END] > now:
            used += world.job[job, ASKED]
    return used, waiting


@inner
def see_places(world: World, s: State, job: int, now: float, table: Floats) -> None:
    """In place of the candidates' features: the processors' figures, what is in use, who waits, the counters as they
    are read, what the log says of the app's run time there, and what the job asks for. Nothing is set against anything.
    """
    for p in range(len(world.units)):
        if not math.isfinite(table[p, 1]):
            continue
        used, waiting = in_use(world, s, p, now)
        row = table[p, 2:]
        row[0], row[1], row[2] = world.figures[p, 0], world.figures[p, 1], world.figures[p, 2]
        row[3] = math.log(world.units[p] / 8.0)
        row[4] = used / world.units[p]
        row[5] = math.log1p(waiting)
        row[6] = math.log1p(world.job[job, AFTER] / 3600.0)
        for k in range(COUNTERS):
            row[7 + k] = world.pair[job, p, COUNTER + k]
        row[10] = math.log(world.pair[job, p, EXPECTED] / world.pair[job, p, SLOW] / 1800.0)
        row[11] = world.job[job, ASKED] / 4.0
        row[12] = math.log1p(world.job[job, LIMIT] / 3600.0)
        row[13] = world.job[job, SENSITIVITY]
        row[14] = world.job[job, NEW]
        row[15] = world.pair[job, p, SPREAD]


@inner
def see_moment(moment: Floats) -> None:
    """Of the whole cluster: what is in use, who waits, how long ago the last look was, and the counters' mean."""
    moment[0], moment[2], moment[4], moment[6] = 0.0, 0.0, 0.0, 0.0
