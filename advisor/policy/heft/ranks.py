"""Upward ranks: how long it takes from the beginning of a task to the end of everything that waits for it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Task = TypeVar("Task", bound=Hashable)


def upward_ranks(
    seconds: Mapping[Task, float],
    followers: Mapping[Task, Sequence[Task]],
    transfer: Mapping[tuple[Task, Task], float] | None = None,
) -> dict[Task, float]:
    """Rank of each task: its mean run time + the largest of (transfer + rank) among its followers.

    Followers that are not in `seconds` are passed over (they are not known yet); the graph has no cycles.
    """
    ranks: dict[Task, float] = {}
    moved = transfer or {}
    for first in seconds:
        stack = [first]
        while stack:
            task = stack[-1]
            if task in ranks:
                stack.pop()
                continue
            known = [other for other in followers.get(task, ()) if other in seconds]
            waiting = [other for other in known if other not in ranks]
            if waiting:
                stack += waiting
                continue
            behind = max((moved.get((task, other), 0.0) + ranks[other] for other in known), default=0.0)
            ranks[task] = seconds[task] + behind
            stack.pop()
    return ranks
