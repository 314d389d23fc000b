"""Workloads made of workflows: chains, fork and join, maps with a reduce, and jobs of their own in between.

A drawn task keeps its cluster, apps, run times and load; its jobs are dealt out to workflows, each submitted by one
script: all its jobs at once, whoever waits for others named by `--dependency`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.policy.learned.shapes import Floats, Ints
from advisor.sim.engine import Schedule
from advisor.sim.workload import Workload
from advisor.training.tasks import Mixture, Task, draw_task

# Seconds between two submissions of one script.
BETWEEN_S = 0.2
# Shares of jobs of their own, chains, fork and join, maps and reduce among what is submitted.
SHAPES = (0.4, 0.2, 0.2, 0.2)


class Pipelines(msgspec.Struct, frozen=True):
    """A task, and which workflow each of its jobs is of."""

    task: Task
    workflow: Ints  # [job] number, in the order of submission

    def makespans(self, schedule: Schedule) -> Floats:
        """Of each workflow: from its first submission to its last end."""
        return np.asarray(self._spans(schedule)[np.bincount(self.workflow) > 1])

    def alone(self, schedule: Schedule) -> Floats:
        """Completion times of the jobs that are no workflow's."""
        return np.asarray(self._spans(schedule)[np.bincount(self.workflow) == 1])

    def _spans(self, schedule: Schedule) -> Floats:
        submit = np.asarray([job.submit for job in self.task.workload.jobs])
        count = int(self.workflow.max()) + 1
        first, last = np.full(count, np.inf), np.zeros(count)
        np.minimum.at(first, self.workflow, submit)
        np.maximum.at(last, self.workflow, schedule.end)
        return np.asarray(last - first)


def draw_pipelines(seed: int, mixture: Mixture) -> Pipelines:
    """The task of this seed with its jobs in workflows."""
    task = draw_task(seed, msgspec.structs.replace(mixture, workflows=0.0))
    draw = np.random.default_rng([seed, 79])
    jobs = task.workload.jobs
    leaders: list[tuple[int, ...]] = []
    workflow: list[int] = []
    while len(leaders) < len(jobs):
        first, number = len(leaders), workflow[-1] + 1 if workflow else 0
        shape = _shape(draw, first)[: len(jobs) - first]
        leaders += shape
        workflow += [number] * len(shape)
    of = np.asarray(workflow, dtype=np.int64)
    starts = np.searchsorted(of, of)  # the first job of each job's workflow
    # The workflow comes when the middle one of its jobs would have: the load stays as it is drawn.
    submit = np.asarray([job.submit for job in jobs])
    middle = starts + (np.bincount(of)[of] - 1) // 2
    at = submit[middle] + BETWEEN_S * (np.arange(len(jobs)) - starts)
    order = np.argsort(at, kind="stable")
    renumbered = np.argsort(order)
    changed = [
        msgspec.structs.replace(
            jobs[j], id=str(renumbered[j]), submit=float(at[j]), depends=tuple(str(renumbered[d]) for d in leaders[j])
        )
        for j in order
    ]
    after = np.zeros(len(jobs))
    best = task.expected.min(axis=1)
    for j in range(len(jobs) - 1, -1, -1):
        for d in leaders[j]:
            after[d] = max(after[d], after[j] + best[j])
    rows = {
        name: getattr(task, name)[order]
        for name in ("expected", "spread", "slow", "counters", "sensitivity", "new", "app", "pressure", "told", "mean")
    }
    arranged = msgspec.structs.replace(
        task, workload=Workload(task.workload.name, tuple(changed)), after=after[order], **rows
    )
    return Pipelines(arranged, of[order])


def _shape(draw: np.random.Generator, first: int) -> list[tuple[int, ...]]:
    """Whom each job of a workflow waits for; `first` is the number of its first job."""
    kind = int(draw.choice(len(SHAPES), p=SHAPES))
    if kind == 0:
        return [()]
    if kind == 1:
        return [(), *((first + k,) for k in range(int(draw.integers(1, 5))))]
    width = int(draw.integers(3, 13))
    if kind == 2:
        return [(), *([(first,)] * width), tuple(range(first + 1, first + 1 + width))]
    maps = tuple(range(first, first + width))
    return [*([()] * width), *([maps] * int(draw.integers(1, 3)))]
