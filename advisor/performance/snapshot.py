"""What the hot path reads: the cluster boiled down to pools, with the queue ahead already scheduled.

A pool is a set of nodes that are alike (same partitions, same processors, same sizes, same features).
A cluster of ten thousand nodes has a few dozen pools, so a decision costs the same on a large
cluster as on a small one. Built in the background by `advisor.performance.queue`, swapped in whole.
"""

from __future__ import annotations

from itertools import accumulate

import msgspec

from advisor.cluster.types import Gres, Partition
from advisor.performance.slowdowns import Slowdowns
from advisor.performance.told import Told


class Pool(msgspec.Struct, frozen=True):
    """Nodes that are interchangeable for a job."""

    index: int
    partitions: tuple[str, ...]
    nodes: int  # usable now
    cpus_per_node: int
    memory_per_node: int
    gres_per_node: tuple[Gres, ...]
    features: frozenset[str]
    node_names: tuple[str, ...] = ()  # a few, for people to read
    processor: str = "cpu"  # the GPU type ("gpu" where it has none), or "cpu"
    gpus_per_node: int = 0  # of all types
    shards_per_gpu: int = 1  # what a GPU is counted in on timelines: parts of it may be given to different jobs
    sockets: int = 1
    weight: int = 1  # Slurm fills the lightest nodes first
    hardware: int = -1  # pools with the same number differ only in their partitions; -1: not known
    away: int = 0  # nodes that Slurm knows and that take no job now: drained, down

    def gpus(self, gpu_type: str | None = None) -> int:
        """GPUs of one node: of one type, or of any."""
        if gpu_type is None:
            return self.gpus_per_node
        return sum(gres.count for gres in self.gres_per_node if gres.name == "gpu" and gres.type == gpu_type)

    @property
    def shards_per_node(self) -> int:
        """The GPUs of one node in the units in which timelines count them."""
        return self.gpus_per_node * self.shards_per_gpu

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The types of its GPUs; most pools with GPUs have one."""
        return tuple(sorted({gres.type for gres in self.gres_per_node if gres.name == "gpu" and gres.type is not None}))


class Timeline(msgspec.Struct, frozen=True):
    """When units (GPUs, CPUs) of a pool come free, after everything that runs and waits ahead.

    `times[i]` is when `counts[i]` more units come free; times ascend. `holes` are stretches that the
    queue ahead leaves unused (start, end, units), by start: a short job may slip in (backfill).
    """

    times: tuple[float, ...]
    counts: tuple[int, ...]
    holes: tuple[tuple[float, float, int], ...] = ()
    cumulative: tuple[int, ...] = ()  # running sum of counts, filled in by itself
    longest: float = 0.0  # seconds of the longest hole, filled in by itself

    def __post_init__(self) -> None:
        if len(self.cumulative) != len(self.counts):
            msgspec.structs.force_setattr(self, "cumulative", tuple(accumulate(self.counts)))
            longest = max([end - start for start, end, _ in self.holes], default=0.0)
            msgspec.structs.force_setattr(self, "longest", longest)


class RunTimes(msgspec.Struct, frozen=True):
    """Summary of past runs of one app on one processor type: of log seconds."""

    count: int
    mean_log: float
    sd_log: float
    # From the run-time model: `sd_log` is then the whole spread of the next run, and `count` may be 0.
    modelled: bool = False
    log_units: float = 0.0  # the size that `mean_log` is about: log of GPUs, or of cores where there are none
    size_slope: float = 0.0  # how `mean_log` changes with the log of the size
    # What more runs would settle of `mean_log`: the part shared by all processors, and that of this one alone.
    doubt_log: float = 0.0
    apart_log: float = 0.0
    # The work that `mean_log` is about, where runs have told theirs (a logarithm), and how that of others scatters.
    log_work: float | None = None
    work_sd: float = 0.0
    # Other sizes that the app has had, in GPUs, each with its own mean and spread of log seconds.
    sizes: tuple[tuple[int, float, float], ...] = ()


class Underway(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job that runs or waits: when it is expected to end, and the token of its decision where it has one."""

    end: float
    token: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """Everything a decision may look at. Immutable; the daemon swaps in the next one whole."""

    cluster: str
    release: tuple[int, int]
    taken_at: float
    partitions: dict[str, Partition]  # their node lists are left empty: pools stand for them
    pools: tuple[Pool, ...]
    gpu_timelines: dict[int, tuple[Timeline, ...]]  # pool index → one per priority tier, as in tiers
    cpu_timelines: dict[int, tuple[Timeline, ...]]
    tiers: tuple[int, ...]  # partition priority tiers, highest first; close ones merged where there are many
    history: dict[str, dict[str, RunTimes]]  # app → processor → past runs
    queued: int = 0
    running: int = 0
    tokens: frozenset[str] = frozenset()  # of live jobs whose admin_comment says advisor=TOKEN
    pools_of: dict[str, tuple[int, ...]] = {}  # partition → its pools
    gpu_types_of: dict[str, tuple[str | None, ...]] = {}  # partition → types, also of nodes that are down
    load: tuple[float, ...] = ()  # share of each pool's scarcer units in use, by pool index
    waiting: tuple[int, ...] = ()  # jobs queued ahead in each pool, by pool index
    # Partition → how waits really are, see `advisor.performance.wait_model.corrected`.
    wait_corrections: dict[str, tuple[tuple[float, float, float], ...]] = {}
    # Jobs that the next submission may wait for, by their id: the ones submitted last, and those others wait for.
    underway: dict[int, Underway] = {}
    newest_job: int = 0  # the highest job id; what is neither underway nor newer has ended, or is too old to matter
    slowdowns: Slowdowns | None = None  # by who shares the nodes; None: nobody does, or nothing is known of it
    # Of each pool: resource → mean and spread of the share of it that running jobs use, where agents tell.
    beliefs: tuple[dict[str, tuple[float, float]], ...] = ()
    # App → GPU type → jobs of it that an optimisation policy owes there; empty under other policies.
    owed: dict[str, dict[str, float]] = {}
    told: Told | None = None  # how far off annotations are, for apps that have never run; None: taken at their word

    def tier_index(self, priority_tier: int) -> int:
        """Which of a pool's timelines a job of this partition tier sees: all jobs of its tier are ahead."""
        for index, tier in enumerate(self.tiers):
            if priority_tier >= tier:
                return index
        return len(self.tiers) - 1
