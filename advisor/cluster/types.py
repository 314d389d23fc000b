"""Nodes, partitions and jobs of a Slurm cluster, as plain immutable types.

Every source (Slurm's commands of each release, pyslurm, a recorded file) fills these and nothing
else leaves this room, so that the rest of the advisor never sees how a release spells things.
Times are Unix seconds, memory is MB, time limits are minutes, as in Slurm.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Gres(msgspec.Struct, frozen=True, omit_defaults=True):
    """A count of a generic resource, with its type where one is known: `gpu:v100:2`."""

    name: str
    count: int
    type: str | None = None


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node: what it has and what is allocated."""

    name: str
    states: tuple[str, ...]  # Slurm's base state and flags, upper case: ("IDLE", "DRAIN")
    cpus: int
    memory_mb: int
    gres: tuple[Gres, ...] = ()
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cpus_allocated: int = 0
    memory_allocated_mb: int = 0
    gres_allocated: tuple[Gres, ...] = ()
    sockets: int = 1
    weight: int = 1

    @property
    def usable(self) -> bool:
        """Whether Slurm would start a new job here, now or when what runs there ends."""
        return not (set(self.states) & UNUSABLE_NODE_STATES)


UNUSABLE_NODE_STATES = frozenset(
    {
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "ERROR",
        "FAIL",
        "FAILING",
        "FUTURE",
        "INVALID_REG",
        "MAINT",
        "MAINTENANCE",
        "NOT_RESPONDING",
        "PERFCTRS",
        "POWERING_DOWN",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
        "RESERVED",
        "UNKNOWN",
    }
)


class Partition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One partition, its nodes and its limits. A limit that is None does not limit."""

    name: str
    nodes: tuple[str, ...]
    up: bool = True
    default: bool = False
    max_time: int | None = None  # minutes
    default_time: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None
    max_mem_per_node: int | None = None
    max_mem_per_cpu: int | None = None
    def_mem_per_node: int | None = None
    def_mem_per_cpu: int | None = None
    allow_accounts: tuple[str, ...] | None = None  # None: all
    deny_accounts: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] | None = None
    allow_qos: tuple[str, ...] | None = None
    deny_qos: tuple[str, ...] = ()
    priority_tier: int = 1
    exclusive: bool = False  # OverSubscribe=EXCLUSIVE: every job gets whole nodes
    oversubscribe: int = 1  # jobs per resource; FORCE:n and YES:n give n


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A running or pending job record. A pending array is one record that stands for `tasks` jobs."""

    job_id: int
    states: tuple[str, ...]  # base state first: ("RUNNING",), ("PENDING",), ("COMPLETING",), …
    name: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    partitions: tuple[str, ...] = ()  # running: the one it runs in
    reason: str = ""
    priority: int = 0
    submit_time: int = 0
    eligible_time: int = 0
    start_time: int | None = None
    time_limit: int | None = None  # minutes; None: unlimited
    nodes: tuple[str, ...] = ()  # only once allocated
    node_count: int = 1
    cpus: int = 1  # in all
    memory_mb: int = 0  # in all
    gres: tuple[Gres, ...] = ()  # in all, allocated or requested
    features: str = ""
    dependency: str = ""
    exclusive: bool = False
    array_job_id: int | None = None
    array_task: str | None = None  # "3", or "0-9%2" while pending
    tasks: int = 1  # how many jobs this record stands for
    admin_comment: str = ""
    restarts: int = 0

    @property
    def running(self) -> bool:
        """Whether it holds resources now."""
        return bool(self.states) and self.states[0] in (
            "RUNNING",
            "COMPLETING",
            "SUSPENDED",
            "CONFIGURING",
            "STAGE_OUT",
        )

    @property
    def pending(self) -> bool:
        """Whether it waits for resources, or for leave to."""
        return bool(self.states) and self.states[0] == "PENDING"


class ClusterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that one poll of Slurm told."""

    cluster: str
    release: tuple[int, int]  # (24, 11)
    taken_at: float
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    jobs: tuple[Job, ...]


class SourceError(Exception):
    """Slurm could not be asked, or its answer could not be read; the text says what to do."""


class Source(Protocol):
    """Something that can tell the state of the cluster."""

    name: str

    def read(self) -> ClusterState:
        """One complete reading; raises `SourceError`."""
        ...
