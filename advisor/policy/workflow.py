"""Jobs that belong together: by `--dependency`, or by the annotation `workflow: NAME` of the same user.

`Workflows` remembers what was decided, so that a job is placed for the time at which its leaders will have ended, and
one whose workflow has time to spare leaves the fast processors to those that have none. Slurm tells a job's id only
after its submission: until a poll shows it, ids are matched by the order of submissions. Everything is bounded; names
are only ever compared.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

import msgspec

from advisor.performance.dependency import parse
from advisor.performance.snapshot import Snapshot
from advisor.policy.workflow_graph import Graph, Past, Task

# Decisions whose job id is not known yet, in all and of one user; they are known a poll later.
MAX_UNKNOWN, MAX_OF_USER = 8192, 512
# Users' workflows that are remembered, and tasks of one; a task beyond that is placed as a job of its own.
MAX_WORKFLOWS, MAX_TASKS = 1024, 512
# A workflow is over when all its tasks should have ended so long ago: the next task of that name begins a new one.
OVER_S = 600.0
# Of the time that a task has to spare by the others' expected ends, or had in earlier runs, what is counted on: the
# others may end sooner.
COUNTED_ON = 0.3


class Belonging(msgspec.Struct, frozen=True):
    """What a submission has to do with other jobs, as far as it bears on where it should go."""

    ready_at: float = 0.0  # its leaders are expected to have ended by then
    known: bool = True  # whether that is so; otherwise it is placed as if it could start now
    leaders: tuple[str, ...] = ()  # tokens
    workflow: str | None = None
    tail_s: float = 0.0  # after its end, until the workflow's
    others_end: float = 0.0  # when the rest of its workflow is expected to end
    spare_s: float = 0.0  # what it had to spare in earlier runs


ALONE = Belonging()


class Workflows:
    """For one decider; owned by one thread."""

    def __init__(self) -> None:
        self._number = 0
        self._unknown: OrderedDict[str, Task] = OrderedDict()  # by token, in the order of submission
        self._by_user: dict[str, deque[Task]] = {}  # the same
        self._anchor: tuple[int, int] | None = None  # a job id and the number of its decision
        self._live: OrderedDict[tuple[str, str], Graph] = OrderedDict()
        self._past: OrderedDict[tuple[str, str], Past] = OrderedDict()

    def __len__(self) -> int:
        """Tasks that are remembered."""
        return len(self._unknown) + sum(len(graph) for graph in self._live.values())

    def belonging(
        self, user: str, dependency: str | None, workflow: str | None, app: str, snapshot: Snapshot, now: float
    ) -> Belonging:
        """What a submission belongs to. Looks only."""
        if not dependency and workflow is None:
            return ALONE
        ready, known, leaders = self._leaders(user, dependency, snapshot)
        if workflow is None:
            return Belonging(max(ready, now), known, leaders)
        graph = self._live.get((user, workflow))
        past = self._past.get((user, workflow))
        if graph is not None and graph.over(now, OVER_S):
            past, graph = graph.summed_up(past), None
        if past is None or app not in past.tail_s:
            # What comes after it is not known: it may well be the longest way to the end.
            return Belonging(max(ready, now), known, leaders, workflow)
        return Belonging(
            max(ready, now),
            known,
            leaders,
            workflow,
            tail_s=past.tail_s[app],
            others_end=graph.expected_end(past) if graph is not None else 0.0,
            spare_s=past.spare_s.get(app, 0.0),
        )

    def add(
        self,
        token: str,
        user: str,
        app: str,
        belonging: Belonging,
        now: float,
        end: float | None = None,
        earliest_end: float | None = None,
        run_s: float = 0.0,
    ) -> None:
        """A decision was made; `end`: of its job, where that could be told, and `earliest_end` at the best place."""
        self._number += 1
        task = Task(token, self._number, user, app, belonging.leaders, run_s, end, earliest_end)
        self._unknown[token] = task
        mine = self._by_user.setdefault(user, deque())
        mine.append(task)
        if len(mine) > MAX_OF_USER:
            self._forget(mine[0].token)
        elif len(self._unknown) > MAX_UNKNOWN:
            self._forget(next(iter(self._unknown)))
        if belonging.workflow is None or end is None:
            return
        key = (user, belonging.workflow)
        graph = self._live.get(key)
        if graph is not None and graph.over(now, OVER_S):
            self._past[key] = graph.summed_up(self._past.get(key))
            self._past.move_to_end(key)
            graph = None
        if graph is None:
            graph = self._live[key] = Graph()
        self._live.move_to_end(key)
        if len(graph) < MAX_TASKS:
            graph.add(task)
        while len(self._live) > MAX_WORKFLOWS:
            gone, old = self._live.popitem(last=False)
            self._past[gone] = old.summed_up(self._past.get(gone))
        while len(self._past) > MAX_WORKFLOWS:
            self._past.popitem(last=False)

    def seen(self, snapshot: Snapshot) -> None:
        """Takes from a poll which job each decision became, and when tasks are expected to end now."""
        ends: dict[str, float] = {}
        for job, underway in snapshot.underway.items():
            if not underway.token:
                continue
            ends[underway.token] = underway.end
            task = self._unknown.get(underway.token)
            if task is not None and (self._anchor is None or task.number > self._anchor[1]):
                self._anchor = (job, task.number)
        # What the poll shows, and what is so old that it must have shown it, needs no guess any more.
        for token in [token for token in self._unknown if token in ends or token in snapshot.tokens]:
            self._forget(token)
        if self._anchor is not None:
            for token, task in list(self._unknown.items()):
                if task.number >= self._anchor[1]:
                    break
                self._forget(token)
        for graph in self._live.values():
            graph.update(ends)

    def _forget(self, token: str) -> None:
        task = self._unknown.pop(token, None)
        mine = self._by_user.get(task.user) if task is not None else None
        if task is None or mine is None:
            return
        if mine[0] is task:
            mine.popleft()
        else:
            mine.remove(task)
        if not mine:
            del self._by_user[task.user]

    def _leaders(self, user: str, text: str | None, snapshot: Snapshot) -> tuple[float, bool, tuple[str, ...]]:
        """When the leaders will have ended, whether that is known, and their tokens as far as they have any."""
        dependency = parse(text)
        if dependency is None:
            return 0.0, False, ()
        guessed = self._matched(user, [job for job in dependency.jobs if job > snapshot.newest_job])
        leaders: list[str] = []
        known = True
        ends: dict[int, float] = {}
        for job in dependency.jobs:
            underway = snapshot.underway.get(job)
            if underway is not None:
                ends[job] = underway.end
                if underway.token:
                    leaders.append(underway.token)
            elif job > snapshot.newest_job:
                task = guessed.get(job)
                if task is None or task.end is None:
                    known = False
                else:
                    ends[job] = task.end
                    leaders.append(task.token)
            # Anything else has ended: Slurm would not have taken a job that waits for one it does not know.
        return dependency.over_at(lambda job: ends.get(job, 0.0)), known, tuple(leaders)

    def _matched(self, user: str, jobs: Iterable[int]) -> dict[int, Task]:
        """Which of the user's decisions became these jobs, by order: ids ascend with submissions."""
        wanted = sorted(set(jobs))
        mine = self._by_user.get(user, ()) if wanted else ()
        found = {task.job: task for task in mine if task.job is not None and task.job in wanted}
        left = [job for job in wanted if job not in found]
        open_ = [task for task in mine if task.job is None]
        if len(left) == len(open_):
            found.update(zip(left, open_, strict=True))
        elif self._anchor is not None:
            # Others submit in between, and each submission takes the next id.
            at_job, at_number = self._anchor
            for job in left:
                if not open_:
                    break
                number = at_number + job - at_job
                task = min(open_, key=lambda each: abs(each.number - number))
                found[job] = task
                open_ = [each for each in open_ if each.number > task.number]
        for job, task in found.items():
            task.job = job
        return found
