"""Whether a partition takes a job, by the partition's limits as slurmctld and the last poll tell them.

Errs on the side of no: what is doubtful is refused, and the job stays as its user wrote it.
Whether the partition's nodes can hold the job is `advisor.performance.demand`'s question.
"""

from __future__ import annotations

import msgspec

from advisor.cluster.types import Partition
from advisor.performance.demand import Need
from advisor.policy.interface import JobShape
from advisor.protocol import PartitionLimits, SubmitRequest


class Asked(msgspec.Struct, frozen=True):
    """What the job asks for by itself, so that no default of a partition applies."""

    time_limit: bool
    memory: bool
    whole_nodes: bool


class Terms(msgspec.Struct, frozen=True):
    """What a job silently gets from its partition; moving it must not change any of it."""

    limit: int | None  # minutes it gets when it asks for no time limit; None: unlimited, or it asks
    memory_per_node: int | None
    memory_per_cpu: int | None
    whole_nodes: bool


def terms(partition: Partition, limits: PartitionLimits, asked: Asked) -> Terms:
    """The terms of a partition, as far as the job does not set them itself."""
    limit = None
    if not asked.time_limit:
        limit = _first(limits.default_time, partition.default_time, limits.max_time, partition.max_time)
    return Terms(
        limit=limit,
        memory_per_node=None if asked.memory else partition.def_mem_per_node,
        memory_per_cpu=None if asked.memory else partition.def_mem_per_cpu,
        whole_nodes=partition.exclusive and not asked.whole_nodes,
    )


def refusal(partition: Partition, limits: PartitionLimits, request: SubmitRequest, shape: JobShape) -> str | None:
    """Why the partition would not take the job, or None."""
    if not (partition.up and limits.up):
        return "it is not up"
    if request.time_limit is not None:
        most = _least(partition.max_time, limits.max_time)
        if most is not None and request.time_limit > most:
            return f"its time limit is {most} min"
    fewest = max(partition.min_nodes or 0, limits.min_nodes or 0)
    if shape.nodes < fewest:
        return f"it gives no job fewer than {fewest} nodes"
    why = None
    if partition.allow_accounts or partition.deny_accounts or limits.allow_accounts or limits.deny_accounts:
        why = _account_refusal(partition, limits, shape)
    if partition.allow_qos or partition.deny_qos or limits.allow_qos or limits.deny_qos:
        why = why or _qos_refusal(partition, limits, request)
    return why


def too_large(partition: Partition, limits: PartitionLimits, shape: JobShape, need: Need) -> bool:
    """Whether the job, as it would lie on some pool's nodes, exceeds a limit of the partition."""
    most = _least(partition.max_nodes, limits.max_nodes)
    if most is not None and max(need.nodes, shape.demand.max_nodes or 0) > most:
        return True
    most = _least(partition.max_cpus_per_node, limits.max_cpus_per_node)
    if most is not None and need.cpus_per_node > most:
        return True
    most = _least(partition.max_mem_per_node, limits.max_mem_per_node)
    if most and need.memory_per_node > most:
        return True
    # Slurm gives a job more CPUs than it asked for rather than exceed this; CPUs must not change.
    most = _least(partition.max_mem_per_cpu, limits.max_mem_per_cpu)
    return bool(most and need.memory_per_node > most * need.cpus_per_node)


def _account_refusal(partition: Partition, limits: PartitionLimits, shape: JobShape) -> str | None:
    for allowed in (_names(limits.allow_accounts), partition.allow_accounts):
        if allowed and shape.account not in {name.lower() for name in allowed}:
            return f"account {shape.account or '(unknown)'} may not use it"
    for denied in (_names(limits.deny_accounts), partition.deny_accounts):
        if denied and (not shape.account or shape.account in {name.lower() for name in denied}):
            return f"account {shape.account or '(unknown)'} may not use it"
    return None


def _qos_refusal(partition: Partition, limits: PartitionLimits, request: SubmitRequest) -> str | None:
    qos = (request.qos or request.default_qos or "").lower()
    for allowed in (_names(limits.allow_qos), partition.allow_qos):
        if allowed and qos not in {name.lower() for name in allowed}:
            return f"QOS {qos or '(unknown)'} may not use it"
    for denied in (_names(limits.deny_qos), partition.deny_qos):
        if denied and (not qos or qos in {name.lower() for name in denied}):
            return f"QOS {qos or '(unknown)'} may not use it"
    return None


def _names(text: str | None) -> tuple[str, ...] | None:
    """A comma separated list; None where it does not restrict."""
    if text is None or not text.strip() or text.strip().upper() == "ALL":
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
