"""What is known during a simulation of how jobs slow each other on one GPU: what has been seen so far, and the model.

`Watched` stands before the truth and notes every pair that really ran side by side, as the node agents would;
`LearnedNeighbours` is what the planner believes: what was seen, and for all other pairs the advisor's contention model
fitted to that, from its prior on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
# The first fit, and by how much what was seen grows until the next. How alike apps are is learned from so many pairs at
# most, since a step costs the cube of them; what is told then follows from all.
FIRST_FIT, GROWTH, MOST_FITTED = 6, 1.6, 480
# Steps of each fit: later ones start where the last ended.
STEPS = 40
# Two jobs that fit into one memory with less probability than this are not put together.
LEAST_FIT = 0.5
# By how many spreads a pair that never met is taken to be slower than its mean, where all wait for the last: two jobs
# that turn out to be bad for each other cannot be parted, and of many guesses a plan picks those that are too high.
DOUBT_SPAN = 1.0

_Pair = tuple[str, str, str]  # app, other app, processor


class LearnedNeighbours:
    """A `Contention` that knows pairs which have met, and guesses the others."""

    def __init__(self, doubt: float = 0.0) -> None:
        """`doubt`: a guess is its mean less so many spreads."""
        self.seen: dict[_Pair, float] = {}
        self.doubt = doubt
        self._model: NeighbourModel | None = None
        self._next_fit = FIRST_FIT
        self._guessed: dict[_Pair, float] = {}
        self._asked: dict[_Pair, None] = {}
        self._fresh = False  # something was seen that the guesses do not know

    def note(self, pair: _Pair, share: float) -> None:
        """Two jobs have met."""
        if pair not in self.seen:
            self.seen[pair] = share
            self._fresh = True

    def note_all(self, pairs: Mapping[_Pair, float]) -> None:
        """Pairs of an earlier log."""
        self.seen.update(pairs)
        self._fresh = True

    def pair(self, job: SimJob, other: SimJob, processor: str) -> float:
        """The part of its speed that a job keeps beside the other; 0: they probably do not fit."""
        key = (job.app, other.app, processor)
        if key in self.seen:
            return self.seen[key]
        if self._fresh:
            self._learn()
        if self._model is None:
            return PRIOR_SPEED
        if key not in self._guessed:
            # All that was ever asked is worked out together, so that the next question finds its answer.
            self._asked[key] = None
            self._guess([pair for pair in self._asked if pair not in self.seen and pair not in self._guessed])
        return self._guessed[key]

    def _guess(self, pairs: Sequence[_Pair]) -> None:
        assert self._model is not None
        told = self._model.throughput([(_demand(a), _demand(b), kind) for a, b, kind in pairs])
        for pair, mean, sd, fits in zip(pairs, *told, strict=True):
            least = max(float(mean - self.doubt * sd), LEAST_SPEED)
            self._guessed[pair] = least if fits >= LEAST_FIT else 0.0

    def speed(self, job: SimJob, processor: str, on_gpu: Sequence[SimJob], on_node: Sequence[SimJob]) -> float:
        """Beside several, the parts multiply."""
        return max(math.prod(self.pair(job, other, processor) for other in on_gpu), LEAST_SPEED)

    def _learn(self) -> None:
        """Takes in all that was seen."""
        self._fresh = False
        if find_spec("torch") is None or (self._model is None and len(self.seen) < FIRST_FIT):
            return
        from advisor.contention.neighbours import NeighbourModel, PairOutcome

        model = self._model or NeighbourModel(STEPS)
        outcomes = {
            (a, b, kind): PairOutcome(_demand(a), _demand(b), kind, share) for (a, b, kind), share in self.seen.items()
        }
        if len(self.seen) >= self._next_fit:
            self._next_fit = math.ceil(len(self.seen) * GROWTH)
            model.fit(list(outcomes.values()), [outcomes[pair] for pair in thinned(self.seen, MOST_FITTED)])
        else:
            model.condition(list(outcomes.values()))
        self._model = model if model.table is not None else None
        self._guessed.clear()


def thinned(pairs: Iterable[_Pair], most: int) -> list[_Pair]:
    """Of very many pairs some, spread over all; what each of two jobs felt stays together or goes together."""
    meetings: dict[tuple[str, str, str], list[_Pair]] = {}
    for pair in pairs:
        a, b, kind = pair
        meetings.setdefault((min(a, b), max(a, b), kind), []).append(pair)
    every = max(math.ceil(sum(map(len, meetings.values())) / most), 1)
    return [pair for meeting in list(meetings.values())[::every] for pair in meeting]


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
