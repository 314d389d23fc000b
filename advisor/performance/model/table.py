"""Makes of a run-time model the small table that the hot path reads: app → processor → distribution.

Beside `app` there are `app@user` for apps with several users, and the family (`train_#`) for apps that have never
run. Every processor of the site has an entry, whether the app has run there (`count`) or not (0). An entry is about
the size that the app has most often; what other sizes of GPUs take that it has had stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from advisor.performance.model import hierarchy
from advisor.performance.model.app_runs import AppRuns
from advisor.performance.model.calibration import heavier
from advisor.performance.model.design import Flags, Floats, Ints
from advisor.performance.model.fit import evidence_of
from advisor.performance.model.hierarchy import Portion
from advisor.performance.model.model import RunTimeModel, apart_from
from advisor.performance.model.names import family as family_of
from advisor.performance.model.prior import NUMBER, SCALING, SIZE
from advisor.performance.snapshot import RunTimes

History = dict[str, dict[str, RunTimes]]

# A user's own entry is worth its place from so many runs on; where there are very many, from more.
_RUNS_OF_USER = 2
_MOST_USERS = 20_000
# So many sizes, in GPUs, are told apart: the most used ones.
_MOST_SIZES = 8


def table(model: RunTimeModel, processors: Iterable[str] = ()) -> History:
    """All entries of a model as it was fitted or loaded; `processors`: those of the site, beside those with runs."""
    names = sorted({*processors, *model.names.processors})
    kinds = _Kinds(model, names)
    runs_of_pair = np.bincount(model.groups.pair, model.runs, len(model.groups.pair_starts))
    most = np.sort(runs_of_pair)[::-1][_MOST_USERS - 1] + 1 if len(runs_of_pair) > _MOST_USERS else 0
    found: History = {}
    tree = hierarchy.sweep_up(model.groups, evidence_of(model.groups, model.weights), model.spreads)
    for part in hierarchy.sweep_down(model.groups, tree, model.spreads):
        for name, entries in _entries(model, kinds, part, max(_RUNS_OF_USER, int(most))):
            found[name] = entries
    found.update(_families(model, kinds, tree))
    for app in sorted(model.changed):
        found.update(entries_of(model, app, names))
    return found


def entries_of(model: RunTimeModel, app: str, processors: Sequence[str]) -> History:
    """The entries of one app, with what it has learned since the fit."""
    runs = model.app_runs(app)
    if runs is None:
        return {}
    found: History = {}
    users = dict.fromkeys(runs.users, 0.0)
    for (user, _, _), figures in runs.figures.items():
        users[user] += figures[0]
    sizes = _sizes_of(model, runs)
    names = {app: next(iter(users)) if len(users) == 1 else ""}
    if len(users) > 1:
        names |= {f"{app}@{user}": user for user, count in users.items() if count >= _RUNS_OF_USER}
    everywhere = sorted({*processors, *runs.runs_on})
    work = _work(model, app)
    for name, user in names.items():
        for cpu in (True, False):
            if not sizes[cpu]:
                continue
            units, *others = sizes[cpu]
            kinds = [processor for processor in everywhere if (processor == "cpu") == cpu]
            for processor, doubts in zip(kinds, model.doubts(app, user, kinds, units), strict=True):
                usual = 1.0 if work[0] is None else math.exp(work[0])
                told = model.predict(app, user, processor, units, work=usual)
                larger = model.predict(app, user, processor, units * 2, work=usual)
                slope = larger.mean_log - told.mean_log
                also = [(size, model.predict(app, user, processor, size, work=usual)) for size in others]
                found.setdefault(name, {})[processor] = RunTimes(
                    told.runs, told.mean_log, told.sd_log, True, math.log(units), slope / math.log(2), *doubts, *work,
                    tuple((size, other.mean_log, other.sd_log) for size, other in also),
                )  # fmt: skip
    return found


def _sizes_of(model: RunTimeModel, runs: AppRuns) -> dict[bool, list[int]]:
    """The sizes that an app's entries are about, without GPUs and with: the first is the one it has most often."""
    told_apart = _told_apart(model)
    found: dict[bool, list[int]] = {}
    for cpu in (True, False):
        of: dict[int, int] = {}
        for (processor, units), count in runs.runs_at.items():
            if (processor == "cpu") == cpu:
                of[units] = of.get(units, 0) + count
        known = {} if cpu else {units: of[units] for units in told_apart if units in of}
        first = min(known, key=lambda units: (-known[units], units), default=_middle(of))
        found[cpu] = [first, *(units for units in known if units != first)] if of else []
    return found


def _middle(of: dict[int, int]) -> int:
    """The size in the middle of some, by their runs."""
    total = max(sum(of.values()), 1)
    return max(round(math.exp(sum(count * math.log(units) for units, count in of.items()) / total)), 1)


def _told_apart(model: RunTimeModel) -> list[int]:
    """The sizes, in GPUs, with the most runs of the log."""
    gpus = np.array([name != "cpu" for name in model.names.processors], dtype=np.bool_)
    units = np.array(model.names.units, dtype=np.int64)
    runs = np.bincount(model.groups.row, model.runs, len(units)) if len(units) else np.zeros(0)
    of = {int(size): float(runs[gpus & (units == size)].sum()) for size in np.unique(units[gpus])}
    return sorted(sorted(of, key=lambda size: (-of[size], size))[:_MOST_SIZES])


def _work(model: RunTimeModel, app: str) -> tuple[float | None, float]:
    """What an entry of the app is about, and how far the work of its jobs scatters; see `RunTimes`."""
    usual = model.names.middles.work.get(family_of(app)[0])
    return (None, 0.0) if usual is None else (usual.usual, math.sqrt(usual.scatter()))


class _Kinds:
    """The processors of a table, and the sizes that are told apart."""

    def __init__(self, model: RunTimeModel, names: list[str]) -> None:
        self.names = names
        self.cpu: Flags = np.array([name == "cpu" for name in names], dtype=np.bool_)
        # What is not known of a processor, or of a size of it, that nobody has ever used.
        extra = model.prior.unknown_processor**2
        self.unknown: Floats = np.array([extra if model.design.unknown(name) else 0.0 for name in names])
        at = {name: i for i, name in enumerate(names)}
        # Which of them each design row of the model is about.
        self.of_row: Ints = np.array([at[name] for name in model.names.processors], dtype=np.int64)
        self.sizes = _told_apart(model)
        self.at_size: Floats = np.array(
            [[model.design.row(name, units) for name in names] for units in self.sizes]
        ).reshape(len(self.sizes), len(names), model.design.width)
        never = [[model.never(name, units) for name in names] for units in self.sizes]
        self.never: Floats = np.array(never).reshape(len(self.sizes), len(names))
        # Of no size in particular.
        self.rows: Floats = np.array([model.design.row(name, 1) for name in names]).reshape(-1, model.design.width)
        self.rows[:, model.design.kind == SCALING] = 0.0
        number = {units: i for i, units in enumerate(self.sizes)}
        kinds = zip(model.names.processors, model.names.units, strict=True)
        # Which size each design row of the model is about; -1: none of those.
        self.size_of_row: Ints = np.array(
            [number.get(units, -1) if name != "cpu" else -1 for name, units in kinds], dtype=np.int64
        )


class _Seen(NamedTuple):
    """Of some apps: their runs, and the size that their entries are about."""

    on: Floats  # [app, processor]
    at: Floats  # [app, processor, size]
    typical: Ints  # [app] which of the sizes; -1: none of them
    log_units: Floats  # [app, processor]
    possible: Flags  # [app, processor]


def _seen(model: RunTimeModel, kinds: _Kinds, part: Portion) -> _Seen:
    apps, cpu = part.apps.stop - part.apps.start, kinds.cpu.astype(np.int64)
    row, runs = model.groups.row[part.groups], model.runs[part.groups]
    on = np.zeros((apps, len(kinds.names)))
    np.add.at(on, (part.app, kinds.of_row[row]), runs)
    at = np.zeros((apps, len(kinds.names), len(kinds.sizes) + 1))
    np.add.at(at, (part.app, kinds.of_row[row], kinds.size_of_row[row]), runs)
    at = at[:, :, :-1]
    log_units = np.log(np.array(model.names.units))[row]
    sums, total = np.zeros((apps, 2)), np.zeros((apps, 2))
    np.add.at(sums, (part.app, cpu[kinds.of_row[row]]), runs * log_units)
    np.add.at(total, (part.app, cpu[kinds.of_row[row]]), runs)
    size = np.log(np.maximum(np.rint(np.exp(sums / np.maximum(total, 1.0))), 1.0))[:, cpu]
    of_size = at.sum(axis=1)
    typical = np.full(apps, -1)
    if len(kinds.sizes):
        typical = np.where(of_size.sum(axis=1) > 0, of_size.argmax(axis=1), -1)
        known = (typical >= 0)[:, None] & ~kinds.cpu
        size = np.where(known, np.log(np.array(kinds.sizes))[typical][:, None], size)
    return _Seen(on, at, typical, size, (total > 0)[:, cpu])


class _Told(NamedTuple):
    """Of some apps, or users of apps, on each processor: what is expected, and how sure that is."""

    mean: Floats
    variance: Floats


def _told(part: Portion, rows: Floats, extra: Floats, user: float, those: _Pairs) -> tuple[_Told, _Told]:
    """What these rows ([app, processor]) take: of each app, and of those users of apps."""
    posterior, users = part.posterior, part.users
    mean = np.einsum("apd,ad->ap", rows, posterior.mean)
    variance = np.einsum("apd,ade,ape->ap", rows, posterior.covariance, rows, optimize=True) + extra
    own = rows[those.app] - users.slope[those.pair, None, :]
    own_mean = np.einsum("qpd,qd->qp", own, posterior.mean[those.app]) + users.base[those.pair, None]
    own_variance = (
        np.einsum("qpd,qde,qpe->qp", own, posterior.covariance[those.app], own, optimize=True)
        + users.rest[those.pair, None]
        + extra[those.app]
    )
    variance += user
    only = those.app[those.alone]
    mean[only], variance[only] = own_mean[those.alone], own_variance[those.alone]
    return _Told(mean, variance), _Told(own_mean, own_variance)


class _Pairs(NamedTuple):
    """Some users of apps."""

    pair: Ints
    app: Ints
    alone: Flags  # the only user of the app


def _pairs(model: RunTimeModel, part: Portion, runs_of_user: int) -> _Pairs:
    """Those with an entry of their own, and the only users, whose entry is the app's."""
    app = np.zeros(len(part.users.rest), dtype=np.int64)
    app[part.pair] = part.app
    alone = np.bincount(app, minlength=part.apps.stop - part.apps.start)[app] == 1
    runs = np.bincount(part.pair, model.runs[part.groups], len(app))
    pair = np.flatnonzero(alone | (runs >= runs_of_user))
    return _Pairs(pair, app[pair], alone[pair])


def _entries(
    model: RunTimeModel, kinds: _Kinds, part: Portion, runs_of_user: int
) -> Iterator[tuple[str, dict[str, RunTimes]]]:
    apps = part.apps.stop - part.apps.start
    cpu, count = kinds.cpu, len(kinds.names)
    seen = _seen(model, kinds, part)
    rows = np.broadcast_to(kinds.rows, (apps, *kinds.rows.shape)).copy()
    extra = np.broadcast_to(kinds.unknown, (apps, count)).copy()
    here = seen.on > 0
    sized = seen.typical >= 0
    if sized.any():
        mask = sized[:, None] & ~cpu
        rows[mask] = kinds.at_size[seen.typical][mask]
        extra[mask] = kinds.never[seen.typical][mask]
        here[mask] = (np.take_along_axis(seen.at, np.maximum(seen.typical, 0)[:, None, None], 2)[:, :, 0] > 0)[mask]
    rows[:, :, SIZE] = seen.log_units
    apart = np.zeros((apps, count))
    if not cpu.all():
        apart[:, ~cpu] = apart_from(rows[:, ~cpu], part.posterior.covariance)
    apart += extra
    those = _pairs(model, part, runs_of_user)
    told, of_users = _told(part, rows, extra, model.spreads.user, those)
    others: list[tuple[int, _Told, _Told]] = []
    for s, units in enumerate(kinds.sizes):
        # Only of apps that have had several sizes.
        if ((seen.at[:, :, s].sum(axis=1) > 0) & (seen.typical != s)).any():
            there = np.broadcast_to(kinds.at_size[s], rows.shape)
            more = np.broadcast_to(kinds.never[s], (apps, count))
            others.append((units, *_told(part, there, more, model.spreads.user, those)))
    slope = part.posterior.mean[:, SIZE]
    number = {units: s for s, units in enumerate(kinds.sizes)}
    mine = [(a, a, "", told, [(units, of) for units, of, _ in others]) for a in range(apps)]
    of_each = [(units, of) for units, _, of in others]
    for i in np.flatnonzero(~those.alone).tolist():
        user = model.names.users[part.pairs.start + int(those.pair[i])]
        mine.append((int(those.app[i]), i, f"@{user}", of_users, of_each))
    freedom = model.learned.known_from[1]
    for a, i, user, expected, sizes in mine:
        name = model.names.apps[part.apps.start + a]
        noise, work = float(model.weights.noise[part.apps][a]), _work(model, name)
        had = [
            (units, of)
            for units, of in sizes
            if number[units] != seen.typical[a] and seen.at[a, :, number[units]].any()
        ]
        entries: dict[str, RunTimes] = {}
        for p in np.flatnonzero(seen.possible[a]).tolist():
            variance = float(expected.variance[i, p])
            also = () if cpu[p] else tuple(
                (
                    units,
                    float(of.mean[i, p]),
                    model.spread(float(of.variance[i, p]), freedom, noise, True, bool(seen.at[a, p, number[units]])),
                )
                for units, of in had
            )  # fmt: skip
            entries[kinds.names[p]] = RunTimes(
                int(seen.on[a, p]),
                float(expected.mean[i, p]),
                model.spread(variance, freedom, noise, True, bool(here[a, p])),
                True,
                float(seen.log_units[a, p]),
                float(slope[a]),
                math.sqrt(max(variance - float(apart[a, p]), 0.0)),
                math.sqrt(float(apart[a, p])),
                *work,
                also,
            )
        yield name + user, entries


def _families(model: RunTimeModel, kinds: _Kinds, tree: hierarchy.Tree) -> History:
    """What to expect of an app that has never run, of each family with numbers in its names."""
    numbered = np.array([i for i, name in enumerate(model.names.families) if "#" in name], dtype=np.int64)
    if not len(numbered):
        return {}
    posterior, _ = hierarchy.family_posterior(tree, model.spreads, numbered)
    at = {int(family): i for i, family in enumerate(numbered)}
    app_family = np.array([at.get(int(family), -1) for family in model.groups.family])
    cpu = kinds.cpu.astype(np.int64)
    app_of_group = np.repeat(np.arange(len(app_family)), np.diff(model.groups.app_groups))
    inside = app_family[app_of_group] >= 0
    group_cpu = cpu[kinds.of_row[model.groups.row]]
    sums, total = np.zeros((len(numbered), 2)), np.zeros((len(numbered), 2))
    where = (app_family[app_of_group][inside], group_cpu[inside])
    np.add.at(sums, where, (model.runs * np.log(np.array(model.names.units))[model.groups.row])[inside])
    np.add.at(total, where, model.runs[inside])
    size = (sums / np.maximum(total, 1.0))[:, cpu]
    had = np.zeros((len(numbered), len(kinds.sizes) + 1))
    np.add.at(had, (where[0], kinds.size_of_row[model.groups.row][inside]), model.runs[inside])
    # Where in the family the next number lies is not known here.
    apps = np.maximum(np.bincount(app_family[app_family >= 0], minlength=len(numbered)), 1)
    squares = np.bincount(
        app_family[app_family >= 0], model.groups.traits[app_family >= 0, 0] ** 2, minlength=len(numbered)
    )
    scattered = squares / apps * posterior.mean[:, NUMBER] ** 2
    found: History = {}
    factor = model.learned.calibration.new**2
    tail = heavier(model.prior.tail)
    doubt = heavier(model.learned.known_from[1])
    gpus = np.flatnonzero(~kinds.cpu)
    for i, family in enumerate(numbered):
        entries: dict[str, RunTimes] = {}
        work = model.names.middles.work.get(model.names.families[family])
        apart = kinds.unknown.copy()
        if len(gpus):
            apart[gpus] += apart_from(kinds.rows[gpus], posterior.covariance[i] + np.diag(model.spreads.app))
        for p, name in enumerate(kinds.names):
            if not total[i, cpu[p]]:
                continue
            row = kinds.rows[p].copy()
            row[SIZE] = size[i, p]
            told = [(0, row, kinds.unknown[p])]
            if not kinds.cpu[p]:
                those = [s for s, runs in enumerate(had[i, :-1]) if runs]
                told += [(kinds.sizes[s], kinds.at_size[s, p], kinds.never[s, p]) for s in those]
            means, variances, spreads = [], [], []
            for _, there, extra in told:
                doubted = there @ posterior.covariance[i] @ there + there**2 @ model.spreads.app + model.spreads.user
                means.append(float(there @ posterior.mean[i]))
                variances.append(doubted + scattered[i] + extra)
                spreads.append(math.sqrt(factor * (variances[-1] * doubt + model.learned.noise * tail)))
            entries[name] = RunTimes(
                0,
                means[0],
                spreads[0],
                True,
                float(size[i, p]),
                float(posterior.mean[i, SIZE]),
                math.sqrt(max(float(variances[0] - apart[p]), 0.0)),
                math.sqrt(float(apart[p])),
                None if work is None else work.usual,
                0.0 if work is None else math.sqrt(work.scatter()),
                tuple((told[t][0], means[t], spreads[t]) for t in range(1, len(told))),
            )
        found[model.names.families[family]] = entries
    return found
