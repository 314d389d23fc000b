"""Exact inference in the tree of the run-time model: site, families, apps, and each app's users.

Every node has a vector of coefficients drawn around its parent's; with the spreads given, all is Gaussian. One sweep up
adds what the runs say (precision and precision × mean), one sweep down gives every node its posterior. Work grows with
the number of apps, whatever the number of runs, and one new run changes only the path from its app to the site.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from advisor.performance.model.design import Floats, Ints
from advisor.performance.model.prior import LEVEL, TRAITS

# Matrices of so many apps, and of so many groups of runs, are in memory at once.
_APPS_AT_ONCE = 4096
_GROUPS_AT_ONCE = 32_768
# With so many rows for each matrix, taking one matrix after the other is faster than a matrix for each row.
_MANY_ROWS = 6


class Groups(NamedTuple):
    """Runs that differ in nothing but their length (app, user, processor, units), by app, then by user."""

    rows: Floats  # the distinct design rows
    row: Ints  # of each group: which of them
    pair: Ints  # of each group: its (app, user)
    pair_starts: Ints  # first group of each pair
    app_groups: Ints  # first group of each app; one more at the end
    app_pairs: Ints  # first pair of each app; one more at the end
    family: Ints  # of each app, ascending
    families: int
    traits: Floats  # of each app: its multipliers of the coefficients `TRAITS`

    def chunks(self) -> Iterator[slice]:
        """Apps in portions that fit into memory."""
        apps = len(self.family)
        first = 0
        while first < apps:
            last = int(np.searchsorted(self.app_groups, self.app_groups[first] + _GROUPS_AT_ONCE, side="right")) - 1
            last = min(max(last, first + 1), first + _APPS_AT_ONCE, apps)
            yield slice(first, last)
            first = last


class Spreads(NamedTuple):
    """The variances that the tree is drawn with; each a number for every coefficient."""

    site_mean: Floats
    site: Floats
    family: Floats
    app: Floats
    user: float


class Evidence(NamedTuple):
    """What the runs of each group say: weight / noise variance, and that × run time."""

    precision: Floats
    total: Floats


class Information(NamedTuple):
    """Of some nodes: a likelihood of their coefficients, as precision matrices and precision × mean."""

    precision: Floats
    shift: Floats


class Users(NamedTuple):
    """Each pair's offset given its app's coefficients: `base` - `slope` · coefficients, with variance `rest`."""

    base: Floats
    slope: Floats
    rest: Floats


class Posterior(NamedTuple):
    """Of some nodes: mean and covariance of their coefficients."""

    mean: Floats
    covariance: Floats


class Step(NamedTuple):
    """What relates nodes to their parents after seeing the data below: child = gain · parent + base ± rest."""

    gain: Floats
    base: Floats
    rest: Floats


def app_information(groups: Groups, evidence: Evidence, user: float, apps: slice) -> tuple[Information, Users]:
    """The likelihood of these apps' coefficients with the users' offsets integrated out, and those offsets."""
    g = slice(int(groups.app_groups[apps.start]), int(groups.app_groups[apps.stop]))
    p = slice(int(groups.app_pairs[apps.start]), int(groups.app_pairs[apps.stop]))
    kinds, width = groups.rows.shape
    products = (groups.rows[:, :, None] * groups.rows[:, None, :]).reshape(kinds, width * width)
    row = groups.row[g]
    app_groups = groups.app_groups[apps.start : apps.stop + 1] - g.start
    pair_groups = np.r_[groups.pair_starts[p], g.stop] - g.start
    app_pairs = groups.app_pairs[apps.start : apps.stop + 1] - p.start

    precision = _sparse(evidence.precision[g], row, app_groups, kinds) @ products
    shift = _sparse(evidence.total[g], row, app_groups, kinds) @ groups.rows
    pair_rows = _sparse(evidence.precision[g], row, pair_groups, kinds) @ groups.rows
    pair_total = np.add.reduceat(evidence.total[g], pair_groups[:-1])
    rest = user / (1.0 + user * pair_rows[:, LEVEL])
    slope = pair_rows * rest[:, None]
    shift -= np.add.reduceat(slope * pair_total[:, None], app_pairs[:-1])
    return (
        Information(precision.reshape(-1, width, width) - _products(slope, pair_rows, app_pairs), shift),
        Users(pair_total * rest, slope, rest),
    )


def _sparse(values: Floats, at: Ints, starts: Ints, width: int) -> Any:
    from scipy.sparse import csr_array

    return csr_array((values, at, starts), shape=(len(starts) - 1, width))


def _products(rows: Floats, others: Floats, starts: Ints) -> Floats:
    """The sum of row × other row over those of each app, which stand together from `starts` on."""
    apps, width = len(starts) - 1, rows.shape[1]
    if len(rows) < _MANY_ROWS * apps:
        products = (rows[:, :, None] * others[:, None, :]).reshape(-1, width * width)
        together = _sparse(np.ones(len(rows)), np.arange(len(rows)), starts, len(rows))
        return np.asarray(together @ products).reshape(-1, width, width)
    found = np.empty((apps, width, width))
    for app, (begin, end) in enumerate(pairwise(starts.tolist())):
        found[app] = rows[begin:end].T @ others[begin:end]
    return found


def step(information: Information, variance: Floats) -> Step:
    """The nodes given their parents, when they are drawn around them with `variance`."""
    system = np.eye(len(variance)) + variance[:, None] * information.precision
    gain = np.asarray(np.linalg.inv(system), dtype=np.float64)
    base = (gain @ (variance * information.shift)[:, :, None])[:, :, 0]
    return Step(gain, base, gain * variance)


def upward(information: Information, steps: Step) -> Information:
    """What the nodes' data say about their parents' coefficients; `steps` as from `step`."""
    precision = information.precision @ steps.gain
    shift = information.shift - (information.precision @ steps.base[:, :, None])[:, :, 0]
    return Information((precision + precision.transpose(0, 2, 1)) / 2, shift)


def seen_from_family(information: Information, traits: Floats) -> Information:
    """An app's level is its family's plus the family's slopes × the app's traits: the same likelihood, so rewritten."""
    precision, shift = information.precision.copy(), information.shift.copy()
    precision[:, TRAITS, :] += traits[:, :, None] * precision[:, LEVEL, None, :]
    precision[:, :, TRAITS] += traits[:, None, :] * precision[:, :, LEVEL, None]
    shift[:, TRAITS] += traits * shift[:, LEVEL, None]
    return Information(precision, shift)


def seen_from_app(posterior: Posterior, traits: Floats) -> Posterior:
    """The family's coefficients as an app with these traits is drawn around them."""
    mean, covariance = posterior.mean.copy(), posterior.covariance.copy()
    mean[:, LEVEL] += (traits * mean[:, TRAITS]).sum(axis=1)
    covariance[:, LEVEL, :] += (traits[:, :, None] * covariance[:, TRAITS, :]).sum(axis=1)
    covariance[:, :, LEVEL] += (traits[:, None, :] * covariance[:, :, TRAITS]).sum(axis=2)
    return Posterior(mean, covariance)


def downward(parents: Posterior, steps: Step) -> Posterior:
    """The nodes' posterior, given that of each one's parent."""
    mean = np.einsum("nij,nj->ni", steps.gain, parents.mean) + steps.base
    covariance = steps.gain @ parents.covariance @ steps.gain.transpose(0, 2, 1) + steps.rest
    return Posterior(mean, (covariance + covariance.transpose(0, 2, 1)) / 2)


def site_posterior(information: Information, spreads: Spreads) -> Posterior:
    """The site's coefficients, from what all families together say."""
    precision = np.diag(1.0 / spreads.site) + information.precision
    covariance = np.linalg.inv(precision)
    covariance = (covariance + covariance.T) / 2
    return Posterior(covariance @ (spreads.site_mean / spreads.site + information.shift), covariance)


class Tree(NamedTuple):
    """After the sweep up: what the families' apps say about each, what all say of the site, and its posterior."""

    families: Information
    together: Information
    site: Posterior
    portions: tuple[tuple[slice, Step, Users], ...]  # apps given their families, in portions


def sweep_up(groups: Groups, evidence: Evidence, spreads: Spreads) -> Tree:
    """Adds up what all runs say."""
    width = len(spreads.site)
    precision = np.zeros((groups.families, width, width))
    shift = np.zeros((groups.families, width))
    portions = []
    for apps in groups.chunks():
        information, users = app_information(groups, evidence, spreads.user, apps)
        steps = step(information, spreads.app)
        portions.append((apps, steps, users))
        told = seen_from_family(upward(information, steps), groups.traits[apps])
        family = groups.family[apps]
        starts = np.flatnonzero(np.r_[True, family[1:] != family[:-1]])
        precision[family[starts]] += np.add.reduceat(told.precision, starts)
        shift[family[starts]] += np.add.reduceat(told.shift, starts)
    families = Information(precision, shift)
    all_precision, all_shift = np.zeros((width, width)), np.zeros(width)
    for first in range(0, groups.families, _APPS_AT_ONCE):
        part = slice(first, first + _APPS_AT_ONCE)
        said = Information(precision[part], shift[part])
        told = upward(said, step(said, spreads.family))
        all_precision += told.precision.sum(axis=0)
        all_shift += told.shift.sum(axis=0)
    together = Information(all_precision, all_shift)
    return Tree(families, together, site_posterior(together, spreads), tuple(portions))


def family_posterior(tree: Tree, spreads: Spreads, which: Ints) -> tuple[Posterior, Step]:
    """The posterior of some families' coefficients, and how they depend on the site's."""
    steps = step(Information(tree.families.precision[which], tree.families.shift[which]), spreads.family)
    site = Posterior(
        np.broadcast_to(tree.site.mean, steps.base.shape), np.broadcast_to(tree.site.covariance, steps.gain.shape)
    )
    return downward(site, steps), steps


def moved(posterior: Posterior, parents: Posterior, steps: Step) -> tuple[Floats, Floats]:
    """How far nodes lie from their parents: squares of the mean difference, and its variance, by coefficient."""
    # The covariance of both is gain · that of the parent.
    both = (steps.gain * parents.covariance).sum(axis=2)
    variance = np.einsum("nii->ni", posterior.covariance) - 2.0 * both + np.einsum("nii->ni", parents.covariance)
    return (posterior.mean - parents.mean) ** 2, np.maximum(variance, 0.0)


class Portion(NamedTuple):
    """Some apps after the sweep down, with everything that was worked out for them."""

    apps: slice
    groups: slice
    pairs: slice
    posterior: Posterior  # of the apps
    users: Users  # of the pairs
    app: Ints  # of each group, among these apps
    pair: Ints  # of each group, among these pairs
    left: Floats  # of each group: how its expected value depends on its app's coefficients
    mean: Floats  # of each group's expected value
    variance: Floats
    families_moved: tuple[Floats, Floats]  # sums of squares and variances by coefficient, see `moved`
    apps_moved: tuple[Floats, Floats]
    users_moved: tuple[float, float]


def sweep_down(groups: Groups, tree: Tree, spreads: Spreads) -> Iterator[Portion]:
    """The posterior of every app and group, portion by portion."""
    for apps, app_steps, users in tree.portions:
        family = groups.family[apps]
        which = np.unique(family)
        families, steps = family_posterior(tree, spreads, which)
        site = Posterior(
            np.broadcast_to(tree.site.mean, families.mean.shape),
            np.broadcast_to(tree.site.covariance, families.covariance.shape),
        )
        # A family that began in the portion before has been counted there.
        first = int(apps.start > 0 and groups.family[apps.start - 1] == which[0])
        family_squares, family_variance = (figures[first:].sum(axis=0) for figures in moved(families, site, steps))
        at = np.searchsorted(which, family)
        parents = seen_from_app(Posterior(families.mean[at], families.covariance[at]), groups.traits[apps])
        posterior = downward(parents, app_steps)
        app_squares, app_variance = (figures.sum(axis=0) for figures in moved(posterior, parents, app_steps))
        g = slice(int(groups.app_groups[apps.start]), int(groups.app_groups[apps.stop]))
        p = slice(int(groups.app_pairs[apps.start]), int(groups.app_pairs[apps.stop]))
        pair_app = np.repeat(np.arange(len(family)), np.diff(groups.app_pairs[apps.start : apps.stop + 1]))
        offset = users.base - np.einsum("pi,pi->p", users.slope, posterior.mean[pair_app])
        starts = groups.app_pairs[apps.start : apps.stop + 1] - p.start
        unsure = users.rest + _quadratic_by_app(users.slope, posterior.covariance, starts)
        pair = groups.pair[g] - p.start
        rows = groups.rows[groups.row[g]]
        app = pair_app[pair]
        left = rows - users.slope[pair]
        yield Portion(
            apps,
            g,
            p,
            posterior,
            users,
            app,
            pair,
            left,
            np.einsum("gi,gi->g", rows, posterior.mean[app]) + offset[pair],
            _quadratic_by_app(left, posterior.covariance, groups.app_groups[apps.start : apps.stop + 1] - g.start)
            + users.rest[pair],
            (family_squares, family_variance),
            (app_squares, app_variance),
            (float((offset**2).sum()), float(unsure.sum())),
        )


def quadratic(rows: Floats, matrices: Floats) -> Floats:
    """row · matrix · row of each."""
    return np.asarray((np.matmul(matrices, rows[:, :, None])[:, :, 0] * rows).sum(axis=1))


def _quadratic_by_app(rows: Floats, matrices: Floats, starts: Ints) -> Floats:
    """The same, with one matrix for the rows of each app, which stand together from `starts` on."""
    if len(rows) < _MANY_ROWS * len(matrices):
        return quadratic(rows, np.repeat(matrices, np.diff(starts), axis=0))
    found = np.empty(len(rows))
    for app, (begin, end) in enumerate(pairwise(starts.tolist())):
        some = rows[begin:end]
        found[begin:end] = ((some @ matrices[app]) * some).sum(axis=1)
    return found
