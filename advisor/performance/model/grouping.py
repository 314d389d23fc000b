"""Sorts the runs of a log into groups that differ in nothing but their length, and those into apps and families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from advisor.performance.model.design import MOST_PROCESSORS, MOST_SIZES, Design, Floats, Ints
from advisor.performance.model.fit import Rows
from advisor.performance.model.hierarchy import Groups
from advisor.performance.model.names import family as family_of
from advisor.performance.model.observations import Runs
from advisor.performance.model.prior import TRAITS
from advisor.performance.model.traits import Middles, app_limits, middles, usual_work
from advisor.settings import Processor


class Names(NamedTuple):
    """What the indices in `Groups` stand for."""

    apps: list[str]
    families: list[str]
    users: list[str]  # of each pair
    processors: list[str]  # of each design row
    units: list[int]  # of each design row
    middles: Middles
    limits: list[float | None]  # of each app: the mean log limit its users asked for


class Grouped(NamedTuple):
    """A log, ready to be fitted."""

    design: Design
    groups: Groups
    names: Names
    rows: Rows
    runs: Ints  # of each group


def grouped(runs: Runs, processors: Mapping[str, Processor]) -> Grouped:
    """Groups all runs; nothing depends on the order in which they came."""
    app, user, processor, units, log_s, cut_off, log_limit, log_work = (np.asarray(column) for column in runs.columns)
    app_names, user_names, processor_names = list(runs.app), list(runs.user), list(runs.processor)
    own = own_processors(processor_names, processor)
    design = Design(own, processors, own_sizes(own, processor_names, processor, units))

    # Apps by family, then by name; users and processors by name.
    family_names = [family_of(name)[0] for name in app_names]
    order = sorted(range(len(app_names)), key=lambda i: (family_names[i], app_names[i]))
    families = sorted(set(family_names))
    family_at = {name: i for i, name in enumerate(families)}
    app = _ranks(order)[app]
    sorted_apps = [app_names[i] for i in order]
    limits = app_limits(app, log_limit, len(order))
    family = np.array([family_at[family_names[i]] for i in order], dtype=np.int64)
    work = usual_work(family[app], log_work, families)
    middle = middles(sorted_apps, limits, work)
    # What each run would have taken, had it done what is usual in its family.
    usual = np.array([work[name].usual if name in work else np.nan for name in families])
    log_s = log_s - np.nan_to_num(log_work - usual[family[app]] if len(families) else log_work)
    limit_of = [float(value) if np.isfinite(value) else None for value in limits]
    user_order = sorted(range(len(user_names)), key=user_names.__getitem__)
    user = _ranks(user_order)[user]
    processor_order = sorted(range(len(processor_names)), key=processor_names.__getitem__)
    processor = _ranks(processor_order)[processor]

    kinds, row = np.unique(np.stack([processor, units]), axis=1, return_inverse=True)
    pairs, pair = np.unique(app * max(len(user_names), 1) + user, return_inverse=True)
    keys, group = np.unique(pair * max(kinds.shape[1], 1) + row.ravel(), return_inverse=True)
    pair_of_group, row_of_group = np.divmod(keys, max(kinds.shape[1], 1))
    app_of_pair = pairs // max(len(user_names), 1)
    apps = len(app_names)
    row_processors = [processor_names[processor_order[i]] for i in kinds[0]]
    row_units = [int(count) for count in kinds[1]]
    groups = Groups(
        rows=np.array([design.row(name, count) for name, count in zip(row_processors, row_units, strict=True)]).reshape(
            -1, design.width
        ),
        row=row_of_group,
        pair=pair_of_group,
        pair_starts=np.searchsorted(pair_of_group, np.arange(len(pairs))),
        app_groups=np.searchsorted(app_of_pair[pair_of_group], np.arange(apps + 1)),
        app_pairs=np.searchsorted(app_of_pair, np.arange(apps + 1)),
        family=family,
        families=len(families),
        traits=np.array(
            [middle.traits(name, limit) for name, limit in zip(sorted_apps, limit_of, strict=True)]
        ).reshape(-1, len(TRAITS)),
    )
    # In the order of their content, so that sums come out the same to the last bit.
    sequence = np.lexsort((log_limit, cut_off, log_s, group))
    own_limit = np.nan_to_num(log_limit - limits[app])
    rows = Rows(
        group[sequence], app[sequence], log_s[sequence].astype(np.float64), cut_off[sequence] != 0, own_limit[sequence]
    )
    names = Names(
        sorted_apps,
        families,
        [user_names[user_order[i]] for i in pairs % max(len(user_names), 1)],
        row_processors,
        row_units,
        middle,
        limit_of,
    )
    return Grouped(design, groups, names, rows, np.bincount(group, minlength=len(keys)))


def own_processors(names: list[str], processor: Ints) -> list[str]:
    """The processors with the most runs, in order of their names."""
    runs = np.bincount(processor, minlength=len(names))
    most = sorted((i for i in range(len(names)) if names[i] != "cpu"), key=lambda i: (-runs[i], names[i]))
    return sorted(names[i] for i in most[:MOST_PROCESSORS])


def own_sizes(own: list[str], names: list[str], processor: Ints, units: Ints) -> list[tuple[str, int]]:
    """The sizes with the most runs beside the usual one of each processor, in order of their names."""
    found: list[tuple[int, str, int]] = []
    for name in own:
        sizes, runs = np.unique(units[processor == names.index(name)], return_counts=True)
        usual = int(np.argmax(runs))
        found += [(-int(runs[i]), name, int(sizes[i])) for i in range(len(sizes)) if i != usual]
    return sorted((name, size) for _, name, size in sorted(found)[:MOST_SIZES])


def _ranks(order: list[int]) -> Ints:
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


# One group as stored: user, processor, units, runs, weight, weight × value.
Group = tuple[str, str, int, float, float, float]


def assembled(
    apps: list[tuple[str, float | None, list[Group]]],
    own: tuple[str, ...],
    sizes: tuple[tuple[str, int], ...],
    middle: Middles,
    processors: Mapping[str, Processor],
) -> tuple[Design, Names, Groups, Floats, Floats, Floats]:
    """Groups put together from stored ones (apps by family and name, groups by user): with runs, weights and totals."""
    design = Design(own, processors, sizes)
    families: dict[str, int] = {}
    kinds: dict[tuple[str, int], int] = {}
    row: list[int] = []
    figures: list[list[float]] = []
    pair, users, starts, family = [], [], [], []
    app_groups, app_pairs = [0], [0]
    for name, _, groups in apps:
        family.append(families.setdefault(family_of(name)[0], len(families)))
        for at, (user, processor, units, *numbers) in enumerate(groups):
            if at == 0 or user != groups[at - 1][0]:
                users.append(user)
                starts.append(len(row))
            row.append(kinds.setdefault((processor, units), len(kinds)))
            pair.append(len(users) - 1)
            figures.append(numbers)
        app_groups.append(len(row))
        app_pairs.append(len(users))
    numbers_of = np.array(figures, dtype=np.float64).reshape(-1, 3)
    made = Groups(
        np.array([design.row(*kind) for kind in kinds]).reshape(-1, design.width),
        np.array(row, dtype=np.int64),
        np.array(pair, dtype=np.int64),
        np.array(starts, dtype=np.int64),
        np.array(app_groups),
        np.array(app_pairs),
        np.array(family, dtype=np.int64),
        len(families),
        np.array([middle.traits(name, limit) for name, limit, _ in apps]).reshape(-1, len(TRAITS)),
    )
    names = Names(
        [name for name, _, _ in apps],
        list(families),
        users,
        [kind[0] for kind in kinds],
        [kind[1] for kind in kinds],
        middle,
        [limit for _, limit, _ in apps],
    )
    return design, names, made, numbers_of[:, 0].copy(), numbers_of[:, 1].copy(), numbers_of[:, 2].copy()
