"""The learned policy in the daemon: the arithmetic's predictions, corrected by the network; numpy alone.

Behind the same interface as the arithmetic, and never without it: what the network was not trained for, or cannot
tell because its weights are missing, is answered by the arithmetic's own score.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from advisor.dfg.graph import Annotation
from advisor.performance.snapshot import Snapshot
from advisor.policy.arithmetic import NOWHERE_S, EarliestFinish
from advisor.policy.interface import Candidate, JobShape, Policy, Prediction, Scored
from advisor.policy.learned.features import Job, describe, sizes, told_of
from advisor.policy.learned.files import ModelError, read_model
from advisor.policy.learned.forward import embed_graph, residuals
from advisor.policy.learned.graphs import Graph, graph_of
from advisor.policy.learned.memory import Recollection, Seen, beyond
from advisor.policy.learned.shapes import CANDIDATE_FEATURES, Flags, Floats, Weights
from advisor.policy.remembered import Remembered
from advisor.settings import Processor

log = logging.getLogger(__name__)

# Graphs whose embedding is kept: jobs of an app come again and again.
_KEPT = 512
# Features that are cut to what training met: waits, how far behind the first, share of the pool, room, what comes
# after, limit.
CUT = [0, 2, 5, 11, 12, 13, 15]
UNSURE = "the network was not trained for a job like this"
NO_NUMBER = "its answer is no number"
# The network's logarithms are told in steps of 2^-30.
GRAIN = float(1 << 30)


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

    def remembered(self) -> Remembered:
        """What was submitted, for the same network in another process; see `recall`."""
        return self._recollection.remembered()

    def recall(self, told: Remembered) -> None:
        """Knows from the next snapshot on what another one has seen submitted."""
        self._recollection.recall(told)

    def predict(
        self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float
    ) -> list[Prediction]:
        """One prediction for each candidate."""
        return self.score(shape, candidates, snapshot, now).explained()

    def score(self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float) -> Scored:
        """As `predict`; the reasons wait until somebody asks for them."""
        return self.correct(((shape, self.expect(shape, candidates, snapshot, now)),), snapshot, now)[0]

    def expect(self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float) -> Scored:
        """The waits and run times, which are the arithmetic's; the network has not been asked yet."""
        return self.arithmetic.score(shape, candidates, snapshot, now)

    def correct(self, asked: Sequence[tuple[JobShape, Scored]], snapshot: Snapshot, now: float) -> list[Scored]:
        """Asks the network about all these jobs in one go; each is told what it would be told alone.

        The predictions must be those of `expect`, which nobody else has seen: their scores are put in place.
        """
        found = [plain for _, plain in asked]
        seen: Seen | None = None
        jobs: list[Job] = []
        for number, (shape, plain) in enumerate(asked):
            if not shape.gpus:
                why = "the job asks for no GPU, and the network knows choices between GPUs"
                found[number] = self._left(plain, "no GPU", why)
                continue
            seen = seen or self._recollection.look(snapshot)
            rows = [p for p in plain.predictions if p.pool is not None and p.wait_s < NOWHERE_S and p.run_s > 0]
            if len(rows) < 2:
                found[number] = self._left(plain, "one place", "there is one place only where it could start")
                continue
            graph, embedding = self._graph(shape)
            jobs.append(Job(number, shape, rows, graph.sensitivity, embedding))
        if seen is None or not jobs:
            return found
        for job, strange in zip(jobs, self._put_scores(jobs, seen), strict=True):
            plain = found[job.number]
            if strange:
                self.unsure += 1
                kind = "unlike cluster" if strange == seen.strange else "unlike job"
                plain = self._left(plain, kind, f"{UNSURE} ({strange})")
            found[job.number] = msgspec.structs.replace(plain, remember=self._noting(plain, job.shape.gpus, now))
        return found

    def _noting(self, scored: Scored, asked: int, now: float) -> Callable[[], None]:
        predictions = scored.predictions
        return lambda: self._recollection.note(predictions, asked, now)

    def _left(self, plain: Scored, kind: str, why: str) -> Scored:
        """Scored by the arithmetic, and why."""
        by = (self.arithmetic.name, self.arithmetic.version)
        return msgspec.structs.replace(plain, by=by, fell_back=why, kind=kind)

    def _put_scores(self, jobs: list[Job], seen: Seen) -> list[str]:
        """Puts scores with the network's factors on wait and run time; in words, where it was not trained for a job."""
        if seen.strange:
            return [seen.strange] * len(jobs)
        w = self._weights
        told = told_of(jobs)
        where = told[4].astype(np.int64)
        table = np.minimum(describe(jobs, told, where, seen), self._most)
        graphs = jobs[0].embedding if len(jobs) == 1 else np.repeat([job.embedding for job in jobs], sizes(jobs), 0)
        logs = residuals(w, table, seen.ground, graphs, where)
        # The same to the last bit whatever else was asked about: libraries add up in another order for other sizes.
        np.rint(logs * GRAIN, out=logs)
        factors = np.exp(logs / GRAIN)
        scores = told[0] * factors[:, 0] + told[1] * factors[:, 1]
        outside = (table < w.range_low) | (table > w.range_high)
        sound = np.isfinite(scores)
        known = sound.all() and not outside.any()
        reasons = [""] * len(jobs) if known else self._reasons(jobs, table, outside.any(axis=1) | ~sound)
        corrected = iter(scores.tolist())
        for job, why in zip(jobs, reasons, strict=True):
            for prediction, figure in zip(job.rows, corrected, strict=False):
                if not why:
                    # Nobody else has seen these yet: the arithmetic made them for this call.
                    msgspec.structs.force_setattr(prediction, "score", figure)
        return reasons

    def _reasons(self, jobs: list[Job], table: Floats, strange: Flags) -> list[str]:
        """Why the network is not believed, of each job; empty where it is."""
        w = self._weights
        found = []
        end = 0
        for job in jobs:
            start, end = end, end + len(job.rows)
            why = beyond(table[start:end], w.range_low, w.range_high, CANDIDATE_FEATURES, "a place's") or NO_NUMBER
            found.append(why if strange[start:end].any() else "")
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
