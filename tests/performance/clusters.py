"""Tiny clusters for tests of queues and waits: one node, or a few, with jobs on them."""

from __future__ import annotations

import itertools
from typing import Any

from advisor.cluster.types import ClusterState, Gres, Job, Node, Partition

NOW = 1_750_000_000.0
_numbers = itertools.count(1)


def one_pool(*, gpus: int, jobs: list[Job], cpus: int = 64, partitions: tuple[Partition, ...] = ()) -> ClusterState:
    """One node `n` with GPUs of one type, in partition `main` (or those given)."""
    partitions = partitions or (Partition("main", ("n",), default=True),)
    node = Node("n", ("MIXED",), cpus, 64_000, (Gres("gpu", gpus, "v100"),) if gpus else ())
    return ClusterState("tiny", (24, 11), NOW, (node,), partitions, tuple(jobs))


def running(*, minutes: int, gpus: int = 0, cpus: int = 1, ago: int = 0, **more: Any) -> Job:
    """A job that has run for `ago` seconds and may run for `minutes` in all."""
    return Job(
        job_id=next(_numbers),
        states=("RUNNING",),
        partitions=more.pop("partitions", ("main",)),
        start_time=int(NOW) - ago,
        time_limit=minutes,
        nodes=more.pop("nodes", ("n",)),
        cpus=cpus,
        gres=(Gres("gpu", gpus, "v100"),) if gpus else (),
        **more,
    )


def pending(*, minutes: int, gpus: int = 0, cpus: int = 1, **more: Any) -> Job:
    return Job(
        job_id=next(_numbers),
        states=("PENDING",),
        partitions=more.pop("partitions", ("main",)),
        reason=more.pop("reason", "Priority"),
        time_limit=minutes,
        cpus=cpus,
        gres=(Gres("gpu", gpus),) if gpus else (),
        **more,
    )
