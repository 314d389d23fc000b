"""The lever `share`: places where a job would have a part of a GPU (`gres/shard`) in place of a whole one.

Only for jobs whose users said `share: true`, that ask for one GPU with `--gres` or `--gpus-per-node`, where
shards are said for each node too. Shards have no type, so a partition in which GPUs of several types have them is none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from advisor.cluster.gres import gpu_request, part_of, with_shards
from advisor.cluster.types import Gres, Partition
from advisor.performance.demand import need_on
from advisor.performance.runtime import can_run
from advisor.performance.snapshot import Pool, Snapshot
from advisor.policy.eligibility import Open
from advisor.policy.feasibility import too_large
from advisor.policy.interface import Candidate, JobShape
from advisor.protocol import PartitionLimits, SubmitRequest
from advisor.settings import Processor


def shared_in(
    request: SubmitRequest,
    shape: JobShape,
    open_: Open,
    snapshot: Snapshot,
    partition: Partition,
    limits: PartitionLimits,
    processors: Mapping[str, Processor],
    jobs_per_gpu: int,
) -> list[Candidate]:
    """The place in this partition where a GPU would be shared, if there is one."""
    asked = request.tres_per_node or ""
    if shape.gpu_fields != ("tres_per_node",) or gpu_request(asked)[0] != 1 or shape.gpus != 1:
        return []
    if shape.exclusive or partition.exclusive or request.cpus_per_tres or request.mem_per_tres:
        return []
    # Also those that are down: Slurm may take any of them tomorrow.
    pools = [pool for pool in snapshot.pools if partition.name in pool.partitions and _shards(pool)]
    kinds = {pool.processor for pool in pools}
    sizes = {pool.shards_per_gpu for pool in pools}
    if len(kinds) != 1 or len(sizes) != 1 or any(len(pool.gpu_types) > 1 for pool in pools):
        return []
    kind, shards = kinds.pop(), sizes.pop() // jobs_per_gpu
    if not shards or (not open_.gpu_type and shape.demand.gpu_type != kind):
        return []
    if not can_run(shape.annotation, kind, processors, 1):
        return []
    part = msgspec.structs.replace(
        shape.demand, gpus=0, gpus_per_node=0, gpu_type=None, gres=(*shape.demand.gres, Gres("shard", shards))
    )
    fits = [
        (pool.index, need)
        for pool in pools
        if pool.nodes
        and (need := need_on(part, pool)) is not None
        and need.nodes == 1
        and not too_large(partition, limits, shape, need)
    ]
    # Nodes that are ruled out by name may be any of them.
    if sum(snapshot.pools[index].nodes for index, _ in fits) <= shape.demand.spare_nodes:
        return []
    move = {} if open_.named == (partition.name,) else {"partition": partition.name}
    return [
        Candidate(
            name=f"{partition.name}/{part_of(kind)}",
            partition=partition.name,
            gpu_type=kind,
            set={**move, "tres_per_node": with_shards(asked, shards)},
            pools=tuple(index for index, _ in fits),
            needs=tuple(need for _, need in fits),
            tiers=(partition.priority_tier,) * len(fits),
            shared=True,
        )
    ]


def _shards(pool: Pool) -> int:
    return sum(gres.count for gres in pool.gres_per_node if gres.name == "shard") if pool.gpus_per_node else 0
