"""Policies of the daemon that are a rule of one line over the arithmetic's predictions.

They predict as earliest-finish does and differ only in what they go by (`score`, in seconds), so that a site can
compare them in shadow mode and the simulator can run them through the daemon's own code.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from advisor.performance.snapshot import Snapshot
from advisor.policy.arithmetic import EarliestFinish
from advisor.policy.interface import Candidate, JobShape, Prediction, Scored

# More than any guardrail asks for as a gain.
DECISIVE_S = 1e6

Rescore = Callable[[list[Prediction], JobShape, Snapshot, float], list[float]]


class Rescored:
    """Earliest-finish's predictions with scores of another kind."""

    version = "1"

    def __init__(self, name: str, base: EarliestFinish, rescore: Rescore) -> None:
        self.name, self._base, self._rescore = name, base, rescore

    def predict(
        self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float
    ) -> list[Prediction]:
        """One prediction for each candidate."""
        return self.score(shape, candidates, snapshot, now).explained()

    def score(self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float) -> Scored:
        """As `predict`; the reasons wait until somebody asks for them."""
        found = self._base.score(shape, candidates, snapshot, now)
        scores = self._rescore(found.predictions, shape, snapshot, now)
        return Scored(_with(found.predictions, scores), lambda: _with(found.explained(), scores))


def _with(predictions: list[Prediction], scores: list[float]) -> list[Prediction]:
    return [msgspec.structs.replace(p, score=score) for p, score in zip(predictions, scores, strict=True)]


def as_submitted(predictions: list[Prediction], shape: JobShape, snapshot: Snapshot, now: float) -> list[float]:
    """slurm-default: nothing is better than what the user wrote."""
    return [0.0 if p.candidate == 0 else DECISIVE_S for p in predictions]


def earliest_start(predictions: list[Prediction], shape: JobShape, snapshot: Snapshot, now: float) -> list[float]:
    """earliest-start: the shortest wait, however long it then runs."""
    return [p.wait_s for p in predictions]


def fastest(predictions: list[Prediction], shape: JobShape, snapshot: Snapshot, now: float) -> list[float]:
    """fastest: the shortest run, however long the wait."""
    return [p.run_s * p.slowdown for p in predictions]


def at_random(predictions: list[Prediction], shape: JobShape, snapshot: Snapshot, now: float) -> list[float]:
    """random: any place that takes it; the same submission at the same moment always has the same lot."""
    draw = random.Random(f"{shape.user} {shape.app} {snapshot.taken_at} {now}")
    lots = [draw.random() for _ in predictions]
    return [DECISIVE_S * lot for lot in lots]


RULES: dict[str, Rescore] = {
    "slurm-default": as_submitted,
    "earliest-start": earliest_start,
    "fastest": fastest,
    "random": at_random,
}
