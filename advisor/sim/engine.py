"""Runs a workload on a cluster: builds the arrays, lets the compiled core run, gives back the schedule.

`Engine` is used in one go (`run`) with a policy that the core knows, or stepwise (`decide_next`) by a
policy in Python that is asked at each submission. Same workload, cluster, scheduler and seed: the
same schedule, byte for byte.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import msgspec
import numpy as np

from advisor.sim.cluster import SimCluster
from advisor.sim.state import (
    CLOCKS,
    CONSERVATIVE,
    CPUS,
    EARLIEST_FINISH,
    EASY,
    ENDED,
    FIFO,
    GPUS,
    LAST_PASS,
    LISTED,
    NEXT_BACKFILL,
    NOW,
    PASSES,
    REFUSED,
    RESOURCES,
    SHORTEST_FIRST,
    SLURM,
    Flags,
    Floats,
    Ints,
    Jobs,
    Machine,
    Rules,
    State,
)
from advisor.sim.workload import SimJob, Workload

Choose = Callable[[int, float], Sequence[int]]  # (job, now) → places in the order to try


class Scheduler(msgspec.Struct, frozen=True):
    """How the simulated slurmctld behaves."""

    # `slurm`: as slurmctld does it, step by step (`advisor.sim.slurmctld`); the others are those of the literature.
    backfill: Literal["none", "easy", "conservative", "slurm"] = "easy"
    depth: int = 500  # jobs looked at in one pass, as bf_max_job_test
    reservations: int = 64  # conservative: most jobs that hold a reservation
    cycle_s: float = 0.0  # least seconds between two passes
    launch_s: float = 0.0  # seconds between the start of an allocation and the job's first instruction
    complete_s: float = 0.0  # seconds for which the nodes stay held after the job's end
    beat_s: float = 0.0  # passes come at multiples of this only (slurmctld looks once a second); 0: at once
    latency_s: float = (
        0.0  # seconds from a submission or an end to the pass that sees it; with a beat: how long after it
    )
    # 0: every pass backfills. Else, as in Slurm, passes that follow an event stop at the first job of a partition
    # that cannot start, and backfill comes by itself every so many seconds (bf_interval).
    backfill_interval_s: float = 0.0
    backfill_phase_s: float = 0.0  # where its beat falls: when it comes first
    # Only for `slurm`:
    resolution_s: float = 60.0  # reservations begin and end on multiples of this (bf_resolution)
    since_24_11: bool = True  # as from 24.11 on: their ends are rounded up, and slots tried in another order
    window_s: float = 30.0  # running jobs that end this close to each other count as one end
    horizon_s: float = 86400.0  # how far ahead reservations are made (bf_window)
    backfill_start_s: float = 0.0  # by how much each job that backfill starts puts off its next look
    # To replay a real run: when its passes came, and when backfill did, in place of the beats above.
    passes: tuple[float, ...] = ()
    backfills: tuple[float, ...] = ()


class ImpossibleJobError(Exception):
    """A job that no place of this cluster can ever run; the text names it and what it wants."""


class Schedule(msgspec.Struct, frozen=True):
    """What happened to every job, in the order of the workload."""

    start: Floats
    end: Floats
    place: Ints
    timed_out: Flags
    nodes_first: Ints  # nodes of job j: nodes[nodes_first[j]:nodes_first[j + 1]]
    nodes: Ints
    promised: Floats  # start of the first reservation the job got; nan: it never held one
    passes: int
    # Only of runs with levers (`advisor.sim.planned`):
    held: Floats | None = None  # GPU (or CPU) seconds that each job held, a shared GPU counted in parts
    requeues: Ints | None = (
        None  # how often each job was taken off its nodes; start and place are those of its last run
    )
    failed: Flags | None = None  # ended by a node's failure

    def nodes_of(self, job: int) -> tuple[int, ...]:
        """Indices of the nodes that job number `job` ran on."""
        return tuple(int(n) for n in self.nodes[self.nodes_first[job] : self.nodes_first[job + 1]])

    def to_bytes(self) -> bytes:
        """All of it as bytes, to compare two runs."""
        return b"".join(a.tobytes() for a in (self.start, self.end, self.place, self.nodes, self.promised))


class Engine:
    """One run of one workload on one cluster."""

    def __init__(
        self,
        cluster: SimCluster,
        workload: Workload,
        scheduler: Scheduler | None = None,
        expected: Floats | None = None,
    ) -> None:
        """`expected[job, place]`: what policies believe of the run times; default: the truth."""
        self.cluster = cluster
        self.workload = workload
        self.scheduler = scheduler or Scheduler()
        self.machine = _machine(cluster)
        with _no_collection():
            self.true_run, self.limit = _run_times(cluster, workload.jobs)
            self.jobs = _jobs(cluster, workload, self.scheduler, self.true_run, self.limit, expected)
        easy = self.scheduler.backfill != "conservative"
        self.state = _state(self.machine, self.jobs, len(cluster.places) if easy else self.scheduler.reservations)
        self.state.clock[NEXT_BACKFILL] = self.scheduler.backfill_phase_s

    @property
    def now(self) -> float:
        """The simulated time."""
        return float(self.state.clock[NOW])

    def feasible(self, job: int) -> list[int]:
        """Places that can run the job, in the cluster's order."""
        return [int(p) for p in np.flatnonzero(np.isfinite(self.jobs.run[job]))]

    def run(
        self,
        options: Sequence[Sequence[int]] | None = None,
        order: Literal["listed", "earliest-finish", "shortest-first"] = "listed",
    ) -> Schedule:
        """Runs to the end. `options[job]`: places in the order to try; default: all that can run it."""
        if options is not None:
            self.jobs.options[:] = -1
            for j, places in enumerate(options):
                self.jobs.options[j, : len(places)] = places
        decide = {"listed": LISTED, "earliest-finish": EARLIEST_FINISH, "shortest-first": SHORTEST_FIRST}
        self._core(decide[order], callback=False)
        return self.schedule()

    def run_deciding(self, choose: Choose) -> Schedule:
        """Runs to the end, asking `choose` for each job's places at its submission."""
        from advisor.sim import core

        while (job := self._core(LISTED, callback=True)) >= 0:
            places = list(choose(job, self.now))
            if not places:
                raise ValueError(f"the policy gave no place for job {self.workload.jobs[job].id!r}")
            self.jobs.options[job] = -1
            self.jobs.options[job, : len(places)] = places
            core.submit(self.jobs, self.state, job)
        return self.schedule()

    def schedule(self) -> Schedule:
        """What has happened; all jobs must have ended."""
        if self.state.counters[ENDED] != len(self.workload.jobs):
            stuck = np.flatnonzero(np.isnan(self.state.end))
            raise RuntimeError(f"{len(stuck)} jobs never ran, the first {self.workload.jobs[stuck[0]].id!r}")
        rows = np.arange(len(self.workload.jobs))
        return Schedule(
            start=self.state.start,
            end=self.state.end - self.scheduler.complete_s,
            place=self.state.place,
            timed_out=self.true_run[rows, self.state.place] > self.limit,
            nodes_first=self.jobs.slot_first,
            nodes=self.state.slots,
            promised=self.state.promised,
            passes=int(self.state.counters[PASSES]),
        )

    def rules(self, decide: int, callback: bool, until: float = np.inf) -> Rules:
        """The scheduler's settings as the core takes them."""
        modes = {"none": FIFO, "easy": EASY, "conservative": CONSERVATIVE, "slurm": SLURM}
        return Rules(
            modes[self.scheduler.backfill],
            decide,
            self.scheduler.depth,
            float(self.scheduler.cycle_s),
            callback,
            float(self.scheduler.latency_s),
            float(self.scheduler.beat_s),
            float(self.scheduler.backfill_interval_s),
            float(self.scheduler.resolution_s),
            self.scheduler.since_24_11,
            float(self.scheduler.window_s),
            self.scheduler.reservations,
            float(self.scheduler.horizon_s),
            float(self.scheduler.backfill_start_s),
            np.asarray(self.scheduler.passes, dtype=np.float64),
            np.asarray(self.scheduler.backfills, dtype=np.float64),
            until,
        )

    def _core(self, decide: int, callback: bool, until: float = np.inf) -> int:
        from advisor.sim import core

        return core.run(self.machine, self.jobs, self.state, self.rules(decide, callback, until))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector would walk over a million jobs again and again while their arrays are built."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _ints(values: Sequence[int] | Sequence[tuple[int, ...]]) -> Ints:
    return np.asarray(values, dtype=np.int64)


def _starts(lengths: Sequence[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(_ints(lengths)))).astype(np.int64)


def _machine(cluster: SimCluster) -> Machine:
    of_node: list[list[int]] = [[] for _ in cluster.nodes]
    partitions = list(dict.fromkeys(place.partition for place in cluster.places))
    for p, place in enumerate(cluster.places):
        for node in place.nodes:
            of_node[node].append(p)
    return Machine(
        size=_ints([(n.cpus, n.memory_mb, n.gpus) for n in cluster.nodes]).reshape(-1, RESOURCES),
        place_first=_starts([len(p.nodes) for p in cluster.places]),
        place_nodes=_ints([n for p in cluster.places for n in p.nodes]),
        node_first=_starts([len(places) for places in of_node]),
        node_places=_ints([p for places in of_node for p in places]),
        partition=_ints([partitions.index(place.partition) for place in cluster.places]),
    )


def _run_times(cluster: SimCluster, jobs: Sequence[SimJob]) -> tuple[Floats, Floats]:
    """True run times [job, place] (inf: cannot run there) and the users' limits.

    Where a job has no limit, the scheduler plans with the longest of its run times: a perfect estimate, the
    usual reading of logs that did not record requested times.
    """
    run = np.full((len(jobs), len(cluster.places)), np.inf)
    limit = np.empty(len(jobs))
    sizes = [_sizes(cluster, p) for p in range(len(cluster.places))]
    held: dict[tuple[int, int, int, int], list[bool]] = {}  # many jobs ask for the same
    for j, job in enumerate(jobs):
        longest = 0.0
        asked = (job.nodes, job.cpus, job.memory_mb, job.gpus)
        if asked not in held:
            held[asked] = [_holds(job, of_place) for of_place in sizes]
        for p, place in enumerate(cluster.places):
            seconds = job.seconds_on(place.processor)
            if seconds is None or not held[asked][p]:
                continue
            if place.max_time_s is not None and job.time_limit is not None and job.time_limit > place.max_time_s:
                continue
            run[j, p] = seconds
            longest = max(longest, seconds)
        if not np.isfinite(run[j]).any():
            raise ImpossibleJobError(
                f"job {job.id!r} ({job.nodes} nodes, {job.cpus} CPUs, {job.memory_mb} MB, {job.gpus} GPUs; runs on "
                f"{', '.join(job.run_time) or 'nothing'}) fits no place of the cluster "
                f"({', '.join(p.name for p in cluster.places)})"
            )
        # A reservation of no length would protect nothing.
        limit[j] = max(longest, 1.0) if job.time_limit is None else job.time_limit
    return run, limit


def _sizes(cluster: SimCluster, place: int) -> Counter[tuple[int, int, int]]:
    """How many nodes of each size a place has."""
    nodes = (cluster.nodes[n] for n in cluster.places[place].nodes)
    return Counter((node.cpus, node.memory_mb, node.gpus) for node in nodes)


def needs(job: SimJob) -> tuple[int, int, int]:
    """What each of a job's nodes must give: CPUs, memory, GPUs."""
    return (-(-job.cpus // job.nodes), -(-job.memory_mb // job.nodes), -(-job.gpus // job.nodes))


def _holds(job: SimJob, sizes: Counter[tuple[int, int, int]]) -> bool:
    cpus, memory, gpus = needs(job)
    return sum(count for (c, m, g), count in sizes.items() if cpus <= c and memory <= m and gpus <= g) >= job.nodes


def _jobs(
    cluster: SimCluster,
    workload: Workload,
    scheduler: Scheduler,
    true_run: Floats,
    limit: Floats,
    expected: Floats | None,
) -> Jobs:
    jobs = workload.jobs
    number = {job.id: j for j, job in enumerate(jobs)}
    followers: list[list[int]] = [[] for _ in jobs]
    for j, job in enumerate(jobs):
        for other in set(job.depends):
            followers[number[other]].append(j)
    arrays: dict[str, int] = {}
    array_limits: list[int] = []
    array = np.full(len(jobs), -1, dtype=np.int64)
    for j, job in enumerate(jobs):
        if job.array is not None:
            if job.array not in arrays:
                arrays[job.array] = len(array_limits)
                array_limits.append(job.array_limit)
            array[j] = arrays[job.array]
    # Places that can run a job in the cluster's order, then -1.
    possible = np.isfinite(true_run)
    options = np.where(np.sort(~possible, axis=1), -1, np.argsort(~possible, axis=1, kind="stable")).astype(np.int64)
    # Slurm counts from the allocation on.
    planned = limit if scheduler.backfill == "slurm" else limit + scheduler.launch_s
    around = scheduler.launch_s + scheduler.complete_s
    exclusive = np.asarray([job.exclusive for job in jobs], dtype=np.bool_)
    return Jobs(
        submit=np.asarray([job.submit for job in jobs], dtype=np.float64),
        nodes=_ints([job.nodes for job in jobs]),
        need=_ints([needs(job) for job in jobs]).reshape(-1, RESOURCES),
        exclusive=exclusive,
        limit=planned,
        priority=np.asarray([job.priority for job in jobs], dtype=np.float64),
        run=np.where(np.isfinite(true_run), np.minimum(true_run, limit[:, None]) + around, np.inf),
        expected=np.ascontiguousarray(true_run if expected is None else expected, dtype=np.float64),
        options=options,
        array=array,
        array_limit=_ints(array_limits or [0]),
        follower_first=_starts([len(f) for f in followers]),
        followers=_ints([f for group in followers for f in group]),
        slot_first=_starts([job.nodes for job in jobs]),
    )


def _state(m: Machine, jobs: Jobs, reservations: int) -> State:
    n, j = len(m.size), len(jobs.submit)
    waits = np.zeros(j, dtype=np.int64)
    np.add.at(waits, jobs.followers, 1)
    members = [m.place_nodes[a:b] for a, b in zip(m.place_first[:-1], m.place_first[1:], strict=True)]
    totals = np.asarray([m.size[nodes].sum(axis=0) for nodes in members], dtype=np.int64)
    state = State(
        counters=np.zeros(9, dtype=np.int64),
        clock=np.zeros(CLOCKS),
        free=m.size.copy(),
        place_free=totals.copy(),
        queue=np.zeros(j, dtype=np.int64),
        running=np.zeros(j, dtype=np.int64),
        heap_time=np.zeros(j),
        heap_job=np.zeros(j, dtype=np.int64),
        start=np.full(j, np.nan),
        end=np.full(j, np.nan),
        place=np.full(j, -1, dtype=np.int64),
        waits_for=waits,
        array_running=np.zeros(len(jobs.array_limit), dtype=np.int64),
        slots=np.full(int(jobs.slot_first[-1]), -1, dtype=np.int64),
        reserved_job=np.zeros(reservations, dtype=np.int64),
        reserved_start=np.zeros(reservations),
        reserved_end=np.zeros(reservations),
        reserved_nodes=np.zeros((reservations, n), dtype=np.bool_),
        spare=np.zeros((reservations, n, RESOURCES), dtype=np.int64),
        promised=np.full(j, np.nan),
        refusals=np.zeros(len(members), dtype=np.int64),
        refused=np.zeros((len(members), REFUSED), dtype=np.int64),
        chosen=np.zeros(n, dtype=np.int64),
        then=np.zeros((n, RESOURCES), dtype=np.int64),
        left=np.zeros((n, RESOURCES), dtype=np.int64),
        units=np.zeros(int(totals[:, (CPUS, GPUS)].max(initial=1))),
    )
    state.clock[LAST_PASS] = -1e18
    return state
