"""Reads and writes a model's folder: weights as safetensors, and what they are (`card.yaml`).

A damaged or foreign file is refused with a reason; whoever reads decides what serves instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import yaml

from advisor.policy.learned.shapes import SHAPES, Floats, Weights, weights_of

WEIGHTS, CARD = "weights.safetensors", "card.yaml"
# Of the network's shape; weights of another one are refused.
FORMAT = 1


class ModelError(Exception):
    """A model's folder cannot be used; the text says which file and why."""


class Card(msgspec.Struct, frozen=True):
    """What a model is, and how it was made."""

    name: str
    format: int = FORMAT
    seed: int = 0
    objective: str = "avg_jct"
    command: str = ""
    figures: dict[str, float] = {}


def write_model(folder: Path, weights: Weights | Mapping[str, Floats], card: Card) -> None:
    """Writes both files; single precision, which no decision has been seen to depend on."""
    from safetensors.numpy import save

    arrays = weights._asdict() if isinstance(weights, Weights) else dict(weights)
    folder.mkdir(parents=True, exist_ok=True)
    packed = {name: np.ascontiguousarray(arrays[name], dtype=np.float32) for name in SHAPES}
    (folder / WEIGHTS).write_bytes(save(packed, {"format": str(FORMAT)}))
    text = yaml.safe_dump(msgspec.to_builtins(card), sort_keys=False, allow_unicode=True)
    (folder / CARD).write_text(text, encoding="utf-8")


def read_model(folder: Path) -> tuple[Weights, Card]:
    """Both; raises `ModelError`."""
    card = read_card(folder)
    path = folder / WEIGHTS
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    return read_weights(content, str(path)), card


def read_card(folder: Path) -> Card:
    """The card alone; raises `ModelError`."""
    path = folder / CARD
    try:
        card = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Card)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ModelError(f"{path}: {' '.join(str(error).split())}") from None
    if card.format != FORMAT:
        raise ModelError(f"{path}: a model of format {card.format}; this version of the advisor reads {FORMAT}")
    return card


def read_weights(content: bytes, where: str) -> Weights:
    """Weights from a safetensors file's bytes; raises `ModelError`."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load
    except ImportError:
        raise ModelError(f"{where}: reading it needs safetensors: pip install 'slurm-advisor[learn]'") from None
    try:
        return weights_of(load(content))
    except (SafetensorError, ValueError) as error:
        raise ModelError(f"{where}: {error}") from None
