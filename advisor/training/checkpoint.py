"""Training in a folder: checkpoints that a killed run goes on from, the curve as a picture, and the finished model.

A checkpoint is written beside the old one and moved over it, so that there is a whole one at any moment.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import msgspec
import torch
import yaml

from advisor.policy.learned.files import Card, write_model
from advisor.training.actor_critic import Trainer
from advisor.training.curves import draw_curves
from advisor.training.distributed import collect, hear, tell, world_rank
from advisor.training.recipe import Recipe

CHECKPOINT, RECIPE, CURVE = "checkpoint.pt", "recipe.yaml", "curve.svg"

Progress = Callable[[int, int, dict[str, float]], None]  # iterations done, in all, figures


class ResumeError(Exception):
    """A folder cannot be gone on from; the text says why and what to do."""


def train_into(
    folder: Path,
    recipe: Recipe,
    seed: int | None,
    resume: bool,
    command: str,
    progress: Progress,
    stop: int | None = None,
) -> Trainer:
    """Trains to the recipe's end, or to iteration `stop`; the folder then holds weights, card, recipe and curve."""
    trainer = Trainer(recipe, seed)
    first = world_rank()[0] == 0
    path = folder / CHECKPOINT
    if resume:
        _go_on(trainer, path, recipe)
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(msgspec.to_builtins(recipe), sort_keys=False)
        (folder / RECIPE).write_text(text, encoding="utf-8")
    last = trainer.last if stop is None else min(stop, trainer.last)
    if trainer.iteration == 0 and not trainer.curve:
        progress(0, last, trainer.validate())
    while trainer.iteration < last:
        figures = trainer.step()
        if trainer.iteration % recipe.every == 0 or trainer.iteration == last:
            figures = figures | trainer.validate()
            _write(path, trainer, recipe)
        progress(trainer.iteration, last, figures)
    weights = trainer.weights()
    if first:
        final = trainer.curve[-1]
        figures = {"validation_gain": round(final["gain"], 4), "validation_p99": round(final["p99"], 4)}
        card = Card(recipe.name, seed=trainer.seed, objective=recipe.objective, command=command, figures=figures)
        write_model(folder, weights, card)
        (folder / CURVE).write_text(draw_curves(trainer.curve), encoding="utf-8")
    if first and trainer.iteration == trainer.last:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    return trainer


def _write(path: Path, trainer: Trainer, recipe: Recipe) -> None:
    """One file for all ranks, by the first: what they remember is not the same, all else is."""
    content = trainer.state() | {"recipe": msgspec.json.encode(recipe), "seed": trainer.seed}
    remembered = io.BytesIO()
    torch.save(content.pop("replay"), remembered)
    replays = collect(remembered.getvalue())
    if not replays:
        return
    temporary = path.with_suffix(".new")
    torch.save(content | {"replays": replays}, temporary)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def _go_on(trainer: Trainer, path: Path, recipe: Recipe) -> None:
    """From the checkpoint, if there is one. Only the first rank need see the folder."""
    rank, count = world_rank()
    if rank == 0:
        content = path.read_bytes() if path.exists() else b""
        state = _read(path, content, recipe, trainer.seed, count) if content else None
        tell(content)
    else:
        content = hear()
        state = _read(path, content, recipe, trainer.seed, count) if content else None
    if state is not None:
        replays: list[bytes] = state.pop("replays")
        trainer.restore(state | {"replay": torch.load(io.BytesIO(replays[rank]), weights_only=True)})


def _read(path: Path, content: bytes, recipe: Recipe, seed: int, count: int) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
        made_with = len(state["replays"])
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, UnpicklingError) as error:
        why = str(error).partition("\n")[0]
        raise ResumeError(f"{path}: the checkpoint cannot be read ({why}); remove it to start anew") from None
    if state.pop("recipe") != msgspec.json.encode(recipe) or state.pop("seed") != seed:
        raise ResumeError(f"{path}: made with another recipe or seed; use that one, or remove it to start anew")
    if made_with != count:
        raise ResumeError(f"{path}: made by {made_with} ranks; go on with as many, or remove it to start anew")
    return state
