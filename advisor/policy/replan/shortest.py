"""The plan with the shortest makespan that the search finds, with sharing where jobs may share and without elsewhere.

It begins with the last plan, so it never gets longer by being made again; and where most jobs are new, sharing begins
with what was found without it, so it never gets longer by sharing.
"""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.policy.replan.problem import Flags, Floats, Ints, Plan, Sharing, Waiting

# The search's steps are counted as single moves; one of its turns takes as long as so many of them.
_STEPS_A_TURN = 24
# Temperatures in parts of the makespan: for a plan made from nothing, and for one that is only to be mended.
_HOT, _COLD = 1e-2, 1e-4
_MEND = 1e-3
# A plan is made from nothing where more than this part of it is new. Then the search is tried several times, since
# where it ends depends on where the wide jobs happen to settle; it stops as soon as the bound is this close.
_MOSTLY_NEW, _TRIES, _CLOSE = 0.5, 4, 1.015


def plan_span(waiting: Waiting, sharing: Sharing, steps: int, seed: int) -> Plan:
    """The plan; `sharing.before` names units (jobs of several: pools), `waiting.before` pools."""
    pending = len(waiting.run)
    units = np.argsort(sharing.pool, kind="stable")[int((sharing.pool < 0).sum()) :]
    at = np.full(len(sharing.pool) + 1, -1, dtype=np.int64)
    at[units] = np.arange(len(units))
    pool = sharing.pool[units]
    known = (waiting.width.max(axis=1, initial=1) <= 1) & (sharing.before >= 0)
    at_unit = at[np.where(known, sharing.before, -1)]
    before = np.where(at_unit >= 0, np.append(pool, -1)[at_unit], waiting.before)
    at_seats = _seats(at, sharing.seats, waiting)
    new = float((before < 0).mean()) if pending else 0.0
    turns, hot, position = steps // _STEPS_A_TURN, _MEND, waiting.position
    if new <= _MOSTLY_NEW:
        found, unit, seats, start, latest, _ = _search(
            waiting, sharing, sharing.share, units, before, at_unit, at_seats, position, turns, hot, seed
        )
    else:
        if sharing.share[:pending].any():
            alone = msgspec.structs.replace(sharing, share=np.zeros(len(sharing.share), dtype=np.bool_))
            apart = plan_span(waiting, alone, steps, seed)
            before, at_unit, position = apart.pool, at[apart.gpu], apart.start
            at_seats = _seats(at, apart.seats, waiting)
        latest = np.inf
        for again in range(_TRIES if turns else 1):
            tried = _search(
                waiting, sharing, sharing.share, units, before, at_unit, at_seats, position, turns, _HOT,
                seed + 7919 * again,
            )  # fmt: skip
            if tried[4] < latest:
                found, unit, seats, start, latest, bound = tried
            if latest <= _CLOSE * bound:
                break
    gpus = np.append(units, -1)
    wide = waiting.width[np.arange(pending), found] if pending else found
    seats = np.where((np.arange(seats.shape[1]) < wide[:, None]) & (wide > 1)[:, None], gpus[seats], -1)
    return Plan(found, start, gpus[unit], float(latest), seats)


def _seats(at: Ints, gpus: Ints | None, waiting: Waiting) -> Ints:
    """The units of each wide job's GPUs; -1 throughout where one of them is not known."""
    most = int(waiting.width.max(initial=1))
    seats = np.full((len(waiting.run), most), -1, dtype=np.int64)
    if gpus is not None:
        seats[:, : gpus.shape[1]] = np.where(gpus >= 0, at[gpus], -1)[:, :most]
    return seats


def _search(
    waiting: Waiting, sharing: Sharing, share: Flags, units: Ints, before: Ints, at_unit: Ints, at_seats: Ints,
    position: Floats, turns: int, hot: float, seed: int,
) -> tuple[Ints, Ints, Ints, Floats, float, float]:  # fmt: skip
    from advisor.policy.replan.draft import Span
    from advisor.policy.replan.prices import pool_prices
    from advisor.policy.replan.rebuild import search_span

    pending, pools = waiting.run.shape
    count = np.bincount(sharing.pool[units], minlength=pools)
    width = np.ascontiguousarray(np.maximum(waiting.width, 1))
    bound, price = pool_prices(
        waiting.run, width, _busy(sharing, units, pools), count, sharing.app, share[:pending],
        sharing.speed, sharing.least_gain,
    )  # fmt: skip
    span = Span(
        run=waiting.run.copy(),
        width=width,
        left=sharing.left,
        app=sharing.app,
        share=share,
        pair=np.ascontiguousarray(sharing.speed),
        pool=sharing.pool[units],
        first=np.concatenate(([0], np.cumsum(count))).astype(np.int64),
        ready=np.maximum(sharing.ready[units], 0.0),
        residents=np.ascontiguousarray(sharing.residents[units]),
        price=price,
        least_gain=float(sharing.least_gain),
    )
    true_run = np.ascontiguousarray(waiting.run)
    found = search_span(span, true_run, before, at_unit, at_seats, position, _CLOSE * bound, turns, hot, _COLD, seed)
    return *found, bound


def _busy(sharing: Sharing, units: Ints, pools: int) -> Floats:
    """Unit seconds that each pool still owes to those who run, at the least: a guest may have half of a shared unit."""
    busy = np.zeros(pools)
    for unit in units:
        here = [job for job in sharing.residents[unit] if job >= 0]
        longest = max((float(sharing.left[job]) * (0.5 if sharing.share[job] else 1.0) for job in here), default=0.0)
        busy[sharing.pool[unit]] += max(float(sharing.ready[unit]), 0.0) + longest
    return busy
