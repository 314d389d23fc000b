"""How much apps slow each other down, learned from how long they ran beside one another.

The log of a run's time is that of its app alone, plus, for each app beside it, exposure × effect. Effects are latent:
what the job feels, what the neighbour presses, and how the two meet, each with a Gaussian prior that ties apps of one
family together. Integrated out, that is a Gaussian process over pairs of which every run shows a sum, so an app that
was seen beside a few others is known beside the rest, and with no outcomes the answer is the prior's. The time alone
need not have been seen: runs that differ in their neighbours are enough. Needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from advisor.contention.exposure import Run

Floats = NDArray[np.float64]

MOST = 1200  # different situations that are kept, the latest; more would take longer than they teach
SURE = 256  # of these, so many tell how sure the answers are: fewer can only make them less sure
SPREAD = 0.2  # of the log of a run time of an app of which nothing is known
LEAST = 0.02  # seconds are whole and machines differ
FREEDOM = 4.0  # of the Student errors: some runs fail half-way and yet end well
SAME_APP = 0.6  # of the covariance of two apps that are one; the rest is their family's
ELSEWHERE = 0.7  # correlation of an effect on one kind of processor with the same on another
FELT, PRESSED, MET = 0.25, 0.25, 0.5  # where effects come from, before anything was seen
SCALES = (0.01, 0.04, 0.15, 0.6, 2.0)  # variance of an effect; the runs decide which
_ALONE = 9.0  # variance of an app's own log time


@dataclass(frozen=True)
class Situation:
    """Runs of one app, size and processor beside the same neighbours: how many, and how long they took."""

    app: int
    processor: int
    group: int
    count: int
    log_time: float  # mean
    within: float  # variance
    around: Mapping[int, float]  # app → exposure


class SharedRuns:
    """What past runs teach about sharing a node; `fitted` is how to make one."""

    def __init__(self, apps: Sequence[str], families: Sequence[str], processors: Sequence[str]) -> None:
        self.apps = {app: index for index, app in enumerate(apps)}
        self.processors = {name: index for index, name in enumerate(processors)}
        self._families = np.unique(np.asarray(families), return_inverse=True)[1] if families else np.zeros(0, int)
        self._family_of = {family: int(self._families[i]) for i, family in enumerate(families)}
        self.situations: list[Situation] = []
        self.scale = SCALES[0]
        self._effects: dict[str, Floats] = {}

    @classmethod
    def fitted(
        cls, runs: Sequence[Run], around: Sequence[Mapping[str, float]], expected: Sequence[float] | None = None
    ) -> SharedRuns | None:
        """Learns from runs and their exposures; `expected` is what else already explains of each log time.

        None where nobody ever shared a node: then there is nothing to learn, and nothing to correct.
        """
        if not any(any(share > 0.02 for share in each.values()) for each in around):
            return None
        model = cls(*_names(runs, around))
        model.situations = _situations(model, runs, around, expected)
        if not model.situations:
            return None
        model.situations += _at_most(model.situations)
        model._fit()
        return model

    def _alike(self, one: NDArray[np.int_], other: NDArray[np.int_]) -> Floats:
        same = one[:, None] == other[None, :]
        family = self._families[one][:, None] == self._families[other][None, :]
        return np.asarray(SAME_APP * same + (1 - SAME_APP) * family)

    def _fit(self) -> None:
        rows = self.situations
        self._app = np.array([row.app for row in rows])
        self._processor = np.array([row.processor for row in rows])
        group = np.array([row.group for row in rows])
        count = np.array([row.count for row in rows], dtype=np.float64)
        x = np.zeros((len(rows), len(self.apps)))
        for number, row in enumerate(rows):
            for app, share in row.around.items():
                x[number, app] = share
        everyone = np.arange(len(self.apps))
        self._sum = x.sum(axis=1)
        self._kin = self._alike(everyone, everyone)
        self._mixed = x @ self._kin
        met = self._mixed @ x.T
        alike = self._alike(self._app, self._app)
        kernel = FELT * alike * np.outer(self._sum, self._sum) + PRESSED * met + MET * alike * met
        kernel *= np.where(self._processor[:, None] == self._processor[None, :], 1.0, ELSEWHERE)
        alone = _ALONE * (group[:, None] == group[None, :])
        target = np.array([row.log_time for row in rows])
        target -= (np.bincount(group, target * count) / np.bincount(group, count))[group]
        noise = _noise(rows, self._app)
        self.scale, best = SCALES[0], -np.inf
        for scale in SCALES:
            likelihood = _likelihood(scale * kernel + alone, noise / count, target)
            if likelihood > best:
                self.scale, best = scale, likelihood
        weight = np.ones(len(rows))
        for turn in range(4):
            covariance = self.scale * kernel + alone
            chol = np.linalg.cholesky(covariance + np.diag(noise / count / weight))
            self._weights = np.linalg.solve(chol.T, np.linalg.solve(chol, target))
            off = (target - covariance @ self._weights) ** 2 / noise * count
            if turn < 3:
                weight = (FREEDOM + 1) / (FREEDOM + off)
        # How sure the answers are, from the latest situations with neighbours.
        shared = np.flatnonzero(self._sum > 0.02)[-SURE:]
        self._sure = np.flatnonzero(np.isin(group, group[shared]))[-SURE:]
        inner = covariance[np.ix_(self._sure, self._sure)] + np.diag((noise / count / weight)[self._sure])
        self._white = np.linalg.inv(np.linalg.cholesky(inner))

    def effects(self, processor: str) -> Floats:
        """Log slowdown of each known app (rows; the last: an app never seen) per whole node of each known app."""
        found = self._effects.get(processor)
        if found is None:
            same = np.where(self._processor == self.processors.get(processor, -1), 1.0, ELSEWHERE)
            weights = self.scale * self._weights * same
            everyone = np.arange(len(self.apps))
            alike = np.zeros((len(self.apps) + 1, len(self._app)))
            alike[:-1] = self._alike(everyone, self._app)
            felt = FELT * alike @ (weights * self._sum)
            pressed = PRESSED * weights @ self._mixed
            met = MET * (alike * weights) @ self._mixed
            found = self._effects[processor] = felt[:, None] + pressed[None, :] + met
        return found

    def spread(self, apps: NDArray[np.int_], processor: str, around: Floats) -> Floats:
        """Standard deviation of the log slowdown of each app (rows; index −1: never seen) in each situation (columns).

        `around` is situations × known apps.
        """
        rows = self._sure
        same = np.where(self._processor[rows] == self.processors.get(processor, -1), 1.0, ELSEWHERE)
        total = around.sum(axis=1)
        met = around @ self._mixed[rows].T  # situations × runs
        itself = np.einsum("sb,sb->s", around @ self._kin, around)
        prior = self.scale * (FELT * total**2 + (PRESSED + MET) * itself)
        own_way = FELT * np.outer(total, self._sum[rows]) + MET * met
        # Apps that none of these runs was of, nor of its family, share the last answer.
        family = np.isin(self._families[np.maximum(apps, 0)], self._families[self._app[rows]])
        own = np.flatnonzero((apps >= 0) & family)
        alike = np.zeros((len(own) + 1, len(rows)))
        alike[:-1] = self._alike(apps[own], self._app[rows])
        spreads = np.empty((len(apps), len(around)))
        for column in range(len(around)):
            cross = self.scale * same * (alike * own_way[column] + PRESSED * met[column])
            variance = prior[column] - ((cross @ self._white.T) ** 2).sum(axis=1)
            spreads[:, column] = variance[-1]
            spreads[own, column] = variance[:-1]
        return np.sqrt(np.maximum(spreads, 1e-6))

    def position(self, app: str) -> int:
        """Where an app stands in the tables; −1: it was never seen."""
        return self.apps.get(app, -1)

    def log_slowdown(self, app: str, processor: str, around: Mapping[str, float]) -> tuple[float, float]:
        """Mean and spread of one job's log slowdown beside these (app → share of the node)."""
        row = np.zeros((1, len(self.apps)))
        for name, share in around.items():
            if name in self.apps:
                row[0, self.apps[name]] += share
        index = self.position(app)
        mean = float(self.effects(processor)[index] @ row[0])
        return mean, float(self.spread(np.array([index]), processor, row)[0, 0])


def _names(
    runs: Sequence[Run], around: Sequence[Mapping[str, float]]
) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    families = {run.app: run.family for run in runs}
    apps = sorted(families)
    return apps, [families[app] for app in apps], sorted({run.processor for run in runs})


def _situations(
    model: SharedRuns,
    runs: Sequence[Run],
    around: Sequence[Mapping[str, float]],
    expected: Sequence[float] | None,
) -> list[Situation]:
    """The completed runs, those beside the same neighbours together; only of apps seen in more than one way."""
    cells: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(runs):
        if run.completed and run.end - run.start >= 1:
            beside = tuple(sorted((app, round(share, 1)) for app, share in around[index].items() if share >= 0.05))
            cells.setdefault((run.app, run.processor, run.size, beside), []).append(index)
    ways: dict[tuple[object, ...], int] = {}
    for key in cells:
        ways[key[:3]] = ways.get(key[:3], 0) + 1
    telling = [members for key, members in cells.items() if ways[key[:3]] > 1]
    telling.sort(key=lambda members: runs[members[-1]].end)
    groups: dict[tuple[object, ...], int] = {}
    found = []
    for members in telling[-MOST:]:
        first = runs[members[0]]
        logs = np.log([runs[i].end - runs[i].start for i in members])
        if expected is not None:
            logs = logs - np.array([expected[i] for i in members])
        mean: dict[int, float] = {}
        for index in members:
            for app, share in around[index].items():
                mean[model.apps[app]] = mean.get(model.apps[app], 0.0) + share / len(members)
        found.append(
            Situation(
                model.apps[first.app],
                model.processors[first.processor],
                groups.setdefault((first.app, first.processor, first.size), len(groups)),
                len(members),
                float(logs.mean()),
                float(logs.var()),
                mean,
            )
        )
    return found


def _at_most(rows: Sequence[Situation]) -> list[Situation]:
    """Runs that nobody saw: of those that never ran alone, one alone, as quick as the quickest beside others.

    Neighbours take time and give none, so a job alone takes no longer than beside anybody. Without this, an app whose
    neighbours all hurt it would be thought to be hurt by the worst and helped by the rest.
    """
    groups: dict[int, list[Situation]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    found = []
    for members in groups.values():
        if any(not row.around for row in members):
            continue
        # The quickest of several means is quick by chance, too: each is taken a standard error slower than it was.
        bound = min(row.log_time + SPREAD / np.sqrt(row.count) for row in members)
        found.append(replace(members[0], count=1, log_time=float(bound), within=0.0, around={}))
    return found


def _noise(rows: Sequence[Situation], app: NDArray[np.int_]) -> Floats:
    """Variance of one run's log time: of each app, drawn towards that of an ordinary one while there are few runs."""
    squares, freedom = np.zeros((2, int(app.max()) + 1))
    for row in rows:
        squares[row.app] += row.count * row.within
        freedom[row.app] += row.count - 1
    variance = (squares + 3 * SPREAD**2) / (freedom + 3)
    return np.asarray(np.maximum(variance, LEAST**2)[app])


def _likelihood(covariance: Floats, noise: Floats, target: Floats) -> float:
    chol = np.linalg.cholesky(covariance + np.diag(noise))
    white = np.linalg.solve(chol, target)
    return float(-0.5 * white @ white - np.log(np.diag(chol)).sum())
