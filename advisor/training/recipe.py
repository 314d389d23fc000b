"""A training recipe: everything that decides what comes out, in one file (`models/recipes/`)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import yaml

from advisor.training.tasks import Mixture

Objective = Literal["avg_jct", "p99", "makespan", "fairness"]


class RecipeError(Exception):
    """A recipe cannot be used; the text says where and why."""


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to train, on what, for how long."""

    name: str = "default"
    objective: Objective = "avg_jct"  # what the site wants least of
    tail: float = 0.15  # how much more a job counts the longer it is in the system, by its square
    seed: int = 1
    iterations: int = 400
    meta_iterations: int = 40  # after those: Reptile, so that few steps adapt the network to a site
    tasks: int = 200  # in all; each iteration takes the next few
    tasks_each: int = 8
    forks: int = 16  # decisions of a task that are tried every way
    horizon: int = 60  # submissions that a fork goes on for: the n of n-step returns
    bootstrap: float = 0.0  # how much the critic's word on what comes after counts
    temperature: float = 0.1  # of the softened policy, in parts of the least expected finish
    steps: int = 4  # gradient steps in an iteration
    together: int = 3  # iterations whose forks a step looks at: the newest, or others from memory
    replay: int = 24  # iterations whose forks are kept for that
    learning_rate: float = 1e-3
    final_rate: float = 0.1  # the last iteration's learning rate as a part of the first's
    critic: float = 0.05  # weight of the critic's loss
    entropy: float = 0.0
    most_regret: float = 2.0  # what one decision can lose at most, in usual times: one bad fork must not lead the rest
    shrink: float = 5e-3  # of residuals: where nothing speaks against it, the arithmetic is right
    samples: int = 32  # of the belief network
    inner_steps: int = 4  # Reptile: steps on one task
    inner_rate: float = 5e-3
    outer_rate: float = 0.3
    validation: int = 32  # tasks for the curve, of the same mixture, never trained on
    every: int = 20  # iterations between two points of the curve, and between checkpoints
    mixture: Mixture = Mixture()
    without: tuple[Literal["beliefs", "graph", "topology", "memory", "residual", "features"], ...] = ()


def read_recipe(path: Path) -> Recipe:
    """Reads a YAML file; raises `RecipeError` with what is wrong."""
    try:
        recipe = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")) or {}, Recipe)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise RecipeError(f"{path}: {' '.join(str(error).split())}") from None
    for name in ("iterations", "tasks", "tasks_each", "forks", "horizon", "steps", "replay", "every"):
        if getattr(recipe, name) < 1:
            raise RecipeError(f"{path}: {name}: {getattr(recipe, name)} is below 1")
    if recipe.tasks < recipe.tasks_each:
        raise RecipeError(f"{path}: tasks: {recipe.tasks} is fewer than tasks_each, {recipe.tasks_each}")
    if recipe.mixture.jobs <= recipe.forks + 20:
        raise RecipeError(f"{path}: mixture.jobs: {recipe.mixture.jobs} is too few for {recipe.forks} forks")
    return recipe
