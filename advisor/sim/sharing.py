"""What is known during a simulation of how jobs slow each other on one GPU: what has been seen so far, and the model.

`Watched` stands before the truth and notes every pair that really ran side by side, as the node agents would;
`LearnedNeighbours` is what the planner believes: what was seen, and for all other pairs the advisor's contention model
fitted to that, from its prior on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from advisor.performance.model.names import family
from advisor.sim.neighbours import LEAST_SPEED, Contention
from advisor.sim.workload import SimJob

if TYPE_CHECKING:
    from advisor.contention.neighbours import NeighbourModel
    from advisor.contention.slowdown import Demand

# Before anything was seen, two jobs on one GPU are taken to keep this much of their speed: just enough that the planner
# (`Planning.least_gain`) tries them. With less, none would ever meet and nothing would be learned.
PRIOR_SPEED = 0.7
# The first fit, and by how much what was seen grows until the next; a fit costs the cube of what was seen.
FIRST_FIT, GROWTH, MOST_SEEN = 6, 1.6, 240
# Of an earlier log, once: so many pairs are fitted.
MOST_EARLIER = 480
# Steps of each fit: later ones start where the last ended.
STEPS = 40
# Two jobs that fit into one memory with less probability than this are not put together.
LEAST_FIT = 0.5

_Pair = tuple[str, str, str]  # app, other app, processor


class LearnedNeighbours:
    """A `Contention` that knows pairs which have met, and guesses the others."""

    def __init__(self) -> None:
        self.seen: dict[_Pair, float] = {}
        self._model: NeighbourModel | None = None
        self._next_fit = FIRST_FIT
        self._guessed: dict[_Pair, float] = {}

    def note(self, pair: _Pair, share: float) -> None:
        """Two jobs have met."""
        if pair in self.seen:
            return
        self.seen[pair] = share
        if len(self.seen) >= self._next_fit and len(self.seen) <= MOST_SEEN and find_spec("torch") is not None:
            self._next_fit = math.ceil(len(self.seen) * GROWTH)
            self._fit()

    def note_all(self, pairs: Mapping[_Pair, float]) -> None:
        """Pairs of an earlier log."""
        self.seen.update(pairs)
        if len(self.seen) >= self._next_fit and find_spec("torch") is not None:
            self._next_fit = math.ceil(len(self.seen) * GROWTH)
            self._fit(MOST_EARLIER)

    def pair(self, job: SimJob, other: SimJob, processor: str) -> float:
        """The part of its speed that a job keeps beside the other; 0: they probably do not fit."""
        key = (job.app, other.app, processor)
        if key in self.seen:
            return self.seen[key]
        if self._model is None:
            return PRIOR_SPEED
        if key not in self._guessed:
            mean, _, fits = self._model.throughput([(_demand(job.app), _demand(other.app), processor)])
            self._guessed[key] = float(mean[0]) if fits[0] >= LEAST_FIT else 0.0
        return self._guessed[key]

    def speed(self, job: SimJob, processor: str, on_gpu: Sequence[SimJob], on_node: Sequence[SimJob]) -> float:
        """Beside several, the parts multiply."""
        return max(math.prod(self.pair(job, other, processor) for other in on_gpu), LEAST_SPEED)

    def _fit(self, most: int = MOST_SEEN) -> None:
        from advisor.contention.neighbours import NeighbourModel, PairOutcome

        model = self._model or NeighbourModel(STEPS)
        # Of very many, some: each as often as any other.
        every = max(math.ceil(len(self.seen) / most), 1)
        some = list(self.seen.items())[::every]
        model.fit([PairOutcome(_demand(a), _demand(b), kind, share) for (a, b, kind), share in some])
        self._model = model if model.table is not None else None
        self._guessed.clear()


class Watched:
    """The truth, with somebody who takes notes."""

    def __init__(self, truth: Contention, learner: LearnedNeighbours) -> None:
        self.truth, self.learner = truth, learner

    def pair(self, job: SimJob, other: SimJob, processor: str) -> float:
        """As the truth."""
        return self.truth.pair(job, other, processor)

    def speed(self, job: SimJob, processor: str, on_gpu: Sequence[SimJob], on_node: Sequence[SimJob]) -> float:
        """As the truth; where two share a GPU, what each keeps is noted."""
        share = self.truth.speed(job, processor, on_gpu, on_node)
        if len(on_gpu) == 1:
            self.learner.note((job.app, on_gpu[0].app, processor), share if share > LEAST_SPEED else 0.0)
        return share


def _demand(app: str) -> Demand:
    from advisor.contention.slowdown import Demand

    name, number = family(app)
    return Demand(app, name, number / math.log(2.0) if number else 0.0)
