"""The JSON of `scontrol --json show node|partition|job` from 23.02 to 25.11.

Only the fields that are used are decoded. Over these releases a number became `{"set": …, "infinite": …,
"number": …}`, a state became a list and lists became strings; every such field is read either way. The JSON of these
releases does not tell the default partition (nor, in 23.02, a partition's state): the source reads partitions as text.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from advisor.cluster.facts import (
    Requests,
    allowed,
    holds_resources,
    hosts,
    job_gres,
    job_states,
    memory_in_all,
    names,
    node_states,
)
from advisor.cluster.gres import merge, parse_gres, parse_tres
from advisor.cluster.hostlist import count_tasks
from advisor.cluster.json_stream import records
from advisor.cluster.types import Job, Node, Partition, SourceError

NODE = ("-a", "--json", "show", "node")
PARTITION = ("-a", "--json", "show", "partition")
JOB = ("-a", "--json", "show", "job")

_SHARED_FORCE = 0x8000


class Optional(msgspec.Struct):
    """Slurm's number that may be unset or infinite."""

    set: bool = False
    infinite: bool = False
    number: int | float = 0


Number = int | float | str | Optional | None
Words = str | list[str] | None


class NodeRecord(msgspec.Struct):
    """A node, as far as it is used."""

    name: str
    state: Words
    real_memory: Number
    cpus: Number = None
    effective_cpus: Number = None
    specialized_memory: Number = None
    gres: str | None = None
    gres_used: str | None = None
    tres_used: str | None = None
    active_features: Words = None
    partitions: Words = None
    alloc_cpus: Number = None
    alloc_memory: Number = None
    sockets: Number = None
    weight: Number = None


class Listed(msgspec.Struct):
    """Who may and who may not."""

    allowed: str | None = None
    deny: str | None = None


class PartitionNodes(msgspec.Struct):
    """A partition's nodes."""

    configured: str | None = None


class Defaults(msgspec.Struct):
    """What a job gets that does not ask."""

    time: Number = None
    partition_memory_per_cpu: Number = None
    partition_memory_per_node: Number = None


class Oversubscribe(msgspec.Struct):
    """Jobs per resource."""

    jobs: Number = None


class Maximums(msgspec.Struct):
    """What a job may ask for."""

    time: Number = None
    nodes: Number = None
    cpus_per_node: Number = None
    partition_memory_per_cpu: Number = None
    partition_memory_per_node: Number = None
    shares: Number = None
    oversubscribe: Oversubscribe | None = None


class Minimums(msgspec.Struct):
    """What a job must ask for."""

    nodes: Number = None


class Priority(msgspec.Struct):
    """Which partition's jobs go first."""

    tier: Number = None


class PartitionState(msgspec.Struct):
    """Whether it takes jobs, and from 26.05 how they share."""

    state: Words = None
    exclusive: str | None = None
    oversubscribe: str | None = None


class PartitionRecord(msgspec.Struct):
    """A partition, as far as it is used."""

    name: str
    nodes: PartitionNodes
    accounts: Listed = msgspec.field(default_factory=Listed)
    groups: Listed = msgspec.field(default_factory=Listed)
    qos: Listed = msgspec.field(default_factory=Listed)
    defaults: Defaults = msgspec.field(default_factory=Defaults)
    maximums: Maximums = msgspec.field(default_factory=Maximums)
    minimums: Minimums = msgspec.field(default_factory=Minimums)
    priority: Priority = msgspec.field(default_factory=Priority)
    partition: PartitionState = msgspec.field(default_factory=PartitionState)
    flags: Words = None  # from 26.05


class AllocatedNodes(msgspec.Struct):
    """How a job holds its nodes."""

    whole: bool | None = None


class JobResources(msgspec.Struct):
    """What a running job holds."""

    nodes: AllocatedNodes | str | None = None  # 23.02: a node list


class JobRecord(msgspec.Struct):
    """A job, as far as it is used."""

    job_id: int
    job_state: Words
    name: str | None = None
    user_name: str | None = None
    account: str | None = None
    qos: str | None = None
    partition: str | None = None
    state_reason: str | None = None
    state_description: str | None = None
    priority: Number = None
    submit_time: Number = None
    eligible_time: Number = None
    start_time: Number = None
    time_limit: Number = None
    nodes: str | None = None
    node_count: Number = None
    cpus: Number = None
    tasks: Number = None
    sockets_per_node: Number = None
    memory_per_cpu: Number = None
    memory_per_node: Number = None
    tres_alloc_str: str | None = None
    tres_req_str: str | None = None
    tres_per_job: str | None = None
    tres_per_node: str | None = None
    tres_per_socket: str | None = None
    tres_per_task: str | None = None
    gres_detail: list[str] | None = None
    features: str | None = None
    dependency: str | None = None
    shared: Words = None  # empty from 26.05
    job_resources: JobResources | None = None
    array_job_id: Number = None
    array_task_id: Number = None
    array_task_string: str | None = None
    admin_comment: str | None = None
    restart_cnt: Number = None


def nodes(output: Iterable[bytes]) -> tuple[Node, ...]:
    """Nodes from `scontrol --json show node`."""
    return tuple(_node(record) for record in records(output, "nodes", NodeRecord))


def partitions(output: Iterable[bytes]) -> tuple[Partition, ...]:
    """Partitions from `scontrol --json show partition`; `default` is not known before 26.05."""
    return tuple(partition(record) for record in records(output, "partitions", PartitionRecord))


def jobs(output: Iterable[bytes]) -> tuple[Job, ...]:
    """Live jobs from `scontrol --json show job` (or `squeue --json`)."""
    found = (job(record) for record in records(output, "jobs", JobRecord))
    return tuple(live for live in found if live is not None)


def number(value: Number) -> int | None:
    """A number in any of its shapes; None where it is unset, infinite or no number."""
    if isinstance(value, Optional):
        if not value.set or value.infinite:
            return None
        value = value.number
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) < 19 else None
    if value is None or not -(2**63) < value < 2**63:  # also what is not a number at all
        return None
    return int(value)


def words(value: Words) -> list[str]:
    """A list of words that some releases give as one string with commas."""
    return value.split(",") if isinstance(value, str) else value or []


def _node(record: NodeRecord) -> Node:
    if not record.name:
        raise SourceError("scontrol's JSON has a node without a name")
    return Node(
        name=record.name,
        states=node_states(words(record.state)),
        cpus=number(record.effective_cpus) or number(record.cpus) or 0,
        memory_mb=max((number(record.real_memory) or 0) - (number(record.specialized_memory) or 0), 0),
        gres=parse_gres(record.gres),
        features=tuple(word for word in words(record.active_features) if word),
        partitions=tuple(word for word in words(record.partitions) if word),
        cpus_allocated=number(record.alloc_cpus) or 0,
        memory_allocated_mb=number(record.alloc_memory) or 0,
        gres_allocated=parse_gres(record.gres_used) if record.gres_used else parse_tres(record.tres_used).gres,
        sockets=number(record.sockets) or 1,
        weight=number(record.weight) or 0,
    )


def partition(record: PartitionRecord) -> Partition:
    """One partition. Memory limits of 0 are Slurm's way to say that there is none."""
    largest, least, usual = record.maximums, record.minimums, record.defaults
    state = words(record.partition.state)
    if largest.oversubscribe is not None:
        shares = number(largest.oversubscribe.jobs)
    else:
        raw = number(largest.shares)
        shares = None if raw is None else raw & ~_SHARED_FORCE
    return Partition(
        name=record.name,
        nodes=hosts(record.nodes.configured, f"nodes of partition {record.name}"),
        up=not state or "UP" in state,
        max_time=number(largest.time),
        default_time=number(usual.time),
        min_nodes=number(least.nodes) or None,
        max_nodes=number(largest.nodes),
        max_cpus_per_node=number(largest.cpus_per_node),
        max_mem_per_node=number(largest.partition_memory_per_node) or None,
        max_mem_per_cpu=number(largest.partition_memory_per_cpu) or None,
        def_mem_per_node=number(usual.partition_memory_per_node) or None,
        def_mem_per_cpu=number(usual.partition_memory_per_cpu) or None,
        allow_accounts=allowed(record.accounts.allowed),
        deny_accounts=names(record.accounts.deny),
        allow_groups=allowed(record.groups.allowed),
        allow_qos=allowed(record.qos.allowed),
        deny_qos=names(record.qos.deny),
        priority_tier=number(record.priority.tier) or 0,
        exclusive=shares == 0,
        oversubscribe=max(shares or 1, 1),
    )


def job(record: JobRecord) -> Job | None:
    """One job, or None where it is over."""
    states = job_states(words(record.job_state))
    if states is None:
        return None
    running = holds_resources(states)
    tres = parse_tres((record.tres_alloc_str if running else None) or record.tres_req_str)
    node_names = hosts(record.nodes, f"nodes of job {record.job_id}") if running else ()
    node_count = len(node_names) or tres.nodes or number(record.node_count) or 1
    cpus = tres.cpus or number(record.cpus) or 1
    requests = Requests(record.tres_per_job, record.tres_per_node, record.tres_per_socket, record.tres_per_task)
    requested = requests.total(node_count, number(record.sockets_per_node) or 1, number(record.tasks) or 1)
    held = (
        merge(gres for detail in record.gres_detail for gres in parse_gres(detail))
        if running and record.gres_detail
        else ()
    )
    task = number(record.array_task_id)
    task_list = record.array_task_string or None
    reason = record.state_description or record.state_reason or ""
    return Job(
        job_id=record.job_id,
        states=states,
        name=record.name or "",
        user=record.user_name or "",
        account=record.account or "",
        qos=record.qos or "",
        partitions=names(record.partition),
        reason="" if reason == "None" else reason.replace(" ", "_"),
        priority=number(record.priority) or 0,
        submit_time=number(record.submit_time) or 0,
        eligible_time=number(record.eligible_time) or 0,
        start_time=(number(record.start_time) or None) if running else None,
        time_limit=number(record.time_limit),
        nodes=node_names,
        node_count=node_count,
        cpus=cpus,
        memory_mb=memory_in_all(tres, number(record.memory_per_node), number(record.memory_per_cpu), node_count, cpus),
        gres=job_gres(held, tres, requested),
        features=record.features or "",
        dependency=record.dependency or "",
        exclusive="none" in words(record.shared),
        array_job_id=number(record.array_job_id) or None,
        array_task=task_list or (str(task) if task is not None and number(record.array_job_id) else None),
        tasks=count_tasks(task_list) if task_list and not running else 1,
        admin_comment=record.admin_comment or "",
        restarts=number(record.restart_cnt) or 0,
    )
