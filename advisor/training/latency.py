"""How long one decision takes with a version's run times: the daemon's own code on the site as the log shows it.

CPU time, not the clock: a retrain shares its machine with the daemon and whatever else runs there.
"""

from __future__ import annotations

import itertools
import random
import time

import numpy as np

from advisor.cluster.types import ClusterState, Gres, Node, Partition
from advisor.performance import processors as table
from advisor.performance.queue import build_snapshot
from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import Ledger
from advisor.policy.decision import consider
from advisor.policy.interface import Policy
from advisor.policy.plans import Plans
from advisor.protocol import PartitionLimits
from advisor.settings import Settings
from advisor.sim.cluster import SimCluster
from advisor.sim.embedded import RELEASE, submission
from advisor.training.calibrated import Site
from advisor.training.gate import Latency
from advisor.training.refit import History

DECISIONS = 400
_WARM = 40


def snapshot_of(cluster: SimCluster, history: History, now: float) -> Snapshot:
    """The site with nothing running on it."""
    members = {name: dict.fromkeys(n for p in cluster.places if p.partition == name for n in p.nodes) for name in
               dict.fromkeys(place.partition for place in cluster.places)}  # fmt: skip
    nodes = tuple(
        Node(
            name=node.name,
            states=("IDLE",),
            cpus=node.cpus,
            memory_mb=node.memory_mb,
            gres=(Gres("gpu", node.gpus, node.processor),) if node.gpus else (),
            partitions=tuple(name for name, inside in members.items() if number in inside),
        )
        for number, node in enumerate(cluster.nodes)
    )
    partitions = tuple(
        Partition(
            name=name, nodes=tuple(cluster.nodes[n].name for n in inside), default=name == cluster.default_partition
        )
        for name, inside in members.items()
    )
    state = ClusterState(
        cluster=cluster.name, release=RELEASE, taken_at=now, nodes=nodes, partitions=partitions, jobs=()
    )
    return build_snapshot(state, history)


def measure(site: Site, policy: Policy, history: History, settings: Settings, decisions: int = DECISIONS) -> Latency:
    """CPU time from the request to the verdict, as slurmctld waits for it."""
    now = time.time()
    snapshot = snapshot_of(site.cluster, history, now)
    ledger, plans, rng = Ledger(snapshot), Plans(), random.Random(0)
    limits = [PartitionLimits(p.name, default=p.default) for p in snapshot.partitions.values()]
    figures = table.load(settings.processors)
    tokens = (f"t{number}" for number in itertools.count())
    took = []
    for number in range(decisions + _WARM):
        logged = site.jobs[number % len(site.jobs)]
        request = submission(logged.job, limits)
        began = time.thread_time()
        verdict = consider(request, snapshot, ledger, policy, settings, rng, now, tokens.__next__, figures, plans)
        took.append(time.thread_time() - began)
        verdict.complete()
    ms = np.array(took[_WARM:]) * 1e3
    return Latency(len(ms), float(np.quantile(ms, 0.5)), float(np.quantile(ms, 0.99)))
