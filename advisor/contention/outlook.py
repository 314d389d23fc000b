"""What a job of each app would meet in each pool: expected slowdown and its spread, for all of them at once.

Brings together what agents measured (the pressure of those who run there, and the app's own demand) and what past runs
beside one another taught. Apps of which neither is known get what the neighbours do to apps in general.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from advisor.contention.shared_runs import SharedRuns
from advisor.contention.slowdown import UNKNOWN_DEMAND, PressureModel

Floats = NDArray[np.float64]
_WORST = np.log(12.0)


@dataclass(frozen=True)
class Demands:
    """What apps use of a node, by the pressure model's resources; NaN where nothing tells."""

    mean: Floats
    sd: Floats


@dataclass(frozen=True)
class Place:
    """One node as a job would find it."""

    around: Mapping[str, float]  # app → share of the node; empty: nobody is there
    use: Floats | None = None  # share of each resource in use, by the pressure model's resources; NaN: not known
    use_sd: Floats | None = None


@dataclass(frozen=True)
class Pool:
    """The nodes, or some of them, on which a job sent here might start."""

    processor: str
    places: Sequence[Place]


@dataclass
class Outlook:
    """Tells slowdowns from what was learned and measured; either may be missing."""

    runs: SharedRuns | None = None
    demands: Mapping[str, Demands] = field(default_factory=dict)
    pressure: PressureModel = field(default_factory=PressureModel)

    def table(self, apps: Sequence[str], pools: Sequence[Pool]) -> tuple[Floats, Floats]:
        """Slowdown and its relative spread, apps × pools; the last row is of an app of which nothing is known."""
        slow = np.ones((len(apps) + 1, len(pools)))
        spread = np.zeros_like(slow)
        asked, unsure = self._asked(apps)
        for column, pool in enumerate(pools):
            busy = [place for place in pool.places if place.around]
            if busy:
                logs, variance = self._logs(apps, pool.processor, busy, asked, unsure)
                each = np.exp(np.clip(logs, 0.0, _WORST))
                empty = len(pool.places) - len(busy)
                mean = (each.sum(axis=1) + empty) / len(pool.places)
                squared = (each**2 * (1 + variance)).sum(axis=1) + empty
                slow[:, column] = mean
                spread[:, column] = np.sqrt(np.maximum(squared / len(pool.places) - mean**2, 0.0)) / mean
        return slow, spread

    def expected(self, app: str, around: Mapping[str, float], share_of: Mapping[str, float]) -> float:
        """Log slowdown that pressure alone explains of a past run beside these; 0 where nothing was measured."""
        asked, unsure = self._asked([app])
        uses = [(self.demands[name], share / share_of.get(name, 1.0)) for name, share in around.items()
                if name in self.demands]  # fmt: skip
        if not uses:
            return 0.0
        use = np.sum([np.nan_to_num(demand.mean) * times for demand, times in uses], axis=0)
        known = np.any([np.isfinite(demand.mean) for demand, _ in uses], axis=0)
        logs, _ = self._pressed(asked[:1], unsure[:1], np.where(known, use, np.nan)[None], np.zeros((1, len(use))))
        return float(np.clip(logs[0, 0], 0.0, _WORST))

    def _asked(self, apps: Sequence[str]) -> tuple[Floats, Floats]:
        width = len(self.pressure.resources)
        mean, sd = (
            np.full((len(apps) + 1, width), UNKNOWN_DEMAND[0]),
            np.full((len(apps) + 1, width), UNKNOWN_DEMAND[1]),
        )
        for row, app in enumerate(apps):
            demand = self.demands.get(app)
            if demand is not None:
                known = np.isfinite(demand.mean)
                mean[row, known], sd[row, known] = demand.mean[known], demand.sd[known]
        return mean, sd

    def _logs(
        self, apps: Sequence[str], processor: str, busy: Sequence[Place], asked: Floats, unsure: Floats
    ) -> tuple[Floats, Floats]:
        """Log slowdown of each app (and of an unknown one) in each place, and its variance."""
        logs, variance = np.zeros((2, len(apps) + 1, len(busy)))
        measured = [index for index, place in enumerate(busy) if place.use is not None]
        if measured:
            use = np.stack([np.asarray(busy[index].use) for index in measured])
            sure = np.zeros(len(self.pressure.resources))
            spreads = [busy[index].use_sd for index in measured]
            use_sd = np.stack([sure if spread is None else spread for spread in spreads])
            logs[:, measured], variance[:, measured] = self._pressed(asked, unsure, use, use_sd)
        if self.runs is not None:
            rows = np.array([*(self.runs.position(app) for app in apps), -1])
            around = np.zeros((len(busy), len(self.runs.apps)))
            for index, place in enumerate(busy):
                for name, share in place.around.items():
                    if name in self.runs.apps:
                        around[index, self.runs.apps[name]] += share
            logs += (self.runs.effects(processor) @ around.T)[rows]
            # The pool's mean neighbourhood stands for its nodes: how sure the answer is differs little between them.
            variance += self.runs.spread(rows, processor, around.mean(axis=0, keepdims=True)) ** 2
        return logs, variance

    def _pressed(self, asked: Floats, unsure: Floats, use: Floats, use_sd: Floats) -> tuple[Floats, Floats]:
        """Log of the slowdown by pressure, beyond what each app does to itself when alone; apps × places."""
        known = np.isfinite(use)
        wanted = np.where(known[None], asked[:, None, :], 0.0)
        loose = np.where(known[None], unsure[:, None, :], 0.0)
        together = wanted + np.nan_to_num(use)[None]
        mean, sd = self.pressure.many(wanted, together, np.hypot(loose, np.nan_to_num(use_sd)[None]))
        alone = np.ones(mean.shape)
        for pattern in np.unique(known, axis=0):  # few: it is mostly the same resources that are measured
            just, freely = np.where(pattern, asked, 0.0), np.where(pattern, unsure, 0.0)
            alone[:, (known == pattern).all(axis=1)] = self.pressure.many(just, just, freely)[0][:, None]
        return np.log(mean / alone), (sd / mean) ** 2
