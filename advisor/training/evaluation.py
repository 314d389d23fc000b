"""The learned policy in the real simulator: events, backfill, nodes one by one; what the benchmark scores.

At each submission the policy sees the engine's queue and running jobs through the same features as in training, and
its answer is one place, as the daemon's would be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.sim.engine import Engine, Schedule
from advisor.sim.heuristics import run_heuristic
from advisor.sim.planned import run_planned
from advisor.sim.state import HEAD, RUNNING, TAIL
from advisor.training.environment import Environment, Result, result_of
from advisor.training.tasks import Task
from advisor.training.world import END, START, State, new_state


class EngineChoice:
    """Asks the policy for each job's place. `learned=False`: the arithmetic, from the same features."""

    def __init__(self, engine: Engine, env: Environment, learned: bool = True) -> None:
        self._engine, self._env, self._learned = engine, env, learned
        self._state: State = new_state(env.world)

    def __call__(self, job: int, now: float) -> list[int]:
        """The one place it chooses."""
        from advisor.training import rollout

        state = self.seen(job, now)
        return [int(rollout.decide(self._env.world, state, self._env.flat, job, now, self._learned))]

    def seen(self, job: int, now: float) -> State:
        """What runs and what waits of the jobs before `job`, as the engine has it; how long it takes stays unknown."""
        seen, s = self._engine.state, self._state
        running = np.sort(seen.running[: seen.counters[RUNNING]])
        waiting = seen.queue[seen.counters[HEAD] : seen.counters[TAIL]]
        s.times[:job, END] = np.where(np.isnan(seen.end[:job]), np.inf, -np.inf)
        s.times[running, END] = np.inf
        s.times[running, START] = seen.start[running]
        s.place[running] = seen.place[running]
        # Queued, or held back by their own dependencies: they start later than now, nobody knows when.
        not_started = np.flatnonzero(np.isnan(seen.start[:job]))
        s.times[not_started, START] = now + 1.0
        s.place[not_started] = self._engine.jobs.options[not_started, 0]
        for p in range(len(s.held)):
            here = np.concatenate((running[s.place[running] == p], waiting[s.place[waiting] == p]))
            s.held[p] = len(here)
            s.active[p, : len(here)] = here
        return s


def run_policy(env: Environment, learned: bool = True) -> Schedule:
    """The environment's task in the real simulator under the learned policy, or under the arithmetic."""
    engine = engine_of(env.task)
    return engine.run_deciding(EngineChoice(engine, env, learned))


def run_with_rounds(env: Environment, learned: bool = True, levers: Sequence[str] = ("place",)) -> Schedule:
    """The same with the advisor's rounds, as in the daemon: the policy places at submission, then plans of all that
    waits (`advisor.policy.replan`) move jobs every 30 s."""
    task = env.task
    return run_planned(
        task.workload,
        task.cluster,
        levers,
        expected=task.expected,
        at_submission=lambda engine: EngineChoice(engine, env, learned),
    )


def engine_of(task: Task) -> Engine:
    """The real simulator with the task's cluster, workload and expectations."""
    return Engine(task.cluster, task.workload, expected=task.expected)


def run_rule(task: Task, name: str, seed: int = 0) -> Schedule:
    """The task under one of the simulator's rules."""
    return run_heuristic(name, engine_of(task), seed)


def figures(task: Task, schedule: Schedule) -> Result:
    """How a schedule of the task did."""
    submit = np.asarray([job.submit for job in task.workload.jobs])
    best = np.asarray([min(job.run_time.values()) for job in task.workload.jobs])
    return result_of(schedule.end - submit, submit, best)
