"""Reads what a job needs from its submission: nodes, CPUs, memory, GPUs, array tasks.

Slurm has many ways to ask for the same thing. Whatever is not understood for certain becomes a
`ShapeError`, and the job is left alone.
"""

from __future__ import annotations

from advisor.cluster.gres import gpu_request, parse_gres, with_type
from advisor.cluster.hostlist import HostlistError, count_tasks, expand_hostlist
from advisor.cluster.types import Gres
from advisor.dfg.graph import Annotation
from advisor.performance import constraint
from advisor.performance.demand import Demand
from advisor.policy.interface import JobShape
from advisor.protocol import SubmitRequest

# Where Slurm keeps a request for GPUs, by what it is counted per.
GPU_FIELDS = ("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket")

# No cluster has more of anything; a larger number is a mistake or NO_VAL in disguise.
_MOST = 1 << 30
# job_desc.shared says nothing, or that cores may be shared; anything else is some kind of whole nodes.
_NOT_WHOLE_NODES = (None, 1)
# A list of nodes to avoid is taken into account up to this length.
_MAX_EXCLUDED = 1024

# The annotation of a job that has none.
NOTHING_TOLD = Annotation()


class ShapeError(Exception):
    """The submission asks for something in a way that is not understood; the text says what."""


def read_shape(request: SubmitRequest, annotation: Annotation | None) -> JobShape:
    """What the job needs, in all and per node; raises `ShapeError`."""
    counts = {field: _gpus(request, field) for field in GPU_FIELDS}
    gpu_fields = tuple(field for field, (count, _) in counts.items() if count)
    types = {kind for field, (_, kind) in counts.items() if field in gpu_fields}
    if len(types) > 1:
        raise ShapeError("it asks for GPUs of different types, or with a type in one place and without in another")
    gpu_type = types.pop() if types else None
    per_node, in_all, per_task, per_socket = (counts[field][0] for field in GPU_FIELDS)

    nodes = max(_number(request.min_nodes, "nodes"), 1)
    cpus_per_task = max(_number(request.cpus_per_task, "CPUs per task"), 1)
    tasks_per_node = _number(request.ntasks_per_node, "tasks per node")
    tasks = _number(request.num_tasks, "tasks")
    per_gpu_tasks = _number(request.ntasks_per_tres, "tasks per GPU")
    if per_gpu_tasks:
        if not gpu_fields:
            raise ShapeError("it asks for tasks per GPU, but not for GPUs")
        tasks = max(tasks, per_gpu_tasks * max(in_all, per_node * nodes))
    tasks = max(tasks, tasks_per_node * nodes, 1 if _number(request.min_nodes, "nodes") <= 1 else nodes)
    cpus = max(tasks * cpus_per_task, _number(request.min_cpus, "CPUs"))
    gpus = in_all or max(per_node * nodes, per_task * tasks, per_socket * nodes)
    memory_per_node, memory_per_cpu, memory_per_gpu = _memory(request)
    parsed = constraint.parse(request.features)
    if parsed is None:
        raise ShapeError(f"its constraint {request.features!r:.80} is not understood")
    max_nodes = _number(request.max_nodes, "nodes")
    demand = Demand(
        nodes=nodes,
        max_nodes=max(max_nodes, nodes) if max_nodes else None,
        cpus=cpus,
        cpus_per_task=cpus_per_task,
        cpus_per_gpu=_per_gpu(request.cpus_per_tres, "CPUs per GPU"),
        tasks_per_node=tasks_per_node,
        memory_per_node_mb=memory_per_node,
        memory_per_cpu_mb=memory_per_cpu,
        memory_per_gpu_mb=memory_per_gpu,
        gpus=in_all,
        gpus_per_node=per_node,
        gpus_per_task=per_task,
        gpus_per_socket=per_socket,
        gpu_type=gpu_type,
        gres=_other_gres(request),
        constraint=parsed,
        exclusive=request.shared not in _NOT_WHOLE_NODES,
        spare_nodes=_excluded(request.exc_nodes),
    )
    note = annotation or NOTHING_TOLD
    tasks_in_all, at_once = array_tasks(request.array)
    return JobShape(
        app=note.app or request.name or "unnamed",
        user=request.user or str(request.uid),
        account=(request.account or request.default_account or "").lower(),
        nodes=nodes,
        cpus=max(cpus, gpus * demand.cpus_per_gpu),
        memory_mb=max(memory_per_node * nodes, memory_per_cpu * cpus, memory_per_gpu * gpus),
        gpus=gpus,
        gpus_per_node=per_node or per_socket or -(-gpus // nodes),
        time_limit_s=request.time_limit * 60.0 if request.time_limit is not None else None,
        tasks=tasks_in_all,
        tasks_at_once=at_once,
        exclusive=demand.exclusive,
        annotation=note,
        demand=demand,
        gpu_fields=gpu_fields,
    )


def array_tasks(text: str | None) -> tuple[int, int]:
    """How many tasks an array has, and how many of them may run at the same time (`0-99%5`)."""
    if not text:
        return 1, 1
    tasks = count_tasks(text)
    _, _, limit = text.partition("%")
    return tasks, min(int(limit), tasks) if limit.isascii() and limit.isdigit() and int(limit[:9]) else tasks


def _number(value: int | None, what: str) -> int:
    if value is None:
        return 0
    if not 0 <= value < _MOST:
        raise ShapeError(f"{value} {what} is not a number of {what} that Slurm could mean")
    return value


def _gpus(request: SubmitRequest, field: str) -> tuple[int, str | None]:
    text: str | None = getattr(request, field)
    if not text:
        return 0, None
    count, kind = gpu_request(text)
    if not count:
        return 0, None
    try:
        with_type(text, kind or "any")
    except ValueError:
        raise ShapeError(f"its GPU request {text!r:.80} names more than one kind of GPU") from None
    return _number(count, "GPUs"), kind


def _other_gres(request: SubmitRequest) -> tuple[Gres, ...]:
    """Gres that are not GPUs (shards, licences of a node): each node must hold them, as asked."""
    found: list[Gres] = []
    for field in GPU_FIELDS:
        found += [gres for gres in parse_gres(getattr(request, field)) if gres.name != "gpu"]
    return tuple(found)


def _memory(request: SubmitRequest) -> tuple[int, int, int]:
    """MB per node, per CPU and per GPU; 0: not asked for that way."""
    if 0 in (request.min_mem_per_node, request.min_mem_per_cpu):
        raise ShapeError("--mem=0 asks for all the memory of a node, which differs from node to node")
    return (
        _number(request.min_mem_per_node, "MB per node"),
        _number(request.min_mem_per_cpu, "MB per CPU"),
        _per_gpu(request.mem_per_tres, "MB per GPU"),
    )


def _per_gpu(text: str | None, what: str) -> int:
    if not text:
        return 0
    count, kind = gpu_request(text)
    if not count or kind is not None:
        raise ShapeError(f"its {what}, {text!r:.80}, are not understood")
    return _number(count, what)


def _excluded(text: str | None) -> int:
    """How many nodes are ruled out by name: wherever they are, so many more are wanted there."""
    if not text:
        return 0
    try:
        return len(expand_hostlist(text, _MAX_EXCLUDED))
    except HostlistError as error:
        raise ShapeError(f"its list of excluded nodes is not understood: {error}") from None
