"""What a job takes from a pool: how many of its nodes, GPUs and CPUs, or that it does not fit there.

The queue ahead and a new submission are measured by the same rule, so that they compete for the same units.
Memory counts as the CPUs it makes unusable (the dominant resource), since a node full of memory takes no more jobs.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from advisor.cluster.types import Gres
from advisor.performance.constraint import ANYTHING, Constraint, satisfied
from advisor.performance.snapshot import Pool


class Demand(msgspec.Struct, frozen=True):
    """The resources a job asks for, as far as they decide where it fits."""

    nodes: int = 1  # at least
    max_nodes: int | None = None  # at most; None: as many as it needs
    cpus: int = 1  # in all
    cpus_per_task: int = 1  # a task is never split over nodes
    cpus_per_gpu: int = 0
    tasks_per_node: int = 0  # as asked; 0: not said
    memory_per_node_mb: int = 0
    memory_per_cpu_mb: int = 0
    memory_per_gpu_mb: int = 0
    gpus: int = 0  # in all; 0 where it is said per node
    gpus_per_node: int = 0
    gpus_per_task: int = 0
    gpus_per_socket: int = 0
    gpu_type: str | None = None
    gres: tuple[Gres, ...] = ()  # other gres, on each node
    constraint: Constraint = ANYTHING
    exclusive: bool = False
    spare_nodes: int = 0  # nodes that may be ruled out by name (--exclude)

    @property
    def wants_gpus(self) -> bool:
        """Whether it asks for any GPU."""
        return bool(self.gpus or self.gpus_per_node or self.gpus_per_task or self.gpus_per_socket)


class Need(NamedTuple):
    """Units of one pool that a job occupies while it runs."""

    nodes: int
    gpus: int  # in shards where the pool's GPUs have some
    cpus: int  # CPU equivalents: CPUs, or the CPUs' worth of the memory it takes
    cpus_per_node: int  # plain CPUs, for a partition's MaxCPUsPerNode
    memory_per_node: int


def need_on(
    demand: Demand,
    pool: Pool,
    gpu_type: str | None = None,
    whole_nodes: bool = False,
    max_cpus_per_node: int | None = None,
) -> Need | None:
    """What `demand` takes of `pool`, or None where its nodes cannot hold it.

    `gpu_type` narrows it to one type (the demand's own type does as well), `whole_nodes` is a
    partition that gives every job whole nodes. Whether the pool has enough nodes is not asked here.
    """
    if not satisfied(demand.constraint, pool.features):
        return None
    for gres in demand.gres:
        held = sum(g.count for g in pool.gres_per_node if g.name == gres.name and gres.type in (None, g.type))
        if held < gres.count:
            return None
    room_cpus = pool.cpus_per_node if max_cpus_per_node is None else min(pool.cpus_per_node, max_cpus_per_node)
    room_memory = pool.memory_per_node
    if demand.memory_per_cpu_mb:
        room_cpus = min(room_cpus, room_memory // demand.memory_per_cpu_mb)
    per_task = max(demand.cpus_per_task, 1)
    room_tasks = room_cpus // per_task
    if demand.tasks_per_node:
        if room_tasks < demand.tasks_per_node:
            return None
        room_tasks = demand.tasks_per_node
    room_gpus = 0
    if demand.wants_gpus:
        room_gpus = pool.gpus(demand.gpu_type or gpu_type)
        if demand.memory_per_gpu_mb:
            room_gpus = min(room_gpus, room_memory // demand.memory_per_gpu_mb)
        if demand.cpus_per_gpu:
            room_gpus = min(room_gpus, room_cpus // demand.cpus_per_gpu)
        if demand.gpus_per_task:
            room_tasks = min(room_tasks, room_gpus // demand.gpus_per_task)
        if not room_gpus:
            return None
    if not room_tasks or demand.memory_per_node_mb > room_memory:
        return None
    tasks = -(-demand.cpus // per_task)
    nodes = max(demand.nodes, -(-tasks // room_tasks))
    per_node_gpus = demand.gpus_per_node
    if demand.gpus_per_socket:
        # A job that does not say how many sockets it wants may get them all.
        per_node_gpus = max(per_node_gpus, demand.gpus_per_socket * pool.sockets)
    if demand.gpus:
        nodes = max(nodes, -(-demand.gpus // min(room_gpus, per_node_gpus or room_gpus)))
    if per_node_gpus > room_gpus or (demand.max_nodes is not None and nodes > demand.max_nodes):
        return None
    gpus = demand.gpus or (per_node_gpus * nodes if per_node_gpus else demand.gpus_per_task * tasks)
    cpus = max(demand.cpus, nodes, gpus * demand.cpus_per_gpu)
    cpus_per_node = max(-(-cpus // nodes), min(tasks, room_tasks) * per_task if nodes == 1 else per_task)
    if cpus_per_node > room_cpus:
        return None
    memory = max(
        demand.memory_per_node_mb,
        demand.memory_per_cpu_mb * cpus_per_node,
        demand.memory_per_gpu_mb * (-(-gpus // nodes)),
    )
    if memory > room_memory:
        return None
    gpus *= pool.shards_per_gpu
    gpus += sum(gres.count * nodes for gres in demand.gres if gres.name == "shard" and pool.gpus_per_node)
    units = max(cpus, -(-memory * nodes * pool.cpus_per_node // room_memory)) if room_memory else cpus
    if demand.exclusive or whole_nodes:
        units = nodes * pool.cpus_per_node
        gpus = max(gpus, nodes * pool.shards_per_node)
    return Need(nodes, gpus, units, cpus_per_node, memory)
