"""The compiled core in pieces, for runs whose events Python decides: a pass, an end, a job taken off its nodes.

`advisor.sim.planned` keeps its own list of ends, because they move as neighbours come and go; the core's heap
of ends is not used here.
"""

from __future__ import annotations

from advisor.sim.compiled import entry
from advisor.sim.core import _finish, _pass
from advisor.sim.placing import account, enqueue, start_chosen
from advisor.sim.state import HEAP, RUNNING, Jobs, Machine, Rules, State


@entry
def schedule_pass(m: Machine, jobs: Jobs, s: State, rules: Rules, now: float) -> None:
    """One pass of the scheduler over the queue as it stands."""
    _pass(m, jobs, s, rules, rules.backfill, now)
    s.counters[HEAP] = 0


@entry
def start_on(m: Machine, jobs: Jobs, s: State, job: int, place: int, now: float) -> None:
    """Starts a job that is not in the queue any more on the nodes in `chosen`."""
    start_chosen(m, jobs, s, job, place, now)
    s.counters[HEAP] = 0


@entry
def finish(m: Machine, jobs: Jobs, s: State, job: int) -> None:
    """Ends a job: its nodes are free, its followers may come."""
    _finish(m, jobs, s, job)


@entry
def take_off(m: Machine, jobs: Jobs, s: State, job: int) -> None:
    """Takes a running job off its nodes without ending it."""
    account(m, jobs, s, job, 1)
    n = s.counters[RUNNING]
    i = 0
    while i < n and s.running[i] != job:
        i += 1
    for k in range(i, n - 1):
        s.running[k] = s.running[k + 1]
    s.counters[RUNNING] = n - 1
    if jobs.array[job] >= 0:
        s.array_running[jobs.array[job]] -= 1


@entry
def enqueue_again(jobs: Jobs, s: State, job: int) -> None:
    """Puts a job that was taken off its nodes back into the queue, where its priority and its submission belong."""
    enqueue(s.counters, s.queue, jobs.priority, job)
