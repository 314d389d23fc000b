"""How much each waiting job of a workflow counts where several are planned together.

Whoever runs a workflow waits for its end: a job that holds up the end counts as a job of its own does, one that has
time to spare counts for less, and jobs that hold it up together share the weight. What comes after a job is read from
the followers that wait already.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

# Of the time until the workflow's end: with so much to spare a job counts a third (1/e).
SPARE = 0.3
# Several that hold up the end: of n alike, each counts n ** -SHARED.
SHARED = 0.5
# Nobody counts for less: what is expected may be wrong.
LEAST = 0.1


def urgencies(
    ends: Mapping[int, float], leaders: Mapping[int, Sequence[int]], waiting: Collection[int], now: float
) -> dict[int, float]:
    """Weights of those in `waiting` that belong to a workflow; everyone else's is 1.

    `ends`: when each job that has not ended is expected to; `leaders`: whom each follower waits for. Leaders have the
    lower number, as in Slurm; one that has not is passed over, so that nothing goes in a circle.
    """
    before = {
        follower: [leader for leader in named if leader in ends and leader < follower]
        for follower, named in leaders.items()
        if follower in ends
    }
    root = _roots(before)
    tail = dict.fromkeys(root, 0.0)
    for follower in sorted(before, reverse=True):
        ready = max((ends[leader] for leader in before[follower]), default=now)
        behind = tail.get(follower, 0.0) + max(ends[follower] - ready, 0.0)
        for leader in before[follower]:
            tail[leader] = max(tail[leader], behind)
    over: dict[int, float] = {}
    for job, first in root.items():
        over[first] = max(over.get(first, now), ends[job] + tail[job])
    found: dict[int, float] = {}
    held_up: dict[int, float] = {}
    for job in waiting:
        if job not in root:
            continue
        last = over[root[job]]
        spare = last - ends[job] - tail[job]
        found[job] = math.exp(-spare / (SPARE * max(last - now, 1.0)))
        held_up[root[job]] = held_up.get(root[job], 0.0) + found[job]
    return {job: max(value / max(held_up[root[job]], 1.0) ** SHARED, LEAST) for job, value in found.items()}


def _roots(before: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Of each job that is tied to another one, the first of its workflow."""
    root: dict[int, int] = {}

    def first(job: int) -> int:
        while root.setdefault(job, job) != job:
            root[job] = root[root[job]]
            job = root[job]
        return job

    for follower, named in before.items():
        for leader in named:
            a, b = first(leader), first(follower)
            root[max(a, b)] = min(a, b)
    return {job: first(job) for job in list(root)}
