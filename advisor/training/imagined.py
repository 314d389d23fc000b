"""A site as far as it is known after a few jobs, made into workloads to train on: adapting with a model of the site.

Slurm tells the cluster exactly. Of the workload the log has some jobs: they are drawn again in short stretches, so that
bursts and contention stay as they were, at a rate that is known as well as so few arrivals tell it. Run times differ
from workload to workload by what is not known of them, while the policy goes by what is believed: what it learns is
right for most of what the site may be.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.policy.learned.shapes import RANGES, Floats, Weights
from advisor.sim.workload import Workload
from advisor.training.actor_critic import Trainer
from advisor.training.environment import Environment, believed
from advisor.training.posterior import RunTimes
from advisor.training.recipe import Recipe
from advisor.training.tasks import Task, true_slowdown

# Jobs in a stretch, and how well a rate is known (spread of its logarithm) that fifty bursty arrivals tell.
STRETCH, RATE_SD = 10, 0.15
# Learning rate as a part of the recipe's: the weights are good already.
GENTLY = 0.3
# Workloads that the trained weights are tried on before they are kept.
TRIALS = 8
# The site is not quite as it is imagined: a smaller gain there is none.
LEAST_GAIN = 0.01


def imagined_task(log: Task, runs: RunTimes, weights: Weights, jobs: int, seed: int) -> Task:
    """One workload of so many jobs that the site of this log may have next."""
    rng = np.random.default_rng([seed, 5])
    first = rng.integers(len(log.app), size=-(-jobs // STRETCH))
    rows = ((first[:, None] + np.arange(STRETCH)) % len(log.app)).ravel()[:jobs]
    submit = np.asarray([job.submit for job in log.workload.jobs])
    gaps = np.diff(submit)
    gaps = np.concatenate([[gaps.mean()], gaps])
    submit = np.cumsum(gaps[rows]) * np.exp(RATE_SD * rng.normal())
    mean, noise = _drawn_means(log, runs, rng)
    app, sensitivity = log.app[rows], log.sensitivity[rows]
    typical = log.told[rows] * np.exp(mean[app])
    luck = np.exp(np.sqrt(noise[app]) * rng.normal(size=jobs))
    pressure = np.zeros(typical.shape)
    if log.counters.any():
        middle, spread = believed(weights, log.counters[rows])
        pressure = np.clip(middle + spread * rng.normal(size=middle.shape), 0.0, 1.0)
    true = np.maximum(typical * luck[:, None], 10.0) * true_slowdown(pressure, sensitivity[:, None])
    kinds = [place.processor for place in log.cluster.places]
    drawn = tuple(
        msgspec.structs.replace(
            log.workload.jobs[row],
            id=str(j),
            submit=float(submit[j]),
            depends=(),
            run_time={
                kind: float(s) for kind, s, e in zip(kinds, true[j], log.expected[row], strict=True) if e < np.inf
            },
        )
        for j, row in enumerate(rows)
    )
    same = ("expected", "spread", "slow", "counters", "sensitivity", "after", "new", "told", "app")
    taken = {name: getattr(log, name)[rows] for name in same}
    return msgspec.structs.replace(log, workload=Workload("imagined", drawn), pressure=pressure, mean=typical, **taken)


def _drawn_means(log: Task, runs: RunTimes, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """How far off each app is in each place, as it may be; and the variance of its runs."""
    mean, covariance, noise = runs.believed()
    drawn = np.stack([rng.multivariate_normal(m, c, method="eigh") for m, c in zip(mean, covariance, strict=True)])
    kinds = [place.processor for place in log.cluster.places]
    return drawn[:, [kinds.index(kind) for kind in kinds]], noise


def imagined_sites(log: Task, runs: RunTimes, weights: Weights, count: int, jobs: int, seed: int) -> list[Environment]:
    """So many workloads, in each of which the policy knows what is believed now."""
    found = []
    for number in range(count):
        task = imagined_task(log, runs, weights, jobs, seed + number)
        env = Environment(task, weights)
        runs.for_task(task).tell(env.world)
        env.world = env.world._replace(usual=env.play(learned=False).avg_jct)
        found.append(env)
    return found


def train_on(weights: Weights, sites: Sequence[Environment], recipe: Recipe, seed: int) -> Weights:
    """These weights after the recipe's iterations on these workloads; the ranges of features stay."""
    gently = msgspec.structs.replace(recipe, tasks=len(sites), learning_rate=GENTLY * recipe.learning_rate)
    trainer = Trainer(gently, seed, sites)
    trainer.network.take(weights)
    while trainer.iteration < trainer.last:
        trainer.step()
    return trainer.network.export({name: getattr(weights, name) for name in RANGES})


def better(before: Weights, after: Weights, trials: Sequence[Environment]) -> Weights:
    """`after` where it does clearly better on workloads that nothing was trained on."""
    totals = [0.0, 0.0]
    for env in trials:
        for number, weights in enumerate((before, after)):
            env.set_weights(weights)
            totals[number] += env.play().avg_jct
    return after if totals[1] < (1.0 - LEAST_GAIN) * totals[0] else before
