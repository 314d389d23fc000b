"""Runs tasks under the learned policy: what training and evaluation call.

Everything heavy is in `advisor.training.rollout`; here the arrays are put together, and results are taken apart.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from advisor.policy.learned.forward import embed_graph
from advisor.policy.learned.memory import edges_between
from advisor.policy.learned.shapes import (
    CANDIDATE_FEATURES,
    COUNTERS,
    GLOBAL_FEATURES,
    KERNEL_OUT,
    LEVELS,
    POOL_FEATURES,
    TICKS,
    Floats,
    Ints,
    Weights,
)
from advisor.training.tasks import Task
from advisor.training.world import BELIEF, BELIEF_SPREAD, COUNTER, END, GRAPH, SUBMIT, TRUE, World, new_state

Objective = Literal["avg_jct", "p99", "makespan", "fairness"]
OBJECTIVES: tuple[Objective, ...] = ("avg_jct", "p99", "makespan", "fairness")


class Result(msgspec.Struct, frozen=True):
    """How one run did, in seconds; `fairness` is the mean of (time in the system / shortest run time)."""

    avg_jct: float
    p99: float
    makespan: float
    fairness: float

    def of(self, objective: Objective) -> float:
        """The figure of an objective."""
        return float(getattr(self, objective))


class Forks(msgspec.Struct, frozen=True):
    """Decisions of one episode, each with what every one of its pools would have cost."""

    job: Ints  # [fork]
    table: Floats  # [fork, pool, 2 + features]: wait, run time (inf: cannot), features
    cost: Floats  # [fork, pool]
    pools: Floats  # [fork, pool, features]
    moments: Floats  # [fork, ticks, features]


class Environment:
    """One task, ready to run as often as wanted."""

    def __init__(self, task: Task, weights: Weights, believing: bool = True) -> None:
        """Without `believing`, the network sees the plain mean of the counters where beliefs belong."""
        self.task = task
        self.believing = believing
        self.world = world_of(task)
        self.set_weights(weights)
        self.arithmetic = self.play(learned=False)
        self.world = self.world._replace(usual=self.arithmetic.avg_jct)

    def set_weights(self, weights: Weights) -> None:
        """Another network from now on."""
        from advisor.training.compiled_forward import flat

        self.flat = flat(weights)
        mean, spread = believed(weights, self.task.counters, self.believing)
        self.world.pair[:, :, BELIEF], self.world.pair[:, :, BELIEF_SPREAD] = mean, spread
        graphs = np.stack([embed_graph(weights, g.kernels, g.sources, g.targets, g.flows) for g in self.task.graphs])
        self.world.job[:, GRAPH:] = graphs[self.task.app]

    def play(self, learned: bool = True) -> Result:
        """The whole workload by the network's first choice, or by the arithmetic's."""
        from advisor.training import rollout

        state = new_state(self.world)
        rollout.roll_on(self.world, state, self.flat, 0, len(self.world.job) - 1, learned)
        submit = self.world.job[:, SUBMIT]
        return result_of(state.times[:, END] - submit, submit, self.world.pair[:, :, TRUE].min(axis=1))

    def fork(
        self,
        at: Ints,
        horizon: int,
        objective: Objective = "avg_jct",
        rolling: bool = True,
        temperature: float = 0.0,
        uniform: Floats | None = None,
        bootstrap: float = 0.0,
        tail: float = 0.0,
    ) -> Forks:
        """Plays, and at these jobs tries every pool; see `advisor.training.rollout.episode`."""
        from advisor.training import rollout

        state = new_state(self.world)
        at = np.sort(at)
        f, p = len(at), len(self.world.units)
        table = np.zeros((f, p, 2 + len(CANDIDATE_FEATURES)))
        cost = np.zeros((f, p))
        pools = np.zeros((f, p, len(POOL_FEATURES)))
        moments = np.zeros((f, TICKS, len(GLOBAL_FEATURES)))
        chance = np.zeros(len(self.world.job)) if uniform is None else uniform
        code = OBJECTIVES.index(objective)
        how = (at, horizon, code, tail, rolling, temperature, chance, bootstrap)
        rollout.episode(self.world, state, self.flat, *how, table, cost, pools, moments)
        return Forks(at, table, cost, pools, moments)


def result_of(jct: Floats, submit: Floats, best: Floats) -> Result:
    """Figures from times in the system, submissions and shortest run times."""
    ranked = np.sort(jct)
    return Result(
        avg_jct=float(jct.mean()),
        p99=float(ranked[math.ceil(0.99 * (len(ranked) - 1))]),
        makespan=float((submit + jct).max() - submit.min()),
        fairness=float((jct / best).mean()),
    )


def believed(weights: Weights, counters: Ints, believing: bool = True) -> tuple[Floats, Floats]:
    """Mean and spread of contention given the counters' levels [..., counter]."""
    if not believing:
        level = counters / (LEVELS - 1)
        return np.asarray(level.mean(axis=-1)), np.zeros(counters.shape[:-1])
    number = np.zeros(counters.shape[:-1], dtype=np.int64)
    for k in range(COUNTERS):
        number = number * LEVELS + counters[..., k]
    chance = weights.belief[number]
    levels = np.linspace(0.0, 1.0, LEVELS)
    mean = chance @ levels
    return mean, np.sqrt(np.maximum(chance @ levels**2 - mean**2, 0.0))


def world_of(task: Task) -> World:
    """The task's arrays; what depends on weights (beliefs, graphs' embeddings) is still zero."""
    places, nodes, jobs = task.cluster.places, task.cluster.nodes, task.workload.jobs
    units = np.asarray([sum(nodes[n].gpus or nodes[n].cpus for n in p.nodes) for p in places], dtype=np.int64)
    sources, targets, edges = edges_between(
        [frozenset({p.partition}) for p in places], [p.processor for p in places], list(task.figures[:, 0])
    )
    rows = np.zeros((len(jobs), GRAPH + KERNEL_OUT))
    rows[:, :GRAPH] = np.stack(
        [
            [job.submit for job in jobs],
            [job.gpus or job.cpus for job in jobs],
            task.sensitivity,
            task.after,
            task.new,
            [job.time_limit or 0.0 for job in jobs],
        ],
        axis=1,
    )
    number = {job.id: j for j, job in enumerate(jobs)}
    most = max((len(job.depends) for job in jobs), default=0)
    parents = np.full((len(jobs), max(most, 2)), -1, dtype=np.int64)
    for j, job in enumerate(jobs):
        for k, other in enumerate(job.depends):
            parents[j, k] = number[other]
    true = np.asarray([[job.run_time.get(p.processor, np.inf) for p in places] for job in jobs])
    pair = np.zeros((*true.shape, COUNTER + COUNTERS))
    pair[:, :, COUNTER:] = task.counters / (LEVELS - 1)
    pair[:, :, 0], pair[:, :, 1], pair[:, :, 2], pair[:, :, 3] = task.expected, true, task.spread, task.slow
    return World(
        units=units,
        figures=np.ascontiguousarray(task.figures),
        sources=sources,
        targets=targets,
        edges=edges,
        job=rows,
        pair=pair,
        parents=parents,
        scale=float(task.expected.min(axis=1).mean()),
        usual=1.0,
    )
