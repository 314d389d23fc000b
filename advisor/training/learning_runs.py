"""A site's jobs in the real simulator while they teach run times: at submission only, or with the advisor's rounds.

Both the policy that places a job at its submission and the plan that moves it while it waits (lever `place`, every
30 s) read the same beliefs, and these take in every job that ends, as in the daemon. From `until` on they stay as they
are: the same policy, not adapted.
"""

from __future__ import annotations

import math

from advisor.sim.engine import Engine, Schedule
from advisor.sim.planned import Ended, run_planned
from advisor.training.environment import Environment
from advisor.training.evaluation import EngineChoice
from advisor.training.posterior import RunTimes
from advisor.training.world import EXPECTED, SPREAD


def run_learning(
    env: Environment, runs: RunTimes | None, until: float = math.inf, learned: bool = True, rounds: bool = True
) -> Schedule:
    """The environment's task with what `runs` believes, which learns until then; None: with what it has been told.

    Not `learned`: the arithmetic. Without `rounds`: at submission only.
    """
    task = env.task
    choice: _Choice | None = None

    def at_submission(engine: Engine) -> _Choice:
        nonlocal choice
        choice = _Choice(engine, env, runs, until, learned)
        return choice

    if not rounds:
        engine = Engine(task.cluster, task.workload)
        return engine.run_deciding(at_submission(engine))

    def on_end(ended: Ended) -> None:
        assert choice is not None
        choice.learn(ended.now)

    # Both are looked at anew with every plan.
    expected, spread = env.world.pair[:, :, EXPECTED], env.world.pair[:, :, SPREAD]
    return run_planned(
        task.workload, task.cluster, expected=expected, spread=spread, on_end=on_end, at_submission=at_submission
    )


class _Choice(EngineChoice):
    """Learns before it decides."""

    def __init__(self, engine: Engine, env: Environment, runs: RunTimes | None, until: float, learned: bool) -> None:
        super().__init__(engine, env, learned, following=True)
        self._runs, self._until = runs, until
        if runs is not None:
            runs.tell(env.world)

    def __call__(self, job: int, now: float) -> list[int]:
        """The one place it chooses, with what has ended by now."""
        self.learn(now)
        return super().__call__(job, now)

    def learn(self, now: float) -> None:
        """Takes in what has ended, unless it may no longer."""
        if self._runs is not None and now <= self._until:
            seen = self._engine.state
            self._runs.take_in(seen.place, seen.start, seen.end, now)
            self._runs.tell(self._env.world)
