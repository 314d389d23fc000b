"""How little of a GPU a job can take where two may share it: the sizes with which `advisor.sim.patterns` proves bounds.

Two jobs a and b side by side do s_ab and s_ba seconds of their work in each second of the GPU. With weights u ≤ 1 such
that s_ab·u_a + s_ba·u_b ≤ 1 for every pair, a set of jobs takes a GPU for at least the sum of u times their run times,
whoever meets whom and for how long. Any such weights give a bound; these come from the prices of the makespan program
in which jobs may be cut into parts, and are then made as large as they can be.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from advisor.sim.bound import Work
from advisor.sim.neighbours import Contention
from advisor.sim.patterns import matrix
from advisor.sim.state import Floats
from advisor.sim.workload import SimJob, Workload

_Pair = tuple[int, int, float, float]  # app, other app, and their speeds beside each other


def least_use(workload: Workload, work: Work, contention: Contention) -> Floats:
    """[job, kind] the least part of its run time for which a job takes a unit: 1 where it cannot share."""
    jobs = workload.jobs
    sample: dict[str, SimJob] = {}
    members: dict[str, list[int]] = {}
    for j, job in enumerate(jobs):
        if job.share and job.gpus == 1 and job.nodes == 1 and not job.exclusive:
            sample[job.app] = job
            members.setdefault(job.app, []).append(j)
    apps = sorted(members)
    pairs = [_pairs([sample[a] for a in apps], [len(members[a]) for a in apps], contention, k) for k in work.kinds]
    shared = {j for mine in members.values() for j in mine}
    rows = [members[a] for a in apps] + [[j] for j in range(len(jobs)) if j not in shared]
    worth = _worth(work, rows, pairs)
    use = np.ones((len(jobs), len(work.kinds)))
    for k in range(len(work.kinds)):
        for a, part in enumerate(_raised(worth[: len(apps), k], pairs[k])):
            use[members[apps[a]], k] = part
    return use


def _pairs(apps: list[SimJob], count: list[int], contention: Contention, kind: str) -> list[_Pair]:
    """Those that gain by sharing; for all others the weights' condition holds anyhow."""
    found = []
    for a, one in enumerate(apps):
        for b, other in enumerate(apps[a:], a):
            mine, theirs = contention.pair(one, other, kind), contention.pair(other, one, kind)
            if mine > 0 and theirs > 0 and mine + theirs > 1 and (a != b or count[a] > 1):
                found.append((a, b, mine, theirs))
    return found


def _worth(work: Work, rows: list[list[int]], pairs: list[list[_Pair]]) -> Floats:
    """[row, kind] weights by the prices of the program in parts; `rows`: jobs that are alike, who shares first."""
    n, kinds = len(rows), len(work.kinds)
    run = np.asarray([work.run[row].sum(axis=0) for row in rows])
    entries: list[tuple[int, int, float]] = []
    column = 0
    for k in range(kinds):
        ways: list[tuple[float, list[tuple[int, float]]]] = [
            (float(work.wanted[rows[r][0]]), [(r, 1.0)]) for r in range(n) if np.isfinite(run[r, k])
        ]
        ways += [(1.0, [(a, mine), (b, theirs)]) for a, b, mine, theirs in pairs[k]]
        for units, parts in ways:
            entries += [(r, column, -speed / max(run[r, k], 1e-9)) for r, speed in parts]
            entries.append((n + k, column, units))
            column += 1
    entries += [(n + k, column, -float(work.units[k])) for k in range(kinds)]
    cost = np.zeros(column + 1)
    cost[column] = 1.0
    room = np.concatenate([-np.ones(n), np.zeros(kinds)])
    solved = linprog(cost, A_ub=matrix(entries, (n + kinds, column + 1)), b_ub=room, method="highs")
    if solved.status != 0:
        return np.zeros((n, kinds))
    price = -np.asarray(solved.ineqlin.marginals)
    return np.asarray(np.minimum(1.0, price[:n, None] / np.maximum(run * price[None, n:], 1e-12)))


def _raised(least: Floats, pairs: list[_Pair]) -> Floats:
    """The largest weights, no less than these where they can be had, that every pair allows."""
    if not pairs:
        return np.ones(len(least))
    entries = [(i, a, mine) for i, (a, _, mine, _) in enumerate(pairs)]
    entries += [(i, b, theirs) for i, (_, b, _, theirs) in enumerate(pairs)]
    for low in (least * (1 - 1e-7), np.zeros(len(least))):
        solved = linprog(
            -np.ones(len(least)),
            A_ub=matrix(entries, (len(pairs), len(least))),
            b_ub=np.ones(len(pairs)),
            bounds=list(zip(np.maximum(low, 0.0), np.ones(len(least)), strict=True)),
            method="highs",
        )
        if solved.status == 0:
            # A solver's rounding must not make them too large.
            return np.asarray(solved.x) * (1 - 1e-6)
    return np.zeros(len(least))
