"""The best schedule we can find with everything known: every run time, and every submission that is still to come.

For small workloads: a search over the orders and places of all jobs, from the best of the rules' schedules on. What
it finds can be reached (nothing is preempted, no resource given twice), and `advisor.sim.bound` tells how far below
it anything could be. Where all jobs are there from the start and take one unit each, the least average is a matching
and exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from advisor.sim.bound import Objective, Work, lower_bound, matched_average
from advisor.sim.engine import Engine, Schedule
from advisor.sim.heuristics import run_heuristic
from advisor.sim.state import RESOURCES, Floats, Ints

if TYPE_CHECKING:
    from advisor.sim.searching import Search

# Beyond this many jobs a search from a rule's schedule no longer gets far.
MOST_JOBS = 2000
# Moves that are tried for each job, and in how many turns: each starts from the best so far.
MOVES_PER_JOB, TURNS = 1500, 3
# Few moves change which job is the slowest but a few: a tail needs more of them than a sum.
MOVES_FOR_TAIL = 6
# Temperatures in parts of the objective.
HOT, COLD = 3e-3, 3e-6
RULES = ("earliest-finish", "shortest-first", "earliest-start")


class OracleError(ValueError):
    """The workload is too large to search; the text says how large it may be."""


class Found(msgspec.Struct, frozen=True):
    """The best schedule found, its objective, and a bound below which no schedule can be, both in seconds."""

    schedule: Schedule
    value_s: float
    bound_s: float


def find_best(engine: Engine, objective: Objective = "avg_jct", seed: int = 0, effort: float = 1.0) -> Found:
    """Searches for the schedule with the least objective. `effort`: how many times the usual number of moves."""
    from advisor.sim import searching

    count = len(engine.workload.jobs)
    if count > MOST_JOBS:
        raise OracleError(f"oracle: {count} jobs are too many to search for the best schedule, at most {MOST_JOBS:,}")
    m, jobs = engine.machine, engine.jobs
    goal = {"avg_jct": searching.AVERAGE, "makespan": searching.MAKESPAN, "p99_jct": searching.P99}[objective]
    best, least = _sequences(engine, jobs.submit, np.argmin(jobs.run, axis=1)), np.inf
    for start, place in _first(engine):
        tried = _sequences(engine, start, place)
        value = searching.evaluate(m, jobs, tried, goal)
        if value < least:
            best, least = tried, value
    moves = int(MOVES_PER_JOB * effort * count) * (MOVES_FOR_TAIL if objective == "p99_jct" else 1)
    for turn in range(TURNS):
        # Hot enough to leave the rule's schedule at first, then only to polish.
        searching.anneal(m, jobs, best, goal, moves // TURNS, seed * TURNS + turn, HOT / 4**turn, COLD)
    schedule = _schedule(engine, best)
    return Found(schedule, measured(engine, schedule, objective), lower_bound(engine, objective))


def measured(engine: Engine, schedule: Schedule, objective: Objective) -> float:
    """The objective of a schedule, in seconds."""
    jct = schedule.end - engine.jobs.submit
    if not len(jct):
        return 0.0
    if objective == "avg_jct":
        return float(jct.mean())
    if objective == "makespan":
        return float(schedule.end.max() - engine.jobs.submit.min())
    return float(np.sort(jct)[int(np.ceil(0.99 * (len(jct) - 1)))])


def _first(engine: Engine) -> list[tuple[Floats, Ints]]:
    """Schedules to begin with, as start and place of each job."""
    found = []
    truth = np.where(np.isfinite(engine.jobs.run), engine.true_run, np.inf)
    for name in RULES:
        rule = run_heuristic(name, Engine(engine.cluster, engine.workload, engine.scheduler, truth))
        found.append((rule.start, rule.place))
    work = Work(engine)
    if work.matching and work.jobs and not len(engine.jobs.followers):
        _, kinds, position = matched_average(work)
        place = np.asarray([_place_of(engine, j, work.kinds[k]) for j, k in enumerate(kinds)], dtype=np.int64)
        # Longest position from the end goes first; within one position the shortest.
        found.append((-position.astype(np.float64) + 1e-9 * engine.jobs.run[np.arange(work.jobs), place], place))
    return found


def _place_of(engine: Engine, job: int, kind: str) -> int:
    return next(p for p in engine.feasible(job) if engine.cluster.places[p].processor == kind)


def _groups(engine: Engine) -> Ints:
    """For each place the number of its group: places that share nodes. All are one where jobs wait for each other."""
    places = engine.cluster.places
    group = np.arange(len(places), dtype=np.int64)
    if len(engine.jobs.followers) or engine.jobs.array_limit.any():
        return np.zeros_like(group)
    owner: dict[int, int] = {}
    for p, place in enumerate(places):
        for node in place.nodes:
            other = owner.setdefault(node, p)
            group[group == group[p]] = group[other]
    return np.unique(group, return_inverse=True)[1].astype(np.int64)


def _sequences(engine: Engine, start: Floats, place: Ints) -> Search:
    """Sequences in the order of starts; jobs that wait for others behind them."""
    from advisor.sim.searching import Search

    m, jobs = engine.machine, engine.jobs
    n, group = len(jobs.submit), _groups(engine)
    count = int(group.max(initial=0)) + 1
    sequence, length = np.zeros((count, max(n, 1)), dtype=np.int64), np.zeros(count, dtype=np.int64)
    position = np.zeros(n, dtype=np.int64)
    for j in np.lexsort((np.arange(n), start)):
        g = group[place[j]]
        sequence[g, length[g]], position[j] = j, length[g]
        length[g] += 1
    number = {job.id: j for j, job in enumerate(engine.workload.jobs)}
    before = [[number[other] for other in set(job.depends)] for job in engine.workload.jobs]
    limited = (jobs.array >= 0) & (jobs.array_limit[np.maximum(jobs.array, 0)] > 0)
    return Search(
        group=group,
        sequence=sequence,
        length=length,
        position=position,
        place=np.asarray(place, dtype=np.int64).copy(),
        start=np.zeros(n),
        end=np.zeros(n),
        array_of=np.where(limited, jobs.array, -1),
        before_first=np.concatenate(([0], np.cumsum([len(b) for b in before]))).astype(np.int64),
        before=np.asarray([b for group_of in before for b in group_of], dtype=np.int64),
        free=np.zeros((len(m.size), RESOURCES), dtype=np.int64),
        chosen=np.zeros(len(m.size), dtype=np.int64),
        heap_time=np.zeros(n + 1),
        heap_job=np.zeros(n + 1, dtype=np.int64),
        slots=np.full(int(jobs.slot_first[-1]), -1, dtype=np.int64),
        array_running=np.zeros(len(jobs.array_limit), dtype=np.int64),
    )


def _schedule(engine: Engine, search: Search) -> Schedule:
    rows = np.arange(len(engine.workload.jobs))
    return Schedule(
        start=search.start,
        end=search.end - engine.scheduler.complete_s,
        place=search.place,
        timed_out=engine.true_run[rows, search.place] > engine.limit,
        nodes_first=engine.jobs.slot_first,
        nodes=search.slots,
        promised=np.full(len(rows), np.nan),
        passes=0,
    )
