"""Which partitions a user may use, for a dry run: slurmctld is not there to hand over its `part_list`.

Asks the host for the user's groups, which may go to LDAP and take long, so the daemon calls this from
a thread and never for a submission. What cannot be known counts as not allowed.
"""

from __future__ import annotations

import grp
import os
import pwd

from advisor.cluster.types import Partition
from advisor.performance.snapshot import Snapshot
from advisor.protocol import PartitionLimits


def part_list(snapshot: Snapshot, user: str | None, uid: int) -> list[PartitionLimits]:
    """The partitions that slurmctld would show the hook for this user, with their limits."""
    groups: frozenset[int] | None = None
    listed = []
    for partition in snapshot.partitions.values():
        # Slurm asks nobody's groups for root.
        if partition.allow_groups is not None and uid != 0:
            if groups is None:
                groups = _groups(user, uid)
            if groups.isdisjoint(_gids(partition.allow_groups)):
                continue
        listed.append(_limits(partition))
    return listed


def _groups(user: str | None, uid: int) -> frozenset[int]:
    try:
        entry = pwd.getpwnam(user) if user else pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    return frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))


def _gids(names: tuple[str, ...]) -> set[int]:
    gids = set()
    for name in names:
        try:
            gids.add(grp.getgrnam(name).gr_gid)
        except KeyError:
            continue  # a group that only the controller knows: nobody here is in it
    return gids


def _limits(partition: Partition) -> PartitionLimits:
    def joined(names: tuple[str, ...] | None) -> str | None:
        return None if names is None else ",".join(names)

    return PartitionLimits(
        name=partition.name,
        default=partition.default,
        up=partition.up,
        max_time=partition.max_time,
        default_time=partition.default_time,
        min_nodes=partition.min_nodes,
        max_nodes=partition.max_nodes,
        max_cpus_per_node=partition.max_cpus_per_node,
        max_mem_per_node=partition.max_mem_per_node,
        max_mem_per_cpu=partition.max_mem_per_cpu,
        allow_accounts=joined(partition.allow_accounts),
        deny_accounts=joined(partition.deny_accounts or None),
        allow_qos=joined(partition.allow_qos),
        deny_qos=joined(partition.deny_qos or None),
        priority_tier=partition.priority_tier,
    )
