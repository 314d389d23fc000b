"""Runs a workload under a policy in Python that is asked at each submission, and looks again at what waits.

Between two looks the compiled core runs alone. A look may change where pending jobs may start and in which order, as a
site does with `scontrol update`, and what is believed of run times; nothing that runs is touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from advisor.sim.compiled import entry
from advisor.sim.engine import Engine, Schedule
from advisor.sim.expecting import choose_earliest_finish
from advisor.sim.heuristics import by_expected
from advisor.sim.state import (
    DIRTY,
    DIRTY_SINCE,
    ENDED,
    HEAD,
    HEAP,
    LISTED,
    NEXT_SUBMIT,
    RUNNING,
    SHORTEST_FIRST,
    TAIL,
    Jobs,
    Machine,
    State,
)

# Seconds between two looks, as `scontrol` would be asked by a daemon; what happens in between waits for the next.
ROUND_S = 30.0
STOPPED = -2


class Stepwise(Protocol):
    """A policy that is asked while the simulation runs."""

    def choose(self, job: int, now: float) -> Sequence[int]:
        """The places of a job that is being submitted, in the order to try."""
        ...

    def look(self, now: float) -> bool:
        """Called each round in which something may have changed; whether it changed options, order or beliefs."""
        ...


def run_stepwise(
    engine: Engine, policy: Stepwise, order: Literal["listed", "shortest-first"] = "listed", round_s: float = ROUND_S
) -> Schedule:
    """Runs to the end. `shortest-first`: the core fills what is free by what it expects, whatever the places are."""
    from advisor.sim import core

    s = engine.state
    decide = SHORTEST_FIRST if order == "shortest-first" else LISTED
    seen = (-1, -1, -1)
    while True:
        job = engine._core(decide, callback=True, until=_next_look(engine, round_s))
        if job == -1:
            return engine.schedule()
        if job == STOPPED:
            happened = (int(s.counters[ENDED]), int(s.counters[NEXT_SUBMIT]), int(s.counters[RUNNING]))
            if happened != seen and policy.look(engine.now):
                _wake(engine)
            seen = happened
            continue
        places = list(policy.choose(job, engine.now))
        if not places:
            raise ValueError(f"the policy gave no place for job {engine.workload.jobs[job].id!r}")
        put(engine, job, places)
        core.submit(engine.jobs, s, job)


def put(engine: Engine, job: int, places: Sequence[int]) -> None:
    """Sets where a pending job may start, in the order to try."""
    engine.jobs.options[job] = -1
    engine.jobs.options[job, : len(places)] = places


def pending(engine: Engine) -> list[int]:
    """Jobs that wait and could start, first in line first."""
    s = engine.state
    return [int(j) for j in s.queue[s.counters[HEAD] : s.counters[TAIL]]]


def soonest(engine: Engine, job: int, now: float) -> list[int]:
    """The place where a job is expected to finish first, by what is believed now."""
    put(engine, job, by_expected(engine, job))
    return [earliest_finish(engine.machine, engine.jobs, engine.state, job, now)]


@entry
def earliest_finish(m: Machine, jobs: Jobs, s: State, job: int, now: float) -> int:
    """Of the job's options, the place where it is expected to finish first."""
    return choose_earliest_finish(m, jobs, s, job, now)


def _next_look(engine: Engine, round_s: float) -> float:
    """The first beat that finds something new: rounds in which nothing happens are passed over."""
    s = engine.state
    arriving = int(s.counters[NEXT_SUBMIT])
    submit = float(engine.jobs.submit[arriving]) if arriving < len(engine.jobs.submit) else math.inf
    coming = min(submit, float(s.heap_time[0]) if s.counters[HEAP] > 0 else math.inf)
    if s.counters[TAIL] > s.counters[HEAD]:
        coming = min(coming, engine.now)  # what was submitted just now has not been looked at
    if coming == math.inf:
        return math.inf
    return (math.floor(max(engine.now, coming) / round_s) + 1) * round_s


def _wake(engine: Engine) -> None:
    """Sorts the queue by what may be new priorities, and lets the scheduler have a look."""
    s = engine.state
    head, tail = int(s.counters[HEAD]), int(s.counters[TAIL])
    queue = s.queue[head:tail].copy()
    s.queue[head:tail] = queue[np.lexsort((queue, -engine.jobs.priority[queue]))]
    if s.counters[DIRTY] == 0:
        s.counters[DIRTY] = 1
        s.clock[DIRTY_SINCE] = engine.now
