"""How fast the policy learns a site it has never seen, and how it follows when the workload shifts.

Adapting has two parts, and both count: what ended jobs teach of run times (`advisor.training.posterior`), and a few
gradient steps on the site's own queues (`advisor.training.fine_tuning`), played with run times as they are believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from advisor.policy.learned.network import PlacementNetwork
from advisor.policy.learned.shapes import Floats, Weights
from advisor.settings import Explore
from advisor.sim.engine import Schedule
from advisor.training.actor_critic import Trainer
from advisor.training.environment import Environment
from advisor.training.fine_tuning import Budget, fine_tune
from advisor.training.imagined import TRIALS, better, imagined_sites, train_on
from advisor.training.learning_runs import run_learning
from advisor.training.posterior import RunTimes, tell_truth
from advisor.training.prior import Prior, learned_prior, plain_prior
from advisor.training.recipe import Recipe
from advisor.training.tasks import Mixture, Task, draw_task
from advisor.training.world import END, SUBMIT, State, new_state

# Submissions between two updates of what is believed of run times.
EVERY = 4
# Where a shift is played: see `shift`.
WHERE = ("place", "submission", "training")
# Jobs after a shift that nobody can have learned from yet: as many as a new site gives.
LEARNING = 50
# A longer shift: jobs before it, and those after it, of which the first so many are looked at.
BEFORE, CURVE = 160, (40, 80, 160, 320, 640)
# What whoever explores may risk: as in `advisor.training.exploration_study`.
RISKED = Explore(max_regret=1.0, max_regret_s=1e9)
# Workloads of a site that its figures are the mean of: one alone is noisy, as a few long jobs decide.
EVALUATED = 4

Progress = Callable[[str], None]


# Average completion times at one site, in seconds, by who decides.
Site = dict[str, float]


def prior_of(mixture: Mixture) -> Prior:
    """What sites of this mixture have taught, on processors and seeds of training's."""
    return learned_prior(mixture.taste, mixture.told_off)


def play_learning(
    env: Environment, runs: RunTimes, learning: bool, first: int = 0, learned: bool = True
) -> tuple[Floats, State]:
    """Completion times, and how it ended; what has ended is taken in as it goes, from job `first` on if `learning`."""
    from advisor.training import rollout

    state, jobs = new_state(env.world), len(env.world.job)
    runs.tell(env.world)
    for start in range(0, jobs, EVERY):
        now = float(env.world.job[start, SUBMIT])
        if start > 0 and (learning or start <= first):
            runs.learn_from(env.world, state, now)
        rollout.roll_on(env.world, state, env.flat, start, min(start + EVERY, jobs) - 1, learned)
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


def adaptation(
    weights: Weights, seeds: Sequence[int], mixture: Mixture, recipe: Recipe, jobs: int, progress: Progress
) -> list[Site]:
    """For each unseen site: after `jobs` ended jobs, beside one trained there from nothing on 100 times as many.

    *frozen*: what is believed of run times stays as it is after those jobs; else it takes in what ends, as the daemon
    does. *, place*: the real simulator with the advisor's rounds; else training's, at submission only.
    """
    found = []
    for number, seed in enumerate(seeds):
        log = first_jobs(draw_task(seed, mixture), jobs)
        site, runs = Environment(log, weights), RunTimes(log, prior_of(mixture))
        _, state = play_learning(site, runs, learning=True)
        runs.learn_from(site.world, state, np.inf)
        networks = {"posterior only": weights} | _networks(weights, log, runs, recipe, seed)
        informed = {"known": weights}
        if recipe.iterations:
            informed["trained there"] = _train_there(seed, mixture, recipe, _workloads(jobs, mixture))
        row: Site = {}
        # Workload 0 is the log's, 2 and those after it are of the training there.
        after = 2 + _workloads(jobs, mixture)
        for episode in (1, *range(after, after + EVALUATED - 1)):
            for name, seconds in _played(draw_task(seed, mixture, episode), networks, informed, runs).items():
                row[name] = row.get(name, 0.0) + seconds / EVALUATED
        found.append(row)
        told = ", ".join(f"{name} {seconds:.0f}" for name, seconds in row.items())
        progress(f"adaptation {number + 1} of {len(seeds)}: {told}")
    return found


def _played(task: Task, networks: dict[str, Weights], informed: dict[str, Weights], runs: RunTimes) -> Site:
    """One more workload of the site by each of them."""
    row: Site = {}
    for name, chosen in networks.items():
        env = Environment(task, chosen)
        runs.for_task(task).tell(env.world)
        row[f"{name}, frozen"] = env.play().avg_jct
        row[name] = float(play_learning(env, runs.for_task(task), learning=True)[0].mean())
        if name in ("posterior only", "adapted"):
            row[f"{name}, frozen, place"] = _average(env, run_learning(env, runs.for_task(task), until=-np.inf))
            row[f"{name}, place"] = _average(env, run_learning(env, runs.for_task(task)))
    env = Environment(task, networks["posterior only"])
    row["arithmetic"] = float(play_learning(env, runs.for_task(task), True, learned=False)[0].mean())
    row["arithmetic, place"] = _average(env, run_learning(env, runs.for_task(task), learned=False))
    for name, chosen in informed.items():
        env = Environment(task, chosen)
        tell_truth(task, env.world)
        row[name] = env.play().avg_jct
        row[f"{name}, place"] = _average(env, run_learning(env, None))
    return row


def _workloads(jobs: int, mixture: Mixture) -> int:
    """How many workloads are a hundred times as many jobs."""
    return 100 * jobs // mixture.jobs + 1


def _networks(weights: Weights, log: Task, runs: RunTimes, recipe: Recipe, seed: int) -> dict[str, Weights]:
    """What a few steps, and as many as training there has, make of the weights on the site as far as it is known."""
    sites = imagined_sites(log, runs, weights, _workloads(len(log.app), recipe.mixture), recipe.mixture.jobs, seed)
    trials = imagined_sites(log, runs, weights, TRIALS, recipe.mixture.jobs, seed + len(sites))
    budget = Budget(rounds=2, steps=3, forks=len(log.app) // 2)
    networks = {"few steps": better(weights, fine_tune(weights, sites[:1], seed % 1000, budget, recipe), trials)}
    new = PlacementNetwork(seed % 1000).export()
    networks["few steps, without meta-training"] = fine_tune(new, sites[:1], seed % 1000, budget, recipe)
    adapted = train_on(weights, sites, recipe, seed % 1000) if recipe.iterations else weights
    return networks | {"adapted": better(weights, adapted, trials)}


def _average(env: Environment, schedule: Schedule) -> float:
    return float((schedule.end - env.world.job[:, SUBMIT]).mean())


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


def shift(weights: Weights, seeds: Sequence[int], mixture: Mixture, progress: Progress) -> list[Site]:
    """Half-way all apps change; one policy goes on learning from what ends, the other stays as it was before.

    Completion times of the jobs after the shift. *, place*: the real simulator with the advisor's rounds; *,
    submission*: there, at submission only; *, training*: training's simulator.
    """
    found = []
    prior, plain = prior_of(mixture), plain_prior()
    for number, seed in enumerate(seeds):
        task = draw_task(seed, mixture, shift=True)
        half = len(task.app) // 2
        env = Environment(task, weights)
        at = float(env.world.job[half, SUBMIT])
        row: Site = {}

        def note(name: str, completions: Floats, half: int = half, row: Site = row) -> None:
            row[name] = float(completions[half:].mean())
            row[f"{name}, after {LEARNING}"] = float(completions[half + LEARNING :].mean())
            for number, quarter in enumerate(np.array_split(completions[half:], 4)):
                row[f"{name}, quarter {number + 1}"] = float(quarter.mean())

        for name, until, runs, learned in (
            ("adapted", np.inf, RunTimes(task, prior), True),
            ("not adapted", at, RunTimes(task, prior), True),
            ("arithmetic", np.inf, RunTimes(task, prior), False),
            ("plain prior", np.inf, RunTimes(task, plain), True),
            ("plain prior, not adapted", at, RunTimes(task, plain), True),
            ("known", np.inf, None, True),
        ):
            for where in ("place", "submission"):
                if runs is None:
                    tell_truth(task, env.world)
                fresh = None if runs is None else runs.for_task(task)
                schedule = run_learning(env, fresh, until, learned, rounds=where == "place")
                note(f"{name}, {where}", schedule.end - env.world.job[:, SUBMIT])
        for name, learning in (("adapted, training", True), ("not adapted, training", False)):
            note(name, play_learning(env, RunTimes(task, prior), learning, half)[0])
        tell_truth(task, env.world)
        note("known, training", _completions(env))
        found.append(row)
        gains = (row[f"not adapted, {where}"] / row[f"adapted, {where}"] for where in WHERE)
        progress(f"shift {number + 1} of {len(seeds)}: {', '.join(f'{gain:.3f}' for gain in gains)}")
    return found


def long_shift(
    weights: Weights, seeds: Sequence[int], mixture: Mixture, progress: Progress
) -> list[dict[str, list[float]]]:
    """Completion times of each job after a shift that lasts, by who decides, with the advisor's rounds.

    All are the same policy with the same beliefs until then; nobody explores before it, and after it only *exploring*
    does: whoever does not learn would pay for it and gain nothing.
    """
    found = []
    long = msgspec.structs.replace(mixture, jobs=BEFORE + CURVE[-1])
    prior = prior_of(mixture)
    for number, seed in enumerate(seeds):
        task = draw_task(seed, long, shift=True, shift_at=BEFORE)
        env = Environment(task, weights)
        submit = env.world.job[:, SUBMIT]
        at = float(submit[BEFORE])
        runs = {
            "adapted": run_learning(env, RunTimes(task, prior)),
            "exploring": run_learning(env, RunTimes(task, prior), explore=RISKED, explore_from=at),
            "not adapted": run_learning(env, RunTimes(task, prior), until=at),
        }
        tell_truth(task, env.world)
        runs["known"] = run_learning(env, None)
        row = {name: (schedule.end - submit)[BEFORE:] for name, schedule in runs.items()}
        found.append({name: times.tolist() for name, times in row.items()})
        told = (f"{name} {row['not adapted'].mean() / times.mean():.3f}" for name, times in row.items())
        progress(f"long shift {number + 1} of {len(seeds)}, gains: {', '.join(told)}")
    return found
