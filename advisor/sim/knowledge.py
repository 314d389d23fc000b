"""What policies know of run times during a simulation: the truth, what has been learned so far, or users' limits.

`Learned` is the advisor's own run-time model. It starts from its prior and from the log of earlier jobs (`History`),
takes in every job as it ends, and writes what it now expects into the engine's table; it is refitted as the log grows,
as in the daemon. How much work a job does (its steps) is told to it, as an annotation would, and nothing else is.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import numpy as np

from advisor.performance.model.model import RunTimeModel
from advisor.performance.model.observations import Runs
from advisor.performance.processors import load
from advisor.sim.engine import Engine
from advisor.sim.history import History, run_of
from advisor.sim.state import Floats
from advisor.sim.workload import SimJob

Knowledge = Literal["oracle", "learned", "limits"]
KNOWLEDGE: tuple[Knowledge, ...] = ("oracle", "learned", "limits")

# The first refit, and by how much the log grows until the next: see `advisor.server.learner`.
FIRST_FIT, GROWTH = 16, 1.25
# A very wide spread says that runs differ, not that their mean lies at the far end.
WIDEST = 1.0

_Kind = tuple[str, str, int, int, float | None, bool]


class Beliefs(Protocol):
    """Keeps the engine's expected run times up to date."""

    def refresh(self, now: float) -> bool:
        """Takes in what has ended by now; whether anything changed."""
        ...


class Settled:
    """Knowledge that does not change during a run."""

    def refresh(self, now: float) -> bool:
        """Nothing to do."""
        return False


def believe(engine: Engine, knowledge: Knowledge, history: History | None = None) -> Beliefs:
    """Sets what is expected at the start, and gives what keeps it up to date."""
    if knowledge != "oracle":
        engine.jobs = engine.jobs._replace(expected=engine.jobs.expected.copy())  # it may be the truth itself
    if knowledge == "learned":
        return Learned(engine, history)
    if knowledge == "limits":
        engine.jobs.expected[:] = np.where(np.isfinite(engine.jobs.run), engine.limit[:, None], np.inf)
    return Settled()


class Learned:
    """The run-time model beside a simulation."""

    def __init__(self, engine: Engine, history: History | None = None) -> None:
        self.engine = engine
        self.figures = load()
        self.log = Runs(history.runs if history is not None else ())
        self.model = RunTimeModel.fitted(self.log, self.figures)
        self.next_fit = max(float(FIRST_FIT), len(self.log) * GROWTH)
        self.ended = np.zeros(len(engine.workload.jobs), dtype=np.bool_)
        self.of_kind: dict[_Kind, list[int]] = {}
        for j, job in enumerate(engine.workload.jobs):
            self.of_kind.setdefault(_kind(job), []).append(j)
        self.steps = [job.steps for job in engine.workload.jobs]
        self.possible = np.isfinite(engine.jobs.run)
        self.spread: Floats = np.zeros(engine.jobs.expected.shape)  # of the logarithms
        self.expect()

    def refresh(self, now: float) -> bool:
        """Learns from the jobs that have ended since the last time."""
        fresh = np.flatnonzero((self.engine.state.end <= now) & ~self.ended)
        if not len(fresh):
            return False
        for j in fresh[np.argsort(self.engine.state.end[fresh], kind="stable")]:
            self.take(int(j), self.engine.cluster.places[self.engine.state.place[j]].processor, self._seconds(int(j)))
        self.expect()
        return True

    def take(self, job: int, processor: str, seconds: float) -> None:
        """One job has ended."""
        self.ended[job] = True
        spec = self.engine.workload.jobs[job]
        limit = None if spec.time_limit is None else float(self.engine.limit[job])
        run = run_of(spec, processor, seconds, limit)
        if run is None:
            return
        self.log.add(run)
        if len(self.log) >= self.next_fit:
            self.model = RunTimeModel.fitted(self.log, self.figures)
            self.next_fit = len(self.log) * GROWTH
        else:
            self.model.update(run)

    def _seconds(self, job: int) -> float:
        scheduler = self.engine.scheduler
        held = self.engine.state.end[job] - self.engine.state.start[job]
        return float(held) - scheduler.launch_s - scheduler.complete_s

    def expect(self) -> None:
        """Writes what is now expected of all jobs that have not ended; jobs that look alike are asked about once.

        They are alike but for how much they do, which the model counts in proportion.
        """
        expected = self.engine.jobs.expected
        for (app, user, gpus, cpus, limit, tells), jobs in self.of_kind.items():
            left = [j for j in jobs if not self.ended[j]]
            if not left:
                continue
            more = np.asarray([self.model.more_work(app, 1.0, self.steps[j]) for j in left] if tells else 0.0)
            for p, place in enumerate(self.engine.cluster.places):
                units = cpus if place.processor == "cpu" else gpus
                told = self.model.predict(app, user, place.processor, units, limit, 1.0 if tells else None)
                mean_log = np.minimum(told.mean_log + more, 20.0)
                seconds = np.minimum(np.exp(mean_log + min(told.sd_log, WIDEST) ** 2 / 2), limit or math.inf)
                self.spread[left, p] = told.sd_log
                expected[left, p] = np.where(self.possible[left, p], seconds, np.inf)


def _kind(job: SimJob) -> _Kind:
    return (job.app or job.id, job.user, max(job.gpus, 1), max(job.cpus, 1), job.time_limit, job.steps > 0)
