"""Policies that the simulator asks in Python while it runs: Paragon-style, HEFT, and rules that learn run times.

Each keeps `engine.jobs.expected` as fresh as its knowledge allows and sees nothing else of the jobs' true run times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace, nsmallest

import numpy as np

from advisor.policy.heft.ranks import upward_ranks
from advisor.policy.paragon.filtering import complete
from advisor.sim.engine import Engine, Schedule
from advisor.sim.heuristics import as_submitted, by_expected
from advisor.sim.knowledge import Beliefs, Knowledge
from advisor.sim.state import CPUS, GPUS, NEXT_SUBMIT, RUNNING, Floats
from advisor.sim.stepping import pending, put, run_stepwise, soonest
from advisor.sim.workload import SimJob

# Paragon: on so many types a new app is tried for a moment, and this part of the apps was measured on all beforehand.
PROFILED, MEASURED = 2, 0.25


def run_learning(name: str, engine: Engine, beliefs: Beliefs, seed: int = 0) -> Schedule:
    """One of the rules, with what has been learned at each submission; shortest-first goes by it at every start."""
    policy = Rule(name, engine, beliefs, seed)
    return run_stepwise(engine, policy, "shortest-first" if name == "shortest-first" else "listed")


class Rule:
    """A rule of `advisor.sim.heuristics` whose expectations change while it runs."""

    def __init__(self, name: str, engine: Engine, beliefs: Beliefs, seed: int) -> None:
        self.engine, self.beliefs, self.draw = engine, beliefs, random.Random(seed)
        self.rules: dict[str, Callable[[int, float], Sequence[int]]] = {
            "slurm-default": lambda job, now: as_submitted(engine, job),
            "earliest-start": lambda job, now: engine.feasible(job),
            "shortest-first": lambda job, now: engine.feasible(job),
            "random": lambda job, now: [self.draw.choice(engine.feasible(job))],
            "fastest": lambda job, now: by_expected(engine, job)[:1],
            "earliest-finish": lambda job, now: soonest(engine, job, now),
        }
        self.rule = self.rules[name]
        self.arrays: dict[str, Sequence[int]] = {}

    def choose(self, job: int, now: float) -> Sequence[int]:
        """As the rule says; all tasks of an array go where the first went."""
        array = self.engine.workload.jobs[job].array
        if array is not None and array in self.arrays:
            return self.arrays[array]
        self.beliefs.refresh(now)
        places = self.rule(job, now)
        if array is not None:
            self.arrays[array] = places
        return places

    def look(self, now: float) -> bool:
        """Takes in what has ended."""
        return self.beliefs.refresh(now)


class Paragon:
    """Of what is free, the place where the job should run fastest; where nothing is, whatever comes free first.

    Speeds come from collaborative filtering of a table app × type. With true run times to be known, a new app is tried
    on two types and the rest is inferred; while they are learned, the entries are what has ended so far; with limits
    only, nothing tells types apart.
    """

    def __init__(self, engine: Engine, knowledge: Knowledge, seed: int = 0) -> None:
        self.engine, self.knowledge = engine, knowledge
        self.kinds = engine.cluster.processors
        self.column = [self.kinds.index(place.processor) for place in engine.cluster.places]
        apps = {_app(job): None for job in engine.workload.jobs}
        self.row = {app: i for i, app in enumerate(apps)}
        self.sums = np.zeros((len(apps), len(self.kinds)))
        self.counts = np.zeros((len(apps), len(self.kinds)))
        self.profiled: set[int] = set()
        self.ended = np.zeros(len(engine.workload.jobs), dtype=np.bool_)
        self.draw = random.Random(seed)
        self.completed: Floats | None = None
        self.truth = np.full((len(engine.workload.jobs), len(self.kinds)), np.inf)
        for p, k in enumerate(self.column):
            self.truth[:, k] = np.minimum(self.truth[:, k], engine.jobs.expected[:, p])
        if knowledge == "oracle":
            measured = self.draw.sample(sorted(self.row.values()), math.ceil(MEASURED * len(apps)))
            first = {self.row[_app(job)]: j for j, job in reversed(list(enumerate(engine.workload.jobs)))}
            for i in measured:
                self._measure(i, first[i], range(len(self.kinds)))

    def choose(self, job: int, now: float) -> Sequence[int]:
        """All places that can run it, the fastest first: Slurm starts it in the first that is free."""
        i = self.row[_app(self.engine.workload.jobs[job])]
        if self.knowledge == "oracle" and i not in self.profiled:
            able = [k for k in range(len(self.kinds)) if math.isfinite(self.truth[job, k])]
            self._measure(i, job, self.draw.sample(able, min(PROFILED, len(able))))
        self.look(now)
        seconds = self._table()[i]
        return sorted(self.engine.feasible(job), key=lambda p: (seconds[self.column[p]], p))

    def look(self, now: float) -> bool:
        """Takes in what has ended, while run times are learned."""
        if self.knowledge != "learned":
            return False
        state = self.engine.state
        fresh = np.flatnonzero((state.end <= now) & ~self.ended)
        for j in (int(n) for n in fresh):
            i, k = self.row[_app(self.engine.workload.jobs[j])], self.column[state.place[j]]
            self.sums[i, k] += math.log(max(state.end[j] - state.start[j], 1.0))
            self.counts[i, k] += 1
        self.ended[fresh] = True
        if not len(fresh):
            return False
        self.completed = None
        for j in pending(self.engine):
            seconds = self._table()[self.row[_app(self.engine.workload.jobs[j])]]
            put(self.engine, j, sorted(self.engine.feasible(j), key=lambda p: (seconds[self.column[p]], p)))
        return True

    def _measure(self, row: int, job: int, kinds: Sequence[int]) -> None:
        self.profiled.add(row)
        self.completed = None
        for k in kinds:
            if math.isfinite(self.truth[job, k]):
                self.sums[row, k], self.counts[row, k] = math.log(max(self.truth[job, k], 1e-3)), 1.0

    def _table(self) -> Floats:
        if self.completed is None:
            known = np.divide(self.sums, self.counts, out=np.full_like(self.sums, np.nan), where=self.counts > 0)
            self.completed = complete(known)
        return self.completed


class Heft:
    """Jobs by upward rank (mean run time, with all that waits for them), each where it is expected to end first.

    What waits is planned anew whenever something has ended or was submitted.
    """

    def __init__(self, engine: Engine, beliefs: Beliefs) -> None:
        self.engine, self.beliefs = engine, beliefs
        number = {job.id: j for j, job in enumerate(engine.workload.jobs)}
        self.before = [[number[other] for other in job.depends] for job in engine.workload.jobs]
        self.behind: dict[int, list[int]] = {}
        for j, others in enumerate(self.before):
            for other in others:
                self.behind.setdefault(other, []).append(j)
        units = [engine.machine.size[list(place.nodes)] for place in engine.cluster.places]
        self.gpus = [int(size[:, GPUS].sum()) for size in units]
        self.cpus = [int(size[:, CPUS].sum()) for size in units]

    def choose(self, job: int, now: float) -> Sequence[int]:
        """Behind all that waits, until the next look plans it with the others."""
        self.beliefs.refresh(now)
        self.engine.jobs.priority[job] = -float(len(self.before) + job)
        return soonest(self.engine, job, now)

    def look(self, now: float) -> bool:
        """Plans all that waits anew."""
        self.beliefs.refresh(now)
        plan = self._plan(now)
        for place_in_line, (job, place) in enumerate(plan.items()):
            put(self.engine, job, [place])
            self.engine.jobs.priority[job] = -float(place_in_line)
        return True

    def _plan(self, now: float) -> dict[int, int]:
        """Place of each job that has been submitted and not started, in the order of their ranks."""
        engine, s = self.engine, self.engine.state
        submitted = int(s.counters[NEXT_SUBMIT])
        waiting = [int(j) for j in np.flatnonzero(s.place[:submitted] < 0)]
        mean = {j: float(np.mean(engine.jobs.expected[j][np.isfinite(engine.jobs.run[j])])) for j in waiting}
        ranks = upward_ranks(mean, self.behind)
        ends: dict[int, float] = {}
        gpus = [[now] * count for count in self.gpus]
        cpus = [[now] * count for count in self.cpus]
        for i in range(int(s.counters[RUNNING])):
            j = int(s.running[i])
            p = int(s.place[j])
            ends[j] = max(float(s.start[j] + engine.jobs.expected[j, p]), now)
            for lines, unit in ((gpus, GPUS), (cpus, CPUS)):
                _book(lines[p], self._wanted(j, unit), ends[j])
        found: dict[int, int] = {}
        for j in sorted(waiting, key=lambda j: (-ranks[j], j)):
            ready = max((ends.get(other, now) for other in self.before[j]), default=now)
            best: tuple[float, int, float] | None = None
            for p in engine.feasible(j):
                line, unit = (gpus[p], GPUS) if engine.jobs.need[j, GPUS] else (cpus[p], CPUS)
                start = max(ready, _when(line, self._wanted(j, unit)))
                finish = start + float(engine.jobs.expected[j, p])
                if best is None or finish < best[0]:
                    best = (finish, p, start)
            assert best is not None
            ends[j], found[j] = best[0], best[1]
            line, unit = (gpus[best[1]], GPUS) if engine.jobs.need[j, GPUS] else (cpus[best[1]], CPUS)
            _book(line, self._wanted(j, unit), best[0])
        return found

    def _wanted(self, job: int, unit: int) -> int:
        return int(self.engine.jobs.nodes[job] * self.engine.jobs.need[job, unit])


def _when(line: list[float], wanted: int) -> float:
    """When so many units of a heap of times are free."""
    if wanted <= 1:
        return line[0]
    return nsmallest(wanted, line)[-1] if wanted <= len(line) else math.inf


def _book(line: list[float], wanted: int, until: float) -> None:
    if wanted == 1:
        heapreplace(line, until)
    elif 1 < wanted <= len(line):
        line.sort()
        line[:wanted] = [until] * wanted
        heapify(line)


def _app(job: SimJob) -> tuple[str, int]:
    return (job.app or job.id, job.gpus)


def run_paragon(engine: Engine, knowledge: Knowledge, seed: int = 0) -> Schedule:
    """The workload under the Paragon-style policy."""
    return run_stepwise(engine, Paragon(engine, knowledge, seed))
