"""The places a job could go: `keep`, and every partition and GPU type that would take it as it is.

Candidates come only from the partitions slurmctld lists for this user. A place that would change anything but
partition and GPU type (a default time limit, default memory, whole nodes) is none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from advisor.cluster.gres import with_type
from advisor.cluster.types import Partition
from advisor.performance.demand import Demand, Need, need_on
from advisor.performance.runtime import can_run
from advisor.performance.snapshot import Pool, Snapshot
from advisor.policy.eligibility import Open
from advisor.policy.feasibility import Asked, Terms, refusal, terms, too_large
from advisor.policy.interface import Candidate, JobShape
from advisor.policy.shares import shared_in
from advisor.protocol import PartitionLimits, SubmitRequest
from advisor.settings import Processor

_Fits = tuple[tuple[int, Need], ...]


class Choice(msgspec.Struct, frozen=True):
    """The candidates, `keep` first, and the shape with what the partition adds to it. `why`: there is only keep."""

    candidates: tuple[Candidate, ...]
    shape: JobShape
    why: str = ""
    reach: int = 0  # the pools it could take something of, a bit each, filled in by itself

    def __post_init__(self) -> None:
        if not self.reach:
            pools = {pool for candidate in self.candidates for pool in candidate.pools}
            msgspec.structs.force_setattr(self, "reach", sum(1 << pool for pool in pools))


def find_candidates(
    request: SubmitRequest,
    shape: JobShape,
    open_: Open,
    snapshot: Snapshot,
    excluded: tuple[str, ...],
    processors: Mapping[str, Processor],
    jobs_per_gpu: int = 1,
) -> Choice:
    """All candidates. Where Slurm might not take the job as it is written, only `keep`: nothing is rescued.

    `jobs_per_gpu`: where GPUs have shards, a job that may share one may have such a part of it.
    """
    listed = {limits.name: limits for limits in request.partitions}
    keep = Candidate("keep", request.partition, keep=True)
    asked = Asked(
        time_limit=request.time_limit is not None,
        memory=request.min_mem_per_node is not None
        or request.min_mem_per_cpu is not None
        or bool(request.mem_per_tres),
        whole_nodes=shape.exclusive,
    )
    own: Terms | None = None
    for name in open_.named:
        partition, limits = snapshot.partitions.get(name), listed.get(name)
        if partition is None or limits is None:
            return Choice((keep,), shape, f"partition {name} is not one this user may use, as far as is known")
        why = refusal(partition, limits, request, shape)
        if why:
            return Choice((keep,), shape, f"partition {name} may not take it: {why}")
        found = terms(partition, limits, asked)
        if own is not None and own != found:
            return Choice((keep,), shape, "the partitions it names differ in what they give by default")
        own = found
    if own is None:
        return Choice((keep,), shape, "it goes to no partition")
    shape = _with_terms(shape, own)
    search = _Search(shape, snapshot)
    kept: dict[int, Need] = {}
    tiers: dict[int, int] = {}
    drained = ""
    # Slurm tries the partitions of a job by their tier, then as they were written.
    for name in sorted(open_.named, key=lambda name: -snapshot.partitions[name].priority_tier):
        fits = search.fits(snapshot.partitions[name], listed[name], None)
        if not fits:
            drained = drained or name
            if search.fits(snapshot.partitions[name], listed[name], None, away=True):
                continue  # Slurm takes the job, and starts it in another of its partitions meanwhile
            return Choice((keep,), shape, f"no usable nodes of partition {name} can hold it, as far as is known")
        tier = snapshot.partitions[name].priority_tier
        for index, need in fits:
            kept.setdefault(index, need)
            tiers[index] = max(tier, tiers.get(index, tier))
    if not kept:
        return Choice((keep,), shape, f"no usable nodes of partition {drained} can hold it, as far as is known")
    keep = Candidate(
        "keep",
        request.partition,
        keep=True,
        pools=tuple(kept),
        needs=tuple(kept.values()),
        tiers=tuple(tiers.values()),
    )
    candidates = [keep]
    gpus_allowed = bool(shape.gpu_fields) or any(snapshot.pools[index].gpus_per_node for index in kept)
    shares = shape.annotation.share or request.shared == 1
    most_shared = max(snapshot.partitions[name].oversubscribe for name in open_.named)
    for limits in request.partitions if open_.anywhere else [listed[name] for name in open_.named]:
        partition = snapshot.partitions.get(limits.name)
        if partition is None or limits.name in excluded:
            continue
        if bool(search.gpu_types(limits.name)) != bool(shape.gpu_fields) and (shape.gpu_fields or not gpus_allowed):
            continue  # no GPUs for a job with, or GPUs for a job without, which none of its own nodes have
        if limits.name not in open_.named:
            if partition.oversubscribe > most_shared and not shares:
                continue  # its cores would be shared with other jobs
            if refusal(partition, limits, request, shape) or terms(partition, limits, asked) != own:
                continue
        candidates += _in_partition(request, shape, open_, search, partition, limits, processors)
        if jobs_per_gpu > 1 and shape.annotation.share:
            candidates += shared_in(request, shape, open_, snapshot, partition, limits, processors, jobs_per_gpu)
    return Choice(tuple(candidates), shape, "" if len(candidates) > 1 else "there is only one place for it")


def _in_partition(
    request: SubmitRequest,
    shape: JobShape,
    open_: Open,
    search: _Search,
    partition: Partition,
    limits: PartitionLimits,
    processors: Mapping[str, Processor],
) -> list[Candidate]:
    """The candidates of one partition: one for each GPU type, or the partition as a whole."""
    name = partition.name
    move = {} if open_.named == (name,) else {"partition": name}
    if not shape.gpu_fields or not open_.gpu_type:
        fits = search.fits(partition, limits, None)
        kind = shape.demand.gpu_type if shape.gpu_fields else None
        return [_candidate(partition, kind, move, fits)] if fits and move else []
    types = search.gpu_types(name)
    found = []
    for kind in types:
        if kind is not None and not can_run(shape.annotation, kind, processors, shape.gpus_per_node):
            continue
        if kind is None and len(types) > 1:
            continue  # GPUs without a type cannot be asked for where others have one
        fits = search.fits(partition, limits, kind)
        # Where all GPUs are of one type the partition says enough, unless the user wrote another type.
        pin = len(types) > 1 or shape.demand.gpu_type is not None
        changes = dict(move)
        if pin and kind is not None and kind != shape.demand.gpu_type:
            try:
                changes.update((field, with_type(getattr(request, field), kind)) for field in shape.gpu_fields)
            except ValueError:
                continue  # a type that cannot be written in a request
        if fits and changes:
            found.append(_candidate(partition, kind, changes, fits))
    return found


def _candidate(partition: Partition, kind: str | None, changes: dict[str, str], fits: _Fits) -> Candidate:
    return Candidate(
        name=f"{partition.name}/{kind or ('gpu' if fits[0][1].gpus else 'cpu')}",
        partition=partition.name,
        gpu_type=kind,
        set=changes,
        pools=tuple(index for index, _ in fits),
        needs=tuple(need for _, need in fits),
        tiers=(partition.priority_tier,) * len(fits),
    )


class _Search:
    """Where one job fits; nodes that differ only in their partitions are looked at once."""

    def __init__(self, shape: JobShape, snapshot: Snapshot) -> None:
        self.shape = shape
        self.snapshot = snapshot
        self._open_type = msgspec.structs.replace(shape.demand, gpu_type=None)
        self._needs: dict[tuple[int, str | None, bool, int | None], Need | None] = {}

    def of(self, partition: str, away: bool) -> tuple[int, ...]:
        if away:  # rare, so there is no index of them
            return tuple(pool.index for pool in self.snapshot.pools if partition in pool.partitions)
        return self.snapshot.pools_of.get(partition, ())

    def gpu_types(self, partition: str) -> tuple[str | None, ...]:
        """The GPU types of a partition's nodes, None for GPUs without one; also of nodes that are down."""
        return self.snapshot.gpu_types_of.get(partition, ())

    def fits(self, partition: Partition, limits: PartitionLimits, kind: str | None, *, away: bool = False) -> _Fits:
        """The pools of a partition that hold the job, on GPUs of type `kind` (None: as it asks).

        `away`: that would hold it if nodes that are drained or down were back.
        """
        demand: Demand = self.shape.demand if kind is None else self._open_type
        found = []
        most = partition.max_cpus_per_node
        if limits.max_cpus_per_node is not None:
            most = limits.max_cpus_per_node if most is None else min(most, limits.max_cpus_per_node)
        pools = self.snapshot.pools
        for index in self.of(partition.name, away):
            pool = pools[index]
            hardware = pool.hardware if pool.hardware >= 0 else ~index
            key = (hardware, kind, partition.exclusive, most)
            if key in self._needs:
                need = self._needs[key]
            else:
                need = self._needs[key] = need_on(demand, pool, kind, partition.exclusive, most)
            if need is not None and _nodes(pool, away) and not too_large(partition, limits, self.shape, need):
                found.append((index, need))
        return self._with_enough_nodes(found, away)

    def _with_enough_nodes(self, found: list[tuple[int, Need]], away: bool) -> _Fits:
        """Pools that hold the whole job; where none does, those of one processor that do so together.

        Nodes ruled out by name may lie anywhere, so there must be as many more.
        """
        pools = self.snapshot.pools
        there = {index: _nodes(pools[index], away) for index, _ in found}
        spare = self.shape.demand.spare_nodes
        alone = tuple(fit for fit in found if fit[1].nodes <= there[fit[0]])
        if alone and (not spare or max(n.nodes for _, n in alone) + spare <= sum(there.values())):
            return alone
        if len(self.shape.demand.constraint) > 1:
            return ()  # [a|b] wants all nodes alike, and pools may satisfy it in different ways
        together: list[tuple[int, Need]] = []
        for processor in {pools[index].processor: None for index, _ in found}:
            group = [fit for fit in found if pools[fit[0]].processor == processor]
            if max(n.nodes for _, n in group) + spare <= sum(there[i] for i, _ in group):
                together += group
        return tuple(together)


def _nodes(pool: Pool, away: bool) -> int:
    return pool.nodes + pool.away if away else pool.nodes


def _with_terms(shape: JobShape, own: Terms) -> JobShape:
    """The shape with the time limit and memory that its partition gives it."""
    limit_s = shape.time_limit_s
    if limit_s is None and own.limit is not None:
        limit_s = own.limit * 60.0
    demand = msgspec.structs.replace(
        shape.demand,
        memory_per_node_mb=shape.demand.memory_per_node_mb or own.memory_per_node or 0,
        memory_per_cpu_mb=shape.demand.memory_per_cpu_mb or own.memory_per_cpu or 0,
    )
    return msgspec.structs.replace(shape, time_limit_s=limit_s, demand=demand)
