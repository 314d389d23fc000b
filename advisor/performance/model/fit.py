"""Fits the run-time model to all runs of a log: groups them, learns the spreads, and weighs every run.

The spreads (how far families, apps, users and runs lie apart) are learned by expectation maximisation from a sample of
families, since a few thousand apps tell a dozen numbers well; coefficients and weights then take in every run.
No random numbers: the same rows give the same model.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.performance.model import hierarchy
from advisor.performance.model.calibration import Calibration, apps_left_out, cells_left_out, heavier, left_out, scale
from advisor.performance.model.design import Design, Flags, Floats, Ints
from advisor.performance.model.hierarchy import Evidence, Groups, Spreads, Tree
from advisor.performance.model.likelihood import Weighed, weigh
from advisor.performance.model.prior import KINDS, Prior, spreads

# Spreads are learned from families with at most so many apps and groups of runs in all (or from one family).
_SAMPLE_APPS = 2000
_SAMPLE_GROUPS = 50_000
_LEARNING_ROUNDS = 30
WEIGHING_ROUNDS = 5
_LEAST_NOISE = 0.05**2  # runs that differ by less than that differ by chance


class Learned(msgspec.Struct, frozen=True):
    """The spreads, refined by the log: variances of each of `KINDS`, and how many nodes each is known from."""

    family: tuple[float, ...]
    app: tuple[float, ...]
    user: float
    noise: float
    known_from: tuple[float, float]  # of the level: families, apps; the prior's strength included
    calibration: Calibration = Calibration()


class Rows(NamedTuple):
    """Runs as arrays; groups as in `Groups`."""

    group: Ints
    app: Ints
    log_s: Floats
    cut_off: Flags
    limit: Floats  # log limit against the mean of its app


class Weights(NamedTuple):
    """What has been made of the runs: of each group, weight and weight × value; of each app, its noise."""

    weight: Floats
    total: Floats
    squares: Floats  # of each app
    counted: Floats  # of each app
    noise: Floats  # variance, of each app


def initial(prior: Prior) -> Learned:
    """The spreads before any run was seen."""
    return Learned(
        tuple(spread.family**2 for spread in spreads(prior)),
        tuple(spread.app**2 for spread in spreads(prior)),
        prior.user**2,
        prior.noise**2,
        (prior.strength, prior.strength),
    )


def completed(learned: Learned, prior: Prior) -> Learned:
    """With the prior's spreads of the kinds that an earlier version did not know."""
    first = initial(prior)
    return msgspec.structs.replace(
        learned,
        family=learned.family + first.family[len(learned.family) :],
        app=learned.app + first.app[len(learned.app) :],
    )


def tree_spreads(design: Design, prior: Prior, learned: Learned) -> Spreads:
    """The variances of every coefficient of a design."""
    return Spreads(
        design.means(prior),
        design.site_variances(prior),
        design.variances(learned.family),
        design.variances(learned.app),
        learned.user,
    )


class Moves(NamedTuple):
    """How far nodes lie from what they are drawn around: squares and variances by coefficient, summed, and numbers."""

    family_squares: Floats
    family_variance: Floats
    families: int
    app_squares: Floats
    app_variance: Floats
    apps: int
    user_squares: float
    user_variance: float
    pairs: int


class Round(NamedTuple):
    """One round of a fit: what it made of the runs, from which expectations (of each group) and evidence."""

    weights: Weights
    moves: Moves
    mean: Floats
    variance: Floats
    evidence: Evidence
    tree: Tree
    made: Weighed


def weighed(groups: Groups, rows: Rows, weights: Weights, spread: Spreads, learned: Learned, prior: Prior) -> Round:
    """One round: posteriors of everything from the weights so far, then weights, noise and moves from those."""
    evidence = evidence_of(groups, weights)
    tree = hierarchy.sweep_up(groups, evidence, spread)
    mean, variance, moves = _expected(groups, tree, spread)
    noise = weights.noise[rows.app]
    made = weigh(rows.log_s, rows.cut_off, mean[rows.group], variance[rows.group], noise, prior.tail)
    size, apps = len(groups.row), len(groups.family)
    squares = _sums(rows.app, made.squares, apps)
    count = _sums(rows.app, made.counted, apps)
    after = Weights(
        _sums(rows.group, made.weight, size),
        _sums(rows.group, made.weight * made.value, size),
        squares,
        count,
        noise_of(squares, count, learned, prior),
    )
    return Round(after, moves, mean, variance, evidence, tree, made)


def evidence_of(groups: Groups, weights: Weights) -> Evidence:
    """The weights over each app's noise."""
    noise = np.repeat(weights.noise, np.diff(groups.app_groups))
    return Evidence(weights.weight / noise, weights.total / noise)


def noise_of(squares: Floats, count: Floats, learned: Learned, prior: Prior) -> Floats:
    """Each app's noise variance, drawn towards that of all apps while it has few runs."""
    strength = prior.noise_strength
    return np.maximum((strength * learned.noise + squares) / (strength + count), _LEAST_NOISE)


def noise_of_one(squares: float, counted: float, learned: Learned, prior: Prior) -> float:
    """The same for one app."""
    strength = prior.noise_strength
    return max((strength * learned.noise + squares) / (strength + counted), _LEAST_NOISE)


def _expected(groups: Groups, tree: Tree, spread: Spreads) -> tuple[Floats, Floats, Moves]:
    """Mean and variance of each group's expected log run time; and the moves of all nodes."""
    mean, variance = np.empty(len(groups.row)), np.empty(len(groups.row))
    width = len(spread.site)
    sums = [np.zeros(width), np.zeros(width), np.zeros(width), np.zeros(width)]
    user_squares = user_variance = 0.0
    for part in hierarchy.sweep_down(groups, tree, spread):
        mean[part.groups], variance[part.groups] = part.mean, part.variance
        for total, figures in zip(sums, (*part.families_moved, *part.apps_moved), strict=True):
            total += figures
        user_squares += part.users_moved[0]
        user_variance += part.users_moved[1]
    moves = Moves(
        sums[0], sums[1], groups.families, sums[2], sums[3], len(groups.family),
        user_squares, user_variance, len(groups.pair_starts),
    )  # fmt: skip
    return mean, variance, moves


def learn(groups: Groups, rows: Rows, design: Design, prior: Prior, rounds: int = _LEARNING_ROUNDS) -> Learned:
    """The spreads, by expectation maximisation (in MacKay's form, which needs fewer rounds), drawn to the prior's."""
    learned = initial(prior)
    weights = first_weights(groups, rows, learned)
    for _ in range(rounds):
        spread = tree_spreads(design, prior, learned)
        last = weighed(groups, rows, weights, spread, learned, prior)
        weights = last.weights
        learned = _refined(last.moves, weights, design, prior, learned)
    return msgspec.structs.replace(learned, calibration=calibrated(groups, rows, last, spread, design, learned, prior))


def calibrated(
    groups: Groups, rows: Rows, last: Round, spread: Spreads, design: Design, learned: Learned, prior: Prior
) -> Calibration:
    """How far left-out runs lie from what the others predict."""
    squares, counted = last.weights.squares[rows.app], last.weights.counted[rows.app]
    tail = heavier(prior.tail)

    def factor(
        mean: Floats, variance: Floats, out: tuple[Floats, Floats], which: Flags, weights: Floats, by: float
    ) -> float:
        """With the left-out runs' squares and number taken `out` of the noise."""
        noise = np.maximum(prior.noise_strength * learned.noise + squares - out[0], 1e-9) / (
            prior.noise_strength + np.maximum(counted - out[1], 0.0)
        )
        distances = (rows.log_s - mean) / np.sqrt(variance * heavier(by) + noise * tail)
        return scale(distances[which], rows.cut_off[which], weights[which])

    # One run, of groups with several.
    size = len(groups.row)
    several = np.bincount(rows.group, minlength=size)[rows.group] >= 2
    precision = last.made.weight / last.weights.noise[rows.app]
    mean, variance = left_out(last.mean[rows.group], last.variance[rows.group], precision, precision * last.made.value)
    own = (last.made.squares, last.made.counted)
    seen = factor(mean, variance, own, several, np.ones(len(rows.app)), learned.known_from[1])

    # All of an app's runs on a processor, of apps with several.
    cells = cells_left_out(groups, last.evidence, last.tree, spread, design.kind)
    cell = cells.cell[rows.group]
    used, at = cell >= 0, np.maximum(cell, 0)
    number = int(cells.cell.max(initial=0)) + 1
    of_cell = [_sums(at[used], figures[used], number)[at] for figures in (*own, np.ones(len(at)))]
    share = 1.0 / np.maximum(of_cell[2], 1.0)
    mean, variance = cells.mean[rows.group], cells.variance[rows.group]
    elsewhere = factor(mean, variance, (of_cell[0], of_cell[1]), used, share, learned.known_from[1])

    # All of an app's runs.
    means, variances, slope = apps_left_out(groups, last.evidence, last.tree, spread)
    # An app that has never run is known by one job's limit, not by what its jobs ask for on the whole.
    expected = means[rows.group] + slope[rows.group] * rows.limit
    per_app = np.bincount(rows.app, minlength=len(groups.family))[rows.app]
    new = factor(
        expected, variances[rows.group], (squares, counted), np.ones(len(at), dtype=np.bool_), 1.0 / per_app,
        min(learned.known_from),
    )  # fmt: skip
    return Calibration(seen, elsewhere, new)


def _refined(moves: Moves, weights: Weights, design: Design, prior: Prior, learned: Learned) -> Learned:
    family, family_known = _variance(
        moves.family_squares,
        moves.family_variance,
        moves.families,
        learned.family,
        initial(prior).family,
        design,
        prior,
    )
    app, app_known = _variance(
        moves.app_squares, moves.app_variance, moves.apps, learned.app, initial(prior).app, design, prior
    )
    sure = max(moves.pairs - moves.user_variance / learned.user, 0.0)
    user = (moves.user_squares + prior.strength * prior.user**2) / (sure + prior.strength)
    some = weights.counted > 0
    inverse = (prior.noise_strength + weights.counted) / (prior.noise_strength * learned.noise + weights.squares)
    noise = (float(some.sum()) + prior.strength) / (float(inverse[some].sum()) + prior.strength / prior.noise**2)
    return Learned(family, app, user, max(noise, _LEAST_NOISE), (family_known, app_known))


def _variance(
    squares: Floats,
    variance: Floats,
    nodes: int,
    before: tuple[float, ...],
    first: tuple[float, ...],
    design: Design,
    prior: Prior,
) -> tuple[tuple[float, ...], float]:
    found: list[float] = []
    level_known = prior.strength
    for kind in range(len(KINDS)):
        those = design.kind == kind
        if before[kind] <= 0.0 or not those.any():
            found.append(before[kind])
            continue
        known = max(nodes * int(those.sum()) - float(variance[those].sum()) / before[kind], 0.0)
        found.append((float(squares[those].sum()) + prior.strength * first[kind]) / (known + prior.strength))
        if kind == 0:
            level_known = prior.strength + known
    return tuple(found), level_known


def _sums(at: Ints, values: Floats, size: int) -> Floats:
    return np.bincount(at, values, size).astype(np.float64, copy=False)


def first_weights(groups: Groups, rows: Rows, learned: Learned) -> Weights:
    """Every run at face value, to begin with."""
    size, apps = len(groups.row), len(groups.family)
    return Weights(
        np.bincount(rows.group, minlength=size).astype(np.float64),
        _sums(rows.group, rows.log_s, size),
        np.zeros(apps),
        np.zeros(apps),
        np.full(apps, learned.noise),
    )


def sample(groups: Groups, rows: Rows, families: list[str]) -> tuple[Groups, Rows]:
    """Some whole families, chosen by a checksum of their names."""
    apps = len(groups.family)
    if apps <= _SAMPLE_APPS and len(groups.row) <= _SAMPLE_GROUPS:
        return groups, rows
    # What each family takes up of what there is room for.
    taken_up = np.maximum(
        np.bincount(groups.family, minlength=groups.families) / _SAMPLE_APPS,
        np.bincount(groups.family, np.diff(groups.app_groups), minlength=groups.families) / _SAMPLE_GROUPS,
    )
    order = np.argsort([zlib.crc32(name.encode()) for name in families], kind="stable")
    taken = np.zeros(groups.families, dtype=np.bool_)
    taken[order[np.cumsum(taken_up[order]) <= 1.0]] = True
    if not taken.any():
        taken[order[0]] = True
    keep_app = taken[groups.family]
    app_of_group = np.repeat(np.arange(apps), np.diff(groups.app_groups))
    app_of_pair = np.repeat(np.arange(apps), np.diff(groups.app_pairs))
    keep_group, keep_pair, keep_row = keep_app[app_of_group], keep_app[app_of_pair], keep_app[rows.app]
    renumber = {"group": np.cumsum(keep_group) - 1, "pair": np.cumsum(keep_pair) - 1, "app": np.cumsum(keep_app) - 1}
    family = np.cumsum(taken) - 1
    return (
        Groups(
            groups.rows,
            groups.row[keep_group],
            renumber["pair"][groups.pair[keep_group]],
            renumber["group"][groups.pair_starts[keep_pair]],
            np.r_[0, np.cumsum(np.diff(groups.app_groups)[keep_app])],
            np.r_[0, np.cumsum(np.diff(groups.app_pairs)[keep_app])],
            family[groups.family[keep_app]],
            int(taken.sum()),
            groups.traits[keep_app],
        ),
        Rows(
            renumber["group"][rows.group[keep_row]],
            renumber["app"][rows.app[keep_row]],
            rows.log_s[keep_row],
            rows.cut_off[keep_row],
            rows.limit[keep_row],
        ),
    )
