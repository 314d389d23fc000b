"""From what a node is believed to do and what a job demands, to how much the job will be slowed down.

`SlowdownModel` is all that a policy needs. `PressureModel` is its prior form: utilisation plus demand, beyond a
knee, costs time on each resource; knees and costs start from architecture and are learned from outcomes.
`advisor.contention.neighbours` adds what outcomes beside particular other jobs teach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Demand of a job of which nothing is known, on any resource: mean and spread.
UNKNOWN_DEMAND = (0.3, 0.25)


@dataclass(frozen=True)
class Demand:
    """What is known of a job: its app, and what it uses when alone (share of each resource, 0 to 1)."""

    app: str
    family: str = ""  # apps of one family differ in `size` only; empty: the app is its own family
    size: float = 0.0  # on a log scale: the binary logarithm of the batch size, say
    rate: float | None = None  # steps per second alone on this processor, where known
    use: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeBelief:
    """What is believed of a node, or of a class of nodes: (mean, spread) by resource, and who runs there."""

    use: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    neighbours: tuple[Demand, ...] = ()
    processor: str = ""


@dataclass(frozen=True)
class Slowdown:
    """How many times longer the job will take than alone; `fits`: the probability that it can run there at all."""

    mean: float
    sd: float
    fits: float = 1.0


@dataclass(frozen=True)
class PressureOutcome:
    """A job that ran: what it demanded, what the node was believed to do, and how much slower it was."""

    demand: Demand
    belief: NodeBelief
    slowdown: float


class SlowdownModel(Protocol):
    """Anything that tells slowdowns. Pure: same inputs, same answer."""

    def predict(self, demand: Demand, belief: NodeBelief) -> Slowdown:
        """The slowdown of this job there."""
        ...


# Resource → (knee, cost): the use beyond which it hurts, and slowdown per unit of use beyond it. A core or a GPU is
# time-shared, so all demand beyond it costs in full; bandwidth hurts from well below its peak.
PRIOR: Mapping[str, tuple[float, float]] = {
    "core": (1.0, 1.0),
    "memory_bandwidth": (0.6, 1.5),
    "llc": (0.5, 0.8),
    "interconnect": (0.6, 0.8),
    "io": (0.8, 1.0),
    "disk": (0.8, 1.0),
    "gpu_sm": (0.9, 1.0),
    "gpu_memory": (0.6, 1.2),
}
_SOFT = 0.08  # width of a knee
_FELT = 0.1  # a job that asks for much less than this of a resource hardly feels its pressure
# Gauss-Hermite nodes for the uncertainty of use + demand on one resource.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


class PressureModel:
    """slowdown = 1 + Σ cost·demand-weighted pressure beyond the knee, on every resource the job uses."""

    def __init__(self, noise: float = 0.1) -> None:
        self.resources = tuple(PRIOR)
        knees, costs = zip(*PRIOR.values(), strict=True)
        # Learned on a scale where any value is allowed: costs stay positive, knees stay in sight of [0, 1].
        self.knee: Floats = np.array(knees)
        self.log_cost: Floats = np.log(np.array(costs))
        self.noise = noise

    def _inputs(self, demand: Demand, belief: NodeBelief) -> tuple[Floats, Floats, Floats]:
        """Demand, and mean and spread of the pressure, on each resource; 0 demand where the job uses none."""
        asked = np.zeros(len(self.resources))
        mean, spread = np.zeros((2, len(self.resources)))
        for index, resource in enumerate(self.resources):
            present = belief.use.get(resource)
            if present is None:
                continue
            wanted, unsure = (demand.use[resource], 0.0) if resource in demand.use else UNKNOWN_DEMAND
            asked[index] = wanted
            mean[index] = present[0] + wanted
            spread[index] = float(np.hypot(present[1], unsure))
        return asked, mean, spread

    def predict(self, demand: Demand, belief: NodeBelief) -> Slowdown:
        """Mean and spread over the uncertainty of use and demand, resource by resource."""
        mean, sd = self.many(*(row[None] for row in self._inputs(demand, belief)))
        return Slowdown(float(mean[0]), float(sd[0]))

    def many(self, asked: Floats, pressure: Floats, spread: Floats) -> tuple[Floats, Floats]:
        """Mean and spread of many slowdowns at once; the last axis of each argument is this model's resources.

        `asked` is the job's own demand, `pressure` what all that run there ask for together, `spread` how sure that is.
        """
        expected, squared = np.zeros((2, *pressure.shape))
        felt = _SOFT * np.exp(self.log_cost) * (asked / (asked + _FELT))
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            beyond = (np.maximum(pressure + node * spread, 0.0) - self.knee) / _SOFT
            # log(1 + e^x), several times faster than numpy's logaddexp.
            extra = felt * (np.maximum(beyond, 0.0) + np.log1p(np.exp(-np.abs(beyond))))
            expected += weight * extra
            squared += weight * extra**2
        total = 1.0 + expected.sum(axis=-1)
        variance = np.maximum(squared - expected**2, 0.0).sum(axis=-1)
        return total, np.sqrt(variance + (self.noise * total) ** 2)

    def fit(self, outcomes: Sequence[PressureOutcome], steps: int = 300) -> None:
        """Moves knees and costs towards what outcomes say, held back by the prior; few outcomes move them little."""
        if not outcomes:
            return
        import torch  # a fit needs it, an answer does not

        rows = [self._inputs(outcome.demand, outcome.belief) for outcome in outcomes]
        asked, mean, spread = (torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True))
        seen = torch.log(torch.tensor([max(outcome.slowdown, 0.2) for outcome in outcomes], dtype=torch.float64))
        points = mean[None] + torch.from_numpy(_NODES)[:, None, None] * spread[None]
        weights = torch.from_numpy(_WEIGHTS)[:, None, None]
        knees, costs = zip(*PRIOR.values(), strict=True)
        prior_knee = torch.tensor(knees, dtype=torch.float64)
        prior_cost = torch.log(torch.tensor(costs, dtype=torch.float64))
        knee, log_cost = (torch.from_numpy(start.copy()).requires_grad_(True) for start in (self.knee, self.log_cost))
        adam = torch.optim.Adam([knee, log_cost], lr=0.03)
        for _ in range(steps):
            adam.zero_grad()
            beyond = _SOFT * torch.nn.functional.softplus((points.clamp(min=0.0) - knee) / _SOFT)
            felt = asked / (asked + _FELT)
            extra = (weights * torch.exp(log_cost) * felt * beyond).sum(0).sum(1)
            off = (torch.log1p(extra) - seen) / self.noise
            # Student errors: a job that failed half-way must not move a knee.
            loss = (2.5 * torch.log1p(off**2 / 4.0)).sum()
            loss = loss + 0.5 * (((knee - prior_knee) / 0.2) ** 2).sum()
            loss = loss + 0.5 * (((log_cost - prior_cost) / 0.7) ** 2).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
        self.knee, self.log_cost = knee.detach().numpy(), log_cost.detach().numpy()
