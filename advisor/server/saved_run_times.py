"""The run-time model on disk, beside the log: what a daemon goes on from at its start, and the one before it.

Each fit is saved with how far into the log it has read, so that a start takes in what has ended since instead of
fitting the whole log again. A file that is damaged or of another format is refused with a reason; then the model saved
before it serves, and where there is none, the log is fitted anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from advisor import __version__
from advisor.performance import processors
from advisor.settings import Settings

if TYPE_CHECKING:
    from advisor.performance.model.model import RunTimeModel

log = logging.getLogger(__name__)

PREVIOUS = "previous"


class Saved(NamedTuple):
    """A model as it was saved."""

    model: RunTimeModel
    ended_until: int  # the ends of records that are in it
    runs: int


def folder(settings: Settings) -> Path:
    """Where the model is kept."""
    return Path(settings.paths.database).parent / "models" / "run-times"


def save(model: RunTimeModel, settings: Settings, ended_until: int, refused: Mapping[str, int]) -> None:
    """Saves a model and keeps the good one before it; a failure is logged, since the log can be fitted again."""
    from advisor.performance.model import files

    place = folder(settings)
    card = {"refused": dict(sorted(refused.items())), "ended_until": ended_until, "slurm_advisor": __version__}
    try:
        if files.is_whole(place):
            files.copy(place, place / PREVIOUS)
        files.save(model, place, card)
    except files.ModelError as error:
        log.warning("the run-time model was not saved: %s", error)


def load(settings: Settings) -> Saved | None:
    """The model to go on from: the last one, else the one before it; None where there is none that can be used."""
    from advisor.performance.model.files import ModelError

    place = folder(settings)
    refused = False
    for one in (place, place / PREVIOUS):
        if not os.path.isdir(one):  # noqa: PTH112 - false, not an error, in a folder that this user may not look into
            continue
        try:
            saved = _read(one, settings)
        except ModelError as error:
            log.error("a saved run-time model is refused: %s", error)
            refused = True
            continue
        if refused:
            log.warning("the run-time model before it serves, with what has ended since")
        return saved
    if refused:
        log.warning("run times are fitted anew to the whole log")
    return None


def _read(place: Path, settings: Settings) -> Saved:
    from advisor.performance.model import files

    model, card = files.load_with_card(place, processors.load(settings.processors))
    until, runs = card.get("ended_until"), card.get("runs")
    if not isinstance(until, int) or not isinstance(runs, int) or until < 0:
        raise files.ModelError(f"{place / files.CARD_FILE} does not tell how far into the log it has read")
    return Saved(model, until, runs)
