"""Which nodes Slurm took, against those the simulator would take in the very same state of the cluster.

Here timing plays no part: each start of the real run is judged by what was free on the nodes at that moment, as the
log tells it. Only the main scheduler's starts count, and only where there was a choice: backfill also steers clear of
reservations, which the log does not show.
"""

from __future__ import annotations

import numpy as np

from advisor.sim.cluster import SimCluster
from advisor.sim.engine import Engine, Scheduler
from advisor.sim.slurmctld import nodes_taken
from advisor.sim.state import LISTED
from advisor.sim.truth.drive import Ran
from advisor.sim.workload import Workload


def node_choices(ran: Ran, cluster: SimCluster, workload: Workload, scheduler: Scheduler) -> list[bool]:
    """For each start with a choice: whether Slurm took the nodes that the simulator's rule takes."""
    engine = Engine(cluster, workload, scheduler)
    jobs, rules = engine.jobs, engine.rules(LISTED, callback=False)
    index = {node.name: n for n, node in enumerate(cluster.nodes)}
    found: list[bool] = []
    for j, record in enumerate(ran.records):
        if record.by_backfill or record.start is None:
            continue
        free = engine.machine.size.copy()
        for k, other in enumerate(ran.records):
            assert other.start is not None
            assert other.end is not None
            # Several starts of one pass carry the same time; they came in the order of the queue.
            if (other.start, other.job_id) < (record.start, record.job_id) and other.end > record.start:
                free[[index[name] for name in other.nodes]] -= jobs.need[k]
        usable = np.zeros(len(cluster.nodes), dtype=np.bool_)
        usable[[n for place in cluster.places if place.partition == record.partition for n in place.nodes]] = True
        usable &= (free >= jobs.need[j]).all(axis=1)
        if usable.sum() > len(record.nodes):
            nodes_taken(engine.machine, jobs, rules, free, engine.state.chosen, j, usable)
            found.append(
                {index[name] for name in record.nodes} == set(engine.state.chosen[: len(record.nodes)].tolist())
            )
    return found
