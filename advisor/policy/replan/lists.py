"""Lists of jobs in arrays, as the searches keep them: the first `count` places of a row, in order."""

from __future__ import annotations

from advisor.policy.replan.machine_code import compiled
from advisor.policy.replan.problem import Ints

# How a search judges. How sharply a sum of powers looks at its largest terms;
TAIL_POWER = 8.0
OVER_SQUARED = 10.0  # makespan: weight of the square of what is beyond the goal;
TIGHTER = 0.998  # the next goal, once one is met.


@compiled
def insert(jobs: Ints, count: int, job: int, at: int) -> None:
    """Puts a job in; those behind it move back."""
    for k in range(count, at, -1):
        jobs[k] = jobs[k - 1]
    jobs[at] = job


@compiled
def remove(jobs: Ints, count: int, at: int) -> None:
    """Takes a job out; those behind it move up."""
    for k in range(at, count - 1):
        jobs[k] = jobs[k + 1]
