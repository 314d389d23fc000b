"""The learned policy with the lever `place` in the real simulator: each round it looks again at what waits.

Pending jobs are taken out of their queues and placed again one by one, in the order of the queue, each by the same
score as at its submission, behind what runs and the jobs ahead of it. Nothing that runs is touched, and no order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.policy.learned.shapes import Floats, Ints
from advisor.sim.engine import Engine, Schedule
from advisor.sim.state import NEXT_SUBMIT
from advisor.sim.stepping import pending, put, run_stepwise
from advisor.training.environment import Environment
from advisor.training.evaluation import EngineChoice, engine_of
from advisor.training.machine_code import machine_code
from advisor.training.rollout import FEATURES, describe, score
from advisor.training.world import END, START, State, World


class LookingAgain:
    """Asks the policy at each submission, and each round for every job that waits."""

    def __init__(self, engine: Engine, env: Environment, learned: bool = True) -> None:
        self._engine, self._env, self._learned = engine, env, learned
        self._choice = EngineChoice(engine, env, learned)

    def choose(self, job: int, now: float) -> Sequence[int]:
        """The place of a job that is being submitted."""
        return self._choice(job, now)

    def look(self, now: float) -> bool:
        """Places all that waits again; whether any job moved."""
        waiting = np.asarray(pending(self._engine), dtype=np.int64)
        if not len(waiting):
            return False
        state = self._choice.seen(int(self._engine.state.counters[NEXT_SUBMIT]), now)
        places = replace(self._env.world, state, self._env.flat, waiting, now, self._learned)
        moved = np.flatnonzero(places != self._engine.jobs.options[waiting, 0])
        for i in moved:
            put(self._engine, int(waiting[i]), [int(places[i])])
        return len(moved) > 0


@machine_code
def replace(world: World, s: State, w: Floats, waiting: Ints, now: float, learned: bool) -> Ints:
    """Where each of these jobs should wait; they are taken out of their queues and come back in this order."""
    pools = len(world.units)
    table, found = np.zeros((pools, 2 + FEATURES)), np.zeros(pools)
    places = np.zeros(len(waiting), dtype=np.int64)
    for p in range(pools):
        kept = 0
        for i in range(s.held[p]):
            job = s.active[p, i]
            if s.times[job, START] <= now and s.times[job, END] > now:
                s.active[p, kept] = job
                kept += 1
        s.held[p] = kept
    for i in range(len(waiting)):
        job = waiting[i]
        describe(world, s, job, now, table)
        p = score(world, s, w, job, table, learned, found)
        places[i] = p
        s.place[job] = p
        s.active[p, s.held[p]] = job
        s.held[p] += 1
    return places


def run_rounds(env: Environment, learned: bool = True) -> Schedule:
    """The environment's task with rounds, under the learned policy or under the arithmetic."""
    engine = engine_of(env.task)
    return run_stepwise(engine, LookingAgain(engine, env, learned))
