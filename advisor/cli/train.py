"""`advisor train`: trains the learned policy in the simulator."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from advisor.cli.common import fail, json_option, print_json

NEEDS = ("numpy", "numba", "scipy", "torch", "torch_geometric", "safetensors")


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the model. [models/NAME]")
@click.option("--seed", type=int, help="In place of the recipe's.")
@click.option("--resume", is_flag=True, help="Go on from the folder's checkpoint, if there is one.")
@click.option("--stop", type=click.IntRange(min=1), help="End after so many iterations; --resume can go on from there.")
@json_option
def command(recipe: Path, out: Path | None, seed: int | None, resume: bool, stop: int | None, as_json: bool) -> None:
    """Train the policy that RECIPE describes: a YAML file, or the name of one of the shipped recipes.

    Writes weights, card, recipe and curve into the folder. Killed and started again with --resume it ends with the
    same weights; the same recipe and seed give the same bytes. Under srun all ranks train one network, to what one
    process would have made of the recipe, and the first rank writes.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        fail(f"training needs {', '.join(missing)}: pip install 'slurm-advisor[learn]'")
    from advisor.resources import folder
    from advisor.training.checkpoint import ResumeError, train_into
    from advisor.training.distributed import join, leave
    from advisor.training.ranks import RankLost, slurm_rank
    from advisor.training.recipe import RecipeError, read_recipe

    shipped = folder("models") / "recipes" / f"{recipe.name}.yaml"
    path = shipped if not recipe.exists() and recipe.suffix == "" and shipped.exists() else recipe
    try:
        settings = read_recipe(path)
    except RecipeError as error:
        fail(str(error))
    target = out or Path("models") / settings.name
    told = f"advisor train {recipe}" + "".join(
        f" --{name} {value}" for name, value in (("seed", seed), ("stop", stop)) if value is not None
    )
    first = slurm_rank()[0] == 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not first) as bar:
        line = bar.add_task("training", total=settings.iterations + settings.meta_iterations)

        def show(done: int, last: int, figures: dict[str, float]) -> None:
            if "gain" in figures:
                bar.update(line, description=f"gain {figures['gain']:.3f}, p99 {figures['p99']:.3f}")
            bar.update(line, completed=done, total=last)

        try:
            join()
            trainer = train_into(target, settings, seed, resume, told, show, stop)
            leave()
        except (ResumeError, RankLost) as error:
            fail(str(error))
    if not first:
        return
    final = trainer.curve[-1]
    if as_json:
        print_json({"folder": str(target), "iterations": trainer.iteration, **final})
    else:
        click.echo(f"{target}: gain over the arithmetic {final['gain']:.3f}, p99 against it {final['p99']:.3f}")
