"""The learned policy in the real simulator: events, backfill, nodes one by one; what the benchmark scores.

At each submission the policy sees the engine's queue and running jobs through the same features as in training, and
its answer is one place, as the daemon's would be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.policy.learned.shapes import Floats
from advisor.sim.engine import Engine, Schedule
from advisor.sim.heuristics import run_heuristic
from advisor.sim.planned import Planning, run_planned
from advisor.sim.state import HEAD, RUNNING, TAIL
from advisor.training.environment import Environment, Result, result_of
from advisor.training.tasks import Task
from advisor.training.world import END, START, State, new_state


class EngineChoice:
    """Asks the policy for each job's place. `learned=False`: the arithmetic, from the same features."""

    def __init__(self, engine: Engine, env: Environment, learned: bool = True, following: bool = False) -> None:
        """`following`: of jobs that wait it is remembered when they were expected to start, as the daemon does."""
        self._engine, self._env, self._learned, self._following = engine, env, learned, following
        self._state: State = new_state(env.world)
        self._start = np.zeros(len(env.world.job))

    def __call__(self, job: int, now: float) -> list[int]:
        """The one place it chooses."""
        from advisor.training import rollout

        world, state = self._env.world, self.seen(job, now)
        table, scores = np.zeros((len(world.units), 2 + rollout.FEATURES)), np.zeros(len(world.units))
        best = int(rollout.weigh(world, state, self._env.flat, job, now, self._learned, table, scores))
        place = self.explored(job, best, table[:, 0], table[:, 1], scores, now)
        if self._following:
            self._start[job] = rollout.expected_start(world, state, job, place, now)
        return [place]

    def explored(self, job: int, best: int, wait_s: Floats, run_s: Floats, score: Floats, now: float) -> int:
        """The place it takes, `best` being what the policy likes best."""
        return best

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
        s.times[not_started, START] = np.maximum(now + 1.0, self._start[not_started])
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


def run_with_rounds(
    env: Environment, learned: bool = True, levers: Sequence[str] = ("place",), following: bool = True
) -> Schedule:
    """The same with the advisor's rounds, as in the daemon: the policy places at submission, then plans of all that
    waits (`advisor.policy.replan`) move jobs every 30 s. Without `following` nobody knows who waits for whom."""
    task = env.task
    return run_planned(
        task.workload,
        task.cluster,
        levers,
        expected=task.expected,
        planning=Planning(workflows=following),
        at_submission=lambda engine: EngineChoice(engine, env, learned, following),
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
