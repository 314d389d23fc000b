"""Plans several pending jobs together with the simulator's own rule (`advisor.policy.replan`): place and order.

Turns what the round has seen into the rule's arrays, and its plan into a pool for each job. Needs numpy and numba (the
`sim` extra); where they are missing, each job is looked at by itself. Machine code is made by a process of its own the
first time, and rounds go on without a plan until it is there.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from advisor.performance.demand import Need
from advisor.performance.queue import Schedule
from advisor.performance.snapshot import Pool
from advisor.performance.track import Track

if TYPE_CHECKING:  # numpy is there only where plans are made
    from advisor.policy.replan.problem import Floats, Waiting

log = logging.getLogger(__name__)

# As in the simulator (`advisor.sim.planner`): more units than this in a pool are planned in groups.
_MOST_UNITS = 256
_STEPS_A_JOB = 1500
# A step costs about as much as the list and the units that it goes through: together not much more than two seconds.
_MOST_WORK = 1.5e7
# A plan that is not better than what there is by this share changes nobody's turn, and moves nobody for others' sake.
WORTH = 0.02


class Turn(msgspec.Struct, frozen=True):
    """One job of the line: what it would take of each pool it may go to."""

    job_id: int
    here: int  # the pool that it waits for
    options: dict[int, tuple[Need, float]]  # pool → what it takes, for how many seconds
    waited_s: float
    tasks: int = 1  # that run side by side
    weight: float = 1.0  # what its end counts beside that of others: less where its workflow does not wait for it


class Planned(msgspec.Struct, frozen=True):
    """The plan: for each job of the line its pool and its start, in seconds from now."""

    pool: dict[int, int]
    start: dict[int, float]
    sooner: dict[int, float]  # by how many seconds it starts before the time at which it would as things are
    better: bool  # by enough to change something for it


class Planner:
    """Plans as soon as its machine code is there."""

    def __init__(self) -> None:
        self._maker: subprocess.Popen[bytes] | None = None
        self.missing = _missing()
        self._ready = False

    def ready(self) -> bool:
        """Whether it can plan now; the first call has the machine code made."""
        if self.missing or self._ready:
            return self._ready
        if self._maker is None:
            # Compiling holds the interpreter for seconds, which this process needs for its polls.
            self._maker = subprocess.Popen(
                [sys.executable, "-P", "-m", "advisor.server.rounds.planning"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        code = self._maker.poll()
        if code is None:
            return False
        if code:
            self.missing = f"the planner cannot be used (exit code {code}); its message is in the daemon's log"
            log.error("%s; pending jobs are looked at one by one", self.missing)
            return False
        self._ready = True
        return True

    def plan(
        self,
        line: Sequence[Turn],
        schedule: Schedule,
        now: float,
        objective: str,
        reorder: bool,
        longest_wait_s: float,
        seed: int = 0,
    ) -> Planned:
        """The plan for the jobs of the line; `schedule` has what runs on it, and nothing that waits."""
        return _plan(line, schedule, now, objective, reorder, longest_wait_s, seed)


def _missing() -> str:
    for name in ("numpy", "numba"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed (pip install 'slurm-advisor[sim]')"
    return ""


def _plan(
    line: Sequence[Turn],
    schedule: Schedule,
    now: float,
    objective: str,
    reorder: bool,
    longest_wait_s: float,
    seed: int,
) -> Planned:
    import numpy as np

    from advisor.policy.replan import Waiting, plan_pools

    if not any(turn.weight for turn in line):
        return Planned({}, {}, {}, False)  # nobody waits, or none whose end counts
    pools = sorted({pool for turn in line for pool in turn.options})
    column = {pool: number for number, pool in enumerate(pools)}
    units = [_units(schedule.pools[pool]) for pool in pools]
    run = np.full((len(line), len(pools)), np.inf)
    width = np.ones((len(line), len(pools)), dtype=np.int64)
    for row, turn in enumerate(line):
        for pool, (need, seconds) in turn.options.items():
            run[row, column[pool]] = max(seconds, 1.0)
            width[row, column[pool]] = _width(schedule.pools[pool], need, units[column[pool]], turn.tasks)
    waiting = Waiting(
        run=run,
        width=width,
        age=np.asarray([turn.waited_s for turn in line]),
        weight=np.asarray([turn.weight for turn in line]),
        before=np.asarray([column.get(turn.here, -1) for turn in line], dtype=np.int64),
        position=np.arange(len(line), dtype=np.float64),
        fixed=np.asarray([turn.waited_s > longest_wait_s for turn in line]),
    )
    ready = [np.asarray(_ready(schedule, pool, units[column[pool]], now)) for pool in pools]
    a_step = len(line) / max(len(pools), 1) + max(units, default=1)
    steps = min(_STEPS_A_JOB * len(line), int(_MOST_WORK / a_step))
    as_it_is = plan_pools(waiting, ready, objective, False, 0, seed)
    plan = plan_pools(waiting, ready, objective, reorder, steps, seed)
    rows = np.arange(len(line))
    ends = [_goal(each.start + run[rows, each.pool], waiting, objective) for each in (as_it_is, plan)]
    return Planned(
        {turn.job_id: pools[int(pool)] for turn, pool in zip(line, plan.pool, strict=True) if pool >= 0},
        {turn.job_id: float(start) for turn, start in zip(line, plan.start, strict=True)},
        {turn.job_id: float(gain) for turn, gain in zip(line, as_it_is.start - plan.start, strict=True)},
        bool(ends[1] < (1.0 - WORTH) * ends[0]),
    )


def _goal(after: Floats, waiting: Waiting, objective: str) -> float:
    """What the objective asks for, of ends that are counted from now."""
    import numpy as np

    if objective == "makespan":
        return float(after.max(initial=0.0))
    if objective == "p99_jct":
        return float(np.quantile(after + waiting.age, 0.99))
    return float((after * waiting.weight).sum() / waiting.weight.sum())


def _units(pool: Pool) -> int:
    return max(min(pool.nodes * (pool.gpus_per_node or pool.cpus_per_node), _MOST_UNITS), 1)


def _width(pool: Pool, need: Need, units: int, tasks: int) -> int:
    """How many of a pool's units a job takes, by what it needs most of."""
    cpus, gpus = pool.nodes * pool.cpus_per_node, pool.nodes * pool.shards_per_node
    part = max(need.cpus / cpus if cpus else 1.0, need.gpus / gpus if gpus else 0.0) * tasks
    return min(max(math.ceil(part * units - 1e-9), 1), units)


def _ready(schedule: Schedule, pool: int, units: int, now: float) -> list[float]:
    """When the units of a pool come free, in seconds from now."""
    track: Track = schedule.gpus[pool] if schedule.pools[pool].gpus_per_node else schedule.cpus[pool]
    times = [max(time - now, 0.0) for time, count in track.chunks for _ in range(count)]
    if len(times) > units:
        times = [times[round((i + 1) * len(times) / units) - 1] for i in range(units)]
    return times or [0.0] * units


def _make_machine_code() -> None:
    """Plans a small problem, which compiles whatever is not in the cache."""
    import numpy as np

    from advisor.policy.replan import Waiting, plan_pools

    waiting = Waiting(
        run=np.asarray([[2.0, 1.0], [1.0, 2.0]]),
        width=np.ones((2, 2), dtype=np.int64),
        age=np.zeros(2),
        weight=np.ones(2),
        before=np.zeros(2, dtype=np.int64),
        position=np.arange(2, dtype=np.float64),
        fixed=np.zeros(2, dtype=np.bool_),
    )
    plan_pools(waiting, [np.zeros(1), np.zeros(1)], "avg_jct", True, 10)


if __name__ == "__main__":
    _make_machine_code()
