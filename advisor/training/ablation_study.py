"""The network without its parts: how well each variant does after the same training, and how soon.

Every variant is trained from several seeds on the same tasks for the same number of episodes, and scored as it goes on
tasks that none was trained on, in training's own simulator.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from advisor.training.actor_critic import Trainer
from advisor.training.recipe import Recipe
from advisor.training.tasks import Mixture

VARIANTS: dict[str, tuple[str, ...]] = {
    "whole": (),
    "without beliefs": ("beliefs",),
    "without dataflow graph": ("graph",),
    "without topology": ("topology",),
    "without LSTM": ("memory",),
    "without residual": ("residual",),
    "without beliefs and structure": ("beliefs", "graph", "topology"),
    "whole and Reptile": (),
    # The arithmetic's features of each candidate are left to it: much of the structure is in them.
    "black box with features": ("beliefs", "graph", "topology", "residual"),
    # What is observed, and nothing worked out from it.
    "black box": ("beliefs", "graph", "topology", "residual", "features"),
}
# Ours and theirs.
RATIOS = {
    "episodes_ratio": ("whole", "black box"),
    "episodes_ratio_without_residual": ("without residual", "black box"),
    "episodes_ratio_by_features": ("whole", "black box with features"),
    "episodes_ratio_by_residual": ("whole", "without beliefs and structure"),
}
# What comes after the others' training, as a part of it: the score is then of what it has become by that alone.
META = {"whole and Reptile": 0.25}
LOOK = 5  # iterations between two points of a curve

Progress = Callable[[str], None]


class Curve(msgspec.Struct, frozen=True):
    """How one network did while it was trained: average completion time of the arithmetic over its own."""

    iterations: list[int]
    gains: list[float]
    tails: list[float]  # its p99 over the arithmetic's

    @property
    def score(self) -> float:
        """What it has come to."""
        return statistics.fmean(self.gains[-3:])

    @property
    def tail(self) -> float:
        """The p99 it has come to."""
        return statistics.fmean(self.tails[-3:])


def study(
    recipe: Recipe,
    names: Sequence[str],
    seeds: Sequence[int],
    iterations: int,
    scored_on: int,
    mixture: Mixture,
    progress: Progress,
    kept: Path | None = None,
) -> dict[str, list[Curve]]:
    """Each variant's curves, one for each seed; `scored_on` is the first of the scored tasks' seeds.

    `kept`: a file of curves by variant and seed, so that a study that was ended goes on where it was.
    """
    found: dict[str, list[Curve]] = {}
    known = msgspec.json.decode(kept.read_bytes(), type=dict[str, Curve]) if kept is not None and kept.exists() else {}
    for seed in seeds:
        for name in names:
            key = f"{name}, seed {seed}, {iterations} iterations"
            if key in known:
                found.setdefault(name, []).append(known[key])
                continue
            # Short runs: the learning rate does not fall.
            settings = msgspec.structs.replace(
                recipe,
                iterations=iterations,
                meta_iterations=round(iterations * META.get(name, 0.0)),
                without=VARIANTS[name],
                validation=40,
                learning_rate=1.5e-3,
                final_rate=1.0,
            )
            trainer = Trainer(settings, seed)
            trainer.score_on(scored_on, mixture)
            trainer.validate()
            while trainer.iteration < trainer.last:
                trainer.step()
                if trainer.iteration % LOOK == 0:
                    trainer.validate()
            curve = Curve(
                [int(point["iteration"]) for point in trainer.curve],
                [round(point["gain"], 4) for point in trainer.curve],
                [round(point["p99"], 4) for point in trainer.curve],
            )
            found.setdefault(name, []).append(curve)
            known[key] = curve
            if kept is not None:
                kept.write_bytes(msgspec.json.format(msgspec.json.encode(known)))
            progress(f"{name}, seed {seed}: gain {curve.score:.4f}, p99 {curve.tail:.4f}; {curve.gains}")
    return found


def episodes_ratio(ours: Curve, theirs: Curve) -> float:
    """Episodes that the other needs to its own best score over those that we need to the same.

    One look's worth of episodes is the least that is counted; where we do not get there it is twice all there were.
    """
    best = max(range(len(theirs.gains)), key=lambda point: theirs.gains[point])
    reached = next(
        (at for at, gain in zip(ours.iterations, ours.gains, strict=True) if gain >= theirs.gains[best]), None
    )
    needed = 2 * ours.iterations[-1] if reached is None else reached
    return max(theirs.iterations[best], LOOK) / max(needed, LOOK)
