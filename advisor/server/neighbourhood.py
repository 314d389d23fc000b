"""What stands around a job on the nodes of a pool: neighbours, what they use, and what the nodes can do.

Small steps from Slurm's nodes and jobs to the terms of `advisor.contention.outlook`. It needs numpy, and so is imported
late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from advisor.cluster.types import Node
from advisor.contention.exposure import Run
from advisor.contention.outlook import Demands, Place
from advisor.contention.shared_runs import SharedRuns
from advisor.contention.summaries import NodeClass
from advisor.settings import Contention

PLACES = 8  # nodes that stand for a pool
NAMED = 3  # neighbours that are named in an explanation


def share_of_node(node: Node | None, cpus: float, gpus: float) -> float:
    """How much of a node a job holds: of its cores or its GPUs, whichever is more."""
    if node is None:
        return 1.0
    there = sum(gres.count for gres in node.gres if gres.name == "gpu")
    return min(max(cpus / max(node.cpus, 1), gpus / there if there else 0.0, 0.01), 1.0)


def with_room(nodes: Sequence[Node]) -> Sequence[Node]:
    """Nodes that stand for a pool: those that could take a job now, or all where none could."""

    def free(node: Node) -> bool:
        gpus = sum(gres.count for gres in node.gres if gres.name == "gpu")
        taken = sum(gres.count for gres in node.gres_allocated if gres.name == "gpu")
        return node.cpus_allocated < node.cpus and (not gpus or taken < gpus)

    chosen = [node for node in nodes if free(node)] or nodes
    return chosen[:: max(1, -(-len(chosen) // PLACES))]


def place_of(
    name: str,
    jobs: Sequence[tuple[int, str, float]],
    uses: Mapping[tuple[int, str], Demands],
    demands: Mapping[str, Demands],
) -> Place:
    """A node as a job would find it: its jobs (id, app, share), and what they use, measured or as their app does."""
    around: dict[str, float] = {}
    mean = variance = known = None
    for job_id, app, share in jobs:
        around[app] = around.get(app, 0.0) + share
        use = uses.get((job_id, name)) or demands.get(app)
        if use is not None:
            there = np.isfinite(use.mean)
            mean = np.nan_to_num(use.mean) + (0.0 if mean is None else mean)
            variance = np.nan_to_num(use.sd) ** 2 + (0.0 if variance is None else variance)
            known = there if known is None else known | there
    if mean is None or variance is None or known is None:
        return Place(around)
    return Place(around, np.where(known, mean, np.nan), np.sqrt(variance))


def most_present(places: Sequence[Place]) -> tuple[str, ...]:
    """The apps that hold most of these nodes."""
    total: dict[str, float] = {}
    for place in places:
        for app, share in place.around.items():
            total[app] = total.get(app, 0.0) + share
    return tuple(sorted(total, key=lambda app: (-total[app], app))[:NAMED])


def belief_of(places: Sequence[Place], resources: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Mean and spread over the nodes of a pool of each utilisation that somebody measured; idle nodes use nothing."""
    if all(place.use is None for place in places):
        return {}
    width = len(resources)
    means = np.stack([np.zeros(width) if p.use is None else np.nan_to_num(p.use) for p in places])
    spreads = np.stack([np.zeros(width) if p.use_sd is None else p.use_sd for p in places])
    known = np.any([np.isfinite(p.use) for p in places if p.use is not None], axis=0)
    mean = np.clip(means.mean(axis=0), 0.0, 1.0)
    sd = np.sqrt(means.var(axis=0) + (spreads**2).mean(axis=0))
    return {
        resource: (round(float(mean[i]), 4), round(float(sd[i]), 4)) for i, resource in enumerate(resources) if known[i]
    }


def class_of(node: Node, settings: Contention) -> NodeClass:
    """What a node's counts are measured against."""
    named = [feature for feature in node.features if feature in settings.capacities]
    figures = settings.capacities.get(named[0] if named else "default")
    capacities = () if figures is None else tuple((name, getattr(figures, name)) for name in figures.__struct_fields__)
    cpu = next((settings.cpus[feature] for feature in node.features if feature in settings.cpus), "")
    gpus = sum(gres.count for gres in node.gres if gres.name == "gpu")
    return NodeClass(node.cpus, node.memory_mb * 2.0**20, gpus, cpu, capacities)


def usual_slowdowns(
    model: SharedRuns,
    runs: Sequence[Run],
    around: Sequence[Mapping[str, float]],
    expected: Sequence[float] | None,
) -> dict[str, dict[str, float]]:
    """App → processor → how much slower than alone its completed runs were, as their mean run time has it."""
    logs: dict[tuple[str, str], list[float]] = {}
    for index, run in enumerate(runs):
        if run.completed:
            row = model.effects(run.processor)[model.position(run.app)]
            total = sum(row[model.apps[app]] * share for app, share in around[index].items())
            total += expected[index] if expected is not None else 0.0
            logs.setdefault((run.app, run.processor), []).append(max(float(total), 0.0))
    found: dict[str, dict[str, float]] = {}
    for (app, processor), each in logs.items():
        usual = float(np.exp(np.mean(each)))
        if usual > 1.005:
            found.setdefault(app, {})[processor] = round(usual, 4)
    return found


def mean_demand(each: Sequence[Demands]) -> Demands:
    """What jobs of one app use, from several that were measured."""
    means, sds = np.stack([use.mean for use in each]), np.stack([use.sd for use in each])
    known = np.isfinite(means)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, means, 0.0).sum(axis=0) / count
    between = np.where(known, (means - mean) ** 2, 0.0).sum(axis=0) / count
    within = np.where(known, sds**2, 0.0).sum(axis=0) / count
    some = known.any(axis=0)
    return Demands(np.where(some, mean, np.nan), np.where(some, np.sqrt(between + within), np.nan))
