"""A task as arrays for the compiled loop, and all that changes while it runs.

`World` stays, `State` changes; a copy of `State` is a fork. Few arrays with named columns instead of many arrays:
numba's compile time grows with their number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.policy.learned.shapes import GLOBAL_FEATURES, MEMORY, NODE_OUT, POOL_FEATURES, TICKS, Floats, Ints
from advisor.training.machine_code import inner

# Columns of World.job; the dataflow graph's embedding follows.
SUBMIT, ASKED, SENSITIVITY, AFTER, NEW, LIMIT, GRAPH = range(7)
# Columns of World.pair.
EXPECTED, TRUE, SPREAD, SLOW, BELIEF, BELIEF_SPREAD, COUNTER = range(7)  # the other counters follow
# Slots of State.usual.
GAP_FAST, GAP_SLOW, RUN, LOG_RUN, LOG_RUN_SQUARED, WORK, LAST_SUBMIT, LAST_TICK, COUNT, FAMILIAR = range(10)
# Columns of State.by_pool.
SLOWER, BEST_FOR, BEST_WORK = range(3)
# Columns of State.times.
START, END = range(2)


class World(NamedTuple):
    """What does not change: pools, jobs, and what is true and what is believed of each job in each pool."""

    units: Ints  # [pool]
    figures: Floats  # [pool, 3]
    sources: Ints
    targets: Ints
    edges: Floats
    job: Floats  # [job, columns above]
    pair: Floats  # [job, pool, columns above]; run times are inf where it cannot run
    parents: Ints  # [job, k] jobs that must end first, or -1
    scale: float  # mean of the jobs' best run times: the unit of costs
    usual: float  # mean time in the system under the arithmetic


class State(NamedTuple):
    """What changes: the pools' jobs, and what the policy remembers."""

    free: Floats  # [pool, unit] when it is free for good, ascending; inf beyond the pool's units
    active: Ints  # [pool, k] jobs not yet ended, in the order of submission
    held: Ints  # [pool] how many of those
    place: Ints  # [job]
    times: Floats  # [job, start and end]
    usual: Floats
    by_pool: Floats  # [pool, 3]
    moments: Floats  # [tick, global feature], the oldest first
    pools: Floats  # [pool, pool feature] at the last look
    topology: Floats  # [pools + 1, NODE_OUT]
    memory: Floats
    line: Floats  # scratch: one pool's units


def new_state(world: World) -> State:
    """An empty cluster, and a policy that has seen nothing."""
    pools, jobs, most = len(world.units), len(world.job), int(world.units.max())
    free = np.full((pools, most), np.inf)
    for p, units in enumerate(world.units):
        free[p, :units] = 0.0
    return State(
        free=free,
        active=np.zeros((pools, jobs), dtype=np.int64),
        held=np.zeros(pools, dtype=np.int64),
        place=np.full(jobs, -1, dtype=np.int64),
        times=np.zeros((jobs, 2)),
        usual=np.zeros(10),
        by_pool=np.zeros((pools, 3)),
        moments=np.zeros((TICKS, len(GLOBAL_FEATURES))),
        pools=np.zeros((pools, len(POOL_FEATURES))),
        topology=np.zeros((pools + 1, NODE_OUT)),
        memory=np.zeros(MEMORY),
        line=np.zeros(most),
    )


@inner
def copied(s: State) -> State:
    """A fork: the same state, which goes its own way from here."""
    return State(
        s.free.copy(),
        s.active.copy(),
        s.held.copy(),
        s.place.copy(),
        s.times.copy(),
        s.usual.copy(),
        s.by_pool.copy(),
        s.moments.copy(),
        s.pools.copy(),
        s.topology.copy(),
        s.memory.copy(),
        s.line.copy(),
    )
