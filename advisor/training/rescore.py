"""What a version would have decided on logged submissions: the daemon's arithmetic, with the version's figures.

A logged decision has, of each candidate, the processor and what the queue alone said about its wait. Run times and the
correction of waits come from the new version; the rule that prefers one candidate is the daemon's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from advisor.dfg.graph import Annotation
from advisor.performance import processors as table
from advisor.performance.runtime import expected
from advisor.performance.told import Told
from advisor.performance.wait_model import Corrections, corrected
from advisor.policy.guardrails import prefer
from advisor.policy.interface import JobShape, Prediction
from advisor.settings import Processor, Settings
from advisor.store.experience import Experience, Place, Predicted
from advisor.training.evidence import Choice, foretold
from advisor.training.gate import Predictions
from advisor.training.off_policy import Interval, mean_interval
from advisor.training.refit import History, fold_of

_NO_NOTE = Annotation()


class Rescorer:
    """Chooses for logged submissions; each by the fit that has not seen how it ended."""

    def __init__(
        self, unseen: Sequence[History], waits: Corrections, settings: Settings, told: Told | None = None
    ) -> None:
        self._unseen, self._waits, self._settings, self._told = unseen, waits, settings, told
        self._processors: Mapping[str, Processor] = table.load(settings.processors)

    def __call__(self, row: Experience, predictions: list[Predicted], places: list[Place]) -> Choice:
        """What it would have preferred, and the turnaround it expects of each candidate."""
        features = _features(row)
        shape = _shape(row, features)
        history = self._unseen[fold_of(row.token) % len(self._unseen)]
        runs: dict[str, float] = {}
        scored: list[Prediction] = []
        for number, (old, place) in enumerate(zip(predictions, places, strict=True)):
            if old.pool is None:  # it fitted nowhere
                scored.append(Prediction(number, old.wait_s, old.run_s, score=old.wait_s + old.run_s))
                continue
            run_s = runs.get(old.processor)
            if run_s is None:
                run_s = runs[old.processor] = self.run_s(row, shape, old.processor, history, predictions[0].processor)
            queue = old.wait_s if old.queue_wait_s is None else old.queue_wait_s
            wait = corrected(self._waits, place.partition or "", queue)
            scored.append(
                Prediction(number, wait, run_s, old.slowdown, wait + run_s * old.slowdown, old.pool, old.processor)
            )
        preferred, _ = prefer(scored, shape, self._settings.policy)
        return Choice(preferred, [prediction.score for prediction in scored])

    def run_s(self, row: Experience, shape: JobShape, processor: str, history: History, reference: str) -> float:
        """The expected run time on a processor."""
        return expected(
            row.app,
            row.user or "",
            processor,
            shape.time_limit_s,
            shape.annotation,
            history,
            self._processors,
            gpus=shape.gpus,
            cpus=shape.cpus,
            reference=reference,
            told=self._told,
        ).seconds

    def predictions(self, rows: Sequence[Experience], most: int = 20_000) -> Predictions:
        """How far run times of the last jobs were off: by the new figures, and as they were predicted at the time."""
        new: list[float] = []
        old: list[float] = []
        for row, ended, then, _ in foretold(rows[-most:]):
            if then is None:
                continue
            shape = _shape(row, _features(row))
            history = self._unseen[fold_of(row.token) % len(self._unseen)]
            now_s = self.run_s(row, shape, ended.processor, history, row.predictions()[0].processor)
            real = math.log(ended.run)
            new.append(abs(math.log(max(now_s, 1.0)) - real))
            old.append(abs(math.log(max(then.run_s, 1.0)) - real))
        if not new:
            return Predictions(0, 0.0, 0.0, Interval(0.0, 0.0, 0.0))
        apart = np.array(old) - np.array(new)
        return Predictions(len(new), float(np.mean(new)), float(np.mean(old)), mean_interval(apart))


def _features(row: Experience) -> dict[str, Any]:
    try:
        return msgspec.json.decode(row.features or "{}", type=dict[str, float])
    except msgspec.DecodeError:
        return {}


def _shape(row: Experience, features: dict[str, Any]) -> JobShape:
    """The submission, as far as the choice looks at it."""
    note = _NO_NOTE
    if row.annotation:
        try:
            note = msgspec.json.decode(row.annotation, type=Annotation)
        except msgspec.DecodeError:
            note = _NO_NOTE
    gpus = int(features.get("gpus", 0))
    return JobShape(
        row.app,
        row.user or "",
        row.account or "",
        int(features.get("nodes", 1)) or 1,
        int(features.get("cpus", 1)) or 1,
        int(features.get("memory_mb", 0)),
        gpus,
        gpus,
        features.get("limit_s") or None,
        int(features.get("tasks", 1)) or 1,
        False,
        note,
    )
