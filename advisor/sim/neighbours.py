"""How fast jobs run beside each other in a simulation: the part of its own speed that a job keeps.

`PairTable` reads Gavel's measured pairs (two jobs on one GPU), `AppTable` any table of app beside app,
`ModelNeighbours` asks the advisor's own contention model about everyone on the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from advisor.sim.traces.gavel import Throughputs
from advisor.sim.workload import SimJob

if TYPE_CHECKING:
    from advisor.contention.slowdown import SlowdownModel

# No job stands still: even the worst neighbour leaves this much.
LEAST_SPEED = 0.02


class Contention(Protocol):
    """What others on the same GPU and the same node leave of a job's speed; pure: same neighbours, same answer."""

    def speed(self, job: SimJob, processor: str, on_gpu: Sequence[SimJob], on_node: Sequence[SimJob]) -> float:
        """In (0, 1]; 1: as alone. `on_node` are all others on the node, those on the GPU included."""
        ...

    def pair(self, job: SimJob, other: SimJob, processor: str) -> float:
        """The same for two jobs on one GPU, to decide whether they should meet; 0: they cannot."""
        ...


class PairTable:
    """Gavel's table: steps per second beside each other on one GPU over steps per second alone."""

    def __init__(self, table: Throughputs) -> None:
        self._table = table
        self._known: dict[tuple[str, str, str], float] = {}

    def pair(self, job: SimJob, other: SimJob, processor: str) -> float:
        """0 where the table has no figure: the two do not fit into one memory."""
        key = (job.app, other.app, processor)
        if key not in self._known:
            mine, theirs = (job.app, 1), (other.app, 1)
            alone = self._table.alone.get(processor, {}).get(mine, 0.0)
            beside = self._table.beside.get(processor, {}).get(mine, {}).get(theirs, (0.0, 0.0))[0]
            self._known[key] = min(beside / alone, 1.0) if alone > 0 else 0.0
        return self._known[key]

    def speed(self, job: SimJob, processor: str, on_gpu: Sequence[SimJob], on_node: Sequence[SimJob]) -> float:
        """Only who is on the same GPU counts."""
        share = 1.0
        for other in on_gpu:
            share *= self.pair(job, other, processor)
        return max(share, LEAST_SPEED)


class AppTable:
    """A table of slowdowns, `{(app, other app): times longer}`; pairs that are not in it do not hurt each other."""

    def __init__(self, slowdown: Mapping[tuple[str, str], float]) -> None:
        self._slowdown = dict(slowdown)

    def pair(self, job: SimJob, other: SimJob, processor: str) -> float:
        """One over the slowdown."""
        return 1.0 / max(self._slowdown.get((job.app, other.app), 1.0), 1.0)

    def speed(self, job: SimJob, processor: str, on_gpu: Sequence[SimJob], on_node: Sequence[SimJob]) -> float:
        """The slowdowns by all on the node multiply."""
        share = 1.0
        for other in on_node:
            share *= self.pair(job, other, processor)
        return max(share, LEAST_SPEED)


class ModelNeighbours:
    """The contention model's mean slowdown beside everyone on the node."""

    def __init__(self, model: SlowdownModel, least_fit: float = 0.5) -> None:
        """`least_fit`: two jobs that fit into one memory with less probability than this cannot meet on a GPU."""
        self._model = model
        self._least_fit = least_fit
        self._known: dict[tuple[str, str, tuple[str, ...]], tuple[float, float]] = {}

    def _predict(self, app: str, processor: str, others: tuple[str, ...]) -> tuple[float, float]:
        key = (app, processor, others)
        if key not in self._known:
            from advisor.contention.slowdown import Demand, NodeBelief

            belief = NodeBelief(neighbours=tuple(Demand(other) for other in others), processor=processor)
            found = self._model.predict(Demand(app), belief)
            self._known[key] = (min(1.0, 1.0 / max(found.mean, 1e-9)), found.fits)
        return self._known[key]

    def pair(self, job: SimJob, other: SimJob, processor: str) -> float:
        """0 where the two probably do not fit into one memory."""
        share, fits = self._predict(job.app, processor, (other.app,))
        return share if fits >= self._least_fit else 0.0

    def speed(self, job: SimJob, processor: str, on_gpu: Sequence[SimJob], on_node: Sequence[SimJob]) -> float:
        """Everyone on the node counts, whichever GPU they use."""
        if not on_node:
            return 1.0
        return max(self._predict(job.app, processor, tuple(sorted(o.app for o in on_node)))[0], LEAST_SPEED)
