"""Keeps a run-time model in a folder: `run_times.msgpack` (what it is made of) and `card.yaml` (for people).

Only numbers and names are stored, in an order that does not depend on how they came; the same model gives the same
bytes. Nothing in the files is ever executed, and a damaged or foreign file is refused with a reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import yaml

from advisor.performance.model.fit import Learned, Weights, completed
from advisor.performance.model.grouping import Group, assembled
from advisor.performance.model.model import RunTimeModel
from advisor.performance.model.prior import Prior
from advisor.performance.model.traits import Middles
from advisor.settings import Processor

FORMAT = 2
READS = (1, 2)  # 1 knew no sizes of processors
MODEL_FILE = "run_times.msgpack"
CARD_FILE = "card.yaml"
_LARGEST = 2 * 2**30


class ModelError(Exception):
    """A model that cannot be used; the text says which file, why, and what to do."""


class AppState(msgspec.Struct, frozen=True, array_like=True):
    """One app as stored."""

    name: str
    log_limit: float | None
    squares: float
    counted: float
    noise: float
    groups: list[Group]


class _Header(msgspec.Struct):
    format: int


class State(msgspec.Struct, frozen=True):
    """A model as stored."""

    format: int
    prior: Prior
    learned: Learned
    own: tuple[str, ...]  # processors with a coefficient of their own
    middles: Middles
    apps: list[AppState]
    sizes: tuple[tuple[str, int], ...] = ()  # so many units of a processor, with a coefficient of their own


def save(model: RunTimeModel, folder: Path, card: Mapping[str, object] | None = None) -> str:
    """Writes both files, each whole or not at all; returns the checksum of the model's bytes. Raises `ModelError`."""
    content = encode(model)
    digest = hashlib.sha256(content).hexdigest()
    runs = int(sum(group[3] for app in model.state_of_apps() for group in app[5]))
    page = {
        "model": "run times: hierarchical Bayesian, log seconds of app x processor x size",
        "format": FORMAT,
        "sha256": digest,
        "apps": len(list(model.apps())),
        "runs": runs,
        "spreads": {
            "noise": round(model.learned.noise**0.5, 4),
            "users": round(model.learned.user**0.5, 4),
            "apps": round(model.learned.app[0] ** 0.5, 4),
            "families": round(model.learned.family[0] ** 0.5, 4),
        },
        **(card or {}),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / MODEL_FILE, content)
        _write(folder / CARD_FILE, yaml.safe_dump(page, sort_keys=True, allow_unicode=True).encode())
    except OSError as error:
        raise ModelError(f"{folder}: {error.strerror or error}; check that it may be written") from error
    return digest


def load(folder: Path, processors: Mapping[str, Processor]) -> RunTimeModel:
    """The model in a folder; raises `ModelError`."""
    return load_with_card(folder, processors)[0]


def load_with_card(folder: Path, processors: Mapping[str, Processor]) -> tuple[RunTimeModel, dict[str, object]]:
    """The model in a folder and its card; raises `ModelError`."""
    content, card = _read(folder)
    return decode(content, processors, str(folder / MODEL_FILE)), card


def is_whole(folder: Path) -> bool:
    """Whether a folder holds a model and the card that tells of it."""
    try:
        _read(folder)
    except ModelError:
        return False
    return True


def copy(folder: Path, to: Path) -> None:
    """Keeps both files elsewhere as well; raises `ModelError`."""
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name in (MODEL_FILE, CARD_FILE):
            _write(to / name, (folder / name).read_bytes())
    except OSError as error:
        raise ModelError(f"{to}: {error.strerror or error}; check that it may be written") from error


def _read(folder: Path) -> tuple[bytes, dict[str, object]]:
    path = folder / MODEL_FILE
    try:
        if path.stat().st_size > _LARGEST:
            raise ModelError(f"{path} is larger than any run-time model; it is refused")
        content = path.read_bytes()
        card = yaml.safe_load((folder / CARD_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}; refit it from the log") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ModelError(f"{folder / CARD_FILE} is no YAML ({error}); refit the model from the log") from error
    if not isinstance(card, dict) or card.get("sha256") != hashlib.sha256(content).hexdigest():
        raise ModelError(
            f"{path} is not the file that {CARD_FILE} tells of: damaged or mixed up; refit it from the log"
        )
    return content, card


def encode(model: RunTimeModel) -> bytes:
    """The model as bytes."""
    state = State(
        FORMAT,
        model.prior,
        model.learned,
        model.design.own,
        model.names.middles,
        [AppState(*app) for app in model.state_of_apps()],
        model.design.sizes,
    )
    return msgspec.msgpack.encode(state, order="deterministic")


def decode(content: bytes, processors: Mapping[str, Processor], where: str = "the model") -> RunTimeModel:
    """The model that `encode` has made bytes of; raises `ModelError`."""
    try:
        number = msgspec.msgpack.decode(content, type=_Header).format
        if number not in READS:
            raise ModelError(f"{where} is of format {number}, this slurm-advisor reads {FORMAT}; refit it from the log")
        state = msgspec.msgpack.decode(content, type=State)
    except msgspec.DecodeError as error:
        raise ModelError(f"{where} is damaged ({error}); refit it from the log") from error
    numbers = [value for app in state.apps for group in app.groups for value in group[3:]]
    if not np.isfinite(numbers).all() or min((app.noise for app in state.apps), default=1.0) <= 0:
        raise ModelError(f"{where} holds numbers that cannot be; refit it from the log")
    design, names, groups, runs, weight, total = assembled(
        [(app.name, app.log_limit, app.groups) for app in state.apps], state.own, state.sizes, state.middles, processors
    )
    weights = Weights(
        weight,
        total,
        np.array([app.squares for app in state.apps]),
        np.array([app.counted for app in state.apps]),
        np.array([app.noise for app in state.apps]),
    )
    return RunTimeModel(state.prior, completed(state.learned, state.prior), design, names, groups, runs, weights)


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
