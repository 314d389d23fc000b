"""The learned policy beside every other one, on clusters and workloads never trained on, in the real simulator.

Each task is one seed: its own processors, partitions, apps and load. All policies see the same expectations of run
times; gains are the other's average completion time over ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from advisor.performance.processors import load
from advisor.policy.arithmetic import EarliestFinish
from advisor.policy.learned import LearnedPolicy
from advisor.policy.learned.shapes import Weights
from advisor.settings import Processor
from advisor.sim.daemon import DaemonChoice, run_daemon
from advisor.sim.embedded import ENFORCING
from advisor.sim.engine import Schedule
from advisor.sim.knowledge import Settled
from advisor.sim.oracle import find_best
from advisor.sim.stepping import run_stepwise
from advisor.sim.stepwise import Heft, Paragon
from advisor.training.environment import Environment, Result
from advisor.training.evaluation import engine_of, figures, run_policy, run_rule, run_with_rounds
from advisor.training.pipelines import draw_pipelines
from advisor.training.tasks import Mixture, Task, draw_task

# Scored once; nothing was tuned on these.
FIRST_SEED = 9_000_000
RULES = ("earliest-start", "fastest", "random", "slurm-default", "shortest-first")

# Rounds: what waits is looked at again every 30 s.
LEVERS = {"place": ("place",), "place and order": ("place", "order")}

Progress = Callable[[str], None]


class Interval(msgspec.Struct, frozen=True):
    """A mean over seeds with its 95 % interval (bootstrap)."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Mean and interval of one figure for each seed."""
    array = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(len(array), size=(4000, len(array)))
    low, high = np.quantile(array[draws].mean(axis=1), [0.025, 0.975])
    return Interval(round(float(array.mean()), 4), round(float(low), 4), round(float(high), 4))


def compare(weights: Weights, seeds: Sequence[int], mixture: Mixture, progress: Progress) -> dict[str, list[Result]]:
    """Each policy's figures, one for each seed. What has no levers in its name places at submission and never again."""
    found: dict[str, list[Result]] = {}
    for number, seed in enumerate(seeds):
        task = draw_task(seed, mixture)
        env = Environment(task, weights)
        runs: dict[str, Schedule] = {"learned": run_policy(env), "arithmetic": run_policy(env, learned=False)}
        for name, levers in LEVERS.items():
            runs[f"learned, {name}"] = run_with_rounds(env, levers=levers)
        runs["arithmetic, place"] = run_with_rounds(env, learned=False)
        for name in RULES:
            runs[name] = run_rule(task, name)
        runs["paragon"] = _paragon(task, seed)
        for name, schedule in runs.items():
            found.setdefault(name, []).append(figures(task, schedule))
        row = ", ".join(f"{name} {results[-1].avg_jct:.0f}" for name, results in found.items())
        progress(f"task {number + 1} of {len(seeds)}: {row}")
    return found


def _paragon(task: Task, seed: int) -> Schedule:
    engine = engine_of(task)
    return run_stepwise(engine, Paragon(engine, "oracle", seed))


def gains(found: dict[str, list[Result]], over: str, ours: str = "learned") -> list[float]:
    """The other's average completion time over ours, for each seed."""
    return [other.avg_jct / mine.avg_jct for other, mine in zip(found[over], found[ours], strict=True)]


def against_oracle(
    weights: Weights, seeds: Sequence[int], mixture: Mixture, effort: float, progress: Progress
) -> list[dict[str, float]]:
    """Our p99 over that of the best schedule found, for each seed; the search knows the future, we do not."""
    rows = []
    for number, seed in enumerate(seeds):
        task = draw_task(seed, mixture)
        ours = figures(task, run_policy(Environment(task, weights)))
        plain = figures(task, run_policy(Environment(task, weights), learned=False))
        best = figures(task, find_best(engine_of(task), "avg_jct", seed % 1000, effort).schedule)
        rows.append(
            {
                "p99": ours.p99 / best.p99,
                "avg_jct": ours.avg_jct / best.avg_jct,
                "arithmetic_p99": plain.p99 / best.p99,
            }
        )
        progress(f"oracle {number + 1} of {len(seeds)}")
    return rows


class Daemon(msgspec.Struct, frozen=True):
    """One site whose every submission goes through the daemon's own decision and guardrails."""

    gain: float  # in average completion time, over the arithmetic there
    p99_over_arithmetic: float
    by_network: float  # share of the decisions that the network made


def in_the_daemon(weights: Weights, seeds: Sequence[int], mixture: Mixture, progress: Progress) -> list[Daemon]:
    """The learned policy beside the arithmetic, each asked through `decide` as at a site."""
    found = []
    for number, seed in enumerate(seeds):
        task = draw_task(seed, mixture)
        table = {"cpu": load()["cpu"]} | {
            place.processor: Processor(*(math.exp(f) * unit for f, unit in zip(row, (15.7, 900.0, 32.0), strict=True)))
            for place, row in zip(task.cluster.places, task.figures, strict=True)
        }
        settings = msgspec.structs.replace(ENFORCING, processors=table)
        engine = engine_of(task)
        choice = DaemonChoice(engine, 0, settings, LearnedPolicy(weights, table))
        ours = figures(task, engine.run_deciding(choice))
        plain = figures(task, run_daemon(engine_of(task), 0, settings, EarliestFinish(table)))
        had_a_choice = [decision.policy for decision in choice.decisions if decision.eligible]
        share = had_a_choice.count("learned") / max(len(had_a_choice), 1)
        found.append(Daemon(plain.avg_jct / ours.avg_jct, ours.p99 / plain.p99, share))
        progress(f"daemon {number + 1} of {len(seeds)}: {found[-1]}")
    return found


class Workflow(msgspec.Struct, frozen=True):
    """How the workflows of one task did, in seconds."""

    makespan: float  # of a workflow, from its first submission to its last end: the mean over workflows
    single: float  # completion time of jobs that are no workflow's
    all: Result


def workflows(
    weights: Weights, seeds: Sequence[int], mixture: Mixture, progress: Progress
) -> dict[str, list[Workflow]]:
    """Workflows among other jobs: ours, ours and the arithmetic where nobody knows who waits for whom, and HEFT."""
    found: dict[str, list[Workflow]] = {}
    for number, seed in enumerate(seeds):
        drawn = draw_pipelines(seed, mixture)
        task = drawn.task
        env, blind = Environment(task, weights), Environment(task, weights)
        blind.world.parents[:] = -1
        engine = engine_of(task)
        runs = {
            "learned, place": run_with_rounds(env),
            "learned, place, graph ignored": run_with_rounds(blind, following=False),
            "arithmetic, place": run_with_rounds(env, learned=False),
            "arithmetic, place, graph ignored": run_with_rounds(blind, learned=False, following=False),
            "learned, place and order": run_with_rounds(env, levers=LEVERS["place and order"]),
            "learned, place and order, graph ignored": run_with_rounds(
                blind, levers=LEVERS["place and order"], following=False
            ),
            "learned": run_policy(blind),
            "arithmetic": run_policy(blind, learned=False),
            "heft": run_stepwise(engine, Heft(engine, Settled())),
            "earliest-start": run_rule(task, "earliest-start"),
        }
        for name, schedule in runs.items():
            spans, single = drawn.makespans(schedule), drawn.alone(schedule)
            row = Workflow(float(spans.mean()), float(single.mean()), figures(task, schedule))
            found.setdefault(name, []).append(row)
        row_text = ", ".join(f"{name} {rows[-1].makespan:.0f}" for name, rows in found.items())
        progress(f"workflows {number + 1} of {len(seeds)}: {row_text}")
    return found
