"""The contention model of a version: how much apps slowed each other down on shared nodes, as the log shows it.

Stored as a table of log slowdowns (app × neighbour, per whole node, for each processor), which says by itself what was
learned. Where nobody shared a node there is nothing to learn, and the table is empty.
"""

from __future__ import annotations

import math

import msgspec

from advisor.cluster.hostlist import HostlistError, expand_hostlist
from advisor.contention.exposure import Run, exposures
from advisor.contention.shared_runs import SharedRuns
from advisor.performance.model.names import family
from advisor.store import sharing
from advisor.store.database import Database

RUNS = 10_000
_MOST_APPS = 100  # those that shared most; the table has their square


class Contention(msgspec.Struct, frozen=True):
    """What was learned about sharing."""

    runs: int
    apps: int
    situations: int
    why: str


class Table(msgspec.Struct, frozen=True):
    """The model as it stands in a version."""

    format: int
    apps: list[str]
    # Processor → for each app (the last row: any other), the log slowdown beside a whole node of each of them.
    effects: dict[str, list[list[float]]]


def fit_contention(db: Database, cpus_of: dict[str, tuple[int, int]]) -> tuple[Contention, bytes]:
    """Fits what runs beside one another teach; `cpus_of`: CPUs and GPUs of each node. Raises `StoreError`."""
    runs: list[Run] = []
    for record in sharing.node_records(db, RUNS):
        try:
            nodes = expand_hostlist(record.nodes)
        except HostlistError:
            continue
        if record.app and nodes:
            size = max(record.gpus or record.cpus or 1, 1).bit_length()
            runs.append(
                Run(
                    record.app,
                    family(record.app)[0],
                    record.processor,
                    nodes,
                    record.start,
                    record.end,
                    record.state == "COMPLETED",
                    size,
                    _share(cpus_of.get(nodes[0]), (record.cpus or 1) / len(nodes), (record.gpus or 0) / len(nodes)),
                )
            )
    model = SharedRuns.fitted(runs, exposures(runs)) if runs else None
    if model is None:
        empty = Table(1, [], {})
        return Contention(len(runs), 0, 0, "no two jobs shared a node: nothing to learn"), msgspec.json.encode(empty)
    seen: dict[str, int] = {}
    names = list(model.apps)
    for situation in model.situations:
        seen[names[situation.app]] = seen.get(names[situation.app], 0) + situation.count
    apps = sorted(sorted(names, key=lambda app: (-seen.get(app, 0), app))[:_MOST_APPS])
    rows = [model.apps[app] for app in apps]
    effects = {
        processor: [[_rounded(full[r, c]) for c in rows] for r in [*rows, -1]]
        for processor in sorted(model.processors)
        if (full := model.effects(processor)) is not None
    }
    told = Contention(len(runs), len(apps), len(model.situations), "learned from runs beside one another")
    return told, msgspec.json.encode(Table(1, apps, effects), order="deterministic")


def _rounded(value: float) -> float:
    return round(float(value), 5) if math.isfinite(value) else 0.0


def _share(node: tuple[int, int] | None, cpus: float, gpus: float) -> float:
    """How much of a node a job holds: of its GPUs or CPUs, whichever is more."""
    if node is None:
        return 1.0
    shares = [cpus / node[0] if node[0] else 0.0, gpus / node[1] if node[1] else 0.0]
    return min(max(shares), 1.0)
