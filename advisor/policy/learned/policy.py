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
from advisor.policy.learned.memory import Recollection, Seen
from advisor.policy.learned.shapes import CANDIDATE_FEATURES, Floats, Ints, Weights

log = logging.getLogger(__name__)

# Graphs whose embedding is kept: jobs of an app come again and again.
_KEPT = 512
# What the run time rests on where the app itself has run before.
_KNOWN = frozenset({"history", "history elsewhere", "similar jobs"})


class LearnedPolicy:
    """Scores a candidate by wait × factor + run time × slowdown × factor, both factors told by the network.

    It remembers what was submitted and how the cluster has been; apart from that, same inputs, same predictions.
    """

    name = "learned"

    def __init__(self, weights: Weights, processors: Mapping[str, Processor], version: str = "1") -> None:
        self.version = version
        self.arithmetic = EarliestFinish(processors)
        self.unsure = 0  # decisions left to the arithmetic
        self._weights = weights
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
            return plain  # trained on choices between GPUs alone
        seen = self._recollection.look(snapshot)
        rows = [p for p in predictions if p.pool is not None and p.wait_s < NOWHERE_S and p.run_s > 0]
        if len(rows) < 2:
            return plain
        asked = shape.gpus
        factors = self._factors(shape, rows, asked, snapshot, seen)
        if factors is None:
            self.unsure += 1
        else:
            for prediction, (wait, run) in zip(rows, np.exp(factors).tolist(), strict=True):
                corrected = prediction.wait_s * wait + prediction.run_s * prediction.slowdown * run
                # Nobody else has seen these yet: the arithmetic made them for this call.
                msgspec.structs.force_setattr(prediction, "score", corrected)

        def explained() -> list[Prediction]:
            # After the reply: the next submission finds this one among those that came before it.
            self._recollection.note(predictions, asked, now)
            return plain.explained()

        return Scored(predictions, explained)

    def _factors(
        self, shape: JobShape, predictions: list[Prediction], asked: int, snapshot: Snapshot, seen: Seen
    ) -> Floats | None:
        """Logarithms of the factors on wait and run time; None where the network was not trained for this."""
        if not seen.familiar:
            return None
        graph, embedding = self._graph(shape)
        where = np.asarray([p.pool for p in predictions], dtype=np.int64)
        table = self._describe(shape, predictions, where, asked, graph.sensitivity, snapshot, seen)
        w = self._weights
        if not ((table >= w.range_low) & (table <= w.range_high)).all():
            return None
        found = residuals(w, table, seen.topology, seen.memory, embedding, where)
        return found if np.isfinite(found).all() else None

    def _describe(
        self,
        shape: JobShape,
        predictions: list[Prediction],
        where: Ints,
        asked: int,
        sensitivity: float,
        snapshot: Snapshot,
        seen: Seen,
    ) -> Floats:
        """The candidates' features, in the order of `CANDIDATE_FEATURES`."""
        past = self._recollection
        wait, run, slowdown, spread = np.array([(p.wait_s, p.run_s, p.slowdown, p.sd_log) for p in predictions]).T
        run = run * slowdown
        finish = wait + run
        best, first_at = float(run.min()), int(finish.argmin())
        usual = max(past.run_s, 1e-9) if past.count else best
        units = seen.units[where]
        loads = np.array(snapshot.load)[where] if len(snapshot.load) == len(seen.units) else np.zeros(len(where))
        table = np.zeros((len(predictions), len(CANDIDATE_FEATURES)))
        table[:, 0] = np.log1p(wait / best)
        table[:, 1] = np.log(run / best)
        table[:, 2] = np.log1p(wait / usual)
        table[:, 3] = np.log(run / usual)
        table[:, 4] = table[:, 1] - past.slower[where]
        table[:, 5] = np.log(finish / finish[first_at])
        table[first_at, 6] = 1.0
        table[:, 7] = spread
        table[:, 8] = np.log(slowdown)
        table[:, 9] = seen.belief[where] * sensitivity
        table[:, 10] = seen.belief_spread[where] * sensitivity
        table[:, 11] = np.minimum(asked / units, 1.0)
        # More room, and a more generous limit, than was ever met in training say no more than the most that was.
        most = self._weights.range_high
        table[:, 12] = np.minimum(np.log1p(units * (1.0 - loads) / asked), most[12])
        table[:, 14] = [0.0 if p.run_source in _KNOWN else 1.0 for p in predictions]
        table[:, 15] = min(math.log1p((shape.time_limit_s or 3.0 * float(run.max())) / best), float(most[15]))
        return table

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
