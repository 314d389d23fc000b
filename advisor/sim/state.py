"""The arrays that the simulator's compiled core works on.

`Machine` and `Jobs` do not change during a run; `State` does. They are named tuples because numba
reads those, and because a copy of `State` is a complete checkpoint of a run. Resources of a node stand side by side
in the last axis: CPUS, MEMORY, GPUS.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

CPUS, MEMORY, GPUS = range(3)
RESOURCES = 3
REFUSED = 8  # how many jobs that found no nodes are kept in mind during a pass

# How pending jobs may overtake.
FIFO, EASY, CONSERVATIVE, SLURM = 0, 1, 2, 3
# How a job's place is found: by its list of places, by earliest expected finish at submission, or
# by taking the shortest job whenever something comes free.
LISTED, EARLIEST_FINISH, SHORTEST_FIRST = 0, 1, 2

# Slots of State.counters.
HEAD, TAIL, RUNNING, NEXT_SUBMIT, HEAP, ENDED, RESERVED, PASSES, DIRTY = range(9)
# Slots of State.clock.
NOW, LAST_PASS, DIRTY_SINCE, CHANGED, NEXT_BACKFILL = range(5)
CLOCKS = 5


class Machine(NamedTuple):
    """Nodes and places; `place_nodes[place_first[p]:place_first[p + 1]]` are the nodes of place p."""

    size: Ints  # [node, resource]
    place_first: Ints
    place_nodes: Ints
    node_first: Ints  # the same the other way: the places of a node
    node_places: Ints
    partition: Ints  # [place] which partition it belongs to


class Jobs(NamedTuple):
    """Jobs in the order of submission."""

    submit: Floats
    nodes: Ints
    need: Ints  # [job, resource] on each node
    exclusive: Flags
    limit: Floats  # what the scheduler plans with, in seconds
    priority: Floats
    run: Floats  # [job, place] seconds its nodes are held: launch, and the true run time cut at the limit; inf: cannot
    expected: Floats  # [job, place] what a policy believes
    options: Ints  # [job, k] places in the order in which they are tried, then -1
    array: Ints  # -1, or the number of its array
    array_limit: Ints  # of each array
    follower_first: Ints  # jobs that wait for job j: followers[follower_first[j]:follower_first[j + 1]]
    followers: Ints
    slot_first: Ints  # where the nodes of job j stand in State.slots


class State(NamedTuple):
    """What changes during a run."""

    counters: Ints
    clock: Floats
    free: Ints  # [node, resource]
    place_free: Ints  # [place, resource]
    queue: Ints  # pending and eligible, queue[HEAD:TAIL], first to start first
    running: Ints  # running, by expected end
    heap_time: Floats  # true ends
    heap_job: Ints
    start: Floats  # nan: not started
    end: Floats
    place: Ints  # -1: not started
    waits_for: Ints  # dependencies not yet ended
    array_running: Ints
    slots: Ints  # nodes of each started job
    # Reservations of the present pass.
    reserved_job: Ints
    reserved_start: Floats
    reserved_end: Floats
    reserved_nodes: Flags  # [reservation, node]
    spare: Ints  # [reservation, node, resource] left at the reservation's start
    promised: Floats  # [job] start of the first reservation the job got; nan: it never held one
    refusals: Ints  # [place] jobs that found no nodes there in the present pass
    refused: Ints  # [place, k] the last few of them
    # Scratch.
    chosen: Ints
    then: Ints  # [node, resource] what the running jobs leave by some time
    left: Ints  # [node, resource] the same, less what reservations hold then
    units: Floats


class Rules(NamedTuple):
    """How the scheduler behaves; see `advisor.sim.engine.Scheduler`, which explains each."""

    backfill: int
    decide: int
    depth: int
    cycle_s: float
    callback: bool
    latency_s: float
    beat_s: float
    backfill_interval_s: float
    resolution_s: float
    since_24_11: bool
    window_s: float
    reservations: int
    horizon_s: float
    backfill_start_s: float
    passes: Floats  # of a replay: when passes came, and when backfill did
    backfills: Floats
    until: float  # the run stops before anything later than this
