"""A site's jobs in the real simulator while they teach run times: at submission only, or with the advisor's rounds.

Both the policy that places a job at its submission and the plan that moves it while it waits (lever `place`, every
30 s) read the same beliefs, and these take in every job that ends, as in the daemon. From `until` on they stay as they
are: the same policy, not adapted. Where it explores, it does so as the daemon does, for as long as it learns: whoever
cannot learn would only pay for it.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.policy.learned.shapes import Floats
from advisor.settings import Explore
from advisor.sim.engine import Engine, Schedule
from advisor.sim.planned import Ended, run_planned
from advisor.training.environment import Environment
from advisor.training.evaluation import EngineChoice
from advisor.training.posterior import RunTimes
from advisor.training.sent_to_learn import Explorer
from advisor.training.world import EXPECTED, SPREAD


def run_learning(
    env: Environment,
    runs: RunTimes | None,
    until: float = math.inf,
    learned: bool = True,
    rounds: bool = True,
    explore: Explore | None = None,
    explore_from: float = -math.inf,
) -> Schedule:
    """The environment's task with what `runs` believes, which learns until then; None: with what it has been told.

    Not `learned`: the arithmetic. Without `rounds`: at submission only. `explore`: what may be risked to learn
    more, from `explore_from` on.
    """
    task = env.task
    choice: _Choice | None = None

    def at_submission(engine: Engine) -> _Choice:
        nonlocal choice
        choice = _Choice(engine, env, runs, until, learned, explore, explore_from)
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

    def __init__(
        self,
        engine: Engine,
        env: Environment,
        runs: RunTimes | None,
        until: float,
        learned: bool,
        explore: Explore | None,
        explore_from: float,
    ) -> None:
        super().__init__(engine, env, learned, following=True)
        self._runs, self._until, self._explore_from = runs, until, explore_from
        self._explorer = Explorer(env.task, runs, explore) if runs is not None and explore is not None else None
        self._sent: dict[int, int] = {}  # job → the place it is to learn about
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
            for job, place in self._sent.items():
                self._stays(job, place)

    def explored(self, job: int, best: int, wait_s: Floats, run_s: Floats, score: Floats, now: float) -> int:
        """`best`, unless the job goes elsewhere to learn, where no round moves it away again."""
        if self._explorer is None or not self._explore_from <= now <= self._until:
            return best
        place = self._explorer.place(job, best, wait_s, run_s, score, now)
        if place != best:
            self._sent[job] = place
            self._stays(job, place)
        return place

    def _stays(self, job: int, place: int) -> None:
        expected = self._env.world.pair[job, :, EXPECTED]
        expected[np.arange(len(expected)) != place] = np.inf
