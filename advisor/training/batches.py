"""Puts forked decisions of many tasks side by side, for the network in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from advisor.policy.learned.network import Batch
from advisor.policy.learned.shapes import COUNTERS, LEVELS, Floats, Ints
from advisor.training.distributed import gathered
from advisor.training.environment import Environment, Forks
from advisor.training.rollout import EVERY
from advisor.training.world import SENSITIVITY


@dataclass(frozen=True)
class Forked:
    """A batch with what each candidate cost, and by how much a task's costs are divided."""

    batch: Batch
    cost: torch.Tensor  # [candidate] beyond the decision's cheapest, in the task's usual time in the system
    whole: torch.Tensor  # [decision] what its cheapest cost, for each job, in usual run times
    share: tuple[float, float] = (1.0, 1.0)  # of decisions and of candidates, where other ranks have the rest


def counter_numbers(counters: Ints) -> Ints:
    """The combination of levels [..., counter] as one number: row of the belief network's table."""
    number = np.zeros(counters.shape[:-1], dtype=np.int64)
    for k in range(COUNTERS):
        number = number * LEVELS + counters[..., k]
    return number


def assemble(parts: Sequence[tuple[Environment, Forks]], horizon: int) -> Forked:
    """One batch from (environment, its forks)."""
    rows: dict[str, list[np.ndarray]] = {}

    def add(name: str, array: np.ndarray) -> None:
        rows.setdefault(name, []).append(array)

    decisions = pools_before = kernels_before = 0
    for env, forks in parts:
        task, world = env.task, env.world
        count, pools = forks.cost.shape
        possible = np.isfinite(forks.cost)
        look = forks.job - forks.job % EVERY
        number = counter_numbers(task.counters)
        add("pools", forks.pools.reshape(count * pools, -1))
        add("pool_of", decisions + np.repeat(np.arange(count), pools))
        add("pool_counters", number[look].reshape(-1))
        starts = pools_before + np.arange(count)[:, None] * pools
        add("edge_index", np.stack([(starts + ends).reshape(-1) for ends in (world.sources, world.targets)]))
        add("edges", np.tile(world.edges, (count, 1)))
        add("moments", forks.moments)
        at, where = np.nonzero(possible)
        add("candidates", forks.table[at, where, 2:])
        add("wait", forks.table[at, where, 0])
        add("run", forks.table[at, where, 1])
        add("scale", np.full(len(at), world.scale))
        add("decision_of", decisions + at)
        add("place_of", pools_before + at * pools + where)
        add("counters", number[forks.job[at], where])
        add("sensitivity", world.job[forks.job[at], SENSITIVITY])
        least = forks.cost.min(axis=1)
        add("cost", (forks.cost[at, where] - least[at]) * (world.scale / world.usual))
        seen = np.minimum(horizon + 1, len(world.job) - forks.job)
        add("whole", least / seen)
        for i in range(count):
            graph = task.graphs[task.app[forks.job[i]]]
            add("kernels", graph.kernels)
            add("kernel_of", np.full(len(graph.kernels), decisions + i))
            add("flow_index", kernels_before + np.stack([graph.sources, graph.targets]))
            add("flows", graph.flows)
            kernels_before += len(graph.kernels)
        decisions += count
        pools_before += count * pools
    whole = {
        name: torch.from_numpy(np.concatenate(arrays, axis=1 if name.endswith("_index") else 0))
        for name, arrays in rows.items()
    }
    cost, least = whole.pop("cost"), whole.pop("whole")
    return Forked(Batch(**whole), cost, least)


def decisions_of(batch: Batch) -> int:
    """How many decisions there are."""
    return len(batch.moments)


def softmin(score: torch.Tensor, batch: Batch, temperature: float) -> torch.Tensor:
    """Probability of each candidate: the policy, softened; scores are compared in parts of the least arithmetic one."""
    count = decisions_of(batch)
    plain = batch.wait + batch.run
    least = torch.full((count,), torch.inf, dtype=torch.float64).scatter_reduce(0, batch.decision_of, plain, "amin")
    logit = -score / (temperature * least[batch.decision_of])
    highest = torch.full((count,), -torch.inf, dtype=torch.float64).scatter_reduce(
        0, batch.decision_of, logit.detach(), "amax"
    )
    raised = torch.exp(logit - highest[batch.decision_of])
    total = torch.zeros(count, dtype=torch.float64).index_add(0, batch.decision_of, raised)
    return raised / total[batch.decision_of]


def feature_ranges(forked: Sequence[Forked]) -> dict[str, Floats]:
    """Least and most of each feature that was met, on any rank, with a margin of half the range."""
    seen = {
        "range": np.concatenate([f.batch.candidates.numpy() for f in forked]),
        "pool": np.concatenate([f.batch.pools.numpy() for f in forked]),
        "moment": np.concatenate([f.batch.moments[:, -1].numpy() for f in forked]),
    }
    found = {}
    for name, rows in seen.items():
        low = np.min(gathered(rows.min(axis=0)), axis=0)
        high = np.max(gathered(rows.max(axis=0)), axis=0)
        margin = 0.5 * (high - low) + 0.1
        found[f"{name}_low"], found[f"{name}_high"] = low - margin, high + margin
    return found
