"""What a plan knows of workflows in the simulator: which waiting jobs hold up the end of theirs.

As in the daemon's rounds, from what is expected of the jobs that are there; `advisor.policy.workflow_urgency` has the
rule.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.policy.workflow_urgency import urgencies
from advisor.sim.engine import Engine
from advisor.sim.state import NEXT_SUBMIT, Floats, Ints


class Followers:
    """Who waits for whom in one workload."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        number = {job.id: j for j, job in enumerate(engine.workload.jobs)}
        self._leaders = {
            j: tuple(number[other] for other in job.depends)
            for j, job in enumerate(engine.workload.jobs)
            if job.depends
        }
        self._behind: dict[int, list[int]] = {}
        for j, others in self._leaders.items():
            for other in others:
                self._behind.setdefault(other, []).append(j)

    def __bool__(self) -> bool:
        return bool(self._leaders)

    def weights(self, pending: Ints, now: float, expected: Floats, place: Ints, start: Floats) -> dict[int, float]:
        """Of the pending jobs that belong to workflows; `place` and `start` are those of the last plan."""
        seen: dict[int, None] = {}
        stack = [int(j) for j in pending if int(j) in self._behind or int(j) in self._leaders]
        while stack:
            job = stack.pop()
            if job in seen or not self._open(job, now):
                continue
            seen[job] = None
            stack += [*self._behind.get(job, ()), *self._leaders.get(job, ())]
        ends: dict[int, float] = {}
        for job in sorted(seen):
            ends[job] = self._end(job, now, expected, place, start, ends)
        leaders = {job: self._leaders[job] for job in ends if job in self._leaders}
        return urgencies(ends, leaders, [int(j) for j in pending], now)

    def _open(self, job: int, now: float) -> bool:
        """Submitted, and not ended."""
        state = self._engine.state
        return job < state.counters[NEXT_SUBMIT] and not state.end[job] <= now

    def _end(self, job: int, now: float, expected: Floats, place: Ints, start: Floats, ends: dict[int, float]) -> float:
        state = self._engine.state
        if state.place[job] >= 0:
            return max(now, float(state.start[job] + expected[job, state.place[job]]))
        ready = max((ends.get(leader, now) for leader in self._leaders.get(job, ())), default=now)
        if place[job] >= 0:
            planned = float(start[job]) if math.isfinite(start[job]) else now
            return max(planned, ready) + float(expected[job, place[job]])
        return ready + float(np.min(expected[job]))
