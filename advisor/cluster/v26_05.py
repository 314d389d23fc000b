"""The JSON of `scontrol --json` from 26.05: partitions say their flags, and how jobs share is said in other words.

Nodes are as in 24.11. A job's own `--exclusive` is no longer told while it waits (`shared` is always empty); once it
runs, it shows in its allocation.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from advisor.cluster.facts import oversubscription
from advisor.cluster.json_stream import records
from advisor.cluster.types import Job, Partition
from advisor.cluster.v24_11 import (
    JOB,
    NODE,
    PARTITION,
    AllocatedNodes,
    JobRecord,
    PartitionRecord,
    job,
    nodes,
    partition,
    words,
)

__all__ = ["JOB", "NODE", "PARTITION", "jobs", "nodes", "partitions"]


def partitions(output: Iterable[bytes]) -> tuple[Partition, ...]:
    """Partitions from `scontrol --json show partition`."""
    return tuple(_partition(record) for record in records(output, "partitions", PartitionRecord))


def jobs(output: Iterable[bytes]) -> tuple[Job, ...]:
    """Live jobs from `scontrol --json show job` (or `squeue --json`)."""
    return tuple(live for record in records(output, "jobs", JobRecord) if (live := _job(record)) is not None)


def _job(record: JobRecord) -> Job | None:
    live = job(record)
    held = record.job_resources.nodes if record.job_resources else None
    if live is not None and isinstance(held, AllocatedNodes) and held.whole:
        return msgspec.structs.replace(live, exclusive=True)
    return live


def _partition(record: PartitionRecord) -> Partition:
    _, shares = oversubscription(record.partition.oversubscribe or "NO")
    return msgspec.structs.replace(
        partition(record),
        default="DEFAULT" in words(record.flags),
        exclusive=(record.partition.exclusive or "NO").upper() in ("NODE", "TOPO"),
        oversubscribe=shares,
    )
