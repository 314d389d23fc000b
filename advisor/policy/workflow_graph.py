"""One run of a workflow: its tasks, who waits for whom, and what that says about the next run of the same name.

Leaders are always submitted before their followers, so that the graph has no cycles and one pass from the last task to
the first gives every task's tail: the time from its end to the end of everything behind it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

# How much of what is remembered of a workflow the last run of it replaces.
_NEWEST = 0.5
MOST_APPS = 256


class Task(msgspec.Struct):
    """One decision, as far as others may wait for its job."""

    token: str
    number: int  # in the order of decisions
    user: str
    app: str
    leaders: tuple[str, ...] = ()
    run_s: float = 0.0
    end: float | None = None  # expected; None: it could not be told
    earliest_end: float | None = None  # at the place where it would have ended first
    job: int | None = None  # its id, where an order of submissions told it


class Past(msgspec.Struct, frozen=True):
    """What earlier runs of a workflow say of its apps: time after them, and time to spare."""

    tail_s: dict[str, float] = {}
    spare_s: dict[str, float] = {}


class Graph:
    """The tasks of one run so far, in the order of their submission."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: Task) -> None:
        """One more task; leaders that are not of this workflow are none of its edges."""
        self._tasks.setdefault(task.token, task)

    def update(self, ends: Mapping[str, float]) -> None:
        """Takes later word of when tasks end."""
        if len(ends) < len(self._tasks):
            for token in ends.keys() & self._tasks.keys():
                self._tasks[token].end = ends[token]
            return
        for token, task in self._tasks.items():
            task.end = ends.get(token, task.end)

    def over(self, now: float, after_s: float) -> bool:
        """Whether all tasks should have ended long ago."""
        return all(task.end is not None and task.end + after_s < now for task in self._tasks.values())

    def tails(self) -> dict[str, float]:
        """Of each task (by token), seconds from its end to the end of the last one behind it, if none has to queue."""
        found = dict.fromkeys(self._tasks, 0.0)
        for token, task in reversed(self._tasks.items()):
            behind = found[token] + task.run_s
            for leader in task.leaders:
                # A task that names itself or a later one is not waited for: only earlier ones can be leaders.
                if leader in found and self._tasks[leader].number < task.number:
                    found[leader] = max(found[leader], behind)
        return found

    def expected_end(self, past: Past | None) -> float:
        """When the last task ends, with what earlier runs had behind those that have no follower yet."""
        tails = self.tails()
        end = 0.0
        for token, task in self._tasks.items():
            tail = max(tails[token], past.tail_s.get(task.app, 0.0) if past is not None else 0.0)
            end = max(end, (task.end or 0.0) + tail)
        return end

    def summed_up(self, past: Past | None) -> Past:
        """What is remembered of the workflow once this run is over."""
        tails = self.tails()
        ends = {token: task.earliest_end or task.end or 0.0 for token, task in self._tasks.items()}
        last = max((ends[token] + tails[token] for token in tails), default=0.0)
        tail_s: dict[str, float] = {}
        spare_s: dict[str, float] = {}
        for token, task in self._tasks.items():
            # Of several tasks of one app the one with most behind it and least to spare counts.
            tail_s[task.app] = max(tail_s.get(task.app, 0.0), tails[token])
            spare = max(last - ends[token] - tails[token], 0.0)
            spare_s[task.app] = min(spare_s.get(task.app, spare), spare)
        return Past(
            _mixed(past.tail_s if past is not None else {}, tail_s),
            _mixed(past.spare_s if past is not None else {}, spare_s),
        )


def _mixed(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    mixed = {app: _NEWEST * value + (1 - _NEWEST) * before.get(app, value) for app, value in now.items()}
    return dict(list(mixed.items())[:MOST_APPS])
