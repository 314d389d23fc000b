"""Makes of a run-time model the small table that the hot path reads: app → processor → distribution.

Beside `app` there are `app@user` for apps with several users, and the family (`train_#`) for apps that have never
run. Every processor of the site has an entry, whether the app has run there (`count`) or not (0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from advisor.performance.model import hierarchy
from advisor.performance.model.calibration import heavier
from advisor.performance.model.design import Flags, Floats, Ints
from advisor.performance.model.fit import evidence_of
from advisor.performance.model.hierarchy import Portion
from advisor.performance.model.model import RunTimeModel, apart_from
from advisor.performance.model.names import family as family_of
from advisor.performance.model.prior import NUMBER, SIZE
from advisor.performance.snapshot import RunTimes

History = dict[str, dict[str, RunTimes]]

# A user's own entry is worth its place from so many runs on; where there are very many, from more.
_RUNS_OF_USER = 2
_MOST_USERS = 20_000


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
    log_units = {True: [0.0, 0.0], False: [0.0, 0.0]}  # without GPUs, with: sum, runs
    for (user, processor, units), figures in runs.figures.items():
        users[user] += figures[0]
        sums = log_units[processor == "cpu"]
        sums[0] += figures[0] * math.log(units)
        sums[1] += figures[0]
    names = {app: next(iter(users)) if len(users) == 1 else ""}
    if len(users) > 1:
        names |= {f"{app}@{user}": user for user, count in users.items() if count >= _RUNS_OF_USER}
    everywhere = sorted({*processors, *runs.runs_on})
    work = _work(model, app)
    for name, user in names.items():
        for cpu in (True, False):
            total, count = log_units[cpu]
            if not count:
                continue
            units = max(round(math.exp(total / count)), 1)
            kinds = [processor for processor in everywhere if (processor == "cpu") == cpu]
            for processor, doubts in zip(kinds, model.doubts(app, user, kinds, units), strict=True):
                usual = 1.0 if work[0] is None else math.exp(work[0])
                told = model.predict(app, user, processor, units, work=usual)
                larger = model.predict(app, user, processor, units * 2, work=usual)
                slope = larger.mean_log - told.mean_log
                found.setdefault(name, {})[processor] = RunTimes(
                    told.runs, told.mean_log, told.sd_log, True, math.log(units), slope / math.log(2), *doubts, *work
                )
    return found


def _work(model: RunTimeModel, app: str) -> tuple[float | None, float]:
    """What an entry of the app is about, and how far the work of its jobs scatters; see `RunTimes`."""
    usual = model.names.middles.work.get(family_of(app)[0])
    return (None, 0.0) if usual is None else (usual.usual, math.sqrt(usual.scatter()))


class _Kinds:
    """The processors of a table."""

    def __init__(self, model: RunTimeModel, names: list[str]) -> None:
        self.names = names
        self.rows: Floats = np.array([model.design.row(name, 1) for name in names]).reshape(-1, model.design.width)
        self.cpu: Flags = np.array([name == "cpu" for name in names], dtype=np.bool_)
        extra = model.prior.unknown_processor**2
        self.unknown: Floats = np.array([extra if model.design.unknown(name) else 0.0 for name in names])
        at = {name: i for i, name in enumerate(names)}
        # Which of them each design row of the model is about.
        self.of_row: Ints = np.array([at[name] for name in model.names.processors], dtype=np.int64)


def _entries(
    model: RunTimeModel, kinds: _Kinds, part: Portion, runs_of_user: int
) -> Iterator[tuple[str, dict[str, RunTimes]]]:
    apps = part.apps.stop - part.apps.start
    cpu, count = kinds.cpu, len(kinds.names)
    row = model.groups.row[part.groups]
    runs = model.runs[part.groups]
    on = np.zeros((apps, count))
    np.add.at(on, (part.app, kinds.of_row[row]), runs)
    # Typical size, without GPUs and with.
    log_units = np.log(np.array(model.names.units))[row]
    group_cpu = cpu[kinds.of_row[row]].astype(np.int64)
    sums, total = np.zeros((apps, 2)), np.zeros((apps, 2))
    np.add.at(sums, (part.app, group_cpu), runs * log_units)
    np.add.at(total, (part.app, group_cpu), runs)
    size = (sums / np.maximum(total, 1.0))[:, cpu.astype(np.int64)]
    possible = (total > 0)[:, cpu.astype(np.int64)]
    rows = np.broadcast_to(kinds.rows, (apps, *kinds.rows.shape)).copy()
    rows[:, :, SIZE] = size
    mean = np.einsum("apd,ad->ap", rows, part.posterior.mean)
    variance = np.einsum("apd,ade,ape->ap", rows, part.posterior.covariance, rows, optimize=True) + kinds.unknown
    slope = part.posterior.mean[:, SIZE]
    apart = np.zeros((apps, count))
    if not cpu.all():
        apart[:, ~cpu] = apart_from(rows[:, ~cpu], part.posterior.covariance)
    apart += kinds.unknown
    pair_app = np.zeros(len(part.users.rest), dtype=np.int64)
    pair_app[part.pair] = part.app
    pair_runs = np.bincount(part.pair, runs, len(pair_app))
    pairs_of = np.bincount(pair_app, minlength=apps)
    own = rows[pair_app] - part.users.slope[:, None, :]
    own_mean = np.einsum("qpd,qd->qp", own, part.posterior.mean[pair_app]) + part.users.base[:, None]
    own_variance = (
        np.einsum("qpd,qde,qpe->qp", own, part.posterior.covariance[pair_app], own, optimize=True)
        + part.users.rest[:, None]
        + kinds.unknown
    )
    alone = pairs_of == 1
    first = np.r_[0, np.cumsum(pairs_of)[:-1]]
    mean[alone], variance[alone] = own_mean[first[alone]], own_variance[first[alone]]
    variance[~alone] += model.spreads.user
    noise = model.weights.noise[part.apps]
    for a in range(apps):
        name = model.names.apps[part.apps.start + a]
        yield (
            name,
            _made(
                model,
                kinds.names,
                possible[a],
                on[a],
                mean[a],
                variance[a],
                apart[a],
                noise[a],
                size[a],
                slope[a],
                _work(model, name),
            ),
        )
    for q in np.flatnonzero(~alone[pair_app] & (pair_runs >= runs_of_user)):
        a = pair_app[q]
        user = model.names.users[part.pairs.start + q]
        name = f"{model.names.apps[part.apps.start + a]}@{user}"
        yield (
            name,
            _made(
                model,
                kinds.names,
                possible[a],
                on[a],
                own_mean[q],
                own_variance[q],
                apart[a],
                noise[a],
                size[a],
                slope[a],
                _work(model, model.names.apps[part.apps.start + a]),
            ),
        )


def _made(
    model: RunTimeModel,
    names: list[str],
    possible: Flags,
    runs: Floats,
    mean: Floats,
    variance: Floats,
    apart: Floats,
    noise: float,
    log_units: Floats,
    slope: float,
    work: tuple[float | None, float],
) -> dict[str, RunTimes]:
    freedom = model.learned.known_from[1]
    return {
        name: RunTimes(
            int(runs[i]),
            float(mean[i]),
            model.spread(float(variance[i]), freedom, float(noise), True, bool(runs[i] > 0)),
            True,
            float(log_units[i]),
            float(slope),
            math.sqrt(max(float(variance[i] - apart[i]), 0.0)),
            math.sqrt(float(apart[i])),
            *work,
        )
        for i, name in enumerate(names)
        if possible[i]
    }


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
            variance = row @ posterior.covariance[i] @ row + row**2 @ model.spreads.app + model.spreads.user
            variance += scattered[i] + kinds.unknown[p]
            entries[name] = RunTimes(
                0,
                float(row @ posterior.mean[i]),
                math.sqrt(factor * (variance * doubt + model.learned.noise * tail)),
                True,
                float(size[i, p]),
                float(posterior.mean[i, SIZE]),
                math.sqrt(max(float(variance - apart[p]), 0.0)),
                math.sqrt(float(apart[p])),
                None if work is None else work.usual,
                0.0 if work is None else math.sqrt(work.scatter()),
            )
        found[model.names.families[family]] = entries
    return found
