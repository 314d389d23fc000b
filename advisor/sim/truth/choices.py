"""Which nodes Slurm took, against those the simulator would take in the very same state of the cluster.

Here timing plays no part: each start of the real run is judged by what was free on the nodes at that moment, as the
log tells it. Only the main scheduler's starts count, and only where there was a choice: backfill also steers clear of
reservations, which the log does not show.
"""

from __future__ import annotations

from advisor.sim.cluster import SimCluster
from advisor.sim.engine import needs
from advisor.sim.truth.drive import Ran
from advisor.sim.workload import Workload


def node_choices(ran: Ran, cluster: SimCluster, workload: Workload) -> list[bool]:
    """For each start with a choice: whether Slurm took the first nodes of the partition that had room."""
    found: list[bool] = []
    for j, record in enumerate(ran.records):
        if record.by_backfill or record.start is None:
            continue
        need = needs(workload.jobs[j])
        free = {node.name: [node.cpus, node.memory_mb, node.gpus] for node in cluster.nodes}
        for k, other in enumerate(ran.records):
            assert other.start is not None
            assert other.end is not None
            # Several starts of one pass carry the same time; they came in the order of the queue.
            if (other.start, other.job_id) < (record.start, record.job_id) and other.end > record.start:
                for name in other.nodes:
                    free[name] = [left - taken for left, taken in zip(free[name], needs(workload.jobs[k]), strict=True)]
        partition = [n for place in cluster.places if place.partition == record.partition for n in place.nodes]
        fitting = [
            cluster.nodes[n].name
            for n in partition
            if all(wanted <= left for wanted, left in zip(need, free[cluster.nodes[n].name], strict=True))
        ]
        if len(fitting) > len(record.nodes):
            found.append(set(fitting[: len(record.nodes)]) == set(record.nodes))
    return found
