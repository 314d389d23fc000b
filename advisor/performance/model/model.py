"""The run-time model itself: ask it for a distribution, tell it how a job ended, make a table of it.

Fitted to a whole log by `RunTimeModel.fitted`; from then on `update` takes one run at a time, which changes the path
from its app to the site and nothing else, exactly as if it had been in the log (but for the weights of earlier runs).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.performance.model import hierarchy
from advisor.performance.model.app_runs import AppRuns
from advisor.performance.model.calibration import heavier
from advisor.performance.model.design import Design, Floats
from advisor.performance.model.fit import (
    WEIGHING_ROUNDS,
    Learned,
    Weights,
    evidence_of,
    first_weights,
    initial,
    learn,
    noise_of_one,
    sample,
    tree_spreads,
    weighed,
)
from advisor.performance.model.grouping import Group, Names, grouped
from advisor.performance.model.hierarchy import Groups, Information, Posterior, Step, Tree, Users
from advisor.performance.model.likelihood import weigh_one
from advisor.performance.model.names import family as family_of
from advisor.performance.model.observations import Observation, Runs, log_of_work
from advisor.performance.model.prior import SCALING, Prior
from advisor.settings import Processor


class Distribution(msgspec.Struct, frozen=True):
    """Log run time of the next run: normal with this mean and spread; the spread includes what is not known."""

    mean_log: float
    sd_log: float
    runs: int  # of the app on this processor
    runs_elsewhere: int  # of the app on others

    def interval(self, share: float = 0.9) -> tuple[float, float]:
        """Seconds between which this share of runs is expected."""
        from scipy.special import ndtri

        reach = float(ndtri(0.5 + share / 2)) * self.sd_log
        return math.exp(self.mean_log - reach), math.exp(self.mean_log + reach)


class _Path(NamedTuple):
    """From the site to an app: what its family's apps say, the family and the app given their parents."""

    family: Information
    family_steps: Step
    parent: Posterior  # the family's, as the app is drawn around it
    app: Information | None  # None: it has no run yet
    app_steps: Step | None
    users: Users | None


def apart_from(rows: Floats, covariance: Floats) -> Floats:
    """How unsure each of these rows is against the average of them all: variances, shaped as the rows are."""
    off = rows - rows.mean(axis=-2, keepdims=True)
    return np.asarray(np.einsum("...pd,...de,...pe->...p", off, covariance, off, optimize=True))


class RunTimeModel:
    """What is known of run times; see the module."""

    def __init__(
        self,
        prior: Prior,
        learned: Learned,
        design: Design,
        names: Names,
        groups: Groups,
        runs: Floats,
        weights: Weights,
    ) -> None:
        self.prior, self.learned, self.design = prior, learned, design
        self.names, self.groups, self.runs, self.weights = names, groups, runs, weights
        self.spreads = tree_spreads(design, prior, learned)
        # The portions are large and only of use to a fit.
        self.tree: Tree = hierarchy.sweep_up(groups, evidence_of(groups, weights), self.spreads)._replace(portions=())
        self._app_at = {name: i for i, name in enumerate(names.apps)}
        self._family_at = {name: i for i, name in enumerate(names.families)}
        self._kinds = set(zip(names.processors, names.units, strict=True))
        self._used = set(names.processors)
        # Apps and families that have changed since the fit; their arrays are out of date.
        self._apps: dict[str, AppRuns] = {}
        self._families: dict[str, Information] = {}
        self._together, self._site = self.tree.together, self.tree.site

    @classmethod
    def fitted(
        cls,
        runs: Runs | Iterable[Observation],
        processors: Mapping[str, Processor],
        prior: Prior | None = None,
        learned: Learned | None = None,
    ) -> RunTimeModel:
        """Fits all runs. With `learned`, the spreads are those, and only coefficients and weights are fitted."""
        prior = prior or Prior()
        log = grouped(runs if isinstance(runs, Runs) else Runs(runs), processors)
        if learned is None:
            learned = initial(prior)
            if len(log.rows.group):
                part_groups, part_rows = sample(log.groups, log.rows, log.names.families)
                learned = learn(part_groups, part_rows, log.design, prior)
        weights = first_weights(log.groups, log.rows, learned)
        if len(log.rows.group):
            spread = tree_spreads(log.design, prior, learned)
            for _ in range(WEIGHING_ROUNDS):
                weights = weighed(log.groups, log.rows, weights, spread, learned, prior).weights
        return cls(prior, learned, log.design, log.names, log.groups, log.runs.astype(np.float64), weights)

    def predict(
        self,
        app: str,
        user: str,
        processor: str,
        units: int = 1,
        limit_s: float | None = None,
        work: float | None = None,
    ) -> Distribution:
        """How long the next run takes; for an app never seen, what is known of its family, or of the site.

        `limit_s`, the job's time limit, counts only for apps that have never run; `work`, what its annotation tells,
        where earlier runs of the family have told theirs.
        """
        known = self._known(app)
        row = self.design.row(processor, max(units, 1))
        family = family_of(app)[0]
        traits = self.names.middles.traits(app, math.log(max(limit_s, 1.0)) if limit_s else None)
        path = self._path(known, family, traits if known is None else known.traits)
        mean, variance = self._expected(path, known, user, row)
        mean += self.names.middles.more_work(family, log_of_work(work))
        new_family = family not in self._families and family not in self._family_at
        freedom = self.learned.known_from[0 if new_family else 1]
        variance += self.never(processor, max(units, 1))
        noise = self.learned.noise + (0.0 if work else self.scatter(family))
        here = elsewhere = 0
        seen = False
        if known is not None:
            noise = self._noise(known) + (0.0 if work else self.scatter(family))
            here = known.runs_on.get(processor, 0)
            # More cores are more of the same; more GPUs are another machine.
            seen = (here if processor == "cpu" else known.runs_at.get((processor, max(units, 1)), 0)) > 0
            elsewhere = sum(known.runs_on.values()) - here
        return Distribution(mean, self.spread(variance, freedom, noise, known is not None, seen), here, elsewhere)

    def doubts(self, app: str, user: str, processors: Sequence[str], units: int = 1) -> list[tuple[float, float]]:
        """What more runs would settle of the app's mean log run time on each of these: (shared by all, of it alone).

        The shared part is that of their average; it says nothing about which of them is the better one.
        """
        known = self._known(app)
        path = self._path(
            known, family_of(app)[0], self.names.middles.traits(app, None) if known is None else known.traits
        )
        if path.app_steps is None:
            covariance = path.parent.covariance[0] + np.diag(self.spreads.app)
        else:
            covariance = hierarchy.downward(path.parent, path.app_steps).covariance[0]
        rows = np.array([self.design.row(name, max(units, 1)) for name in processors])
        never = np.array([self.never(name, max(units, 1)) for name in processors])
        apart = apart_from(rows, covariance)
        variance = np.array([self._expected(path, known, user, row)[1] for row in rows])
        return list(
            zip(
                np.sqrt(np.maximum(variance - apart, 0.0)).tolist(),
                np.sqrt(apart + never).tolist(),
                strict=True,
            )
        )

    def spread(self, variance: float, freedom: float, noise: float, known: bool, seen: bool) -> float:
        """The normal spread whose 90 % interval is that of the two kinds of doubt, each with its heavier tails."""
        calibration = self.learned.calibration
        factor = calibration.seen if seen else calibration.elsewhere if known else calibration.new
        return factor * math.sqrt(variance * heavier(freedom) + noise * heavier(self.prior.tail))

    def never(self, processor: str, units: int) -> float:
        """What it adds to the variance that nobody has ever used a processor, or so many of it, at this site."""
        if self.design.unknown(processor):
            return self.prior.unknown_processor**2
        # Where nobody has used it at all, its first size is the usual one.
        if processor == "cpu" or processor not in self._used or (processor, units) in self._kinds:
            return 0.0
        return self.prior.scaling.site**2 + self.learned.family[SCALING] + self.learned.app[SCALING]

    def more_work(self, app: str, one: float, other: float) -> float:
        """How much longer, as a logarithm, jobs of the app take that tell `other` as their work instead of `one`."""
        return math.log(other / one) if family_of(app)[0] in self.names.middles.work else 0.0

    def scatter(self, family: str) -> float:
        """How far the work of its jobs scatters, as a variance: what is not known of one that does not tell it."""
        found = self.names.middles.work.get(family)
        return found.scatter() if found is not None else 0.0

    def update(self, run: Observation) -> None:
        """Takes one more run into account."""
        self.names.middles.note_work(family_of(run.app)[0], run.log_work)
        if more := self.names.middles.more_work(family_of(run.app)[0], run.log_work):
            run = msgspec.structs.replace(run, log_s=run.log_s - more)
        known = self._known(run.app)
        app = known if known is not None else self._new(run.app, run.log_limit)
        row = self.design.row(run.processor, run.units)
        path = self._path(app, app.family, app.traits)
        mean, variance = self._expected(path, app, run.user, row)
        if not run.cut_off and app.surprised((run.log_s - mean) / math.sqrt(variance + self._noise(app))):
            app.fade()
            mean, variance = self._expected(self._path(app, app.family, app.traits), app, run.user, row)
        value, weight, squares = weigh_one(run.log_s, run.cut_off, mean, variance, self._noise(app), self.prior.tail)
        app.add(run, row, weight, value)
        if not run.cut_off:
            app.squares += squares
            app.counted += 1.0
        self._apps[run.app] = app
        self._carry(app, path)

    def _known(self, app: str) -> AppRuns | None:
        """An app's runs, taken out of the arrays when it is first asked for."""
        found = self._apps.get(app)
        if found is None and app in self._app_at:
            at = self._app_at[app]
            found = AppRuns(
                self.names.families[self.groups.family[at]], tuple(self.groups.traits[at].tolist()), self.design.width
            )
            found.squares, found.counted = float(self.weights.squares[at]), float(self.weights.counted[at])
            g = slice(int(self.groups.app_groups[at]), int(self.groups.app_groups[at + 1]))
            pairs = slice(int(self.groups.app_pairs[at]), int(self.groups.app_pairs[at + 1]))
            found.put_all(
                self.names.users[pairs],
                self.groups.pair[g] - pairs.start,
                self.groups.row[g],
                (self.names.processors, self.names.units),
                self.groups.rows[self.groups.row[g]],
                np.stack([self.runs[g], self.weights.weight[g], self.weights.total[g]], axis=1),
            )
        return found

    def _new(self, app: str, log_limit: float | None) -> AppRuns:
        name, number = family_of(app)
        if number is not None:
            self.names.middles.number.setdefault(name, number)
        made = AppRuns(name, self.names.middles.traits(app, log_limit), self.design.width)
        made.log_limit = log_limit
        return made

    def _noise(self, app: AppRuns) -> float:
        return noise_of_one(app.squares, app.counted, self.learned, self.prior)

    def _family(self, name: str) -> Information:
        found = self._families.get(name)
        if found is None:
            width = self.design.width
            at = self._family_at.get(name)
            if at is None:
                return Information(np.zeros((1, width, width)), np.zeros((1, width)))
            found = Information(self.tree.families.precision[at : at + 1], self.tree.families.shift[at : at + 1])
        return found

    def _path(self, app: AppRuns | None, family: str, traits: tuple[float, ...]) -> _Path:
        """The nodes from the site to an app, as they are now."""
        said = self._family(family)
        steps = hierarchy.step(said, self.spreads.family)
        site = Posterior(self._site.mean[None], self._site.covariance[None])
        parent = hierarchy.seen_from_app(hierarchy.downward(site, steps), np.array([traits]))
        if app is None or not app.users:
            return _Path(said, steps, parent, None, None, None)
        information, users = app.information(self._noise(app), self.spreads.user)
        return _Path(said, steps, parent, information, hierarchy.step(information, self.spreads.app), users)

    def _expected(self, path: _Path, app: AppRuns | None, user: str, row: Floats) -> tuple[float, float]:
        """Mean and variance of the expected log run time at the end of a path."""
        if app is None or path.app_steps is None or path.users is None:
            mean = float(row @ path.parent.mean[0])
            variance = float(row @ path.parent.covariance[0] @ row + row**2 @ self.spreads.app)
            return mean, variance + self.spreads.user
        posterior = hierarchy.downward(path.parent, path.app_steps)
        at = app.users.get(user)
        if at is None:
            return float(row @ posterior.mean[0]), float(row @ posterior.covariance[0] @ row) + self.spreads.user
        left = row - path.users.slope[at]
        mean = float(left @ posterior.mean[0] + path.users.base[at])
        return mean, float(left @ posterior.covariance[0] @ left + path.users.rest[at])

    def _carry(self, app: AppRuns, before: _Path) -> None:
        """Takes what an app now says up to its family and the site."""
        traits = np.array([app.traits])
        information, _ = app.information(self._noise(app), self.spreads.user)
        told = hierarchy.upward(information, hierarchy.step(information, self.spreads.app))
        precision, shift = told
        if before.app is not None and before.app_steps is not None:
            old = hierarchy.upward(before.app, before.app_steps)
            precision, shift = precision - old.precision, shift - old.shift
        change = hierarchy.seen_from_family(Information(precision, shift), traits)
        family = Information(before.family.precision + change.precision, before.family.shift + change.shift)
        was = hierarchy.upward(before.family, before.family_steps)
        now = hierarchy.upward(family, hierarchy.step(family, self.spreads.family))
        self._families[app.family] = family
        self._together = Information(
            self._together.precision + (now.precision - was.precision)[0],
            self._together.shift + (now.shift - was.shift)[0],
        )
        self._site = hierarchy.site_posterior(self._together, self.spreads)

    def apps(self) -> Iterator[str]:
        """All apps it knows."""
        yield from self.names.apps
        yield from (name for name in self._apps if name not in self._app_at)

    def state_of_apps(self) -> Iterator[tuple[str, float | None, float, float, float, list[Group]]]:
        """All there is to know of each app, by family and name: name, log limit, squares, counted, noise, groups."""
        limits = dict(zip(self.names.apps, self.names.limits, strict=True))
        for name in sorted(self.apps(), key=lambda name: (family_of(name)[0], name)):
            app = self._known(name)
            if app is not None:
                groups = [(*key, figures[0], figures[1], figures[2]) for key, figures in sorted(app.figures.items())]
                limit = limits.get(name, app.log_limit)
                yield name, limit, app.squares, app.counted, self._noise(app), groups

    def app_runs(self, app: str) -> AppRuns | None:
        """The runs of one app."""
        return self._known(app)

    @property
    def changed(self) -> frozenset[str]:
        """Apps with runs since the fit."""
        return frozenset(self._apps)
