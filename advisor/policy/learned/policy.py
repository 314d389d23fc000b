"""The learned policy in the daemon: the arithmetic's predictions, corrected by the network; numpy alone.

Behind the same interface as the arithmetic, and never without it: what the network was not trained for, or cannot
tell because its weights are missing, is answered by the arithmetic's own score.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from advisor.config import Processor
from advisor.dfg.graph import Annotation
from advisor.performance.snapshot import Snapshot
from advisor.policy.arithmetic import NOWHERE_S, EarliestFinish
from advisor.policy.interface import Candidate, JobShape, Policy, Prediction, Scored
from advisor.policy.learned.files import ModelError, read_model
from advisor.policy.learned.forward import embed_graph, residuals
from advisor.policy.learned.graphs import Graph, graph_of
from advisor.policy.learned.memory import Recollection, Seen, beyond
from advisor.policy.learned.shapes import CANDIDATE_FEATURES, Floats, Ints, Weights

log = logging.getLogger(__name__)

# Graphs whose embedding is kept: jobs of an app come again and again.
_KEPT = 512
# Features that are cut to what training met: waits, how far behind the first, share of the pool, room, limit.
CUT = [0, 2, 5, 11, 12, 15]
UNSURE = "the network was not trained for a job like this"
# What the run time rests on where the app itself has run before.
_KNOWN = frozenset({"history", "history elsewhere", "similar jobs"})


class LearnedPolicy:
    """Scores a candidate by wait × factor + run time × slowdown × factor, both factors told by the network.

    It remembers what was submitted and how the cluster has been, and looks at that anew with each snapshot; until the
    next one, same inputs, same predictions, in whatever order they come.
    """

    name = "learned"

    def __init__(self, weights: Weights, processors: Mapping[str, Processor], version: str = "1") -> None:
        self.version = version
        self.arithmetic = EarliestFinish(processors)
        self.unsure = 0  # decisions left to the arithmetic
        self._weights = weights
        self._most = np.full(len(CANDIDATE_FEATURES), np.inf)
        self._most[CUT] = weights.range_high[CUT]
        self._recollection = Recollection(weights, processors)
        # By the annotation's id; the value holds on to it, so that the id stays its own.
        self._graphs: dict[int, tuple[Annotation, Graph, Floats]] = {}

    @classmethod
    def from_folder(cls, path: Path, processors: Mapping[str, Processor]) -> LearnedPolicy:
        """The model of a folder; raises `ModelError` where it is missing, damaged or of another version."""
        weights, card = read_model(path)
        return cls(weights, processors, card.name)

    def observe(self, snapshot: Snapshot) -> None:
        """Works out in the background what the first decision on a new snapshot would otherwise wait for."""
        self._recollection.look(snapshot)

    def predict(
        self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float
    ) -> list[Prediction]:
        """One prediction for each candidate."""
        return self.score(shape, candidates, snapshot, now).explained()

    def score(self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float) -> Scored:
        """As `predict`; the reasons wait until somebody asks for them."""
        plain = self.arithmetic.score(shape, candidates, snapshot, now)
        predictions = plain.predictions
        if not shape.gpus:
            return self._left(plain, "no GPU", "the job asks for no GPU, and the network knows choices between GPUs")
        seen = self._recollection.look(snapshot)
        rows = [p for p in predictions if p.pool is not None and p.wait_s < NOWHERE_S and p.run_s > 0]
        if len(rows) < 2:
            return self._left(plain, "one place", "there is one place only where it could start")
        asked = shape.gpus
        scores = self._corrected(shape, rows, seen)
        if isinstance(scores, str):
            self.unsure += 1
            kind = "unlike cluster" if scores == seen.strange else "unlike job"
            plain = self._left(plain, kind, f"{UNSURE} ({scores})")
        else:
            for prediction, corrected in zip(rows, scores.tolist(), strict=True):
                # Nobody else has seen these yet: the arithmetic made them for this call.
                msgspec.structs.force_setattr(prediction, "score", corrected)

        return msgspec.structs.replace(plain, remember=lambda: self._recollection.note(predictions, asked, now))

    def _left(self, plain: Scored, kind: str, why: str) -> Scored:
        """Scored by the arithmetic, and why."""
        by = (self.arithmetic.name, self.arithmetic.version)
        return msgspec.structs.replace(plain, by=by, fell_back=why, kind=kind)

    def _corrected(self, shape: JobShape, predictions: list[Prediction], seen: Seen) -> Floats | str:
        """Scores with the network's factors on wait and run time; in words, where it was not trained for this."""
        if seen.strange:
            return seen.strange
        graph, embedding = self._graph(shape)
        told = (
            np.array(
                [
                    value
                    for p in predictions
                    for value in (p.wait_s, p.run_s, p.slowdown, p.sd_log, p.pool, p.run_source not in _KNOWN)
                ],
                dtype=np.float64,
            )
            .reshape(-1, 6)
            .T
        )
        told[1] *= told[2]
        where = told[4].astype(np.int64)
        table = self._describe(shape, told, where, graph.sensitivity, seen)
        w = self._weights
        if strange := beyond(table, w.range_low, w.range_high, CANDIDATE_FEATURES, "a place's"):
            return strange
        factors = np.exp(residuals(w, table, seen.ground, embedding, where))
        scores: Floats = told[0] * factors[:, 0] + told[1] * factors[:, 1]
        return scores if np.isfinite(scores).all() else "its answer is no number"

    def _describe(self, shape: JobShape, told: Floats, where: Ints, sensitivity: float, seen: Seen) -> Floats:
        """The candidates' features, in the order of `CANDIDATE_FEATURES`.

        Rows of `told`: wait, run time with its slowdown, slowdown, spread, pool, whether the app is new.
        """
        wait, run, slowdown, spread, _, new = told
        finish = wait + run
        best, first_at = float(run.min()), int(finish.argmin())
        usual = seen.usual_s or best
        units, free, belief, belief_spread = seen.by_pool[:, where]
        table = np.zeros((len(CANDIDATE_FEATURES), len(where)))
        np.log1p(wait / best, out=table[0])
        log_run = np.log(run)
        table[1] = log_run - math.log(best)
        np.log1p(wait / usual, out=table[2])
        table[3] = log_run - math.log(usual)
        table[4] = table[1] - seen.slower[where]
        np.log(finish / finish[first_at], out=table[5])
        table[6, first_at] = 1.0
        table[7] = spread
        np.log(slowdown, out=table[8])
        table[9] = belief * sensitivity
        table[10] = belief_spread * sensitivity
        table[11] = shape.gpus / units
        np.log1p(free / shape.gpus, out=table[12])
        table[14] = new
        table[15] = math.log1p((shape.time_limit_s or 3.0 * float(run.max())) / best)
        # Of waits, shares, room and limits beyond what was ever met in training the most that was met is told.
        found: Floats = np.minimum(table.T, self._most)
        return found

    def _graph(self, shape: JobShape) -> tuple[Graph, Floats]:
        annotation = shape.annotation
        kept = self._graphs.get(id(annotation))
        if kept is not None:
            return kept[1], kept[2]
        graph = graph_of(annotation)
        embedding = embed_graph(self._weights, graph.kernels, graph.sources, graph.targets, graph.flows)
        if len(self._graphs) >= _KEPT:
            self._graphs.clear()
        self._graphs[id(annotation)] = (annotation, graph, embedding)
        return graph, embedding


def load_or_arithmetic(path: Path | None, processors: Mapping[str, Processor]) -> Policy:
    """The model of a folder; where it cannot be used, the arithmetic, and why in the log."""
    if path is None:
        return EarliestFinish(processors)
    try:
        return LearnedPolicy.from_folder(path, processors)
    except ModelError as error:
        log.warning("the learned policy cannot be used, the arithmetic decides: %s", error)
        return EarliestFinish(processors)
