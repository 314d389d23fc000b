"""The cluster a simulation runs on: nodes, and the places of its partitions.

A place is what a job can be sent to: the nodes of one partition that have one kind of processor
(`gpu-a/v100`). Clusters come from a short text (`v100=8,p100=8,k80=8`), from a YAML file, or from a
reading of the real Slurm (`advisor.cluster`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from advisor.cluster.types import ClusterState

# Enough that neither CPUs nor memory bind where only GPUs are spoken of.
_SPEC_CPUS = 64
_SPEC_MEMORY_MB = 1 << 20


class SimNode(msgspec.Struct, frozen=True):
    """One node of a simulated cluster."""

    name: str
    cpus: int
    memory_mb: int
    gpus: int = 0
    processor: str = "cpu"  # the GPU type, or "cpu"


class Place(msgspec.Struct, frozen=True):
    """The nodes of one partition that have one kind of processor."""

    partition: str
    processor: str
    nodes: tuple[int, ...]  # indices into the cluster's nodes
    max_time_s: float | None = None

    @property
    def name(self) -> str:
        """As people write it: `partition/processor`, or the one name where both are the same."""
        return self.partition if self.partition == self.processor else f"{self.partition}/{self.processor}"


class SimCluster(msgspec.Struct, frozen=True):
    """Nodes and places; the order of places is the order in which Slurm would try partitions."""

    name: str
    nodes: tuple[SimNode, ...]
    places: tuple[Place, ...]
    default_partition: str | None = None

    @property
    def processors(self) -> tuple[str, ...]:
        """The kinds of processor, in the order of the places."""
        return tuple(dict.fromkeys(place.processor for place in self.places))

    @property
    def gpus(self) -> int:
        """How many GPUs there are in all."""
        return sum(node.gpus for node in self.nodes)

    @property
    def cpus(self) -> int:
        """How many CPUs there are in all."""
        return sum(node.cpus for node in self.nodes)

    def units(self, processor: str) -> int:
        """How many GPUs of a type there are, or how many CPUs on nodes without GPUs."""
        return sum(n.gpus or n.cpus for n in self.nodes if n.processor == processor)


class ClusterError(Exception):
    """The cluster's description cannot be used; the text says where and what is wrong."""


def parse_cluster(text: str) -> SimCluster:
    """Reads `v100=8,p100=8,k80=8` (one-GPU servers, a partition for each type; `cpu=4x32`: 4 nodes of 32 CPUs).

    `v100=2x4` means two servers with four GPUs each. Anything that names an existing file is read as YAML.
    """
    if text.endswith((".yaml", ".yml")) or Path(text).is_file():
        return read_cluster(Path(text))
    counts: dict[str, tuple[int, int]] = {}
    for word in text.split(","):
        found = re.fullmatch(r"\s*([A-Za-z][\w.-]*)=(\d+)(?:x(\d+))?\s*", word)
        if found is None:
            raise ClusterError(
                f"--cluster {text!r}: {word!r} is not TYPE=COUNT or TYPE=NODESxUNITS; "
                f"example: v100=8,p100=8,k80=8, or name a YAML file"
            )
        name, nodes, units = found[1], int(found[2]), int(found[3] or 1)
        if nodes < 1 or units < 1:
            raise ClusterError(f"--cluster {text!r}: {word!r} has no units; counts are 1 or more")
        if name in counts:
            raise ClusterError(f"--cluster {text!r}: {name!r} is given twice")
        counts[name] = (nodes, units)
    return from_counts(counts, name=text)


def from_counts(counts: dict[str, tuple[int, int]], name: str = "") -> SimCluster:
    """A partition for each type of `{type: (nodes, units per node)}`; `cpu` has CPUs, all others GPUs."""
    nodes: list[SimNode] = []
    places: list[Place] = []
    for kind, (count, units) in counts.items():
        first = len(nodes)
        for i in range(count):
            if kind == "cpu":
                nodes.append(SimNode(f"cpu{i}", units, _SPEC_MEMORY_MB))
            else:
                nodes.append(SimNode(f"{kind}-{i}", _SPEC_CPUS, _SPEC_MEMORY_MB, units, kind))
        places.append(Place(kind, kind, tuple(range(first, len(nodes)))))
    return SimCluster(name or "cluster", tuple(nodes), tuple(places), places[0].partition if places else None)


class _NodeGroup(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int = 1
    cpus: int = 1
    memory_mb: int = 0
    gpus: int = 0
    gpu_type: str | None = None


class _PartitionEntry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    nodes: list[str]
    max_time_s: float | None = None
    default: bool = False


class _ClusterFile(msgspec.Struct, forbid_unknown_fields=True):
    nodes: list[_NodeGroup]
    partitions: list[_PartitionEntry]
    name: str = ""


def read_cluster(path: Path) -> SimCluster:
    """Reads a YAML file: `nodes` (groups: name, count, cpus, memory_mb, gpus, gpu_type) and `partitions`
    (name, nodes: names of groups, max_time_s, default)."""
    try:
        tree: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        entry = msgspec.convert(tree, _ClusterFile)
    except OSError as error:
        raise ClusterError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ClusterError(f"{path}: {' '.join(str(error).split())}") from None
    nodes: list[SimNode] = []
    groups: dict[str, tuple[int, ...]] = {}
    for group in entry.nodes:
        if group.name in groups:
            raise ClusterError(f"{path}: nodes: the group {group.name!r} is there twice")
        if group.count < 1 or group.cpus < 1 or group.gpus < 0 or group.memory_mb < 0:
            raise ClusterError(f"{path}: nodes: the group {group.name!r} has a count below its minimum")
        if group.gpus and not group.gpu_type:
            raise ClusterError(f"{path}: nodes: the group {group.name!r} has gpus and needs a gpu_type")
        first = len(nodes)
        for i in range(group.count):
            nodes.append(
                SimNode(
                    f"{group.name}{i}" if group.count > 1 else group.name,
                    group.cpus,
                    group.memory_mb or _SPEC_MEMORY_MB,
                    group.gpus,
                    group.gpu_type if group.gpus and group.gpu_type else "cpu",
                )
            )
        groups[group.name] = tuple(range(first, len(nodes)))
    places: list[Place] = []
    for partition in entry.partitions:
        members: list[int] = []
        for word in partition.nodes:
            if word not in groups:
                raise ClusterError(f"{path}: partitions: {partition.name!r} names {word!r}, which is no group of nodes")
            members += groups[word]
        places += _split(partition.name, members, nodes, partition.max_time_s)
    if not places:
        raise ClusterError(f"{path}: partitions: there is none with a node")
    default = next((p.name for p in entry.partitions if p.default), places[0].partition)
    return SimCluster(entry.name or path.stem, tuple(nodes), tuple(places), default)


def from_state(state: ClusterState) -> SimCluster:
    """The cluster that a reading of Slurm shows; nodes that Slurm would not use are left out."""
    nodes: list[SimNode] = []
    index: dict[str, int] = {}
    for node in state.nodes:
        if not node.usable:
            continue
        gpus = [g for g in node.gres if g.name == "gpu" and g.count]
        kind = (gpus[0].type or "gpu") if gpus else "cpu"
        index[node.name] = len(nodes)
        nodes.append(SimNode(node.name, node.cpus, node.memory_mb or _SPEC_MEMORY_MB, sum(g.count for g in gpus), kind))
    places: list[Place] = []
    default = None
    for partition in sorted(state.partitions, key=lambda p: -p.priority_tier):
        members = [index[name] for name in partition.nodes if name in index]
        limit = None if partition.max_time is None else partition.max_time * 60.0
        if partition.up:
            places += _split(partition.name, members, nodes, limit)
            default = partition.name if partition.default else default
    if not places:
        raise ClusterError(f"{state.cluster}: Slurm shows no partition that is up and has usable nodes")
    return SimCluster(state.cluster, tuple(nodes), tuple(places), default or places[0].partition)


def _split(partition: str, members: list[int], nodes: list[SimNode], max_time_s: float | None) -> list[Place]:
    """One place for each kind of processor in the partition, in the order of its nodes."""
    kinds: dict[str, list[int]] = {}
    for i in dict.fromkeys(members):
        kinds.setdefault(nodes[i].processor, []).append(i)
    return [Place(partition, kind, tuple(found), max_time_s) for kind, found in kinds.items()]
