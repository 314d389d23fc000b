"""What a second of each pool's units is worth when the makespan is to be short: the prices of Gavel's makespan program.

The program lets jobs run in parts, on any pool and beside any other that they may share with; its value is a bound
that no plan can be below, and its prices say on which pool a job costs least of what is scarce. Jobs of one app that
the pools suit alike are one row, so that it is small however many wait.
"""

from __future__ import annotations

import numpy as np

from advisor.policy.replan.problem import Flags, Floats, Ints

# With more rows than this that may share, one app is one row: what pairs it makes is then a mean.
MOST_ROWS = 120


def pool_prices(
    run: Floats, width: Ints, busy: Floats, count: Ints, app: Ints, share: Flags, pair: Floats, least_gain: float
) -> tuple[float, Floats]:
    """The least makespan of a plan in parts, and a price for each pool's unit; the prices of all units add up to 1.

    `busy[pool]`: unit seconds that those who run will still take; `count[pool]`: its units.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    pools = run.shape[1]
    flat = np.full(pools, 1.0 / max(int(count.sum()), 1))
    if not len(run):
        return float((busy / np.maximum(count, 1)).max(initial=0.0)), flat
    rows = _alike(run, width, app, share, True)
    if sum(key[1] for key in rows) > MOST_ROWS:
        rows = _alike(run, width, app, share, False)
    keys = list(rows)
    work = np.asarray([run[rows[key]].sum(axis=0) for key in keys])
    # One column for each way to work: alone on a pool, or two on one unit. (row, share of its work a second), …
    columns: list[tuple[int, int, tuple[tuple[int, float], ...]]] = []
    for pool in range(pools):
        able = [r for r, key in enumerate(keys) if np.isfinite(work[r, pool]) and key[2][pool] <= count[pool]]
        columns += [(pool, keys[r][2][pool], ((r, 1.0 / max(work[r, pool], 1e-9)),)) for r in able]
        meet = [r for r in able if keys[r][1] and keys[r][2][pool] == 1]
        for i, r in enumerate(meet):
            for q in meet[i:]:
                mine, theirs = pair[pool, keys[r][0], keys[q][0]], pair[pool, keys[q][0], keys[r][0]]
                if mine > 0 and theirs > 0 and mine + theirs >= least_gain:
                    both = (r, mine / max(work[r, pool], 1e-9)), (q, theirs / max(work[q, pool], 1e-9))
                    columns.append((pool, 1, both))
    n, m = len(keys), len(columns)
    at: list[tuple[int, int, float]] = []
    for c, (pool, units, parts) in enumerate(columns):
        at += [(r, c, -rate) for r, rate in parts]
        at.append((n + pool, c, float(units)))
    at += [(n + pool, m, -float(count[pool])) for pool in range(pools)]
    row, column, value = zip(*at, strict=True)
    goal = np.zeros(m + 1)
    goal[m] = 1.0
    solved = linprog(
        goal,
        A_ub=csr_matrix((value, (row, column)), shape=(n + pools, m + 1)),
        b_ub=np.concatenate([-np.ones(n), -busy]),
        method="highs",
    )
    if solved.status != 0:
        return 0.0, flat
    price = np.maximum(-np.asarray(solved.ineqlin.marginals)[n:], 0.0)
    worth = float((price * count).sum())
    # Nothing is quite worthless: what has no price yet may be all that is left for somebody.
    price = price / worth + 1e-3 * flat if worth > 0 else flat
    return float(solved.x[m]), price / float((price * count).sum())


def _alike(
    run: Floats, width: Ints, app: Ints, share: Flags, closely: bool
) -> dict[tuple[int, bool, tuple[int, ...], bytes], list[int]]:
    """The jobs by app, whether they share, width, and (closely) by how much longer each pool takes, to 1 %."""
    best = np.maximum(np.where(np.isfinite(run), run, np.inf).min(axis=1, keepdims=True), 1e-9)
    suits = np.round(100 * np.log(np.maximum(np.where(np.isfinite(run), run, 1e30) / best, 1e-9))).astype(np.int64)
    rows: dict[tuple[int, bool, tuple[int, ...], bytes], list[int]] = {}
    for job in range(len(run)):
        told = suits[job].tobytes() if closely or not share[job] else np.isfinite(run[job]).tobytes()
        rows.setdefault((int(app[job]), bool(share[job]), tuple(width[job].tolist()), told), []).append(job)
    return rows
