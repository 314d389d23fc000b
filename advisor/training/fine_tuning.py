"""Adapts a trained network to one site: a few gradient steps, on the last layers alone.

Called by `advisor retrain` and by the benchmark of adaptation. What the site's log teaches of run times comes with the
tasks; here the policy learns what its queues and its mix of jobs ask for. Same weights, tasks and seed, same result;
under `srun` the ranks share the forks of every round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import torch

from advisor.policy.learned.network import PlacementNetwork
from advisor.policy.learned.shapes import RANGES, Ints, Weights
from advisor.training.actor_critic import loss_of
from advisor.training.distributed import add_gradients, world_rank
from advisor.training.environment import Environment, Forks
from advisor.training.recipe import Recipe
from advisor.training.spread import fork_together
from advisor.training.tasks import Task

# A site's log is short: the graph layers and the LSTM stay as they were trained on many clusters.
ADAPTED = ("head_w3", "head_b3", "head_w2", "head_b2")


class Budget(msgspec.Struct, frozen=True):
    """How much to spend: rounds of playing, gradient steps in each, seconds at most."""

    rounds: int = 4
    steps: int = 4
    forks: int = 24
    seconds: float = 60.0
    learning_rate: float = 2e-3


def fine_tune(
    weights: Weights,
    tasks: Sequence[Task] | Sequence[Environment],
    seed: int = 0,
    budget: Budget | None = None,
    recipe: Recipe | None = None,
    adapted: Sequence[str] = ADAPTED,
    progress: Callable[[int, int], None] | None = None,
) -> Weights:
    """The weights after a few steps on these tasks; `seconds` is looked at between rounds only, by one rank alone."""
    torch.set_num_threads(1)
    budget, recipe = budget or Budget(), recipe or Recipe()
    network = PlacementNetwork(seed)
    network.take(weights)
    environments = [task if isinstance(task, Environment) else Environment(task, weights) for task in tasks]
    chosen = [p for name, p in network.weights.items() if name in adapted]
    adam = torch.optim.Adam(chosen, lr=budget.learning_rate)
    rng = np.random.default_rng(seed)
    began = time.monotonic()
    for turn in range(budget.rounds):
        if world_rank()[1] == 1 and time.monotonic() - began > budget.seconds:
            break
        sizes = [len(env.world.job) for env in environments]
        at = [rng.choice(jobs, size=min(budget.forks, jobs), replace=False) for jobs in sizes]
        now = _with(network, weights)

        def play(number: int, decisions: Ints, now: Weights = now) -> tuple[Environment, Forks]:
            env = environments[number]
            env.set_weights(now)
            how = (recipe.horizon, recipe.objective, True, 0.0, None, recipe.bootstrap, recipe.tail)
            return env, env.fork(decisions, *how)

        forked = fork_together(at, play, recipe.horizon)
        for _ in range(budget.steps):
            loss, _ = loss_of(network, forked, recipe)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            add_gradients(chosen)
            torch.nn.utils.clip_grad_norm_(chosen, 1.0)
            adam.step()
        if progress is not None:
            progress(turn + 1, budget.rounds)
    return _with(network, weights)


def _with(network: PlacementNetwork, before: Weights) -> Weights:
    """The network's weights; the ranges of features stay those of `before`."""
    return network.export({name: getattr(before, name) for name in RANGES})
