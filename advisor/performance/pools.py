"""Groups the nodes of a cluster into pools of nodes that are alike, and says which node is in which.

A pool keeps its index from one poll to the next, also when its nodes are gone, so that bookings and
logged decisions keep their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from advisor.cluster.types import ClusterState, Gres, Node
from advisor.performance.snapshot import Pool

_NAMES_SHOWN = 4
# Pools without nodes are remembered until there are so many that the cluster must have been rebuilt.
_MAX_POOLS = 4096

_Key = tuple[tuple[str, ...], int, int, tuple[Gres, ...], frozenset[str]]


def build_pools(state: ClusterState, previous: tuple[Pool, ...] = ()) -> tuple[tuple[Pool, ...], dict[str, int]]:
    """All pools, and the pool of each usable node; `previous` gives known pools their index.

    A pool counts only its usable nodes; one that has none now is still there, so that what its partition
    may hold tomorrow is known.
    """
    membership = _membership(state)
    groups: dict[_Key, list[Node]] = {}
    # A frozenset for each node would be most of the work: nodes of a pool share a few spellings.
    features: dict[tuple[str, ...], frozenset[str]] = {}
    for node in state.nodes:
        if not node.cpus:
            continue
        if node.features not in features:
            features[node.features] = frozenset(node.features)
        key = (
            membership.get(node.name, ()),
            node.cpus,
            node.memory_mb,
            node.gres,
            features[node.features],
        )
        groups.setdefault(key, []).append(node)
    keys = [_key(pool) for pool in previous]
    if len(keys) > _MAX_POOLS:
        keys = []
    known = set(keys)
    # In the order of the nodes, which is also the order in which Slurm takes nodes of the same weight.
    keys += [key for key in groups if key not in known]
    pools: list[Pool] = []
    pool_of: dict[str, int] = {}
    hardware: dict[tuple[object, ...], int] = {}
    for index, key in enumerate(keys):
        nodes = groups.get(key)
        if not nodes:
            pools.append(msgspec.structs.replace(previous[index], nodes=0, away=0, node_names=(), hardware=-1))
            continue
        usable = [node for node in nodes if node.usable]
        pools.append(_pool(index, key, nodes, usable, hardware.setdefault(key[1:], index)))
        for node in usable:
            pool_of[node.name] = index
    return tuple(pools), pool_of


def _membership(state: ClusterState) -> Mapping[str, tuple[str, ...]]:
    """Each node's partitions, from what nodes and partitions say of each other, in the partitions' order."""
    found: dict[str, list[str]] = {}
    for partition in state.partitions:
        for name in partition.nodes:
            found.setdefault(name, []).append(partition.name)
    names = {partition.name for partition in state.partitions}
    for node in state.nodes:
        listed = found.setdefault(node.name, [])
        listed += [name for name in node.partitions if name in names and name not in listed]
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    return {name: shared.setdefault(key := tuple(listed), key) for name, listed in found.items()}


def _key(pool: Pool) -> _Key:
    return (pool.partitions, pool.cpus_per_node, pool.memory_per_node, pool.gres_per_node, pool.features)


def _pool(index: int, key: _Key, nodes: list[Node], usable: list[Node], hardware: int) -> Pool:
    partitions, cpus, memory, gres, features = key
    gpus = [g for g in gres if g.name == "gpu" and g.count > 0]
    count = sum(g.count for g in gpus)
    shards = sum(g.count for g in gres if g.name == "shard")
    most = max(gpus, key=lambda g: (g.count, g.type or ""), default=None)
    return Pool(
        index=index,
        partitions=partitions,
        nodes=len(usable),
        cpus_per_node=cpus,
        memory_per_node=memory,
        gres_per_node=gres,
        features=features,
        node_names=tuple(node.name for node in usable[:_NAMES_SHOWN]),
        processor="cpu" if most is None else most.type or "gpu",
        gpus_per_node=count,
        shards_per_gpu=max(shards // count, 1) if count else 1,
        sockets=max(node.sockets for node in nodes),
        weight=min(node.weight for node in nodes),
        hardware=hardware,
        away=len(nodes) - len(usable),
    )
