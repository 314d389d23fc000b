"""How a job runs beside others, learned from how jobs ran beside others; the jobs' demands stay latent.

A job's throughput beside a neighbour is what the job feels, plus what the neighbour presses, plus how the two meet:
products of a sensitivity and a demand, which are never measured but have Gaussian priors that tie apps of one family,
near sizes and similar rates together. Integrated out, that is a Gaussian process over pairs, so an
app that was seen beside a few neighbours is known beside the others, with its uncertainty. Whether two jobs fit into
one memory is a model of its own: each has a size in memory, each processor a limit. Processors differ in how much
neighbours matter there and in how far pairs are from any rule: both are learned for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from advisor.contention.slowdown import Demand, NodeBelief, PressureModel, Slowdown

Floats = NDArray[np.float64]

_WORST = 0.05  # throughput below which a slowdown is no longer told apart
_AMPLITUDES = 20  # 4 for each of: what is felt, what presses, two of how they meet, and what both share
_LENGTHS = 6
_RHOS = 4
# Of each processor, in logarithms: how much neighbours matter there against others, and the variance that is noise;
# and how far from these it may be.
_SCALE, _NOISE = 0.0, float(np.log(0.005))
_SCALE_SD, _NOISE_SD = 0.5, 2.0


@dataclass(frozen=True)
class PairOutcome:
    """A job that ran beside another: its throughput as a share of that alone; 0: the two could not share."""

    demand: Demand
    neighbour: Demand
    processor: str
    throughput: float


_Job = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # apps, families, sizes, rates


class _Table:
    """Jobs and pairs as numbers."""

    def __init__(self, pairs: Sequence[tuple[Demand, Demand, str]], like: _Table | None = None) -> None:
        self.like = like or self
        self.processors: dict[str, int] = dict(like.processors) if like else {}
        self.apps: dict[str, int] = dict(like.apps) if like else {}
        self.families: dict[str, int] = dict(like.families) if like else {}
        rows: list[list[float]] = []
        for me, other, processor in pairs:
            place = self.processors.setdefault(processor, len(self.processors))
            rows.append([place, *self._job(me), *self._job(other)])
        table = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), 9)
        if like is None:
            rates = torch.cat([table[:, 4], table[:, 8]])
            known = rates[~torch.isnan(rates)]
            self.rate_mean = float(known.mean()) if len(known) else 0.0
            self.rate_sd = float(known.std()) + 1e-6 if len(known) > 1 else 1.0
        else:
            self.rate_mean, self.rate_sd = like.rate_mean, like.rate_sd
        self.processor = table[:, 0].long()
        self.jobs = []  # (app, family, size, rate) of the job and of its neighbour
        for start in (1, 5):
            rate = torch.nan_to_num((table[:, start + 3] - self.rate_mean) / self.rate_sd, nan=0.0)
            self.jobs.append((table[:, start].long(), table[:, start + 1].long(), table[:, start + 2], rate))
        # Pairs are many, jobs few: what jobs have in common is worked out once for each two of them.
        columns = torch.cat([torch.stack([part.double() for part in job], 1) for job in self.jobs])
        kinds, at = torch.unique(columns, dim=0, return_inverse=True)
        self.kinds: _Job = (kinds[:, 0].long(), kinds[:, 1].long(), kinds[:, 2], kinds[:, 3])
        self.at = (at[: len(rows)], at[len(rows) :])

    def _job(self, demand: Demand) -> list[float]:
        app = self.apps.setdefault(demand.app, len(self.apps))
        family = self.families.setdefault(demand.family or demand.app, len(self.families))
        rate = np.log(demand.rate) if demand.rate else np.nan
        return [app, family, demand.size, rate]


def _alike(
    one: _Job, other: _Job, weights: torch.Tensor, size_length: torch.Tensor, length: torch.Tensor
) -> torch.Tensor:
    """Covariance of one latent quantity between jobs: same app, near size in one family, one family, similar rate."""
    family = (one[1][:, None] == other[1][None, :]).double()
    near = family * torch.exp(-0.5 * ((one[2][:, None] - other[2][None, :]) / size_length) ** 2)
    rate = torch.exp(-0.5 * ((one[3][:, None] - other[3][None, :]) / length) ** 2)
    same = (one[0][:, None] == other[0][None, :]).double()
    return weights[0] * same + weights[1] * near + weights[2] * family + weights[3] * rate


class NeighbourModel:
    """The Gaussian process over pairs, and the memory model; `fit`, then `throughput` or `predict`.

    `fit` learns how alike jobs are, which takes time; `condition` takes in outcomes with that as it is.
    """

    def __init__(self, steps: int = 100, prior: PressureModel | None = None) -> None:
        self.steps = steps
        self.prior = prior or PressureModel()
        start = [-2.0] * _AMPLITUDES + [0.3] * _LENGTHS + [0.0] * _RHOS + [-2.0]
        self.parameters = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        self.processors: dict[str, int] = {}
        self.apart = torch.tensor([[_SCALE], [_NOISE]], dtype=torch.float64)  # [scale and noise, processor]; 0: unknown
        self.table: _Table | None = None

    def _of_processor(self, table: _Table) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and noise of each pair."""
        column = torch.tensor([self.processors.get(name, 0) for name in table.processors])
        scale, noise = torch.exp(self.apart[:, column[table.processor]])
        return scale, noise + 1e-6

    def _combined(
        self, one: _Table, other: _Table, same: torch.Tensor, pick: Callable[[torch.Tensor, int, int], torch.Tensor]
    ) -> torch.Tensor:
        """Covariance of pairs from that of jobs; `pick` gives the latter for the job (0) or neighbour (1) of each."""
        p = torch.exp(self.parameters)
        lengths = p[_AMPLITUDES:]
        rho = torch.sigmoid(self.parameters[_AMPLITUDES + _LENGTHS :])
        across = [same + (1 - same) * rho[index] for index in range(_RHOS)]
        felt, pressed, meets, met, both = (
            _alike(one.kinds, other.kinds, p[4 * which : 4 * which + 4], lengths[0], lengths[1 + which])
            for which in range(5)
        )
        meet = pick(meets, 0, 0) * pick(met, 1, 1)
        # What happens to a pair happens to both of its jobs.
        shared = pick(both, 0, 0) * pick(both, 1, 1) + pick(both, 0, 1) * pick(both, 1, 0)
        level = p[_AMPLITUDES + _LENGTHS + _RHOS]
        apart = across[0] * pick(felt, 0, 0) + across[1] * pick(pressed, 1, 1)
        return apart + across[2] * meet + across[3] * shared + level * same

    def _covariance(self, one: _Table, other: _Table) -> torch.Tensor:
        same = torch.tensor([[float(a == b) for b in other.processors] for a in one.processors], dtype=torch.float64)
        same = same[one.processor][:, other.processor]
        found = self._combined(one, other, same, lambda k, a, b: k[one.at[a]].index_select(1, other.at[b]))
        return self._of_processor(one)[0][:, None] * found * self._of_processor(other)[0][None, :]

    def _variance(self, table: _Table) -> torch.Tensor:
        """The diagonal of the covariance of pairs with themselves."""
        same = torch.ones((), dtype=torch.float64)
        found = self._combined(table, table, same, lambda k, a, b: k[table.at[a], table.at[b]])
        return self._of_processor(table)[0] ** 2 * found

    def _factor(self, table: _Table) -> torch.Tensor:
        covariance = self._covariance(table, table) + torch.diag(self._of_processor(table)[1])
        chol: torch.Tensor = torch.linalg.cholesky(covariance)
        return chol

    def fit(self, outcomes: Sequence[PairOutcome], some: Sequence[PairOutcome] | None = None) -> None:
        """Learns from outcomes; hyperparameters by marginal likelihood under a weak prior, from `some` of very many."""
        ran = [outcome for outcome in (outcomes if some is None else some) if outcome.throughput > 0]
        for outcome in ran:
            if outcome.processor not in self.processors:
                self.processors[outcome.processor] = self.apart.shape[1]
                self.apart = torch.cat([self.apart, self.apart[:, :1]], 1)
        if ran:
            self._learn(ran)
        self.condition(outcomes)

    def _learn(self, ran: Sequence[PairOutcome]) -> None:
        table, _, target = _pairs(ran)
        before = torch.tensor([[_SCALE], [_NOISE]], dtype=torch.float64)
        spread = torch.tensor([[_SCALE_SD], [_NOISE_SD]], dtype=torch.float64)
        self.apart.requires_grad_(True)
        adam = torch.optim.Adam([self.parameters, self.apart], lr=0.1)
        for _ in range(self.steps):
            adam.zero_grad()
            chol = self._factor(table)
            white = torch.linalg.solve_triangular(chol, target, upper=False)
            loss = 0.5 * (white**2).sum() + torch.log(chol.diagonal()).sum()
            loss = loss + ((self.parameters + 1.0) ** 2).sum() / 18.0
            loss = loss + 0.5 * (((self.apart - before) / spread) ** 2).sum()
            loss.backward()
            adam.step()
        self.apart = self.apart.detach()

    def condition(self, outcomes: Sequence[PairOutcome]) -> None:
        """What is told from now on follows from these outcomes, and from how alike jobs were found to be by `fit`."""
        everything = _Table([(o.demand, o.neighbour, o.processor) for o in outcomes])
        self.memory = _Memory(everything, np.array([o.throughput <= 0 for o in outcomes]))
        ran = [outcome for outcome in outcomes if outcome.throughput > 0]
        if not ran:
            self.table = None
            return
        self.table, self.centre, target = _pairs(ran)
        with torch.no_grad():
            self.chol = self._factor(self.table)
            self.weights = torch.cholesky_solve(target, self.chol)

    def throughput(self, pairs: Sequence[tuple[Demand, Demand, str]]) -> tuple[Floats, Floats, Floats]:
        """Mean and spread of each pair's normalised throughput if it fits, and the probability that it does."""
        if self.table is None:
            raise ValueError("nothing was learned yet: call fit with outcomes of jobs that shared")
        with torch.no_grad():
            table = _Table(pairs, self.table)
            cross = self._covariance(table, self.table)
            mean = self.centre + (cross @ self.weights)[:, 0]
            white = torch.linalg.solve_triangular(self.chol, cross.T, upper=False)
            variance = self._variance(table) - (white**2).sum(0) + self._of_processor(table)[1]
        fits = self.memory.fits(_Table(pairs, self.memory.table))
        return np.clip(mean.numpy(), 0.0, 1.0), np.sqrt(np.maximum(variance.numpy(), 1e-6)), fits

    def predict(self, demand: Demand, belief: NodeBelief) -> Slowdown:
        """Slowdown beside everyone on the node; before anything was learned, what the pressure alone tells."""
        if self.table is None or not belief.neighbours:
            return self.prior.predict(demand, belief)
        mean, sd, fits = self.throughput([(demand, other, belief.processor) for other in belief.neighbours])
        # Beside several neighbours the shares multiply; relative errors add.
        share = float(np.prod(np.maximum(mean, _WORST)))
        relative = float(np.sqrt(np.sum((sd / np.maximum(mean, _WORST)) ** 2)))
        slow = 1.0 / max(share, _WORST)
        return Slowdown(slow * (1.0 + min(relative, 1.0) ** 2), slow * relative, float(np.prod(fits)))


def _pairs(ran: Sequence[PairOutcome]) -> tuple[_Table, float, torch.Tensor]:
    """Outcomes as numbers: the pairs, the mean throughput, and each one's distance from it."""
    seen = torch.tensor([outcome.throughput for outcome in ran], dtype=torch.float64)
    centre = float(seen.mean())
    return _Table([(o.demand, o.neighbour, o.processor) for o in ran]), centre, (seen - centre)[:, None]


class _Memory:
    """Two jobs fit where their memory together is below the processor's limit; sizes grow with `size`."""

    def __init__(self, table: _Table, refused: NDArray[np.bool_], steps: int = 300) -> None:
        self.table = table
        sizes = torch.cat([table.jobs[0][2], table.jobs[1][2]])
        self.middle = float(sizes.mean()) if len(sizes) else 0.0
        families, apps, processors = len(table.families), len(table.apps), len(table.processors)
        level = torch.zeros(families, dtype=torch.float64, requires_grad=True)
        growth = torch.ones(families, dtype=torch.float64, requires_grad=True)
        own = torch.zeros(apps, dtype=torch.float64, requires_grad=True)
        limit = torch.full((processors,), 4.0, dtype=torch.float64, requires_grad=True)
        self.parts = [level, growth, own, limit]
        target = torch.from_numpy(refused.astype(np.float64))
        adam = torch.optim.Adam(self.parts, lr=0.05)
        for _ in range(steps):
            adam.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(self._excess(table), target, reduction="sum")
            loss = loss + 0.5 * (level**2).sum() + 0.5 * (((growth - 1) / 0.5) ** 2).sum()
            loss = loss + 0.5 * ((own / 0.4) ** 2).sum() + 0.5 * (((limit - 4) / 1.5) ** 2).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()

    def _bytes(self, job: _Job) -> torch.Tensor:
        level, growth, own, _ = self.parts
        # A family or app never seen has the prior's mean.
        family, app = job[1].clamp(max=len(level) - 1), job[0].clamp(max=len(own) - 1)
        known_family, known_app = (job[1] < len(level)).double(), (job[0] < len(own)).double()
        rise = torch.where(job[1] < len(level), growth[family].clamp(min=0.0), torch.ones((), dtype=torch.float64))
        size = torch.exp(level[family] * known_family + rise * (job[2] - self.middle) / 3 + own[app] * known_app)
        return size.clamp(max=1e3)

    def _excess(self, table: _Table) -> torch.Tensor:
        limit = self.parts[3]
        room = limit[table.processor.clamp(max=len(limit) - 1)]
        return 4.0 * (self._bytes(table.jobs[0]) + self._bytes(table.jobs[1]) - room)

    def fits(self, table: _Table) -> Floats:
        """Probability that each pair fits."""
        with torch.no_grad():
            return np.asarray(torch.sigmoid(-self._excess(table)).numpy())
