"""Makes the intervals honest: each run of the log is predicted from the others, and the spread scaled to fit.

Three scales: for a run of a group that has others (`seen`), for an app's first runs on a processor (`elsewhere`: all it
has there are left out), and for an app's very first runs (`new`). While there are few runs the scales stay near 1.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.special import ndtr, stdtrit

from advisor.performance.model.design import Flags, Floats, Ints
from advisor.performance.model.hierarchy import (
    Evidence,
    Groups,
    Information,
    Posterior,
    Spreads,
    Tree,
    app_information,
    downward,
    quadratic,
    seen_from_app,
    seen_from_family,
    step,
    sweep_down,
    upward,
)
from advisor.performance.model.prior import LIMIT, SCALING, SIZE

NORMAL95 = 1.6448536269514722
# A correctly calibrated model counts for so many left-out groups.
_STRENGTH = 5.0
_LEAST, _MOST = 0.2, 3.0
# So many cells are left out, at most, and none with more groups: enough to tell a factor.
_CELLS = 3000
_GROUPS_OF_CELL = 64


class Calibration(msgspec.Struct, frozen=True):
    """Factors of the predicted spread."""

    seen: float = 1.0
    elsewhere: float = 1.0
    new: float = 1.0


@lru_cache(maxsize=64)
def heavier(freedom: float) -> float:
    """By how much the 90 % interval of Student's t is wider than the normal one, squared."""
    return float((stdtrit(max(freedom, 1.0), 0.95) / NORMAL95) ** 2)


def left_out(mean: Floats, variance: Floats, precision: Floats, total: Floats) -> tuple[Floats, Floats]:
    """The posterior without the evidence (`precision`, `total`) that has gone into it: exact, as all is Gaussian."""
    remaining = np.maximum(1.0 / variance - precision, 1e-6)
    return (mean / variance - total) / remaining, 1.0 / remaining


def scale(distances: Floats, cut_off: Flags, weights: Floats) -> float:
    """The factor with which nine out of ten runs lie within the interval; `distances` in predicted spreads.

    A run that was cut off at this distance counts by how likely it would have ended within.
    """
    low, high = _LEAST, _MOST
    wanted = 0.9 * (float(weights.sum()) + _STRENGTH)
    for _ in range(30):
        middle = (low + high) / 2
        z = distances / middle
        done = np.minimum(ndtr(z), 0.95)
        inside = np.where(cut_off, (0.95 - np.maximum(done, 0.05)) / (1.0 - done), np.abs(z) <= NORMAL95)
        expected = math.erf(NORMAL95 * middle / math.sqrt(2))
        if float(inside @ weights) + _STRENGTH * expected < wanted:
            low = middle
        else:
            high = middle
    return high


class Cells(NamedTuple):
    """Of each group: its cell (an app on a processor; -1: the app has no other), and what is expected without it."""

    cell: Ints
    mean: Floats
    variance: Floats


def cells_left_out(groups: Groups, evidence: Evidence, tree: Tree, spreads: Spreads, kind: Ints) -> Cells:
    """What the rest of the log says about each cell; `kind` of each coefficient."""
    # Rows with the same numbers but for the size are of one processor.
    processor = _processors(groups.rows[:, (kind != SIZE) & (kind != SCALING)])[groups.row]
    cell = np.full(len(groups.row), -1)
    mean, variance = np.zeros(len(groups.row)), np.ones(len(groups.row))
    found = 0
    for part in sweep_down(groups, tree, spreads):
        key = part.app * (int(processor.max()) + 1) + processor[part.groups]
        order = np.argsort(key, kind="stable")
        ends = np.flatnonzero(np.r_[key[order][1:] != key[order][:-1], True]) + 1
        for begin, end in zip(np.r_[0, ends[:-1]], ends, strict=True):
            those = order[begin:end]
            alone = len(those) == np.count_nonzero(part.app == part.app[those[0]])
            if alone or len(those) > _GROUPS_OF_CELL or found >= _CELLS:
                continue
            left, pair = part.left[those], part.pair[those]
            joint = left @ part.posterior.covariance[part.app[those[0]]] @ left.T
            joint += (pair[:, None] == pair) * part.users.rest[pair]
            at = those + part.groups.start
            without = np.eye(len(those)) - joint * evidence.precision[at]
            both = np.linalg.solve(without, np.c_[joint, part.mean[those] - joint @ evidence.total[at]])
            variance[at], mean[at] = np.maximum(np.diag(both[:, :-1]), 1e-9), both[:, -1]
            cell[at] = found
            found += 1
    return Cells(cell, mean, variance)


def _processors(without_size: Floats) -> Ints:
    return np.asarray(np.unique(without_size, axis=0, return_inverse=True)[1]).ravel()


def apps_left_out(groups: Groups, evidence: Evidence, tree: Tree, spreads: Spreads) -> tuple[Floats, Floats, Floats]:
    """Mean and variance of what is expected of each group without any run of its app; and the slope in its limit."""
    mean, variance = np.zeros(len(groups.row)), np.ones(len(groups.row))
    slope = np.zeros(len(groups.row))
    for apps, steps, _ in tree.portions:
        information, _ = app_information(groups, evidence, spreads.user, apps)
        told = seen_from_family(upward(information, steps), groups.traits[apps])
        family = groups.family[apps]
        others = Information(tree.families.precision[family] - told.precision, tree.families.shift[family] - told.shift)
        site = Posterior(
            np.broadcast_to(tree.site.mean, told.shift.shape),
            np.broadcast_to(tree.site.covariance, told.precision.shape),
        )
        families = downward(site, step(others, spreads.family))
        parents = seen_from_app(families, groups.traits[apps])
        g = slice(int(groups.app_groups[apps.start]), int(groups.app_groups[apps.stop]))
        app = np.repeat(np.arange(len(family)), np.diff(groups.app_groups[apps.start : apps.stop + 1]))
        rows = groups.rows[groups.row[g]]
        mean[g] = (rows * parents.mean[app]).sum(axis=1)
        slope[g] = families.mean[app, LIMIT]
        covariance = parents.covariance[app] + np.diag(spreads.app)
        variance[g] = quadratic(rows, covariance) + spreads.user
    return mean, variance, slope
