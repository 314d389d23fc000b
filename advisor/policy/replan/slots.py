"""How one GPU works off its list: two slots, and two jobs at a time where they may share.

The next job of the list starts as soon as a slot is free and it gets on with who is there (by the table of pair
speeds); both then run at the pair's speeds until one ends. Both searches over GPUs one by one judge by it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from advisor.policy.replan.machine_code import compiled
from advisor.policy.replan.problem import Ints

if TYPE_CHECKING:
    from advisor.policy.replan.draft import Draft, Span
    from advisor.policy.replan.gpus import Gpus, Lists


@compiled
def play(s: Span | Gpus, d: Draft | Lists, unit: int, jobs: Ints, count: int, note: bool) -> float:
    """When the last job of a unit's list ends. Ends are written down, with `note` the starts of its jobs as well."""
    pool = s.pool[unit]
    run, left, app, share, pair = s.run, s.left, s.app, s.share, s.pair
    a, b, now = s.residents[unit, 0], s.residents[unit, 1], s.ready[unit]
    if d.begin[unit] != d.base[unit]:
        a, b, now = -1, -1, d.begin[unit]
    left_a = left[a] if a >= 0 else 0.0
    left_b = left[b] if b >= 0 else 0.0
    k = 0
    while True:
        while k < count and (a < 0 or b < 0):
            job = jobs[k]
            other = a if a >= 0 else b
            if other >= 0:
                if not (share[job] and share[other]):
                    break
                mine, theirs = pair[pool, app[job], app[other]], pair[pool, app[other], app[job]]
                if mine <= 0.0 or theirs <= 0.0 or mine + theirs < s.least_gain:
                    break
            if a < 0:
                a, left_a = job, run[job, pool]
            else:
                b, left_b = job, run[job, pool]
            if note:
                d.start[job] = now
            k += 1
        if a < 0 and b < 0:
            return float(now)
        speed_a, speed_b = 1.0, 1.0
        if a >= 0 and b >= 0:
            # Two that met by accident (their pair is not in the table) are taken to halve each other.
            speed_a, speed_b = pair[pool, app[a], app[b]], pair[pool, app[b], app[a]]
            if speed_a <= 0.0 or speed_b <= 0.0:
                speed_a, speed_b = 0.5, 0.5
        end_a = left_a / speed_a if a >= 0 else math.inf
        end_b = left_b / speed_b if b >= 0 else math.inf
        step = min(end_a, end_b)
        now += step
        d.ended[a if end_a <= end_b else b] = now
        if end_a <= end_b:
            a = -1
            left_b = max(0.0, left_b - step * speed_b)
        else:
            b = -1
            left_a = max(0.0, left_a - step * speed_a)
