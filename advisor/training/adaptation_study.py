"""How fast the policy learns a site it has never seen, and how it follows when the workload shifts.

Adapting has two parts, and both count: what ended jobs teach of run times (`advisor.training.posterior`), and a few
gradient steps on the site's own queues (`advisor.training.fine_tuning`), played with run times as they are believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from advisor.policy.learned.network import PlacementNetwork
from advisor.policy.learned.shapes import SHAPES, Floats, Weights
from advisor.training.actor_critic import Trainer
from advisor.training.environment import Environment
from advisor.training.fine_tuning import Budget, fine_tune
from advisor.training.posterior import RunTimes, tell_truth
from advisor.training.prior import Prior, learned_prior, plain_prior
from advisor.training.recipe import Recipe
from advisor.training.tasks import Mixture, Task, draw_task
from advisor.training.world import END, EXPECTED, SPREAD, SUBMIT, TRUE, State, new_state

# Submissions between two updates of what is believed of run times.
EVERY = 4

Progress = Callable[[str], None]


class Adapted(msgspec.Struct, frozen=True):
    """Average completion times on one site, in seconds."""

    adapted: float
    trained: float  # from nothing, on a hundred times as many jobs; `known` where the recipe has no iterations
    not_adapted: float
    arithmetic: float  # with the run times that the adapted one knows
    from_nothing: float  # a network without meta-training, after the same few jobs
    going_on: float  # adapted, and learning from what ends, as the daemon does
    known: float  # the same policy, not trained there, with mean run times known


def prior_of(mixture: Mixture) -> Prior:
    """What sites of this mixture have taught, on processors and seeds of training's."""
    return learned_prior(mixture.taste, mixture.told_off)


def play_learning(env: Environment, runs: RunTimes, learning: bool, first: int = 0) -> tuple[Floats, State]:
    """Completion times, and how it ended; what has ended is taken in as it goes, from job `first` on if `learning`."""
    from advisor.training import rollout

    state, jobs = new_state(env.world), len(env.world.job)
    runs.tell(env.world)
    for start in range(0, jobs, EVERY):
        now = float(env.world.job[start, SUBMIT])
        if start > 0 and (learning or start <= first):
            runs.learn_from(env.world, state, now)
        rollout.roll_on(env.world, state, env.flat, start, min(start + EVERY, jobs) - 1, True)
    return state.times[:, END] - env.world.job[:, SUBMIT], state


def _completions(env: Environment) -> Floats:
    """Completion times by what the environment tells now."""
    from advisor.training import rollout

    state = new_state(env.world)
    rollout.roll_on(env.world, state, env.flat, 0, len(env.world.job) - 1, True)
    return state.times[:, END] - env.world.job[:, SUBMIT]


def first_jobs(task: Task, count: int) -> Task:
    """The task cut off after so many jobs."""
    workload = msgspec.structs.replace(task.workload, jobs=task.workload.jobs[:count])
    changes = {
        name: getattr(task, name)[:count]
        for name in ("expected", "spread", "slow", "counters", "sensitivity", "after", "new", "app", "pressure")
    }
    return msgspec.structs.replace(task, workload=workload, told=task.told[:count], mean=task.mean[:count], **changes)


def imagine(env: Environment, runs: RunTimes, seed: int) -> None:
    """Makes run times what they are believed to be, drawn by their spread: the site as far as it is known."""
    expected, spread = runs.expected()
    luck = np.random.default_rng(seed).normal(size=len(expected))
    drawn = expected * np.exp(spread * luck[:, None] - spread**2 / 2)
    env.world.pair[:, :, EXPECTED], env.world.pair[:, :, SPREAD] = expected, spread
    env.world.pair[:, :, TRUE] = np.where(np.isfinite(expected), drawn, np.inf)


def better(before: Weights, after: Weights, env: Environment, runs: RunTimes, seed: int) -> Weights:
    """Whichever does better at the site as it is known, with other luck than the steps were taken on."""
    totals = [0.0, 0.0]
    for turn in range(4):
        imagine(env, runs, seed + 1 + turn)
        for number, weights in enumerate((before, after)):
            env.set_weights(weights)
            totals[number] += env.play().avg_jct
    return after if totals[1] < totals[0] else before


def adaptation(
    weights: Weights, seeds: Sequence[int], mixture: Mixture, recipe: Recipe, jobs: int, progress: Progress
) -> list[Adapted]:
    """For each unseen site: after `jobs` ended jobs, against one trained there from nothing on 100 times as many."""
    found = []
    for number, seed in enumerate(seeds):
        log = first_jobs(draw_task(seed, mixture), jobs)
        site, runs = Environment(log, weights), RunTimes(log, prior_of(mixture))
        _, state = play_learning(site, runs, learning=True)
        runs.learn_from(site.world, state, np.inf)
        imagine(site, runs, seed)
        budget = Budget(rounds=2, steps=3, forks=jobs // 2)
        tuned = better(weights, fine_tune(weights, [site], seed % 1000, budget, recipe), site, runs, seed)
        new = fine_tune(PlacementNetwork(seed % 1000).export(), [site], seed % 1000, budget, recipe)
        task = draw_task(seed, mixture, episode=1)
        there = runs.for_task(task)
        scores = []
        for chosen, learned in ((tuned, True), (weights, True), (weights, False), (new, True)):
            env = Environment(task, chosen)
            there.tell(env.world)
            scores.append(env.play(learned).avg_jct)
        going_on = float(play_learning(Environment(task, tuned), runs.for_task(task), learning=True)[0].mean())
        env = Environment(task, weights)
        tell_truth(task, env.world)
        known = env.play().avg_jct
        if recipe.iterations:
            env.set_weights(_train_there(seed, mixture, recipe, 100 * jobs // mixture.jobs + 1))
        adapted, untuned, arithmetic, from_nothing = scores
        trained = env.play().avg_jct
        found.append(Adapted(adapted, trained, untuned, arithmetic, from_nothing, going_on, known))
        progress(f"adaptation {number + 1} of {len(seeds)}: {scores[0] / found[-1].trained - 1:+.3f}")
    return found


def _train_there(seed: int, mixture: Mixture, recipe: Recipe, episodes: int) -> Weights:
    """A network from nothing, on many workloads of one site whose run times are known."""
    environments = []
    for episode in range(2, 2 + episodes):
        task = draw_task(seed, mixture, episode=episode)
        environments.append(Environment(task, PlacementNetwork(0).export()))
        tell_truth(task, environments[-1].world)
    trainer = Trainer(msgspec.structs.replace(recipe, tasks=episodes), seed % 1000, environments)
    while trainer.iteration < trainer.last:
        trainer.step()
    return trainer.weights()


class Shifted(msgspec.Struct, frozen=True):
    """Average completion times after an abrupt shift of the app mix, in seconds."""

    adapted: float
    not_adapted: float
    arithmetic: float  # adapting as well
    plain: float  # adapting, without what other sites have taught of run times
    plain_not_adapted: float
    known: float  # mean run times known from the start: as if it had adapted at once


def shift(weights: Weights, seeds: Sequence[int], mixture: Mixture, progress: Progress) -> list[Shifted]:
    """Half-way all apps change; one policy goes on learning from what ends, the other stays as it was before."""
    found = []
    arithmetic = weights._replace(head_w3=np.zeros(SHAPES["head_w3"]), head_b3=np.zeros(SHAPES["head_b3"]))
    for number, seed in enumerate(seeds):
        task = draw_task(seed, mixture, shift=True)
        half = len(task.app) // 2
        means = []
        prior = prior_of(mixture)
        for chosen, learning, start in (
            (weights, True, prior),
            (weights, False, prior),
            (arithmetic, True, prior),
            (weights, True, plain_prior()),
            (weights, False, plain_prior()),
        ):
            env = Environment(task, chosen)
            means.append(float(play_learning(env, RunTimes(task, start), learning, half)[0][half:].mean()))
        env = Environment(task, weights)
        tell_truth(task, env.world)
        means.append(float(_completions(env)[half:].mean()))
        found.append(Shifted(*means))
        progress(f"shift {number + 1} of {len(seeds)}: {means[1] / means[0]:.3f}")
    return found
