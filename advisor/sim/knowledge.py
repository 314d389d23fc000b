"""What policies know of run times during a simulation: the truth, what has been learned so far, or users' limits.

`Learned` is the advisor's own run-time model. It starts from its prior, takes in every job as it ends, and writes what
it now expects into the engine's table; it is refitted as the log grows, as in the daemon.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import numpy as np

from advisor.performance.model.model import RunTimeModel
from advisor.performance.model.observations import Observation, Refused, Runs, observe
from advisor.performance.processors import load
from advisor.sim.engine import Engine
from advisor.sim.workload import SimJob

Knowledge = Literal["oracle", "learned", "limits"]
KNOWLEDGE: tuple[Knowledge, ...] = ("oracle", "learned", "limits")

# The first refit, and by how much the log grows until the next: see `advisor.server.learner`.
FIRST_FIT, GROWTH = 16, 1.25
# A very wide spread says that runs differ, not that their mean lies at the far end.
WIDEST = 1.0

_Kind = tuple[str, str, int, int, float | None]


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


def believe(engine: Engine, knowledge: Knowledge) -> Beliefs:
    """Sets what is expected at the start, and gives what keeps it up to date."""
    if knowledge != "oracle":
        engine.jobs = engine.jobs._replace(expected=engine.jobs.expected.copy())  # it may be the truth itself
    if knowledge == "learned":
        return Learned(engine)
    if knowledge == "limits":
        engine.jobs.expected[:] = np.where(np.isfinite(engine.jobs.run), engine.limit[:, None], np.inf)
    return Settled()


class Learned:
    """The run-time model beside a simulation."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.figures = load()
        self.log = Runs()
        self.model = RunTimeModel.fitted(self.log, self.figures)
        self.next_fit = float(FIRST_FIT)
        self.ended = np.zeros(len(engine.workload.jobs), dtype=np.bool_)
        self.of_kind: dict[_Kind, list[int]] = {}
        for j, job in enumerate(engine.workload.jobs):
            self.of_kind.setdefault(_kind(job), []).append(j)
        self.possible = np.isfinite(engine.jobs.run)
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
        run = self._observed(job, processor, seconds)
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

    def _observed(self, job: int, processor: str, seconds: float) -> Observation | None:
        spec = self.engine.workload.jobs[job]
        cut = seconds >= float(self.engine.limit[job]) and spec.time_limit is not None
        try:
            return observe(
                app=spec.app or spec.id,
                user=spec.user,
                processor=processor,
                state="TIMEOUT" if cut else "COMPLETED",
                elapsed_s=seconds,
                gpus=spec.gpus,
                cpus=spec.cpus,
                limit_s=spec.time_limit,
            )
        except Refused:
            return None

    def expect(self) -> None:
        """Writes what is now expected of all jobs that have not ended; jobs that look alike are asked about once."""
        expected = self.engine.jobs.expected
        for (app, user, gpus, cpus, limit), jobs in self.of_kind.items():
            left = [j for j in jobs if not self.ended[j]]
            if not left:
                continue
            for p, place in enumerate(self.engine.cluster.places):
                units = cpus if place.processor == "cpu" else gpus
                told = self.model.predict(app, user, place.processor, units, limit)
                seconds = math.exp(min(told.mean_log, 20.0) + min(told.sd_log, WIDEST) ** 2 / 2)
                expected[left, p] = np.where(self.possible[left, p], min(seconds, limit or math.inf), np.inf)


def _kind(job: SimJob) -> _Kind:
    return (job.app or job.id, job.user, max(job.gpus, 1), max(job.cpus, 1), job.time_limit)
