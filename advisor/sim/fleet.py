"""Many simulated clusters in one compiled call: each runs to its next submission, all decisions are taken at once.

For training: a policy sees a batch, one job that is being submitted on each cluster, answers with a place for each, and
all clusters run on. The engines may differ in cluster and workload; they stay usable one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from advisor.sim.compiled import entry
from advisor.sim.core import run, submit
from advisor.sim.engine import Engine, Schedule
from advisor.sim.expecting import expected_start
from advisor.sim.state import LISTED, NOW, Floats, Ints, Rules

DONE = -1


@entry
def _step(machines: Any, jobs: Any, states: Any, rules: Rules, arriving: Ints, chosen: Ints) -> int:
    """Sends each cluster's arriving job to the chosen place and runs all to their next submission; how many go on."""
    going = 0
    for k in range(len(states)):
        job = arriving[k]
        if job >= 0:
            jobs[k].options[job, :] = -1
            jobs[k].options[job, 0] = chosen[k]
            submit(jobs[k], states[k], job)
        if job != DONE:
            arriving[k] = run(machines[k], jobs[k], states[k], rules)
            going += 1 if arriving[k] >= 0 else 0
    return going


@entry
def _outlook(machines: Any, jobs: Any, states: Any, arriving: Ints, wait: Floats, seconds: Floats) -> None:
    """For each arriving job and place: expected wait and expected run time; inf: the place cannot run it."""
    for k in range(len(states)):
        job = arriving[k]
        wait[k, :] = math.inf
        seconds[k, :] = math.inf
        if job >= 0:
            now = states[k].clock[NOW]
            for place in range(jobs[k].run.shape[1]):
                if math.isfinite(jobs[k].run[job, place]):
                    wait[k, place] = expected_start(machines[k], jobs[k], states[k], job, place, now) - now
                    seconds[k, place] = jobs[k].expected[job, place]


class Fleet:
    """Engines that run side by side, each stopped at a submission that waits for a decision."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        """All engines must have the same scheduler; each must be fresh, or stopped where a submission is next."""
        from numba.typed import List

        if not engines:
            raise ValueError("a fleet needs at least one engine")
        if len({engine.scheduler for engine in engines}) > 1:
            raise ValueError("the engines of a fleet must have the same scheduler settings")
        self.engines = tuple(engines)
        make: Any = List
        self._machines, self._jobs, self._states = make(), make(), make()
        for engine in engines:
            self._machines.append(engine.machine)
            self._jobs.append(engine.jobs)
            self._states.append(engine.state)
        self._rules = engines[0].rules(LISTED, callback=True)
        places = max(engine.jobs.run.shape[1] for engine in engines)
        # Any number below DONE: nothing to submit yet.
        self.arriving: Ints = np.full(len(engines), DONE - 1, dtype=np.int64)
        self.wait: Floats = np.full((len(engines), places), np.inf)
        self.seconds: Floats = np.full((len(engines), places), np.inf)
        self.going = _step(self._machines, self._jobs, self._states, self._rules, self.arriving, self.arriving)
        self._look()

    def _look(self) -> None:
        _outlook(self._machines, self._jobs, self._states, self.arriving, self.wait, self.seconds)

    @property
    def now(self) -> Floats:
        """The simulated time of each engine."""
        return np.asarray([engine.now for engine in self.engines])

    def step(self, chosen: Ints) -> int:
        """Sends every arriving job to its place (`chosen[engine]`; of an engine that is done anything) and runs on.

        Afterwards `arriving` (job, -1: done), `wait` and `seconds` speak of the next jobs. How many engines go on.
        """
        places = np.asarray(chosen, dtype=np.int64)
        if places.shape != self.arriving.shape:
            raise ValueError(f"{len(self.engines)} engines need as many places, not {places.shape}")
        open_ = np.flatnonzero(self.arriving >= 0)
        inside = (places[open_] >= 0) & (places[open_] < self.wait.shape[1])
        if not inside.all() or not np.isfinite(self.seconds[open_, places[open_]]).all():
            raise ValueError("a job was sent to a place that cannot run it: `seconds` is inf there")
        self.going = _step(self._machines, self._jobs, self._states, self._rules, self.arriving, places)
        self._look()
        return self.going

    def schedules(self) -> list[Schedule]:
        """What happened on each cluster; all must be done."""
        return [engine.schedule() for engine in self.engines]
