"""Who ran beside whom: from finished jobs on nodes to how much of each other app every run had around it.

Accounting knows when each job was on which nodes. A run's exposure to an app is the share of its time in which a job
of that app was on its node, times the share of the node that this job held; several jobs add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job that has ended, or of one that still runs (`end`: now)."""

    app: str
    family: str  # apps of one family differ in a number only
    processor: str
    nodes: tuple[str, ...]
    start: float
    end: float
    completed: bool = True  # others press on their neighbours too, but their own run time tells nothing
    size: int = 0  # binary logarithm of its cores or GPUs: runs of different sizes are not compared
    share: float = 1.0  # of each of its nodes


def exposures(runs: Sequence[Run]) -> list[dict[str, float]]:
    """For each run, app → how much of it was beside the run; of several nodes the mean."""
    found: list[dict[str, float]] = [{} for _ in runs]
    by_node: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        if run.end > run.start:
            for node in run.nodes:
                by_node.setdefault(node, []).append(index)
    for members in by_node.values():
        members.sort(key=lambda index: runs[index].start)
        present: list[int] = []
        for index in members:
            run = runs[index]
            present = [other for other in present if runs[other].end > run.start]
            for other in present:
                _meet(runs, found, index, other)
            present.append(index)
    return found


def _meet(runs: Sequence[Run], found: list[dict[str, float]], one: int, other: int) -> None:
    a, b = runs[one], runs[other]
    together = min(a.end, b.end) - max(a.start, b.start)
    for index, me, neighbour in ((one, a, b), (other, b, a)):
        part = together / (me.end - me.start) * neighbour.share / len(me.nodes)
        mine = found[index]
        mine[neighbour.app] = mine.get(neighbour.app, 0.0) + part
