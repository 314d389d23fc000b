"""One app's runs in a form that takes one more of them in a moment: sums over all runs, and over each user's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from advisor.performance.model.design import Floats, Ints
from advisor.performance.model.hierarchy import Information, Users
from advisor.performance.model.observations import Observation
from advisor.performance.model.prior import LEVEL

# Processor and units of each design row.
Kinds = tuple[list[str], list[int]]

# So many runs in a row, each so many spreads off, mean that an app has changed, and what it was counts this much.
IN_A_ROW = 3
FAR = 3.0
FADED = 0.05


class AppRuns:
    """Sums of weight × row × row, and of weight × value × row, before they are divided by the noise."""

    def __init__(self, family: str, traits: tuple[float, ...], width: int) -> None:
        self.family = family
        self.traits = traits
        self.log_limit: float | None = None  # that its traits come from, of an app that is new since the fit
        self.users: dict[str, int] = {}
        self._figures: dict[tuple[str, str, int], list[float]] = {}  # see `figures`
        self._fitted: Callable[[], dict[tuple[str, str, int], list[float]]] | None = None  # those of the fit
        self.runs_on: dict[str, int] = {}
        self.runs_at: dict[tuple[str, int], int] = {}  # processor, units
        self.squares = 0.0
        self.counted = 0.0
        self._surprises = 0  # runs in a row far above (or, below 0, far below) what was expected
        self._products = np.zeros((width, width))
        self._shift = np.zeros(width)
        self._user_rows = np.zeros((4, width))  # grows with the users
        self._user_total = np.zeros(4)

    def add(self, run: Observation, row: Floats, weight: float, value: float) -> None:
        """One more run."""
        self.put(run.user, (run.processor, run.units), row, (1.0, weight, weight * value))

    def put(self, user: str, kind: tuple[str, int], row: Floats, figures: tuple[float, float, float]) -> None:
        """Some runs of one group: how many, their weight, and weight × value."""
        runs, weight, total = figures
        at = self.users.setdefault(user, len(self.users))
        if at >= len(self._user_total):
            self._user_rows = np.concatenate([self._user_rows, np.zeros_like(self._user_rows)])
            self._user_total = np.concatenate([self._user_total, np.zeros_like(self._user_total)])
        sums = self._figures.setdefault((user, *kind), [0.0, 0.0, 0.0])
        sums[0] += runs
        sums[1] += weight
        sums[2] += total
        self._count(kind, int(runs))
        weighted = weight * row
        self._products += np.outer(weighted, row)
        self._shift += total * row
        self._user_rows[at] += weighted
        self._user_total[at] += total

    def put_all(self, users: list[str], user: Ints, kind: Ints, known: Kinds, rows: Floats, figures: Floats) -> None:
        """Many groups at once: all users, then of each group its user, kind, row, and figures as `put` takes them."""
        self.users = {name: i for i, name in enumerate(users)}
        room = (len(users) + 4, rows.shape[1])
        self._user_rows, self._user_total = np.zeros(room), np.zeros(room[0])
        weighted = rows * figures[:, 1, None]
        self._products += weighted.T @ rows
        self._shift += figures[:, 2] @ rows
        np.add.at(self._user_rows, user, weighted)
        np.add.at(self._user_total, user, figures[:, 2])
        runs = np.bincount(kind, figures[:, 0])
        for at in np.flatnonzero(runs).tolist():
            self._count((known[0][at], known[1][at]), int(runs[at]))
        # Which group has what is seldom asked for, and takes longer than all the rest.
        self._fitted = lambda: {
            (users[u], known[0][k], known[1][k]): numbers
            for u, k, numbers in zip(user.tolist(), kind.tolist(), figures.tolist(), strict=True)
        }

    def _count(self, kind: tuple[str, int], runs: int) -> None:
        self.runs_on[kind[0]] = self.runs_on.get(kind[0], 0) + runs
        self.runs_at[kind] = self.runs_at.get(kind, 0) + runs

    @property
    def figures(self) -> dict[tuple[str, str, int], list[float]]:
        """(user, processor, units) → [runs, weight, weight × value]."""
        if self._fitted is not None:
            fitted, self._fitted = self._fitted(), None
            for key, more in self._figures.items():
                here = fitted.setdefault(key, [0.0, 0.0, 0.0])
                fitted[key] = [a + b for a, b in zip(here, more, strict=True)]
            self._figures = fitted
        return self._figures

    def surprised(self, distance: float) -> bool:
        """Notes how far off a run was, in spreads; true when one after the other was far off in the same direction."""
        if abs(distance) < FAR:
            self._surprises = 0
            return False
        self._surprises = (max(self._surprises, 0) + 1) if distance > 0 else (min(self._surprises, 0) - 1)
        return abs(self._surprises) >= IN_A_ROW

    def fade(self) -> None:
        """What it used to be hardly counts any more: the program, or what it is fed with, has changed."""
        self._surprises = 0
        for sums in (self._products, self._shift, self._user_rows, self._user_total):
            sums *= FADED
        for figures in self.figures.values():
            figures[1] *= FADED
            figures[2] *= FADED
        self.squares *= FADED
        self.counted *= FADED

    def information(self, noise: float, user: float) -> tuple[Information, Users]:
        """As `hierarchy.app_information` tells it, of this one app."""
        count = len(self.users)
        rows, total = self._user_rows[:count] / noise, self._user_total[:count] / noise
        rest = user / (1.0 + user * rows[:, LEVEL])
        slope = rows * rest[:, None]
        precision = self._products / noise - slope.T @ rows
        shift = self._shift / noise - total @ slope
        return Information(precision[None], shift[None]), Users(total * rest, slope, rest)
