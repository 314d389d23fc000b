"""Gavel's policies without preemption: each round the shares are worked out anew, and what waits is placed by them.

Jobs that run are part of the problem, but only on the type they are on. Jobs start in their order of submission; only
where they may start changes. AlloX, which is about the order too, changes both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.policy.gavel import PLACED, make_allocation
from advisor.policy.gavel.matching import match
from advisor.policy.gavel.offer import Offer
from advisor.policy.gavel.placement import place
from advisor.sim.engine import Engine, Schedule
from advisor.sim.heuristics import by_expected
from advisor.sim.knowledge import Beliefs
from advisor.sim.state import NEXT_SUBMIT
from advisor.sim.stepping import put, run_stepwise, soonest

# As Gavel's rounds: shares are worked out at most this often.
ROUND_S = 360.0


def run_shares(name: str, engine: Engine, beliefs: Beliefs, seed: int = 0) -> Schedule:
    """The workload under one of `PLACED`."""
    return run_stepwise(engine, Shares(name, engine, beliefs, seed))


class Shares:
    """Asks the optimisation policy each round, and puts what waits on the type on which its class is owed most."""

    def __init__(self, name: str, engine: Engine, beliefs: Beliefs, seed: int = 0) -> None:
        self.engine, self.beliefs = engine, beliefs
        self.allocation = make_allocation(PLACED[name], seed)
        self.types = tuple(sorted(engine.cluster.processors))
        self.column = [self.types.index(place.processor) for place in engine.cluster.places]
        self.counts = np.asarray([engine.cluster.units(kind) for kind in self.types], dtype=np.float64)
        jobs = engine.workload.jobs
        self.units = np.asarray([job.gpus or job.cpus for job in jobs], dtype=np.float64)
        self.classes = [(job.app or job.id, job.gpus, job.account) for job in jobs]
        accounts = {name: i for i, name in enumerate(sorted({job.account for job in jobs}))}
        self.entity = np.asarray([accounts[job.account] for job in jobs], dtype=np.int64)
        self.weight = np.asarray([job.weight for job in jobs], dtype=np.float64)
        self.matching = name == "allox"
        if self.matching and self.units.max(initial=1.0) > 1:
            raise ValueError("allox places jobs of one GPU only; this workload has larger ones")
        self.before = -np.inf

    def choose(self, job: int, now: float) -> Sequence[int]:
        """Until the next round, where it should end first: jobs of one moment are placed together."""
        return soonest(self.engine, job, now)

    def look(self, now: float) -> bool:
        """Places all that waits anew, where the last time is long enough ago."""
        learned = self.beliefs.refresh(now)
        live = self._live()
        fresh = [j for j in live if self.engine.jobs.submit[j] > self.before]
        if not live or (now - self.before < ROUND_S and not fresh):
            return learned
        self.before = now
        offer = self._offer(live, now)
        state = self.engine.state
        running = {j: self.column[state.place[j]] for j in live if state.place[j] >= 0}
        able = {j: sorted({self.column[p] for p in self.engine.feasible(j)}) for j in live}
        if self.matching:
            return self._match(live, now)
        shares = self.allocation.shares(offer)
        classes = [self.classes[j] for j in live]
        found = place(offer, shares, classes, running, able.__getitem__, self.allocation.aware)
        for j, column in found.items():
            put(self.engine, j, [p for p in by_expected(self.engine, j) if self.column[p] == column])
        return True

    def _match(self, live: list[int], now: float) -> bool:
        """AlloX: types and order of all that waits at the least total completion time."""
        engine, state = self.engine, self.engine.state
        waiting = [j for j in live if state.place[j] < 0]
        if not waiting:
            return False
        unit_type = np.repeat(np.arange(len(self.types)), self.counts.astype(np.int64))
        busy = np.zeros(len(unit_type))
        for column in range(len(self.types)):
            ends = [
                max(float(state.start[j] + engine.jobs.expected[j, state.place[j]]) - now, 1.0)
                for j in live
                if state.place[j] >= 0 and self.column[state.place[j]] == column
            ]
            busy[np.flatnonzero(unit_type == column)[: len(ends)]] = ends[: int(self.counts[column])]
        run = np.full((len(waiting), len(self.types)), np.inf)
        for i, j in enumerate(waiting):
            for p in engine.feasible(j):
                run[i, self.column[p]] = min(run[i, self.column[p]], engine.jobs.expected[j, p])
        unit, position, _ = match(run[:, unit_type], busy)
        for i, j in enumerate(waiting):
            column = int(unit_type[unit[i]])
            put(engine, j, [p for p in by_expected(engine, j) if self.column[p] == column])
            engine.jobs.priority[j] = float(position[i])
        return True

    def _live(self) -> list[int]:
        state = self.engine.state
        submitted = int(state.counters[NEXT_SUBMIT])
        now = self.engine.now
        waiting = (state.place[:submitted] < 0) & (state.waits_for[:submitted] == 0)
        return [int(j) for j in np.flatnonzero(waiting | (state.end[:submitted] > now))]

    def _offer(self, live: list[int], now: float) -> Offer:
        engine, state = self.engine, self.engine.state
        speed = np.zeros((len(live), len(self.types)))
        left = np.ones(len(live))
        for i, j in enumerate(live):
            here = int(state.place[j])
            for p in engine.feasible(j) if here < 0 else [here]:
                speed[i, self.column[p]] = max(speed[i, self.column[p]], 1.0 / max(engine.jobs.expected[j, p], 1.0))
            if here >= 0:
                done = (now - state.start[j]) / max(engine.jobs.expected[j, here], 1.0)
                left[i] = max(1.0 - done, 0.01)
        limits = [engine.workload.jobs[j].time_limit for j in live]
        return Offer(
            jobs=np.asarray(live, dtype=np.int64),
            types=self.types,
            counts=self.counts,
            speed=speed,
            gpus=self.units[live],
            weight=self.weight[live],
            steps_left=left,
            elapsed=now - engine.jobs.submit[live],
            pairs=np.zeros((0, 2), dtype=np.int64),
            pair_speed=np.zeros((0, len(self.types), 2)),
            entity=self.entity[live],
            # A user's limit is the only promise there is of when a job should be done.
            deadline=np.asarray([np.inf if limit is None else limit for limit in limits]),
        )
