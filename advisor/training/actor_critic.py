"""Actor-critic training of the learned policy, from top to bottom.

Each iteration plays a few tasks with the present policy and forks some of their decisions: every place is tried with
the same future. That gives the advantage of each action almost without noise, so the actor's loss is the policy's
expected regret, summed over all actions instead of sampled; the critic learns what states cost, and may speak for what
lies beyond a fork's horizon. Same recipe and seed, same weights, byte for byte, also after being killed and resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from advisor.policy.learned.network import PlacementNetwork, Without
from advisor.policy.learned.shapes import Ints, Weights
from advisor.training.batches import Forked, feature_ranges, softmin
from advisor.training.distributed import add_gradients, dealt_results, world_rank
from advisor.training.environment import Environment, Forks
from advisor.training.recipe import Recipe
from advisor.training.spread import fork_together
from advisor.training.tasks import Mixture, draw_task

# Tasks of validation have seeds of their own.
VALIDATION_SEED = 1_000_000


class Trainer:
    """A training run, which can be stopped at any iteration and go on from its `state`."""

    def __init__(
        self, recipe: Recipe, seed: int | None = None, environments: Sequence[Environment] | None = None
    ) -> None:
        """`environments`: in place of tasks drawn from the recipe's mixture."""
        torch.set_num_threads(1)
        self.recipe = recipe
        self.seed = recipe.seed if seed is None else seed
        self.network = PlacementNetwork(self.seed, Without(**dict.fromkeys(recipe.without, True)))
        self.adam = torch.optim.Adam(self.network.parameters(), lr=recipe.learning_rate)
        self.iteration = 0
        self.replay: list[Forked] = []
        self.curve: list[dict[str, float]] = []
        # All ranks draw alike: what is drawn is one list, of which each rank plays its part.
        self._rng = np.random.default_rng([self.seed, 0])
        self._rank, self._world = world_rank()
        self._environments: dict[int, Environment] = dict(enumerate(environments or ()))
        self._validation: list[Environment] = []

    @property
    def last(self) -> int:
        """How many iterations there are in all."""
        return self.recipe.iterations + self.recipe.meta_iterations

    def step(self) -> dict[str, float]:
        """One iteration; what it lost."""
        recipe = self.recipe
        part = min(self.iteration / max(recipe.iterations, 1), 1.0)
        rate = recipe.learning_rate * recipe.final_rate**part
        weights = self.network.export()
        chosen = self._next_tasks()
        if self.iteration < recipe.iterations:
            self.replay = [*self.replay, self.collect(chosen, weights)][-recipe.replay :]
            for _ in range(recipe.steps):
                # The newest, and what chance takes from memory.
                drawn = self._rng.integers(len(self.replay), size=recipe.together - 1)
                losses = self._update(self.adam, [self.replay[-1], *(self.replay[k] for k in drawn)], rate)
        else:
            losses = self._reptile(chosen, weights)
        self.iteration += 1
        return losses

    def _next_tasks(self) -> list[int]:
        first = self.iteration * self.recipe.tasks_each
        return [(first + k) % self.recipe.tasks for k in range(self.recipe.tasks_each)]

    def _environment(self, number: int) -> Environment:
        if number not in self._environments:
            task = draw_task(self.seed * 10_000 + number, self.recipe.mixture)
            self._environments[number] = Environment(task, self.network.export(), not self.network.without.beliefs)
        return self._environments[number]

    def _jobs(self, number: int) -> int:
        """How many jobs a task has, which a rank that does not play it need not draw it for."""
        known = self._environments.get(number)
        return self.recipe.mixture.jobs if known is None else len(known.world.job)

    def collect(self, chosen: Sequence[int], weights: Weights) -> Forked:
        """Plays tasks with these weights and forks some decisions of each; of all ranks' forks, this rank's."""
        recipe, at, chance = self.recipe, [], []
        for number in chosen:
            jobs = self._jobs(number)
            at.append(self._rng.choice(jobs - 20, size=recipe.forks, replace=False))
            chance.append(self._rng.random(jobs))

        def play(k: int, decisions: Ints) -> tuple[Environment, Forks]:
            env = self._environment(chosen[k])
            env.set_weights(weights)
            how = (recipe.horizon, recipe.objective, True, recipe.temperature, chance[k], recipe.bootstrap, recipe.tail)
            return env, env.fork(decisions, *how)

        return fork_together(at, play, recipe.horizon)

    def _update(self, optimizer: torch.optim.Optimizer, drawn: Sequence[Forked], rate: float) -> dict[str, float]:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        for forked in drawn:
            loss, losses = loss_of(self.network, forked, self.recipe)
            (loss / len(drawn)).backward()  # type: ignore[no-untyped-call]
        add_gradients(self.network.parameters())
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        optimizer.step()
        return losses

    def _reptile(self, chosen: Sequence[int], weights: Weights) -> dict[str, float]:
        """A few steps on one task, then a part of the way there: what is common to all tasks' ways stays."""
        recipe = self.recipe
        before = {name: p.detach().clone() for name, p in self.network.named_parameters()}
        moved = {name: torch.zeros_like(p) for name, p in before.items()}
        for number in chosen:
            forked = self.collect([number], weights)
            inner = torch.optim.SGD(self.network.parameters(), lr=recipe.inner_rate)
            for _ in range(recipe.inner_steps):
                losses = self._update(inner, [forked], recipe.inner_rate)
            with torch.no_grad():
                for name, p in self.network.named_parameters():
                    moved[name] += (p - before[name]) / len(chosen)
                    p.copy_(before[name])
        with torch.no_grad():
            for name, p in self.network.named_parameters():
                p.add_(recipe.outer_rate * moved[name])
        return losses

    def score_on(self, first_seed: int, mixture: Mixture) -> None:
        """Validates on these tasks from now on."""
        weights, believing = self.network.export(), not self.network.without.beliefs
        seeds = range(first_seed, first_seed + self.recipe.validation)
        self._validation = [Environment(draw_task(seed, mixture), weights, believing) for seed in seeds]

    def validate(self) -> dict[str, float]:
        """Gain over the arithmetic on tasks that are never trained on, in training's own simulator."""
        if not self._validation:
            self.score_on(VALIDATION_SEED, self.recipe.mixture)
        weights = self.network.export()
        mine: dict[str, list[float]] = {"gain": [], "p99": []}
        for env in self._validation[self._rank :: self._world]:
            env.set_weights(weights)
            learned = env.play()
            mine["gain"].append(env.arithmetic.of(self.recipe.objective) / learned.of(self.recipe.objective))
            mine["p99"].append(learned.p99 / env.arithmetic.p99)
        gains, tails = (dealt_results(told, len(self._validation)) for told in mine.values())
        point = {"iteration": float(self.iteration), "gain": float(np.mean(gains)), "p99": float(np.mean(tails))}
        self.curve.append(point)
        return point

    def weights(self) -> Weights:
        """The present weights, with the ranges of features they were trained on."""
        if not self.replay:
            return self.network.export()
        return self.network.export(feature_ranges(self.replay))

    def state(self) -> dict[str, Any]:
        """Everything that a run needs to go on as if it had never stopped."""
        return {
            "network": self.network.state_dict(),
            "adam": self.adam.state_dict(),
            "iteration": self.iteration,
            "replay": [vars(f.batch) | {"cost": f.cost, "whole": f.whole, "share": f.share} for f in self.replay],
            "curve": self.curve,
            "rng": self._rng.bit_generator.state,
            "draw": self.network.generator_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a `state`."""
        from advisor.policy.learned.network import Batch

        self.network.load_state_dict(state["network"])
        self.adam.load_state_dict(state["adam"])
        self.iteration = state["iteration"]
        rest = ("cost", "whole", "share")
        self.replay = [
            Forked(Batch(**{k: v for k, v in f.items() if k not in rest}), *(f[name] for name in rest))
            for f in state["replay"]
        ]
        self.curve = list(state["curve"])
        self._rng.bit_generator.state = state["rng"]
        self.network.restore_generator(state["draw"])


def loss_of(network: PlacementNetwork, forked: Forked, recipe: Recipe) -> tuple[torch.Tensor, dict[str, float]]:
    """Actor + critic (− entropy), and what each part is."""
    batch = forked.batch
    residuals, value = network(batch, recipe.samples)
    score = batch.wait * torch.exp(residuals[:, 0]) + batch.run * torch.exp(residuals[:, 1])
    if network.without.residual:
        score = batch.scale * torch.exp(3.0 * residuals).sum(1)
    chance = softmin(score, batch, recipe.temperature)
    count = len(forked.whole)
    actor = (chance * forked.cost.clamp(max=recipe.most_regret)).sum() / count
    critic = torch.nn.functional.huber_loss(value, torch.log(forked.whole.clamp(min=1e-3)))
    entropy = -(chance * torch.log(chance.clamp(min=1e-9))).sum() / count
    decisions, candidates = forked.share
    loss = decisions * (actor + recipe.critic * critic - recipe.entropy * entropy)
    loss = loss + candidates * recipe.shrink * (residuals**2).mean()
    return loss, {"actor": float(actor.detach()), "critic": float(critic.detach()), "entropy": float(entropy.detach())}
