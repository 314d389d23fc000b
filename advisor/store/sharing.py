"""What the log says about jobs that shared nodes: who was where and when, and what agents measured. Only reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from advisor.store.database import Database
from advisor.store.moments import Moments

_CHUNK = 500


class NodeRecord(NamedTuple):
    """One record of accounting, as far as it tells who was on which nodes."""

    app: str
    processor: str
    nodes: str  # as Slurm writes them: c[1-3]
    start: float
    end: float
    state: str
    cpus: int
    gpus: int


class JobUse(NamedTuple):
    """What an agent measured of one job on its node."""

    job_id: int
    node: str
    metrics: dict[str, Moments]


def node_records(db: Database, last: int) -> list[NodeRecord]:
    """The records that ended last, oldest first; raises `StoreError`."""
    rows = db.rows(
        "SELECT coalesce(d.app, o.name), o.processor, o.nodes, o.start, o.end, o.state, o.cpus, o.gpus "
        "FROM (SELECT * FROM outcomes WHERE start IS NOT NULL AND nodes IS NOT NULL AND end > start "
        "      ORDER BY end DESC LIMIT ?) AS o LEFT JOIN decisions AS d ON d.token = o.token ORDER BY o.end",
        (last,),
    )
    return [
        NodeRecord(app or "", processor, nodes, float(start), float(end), state, cpus or 1, gpus or 0)
        for app, processor, nodes, start, end, state, cpus, gpus in rows
    ]


def job_uses(db: Database, since: float, most: int) -> list[JobUse]:
    """Summaries of the jobs measured last on each node, the latest first; raises `StoreError`."""
    found: dict[int, JobUse] = {}
    rows = db.rows(
        "SELECT j.id, j.job_id, a.node, m.name, c.n, c.mean, c.m2, c.enabled_s, c.running_s "
        "FROM (SELECT * FROM job_nodes WHERE last_at > ? ORDER BY last_at DESC LIMIT ?) AS j "
        "JOIN agent_nodes AS a ON a.id = j.node JOIN job_counters AS c ON c.job_node = j.id "
        "JOIN metrics AS m ON m.id = c.metric ORDER BY j.last_at DESC, j.id",
        (since, most),
    )
    for row, job_id, node, metric, n, mean, m2, enabled_s, running_s in rows:
        use = found.setdefault(row, JobUse(job_id, node, {}))
        use.metrics[metric] = Moments(n, mean, m2, enabled_s, running_s)
    return list(found.values())


def apps_of_jobs(db: Database, job_ids: Iterable[int]) -> dict[int, str]:
    """Job id → app, of those that have ended; raises `StoreError`."""
    found: dict[int, str] = {}
    wanted = sorted(set(job_ids))
    for start in range(0, len(wanted), _CHUNK):
        part = tuple(wanted[start : start + _CHUNK])
        rows = db.rows(
            "SELECT o.job_id, coalesce(d.app, o.name) FROM outcomes AS o LEFT JOIN decisions AS d ON d.token = o.token "
            f"WHERE o.job_id IN ({', '.join('?' * len(part))}) ORDER BY o.end",
            part,
        )
        found.update({int(job_id): app for job_id, app in rows if app})
    return found


def apps_of_tokens(db: Database, tokens: Iterable[str]) -> dict[str, str]:
    """Token → app, of the decisions that are in the log; raises `StoreError`."""
    found: dict[str, str] = {}
    wanted = sorted(set(tokens))
    for start in range(0, len(wanted), _CHUNK):
        part = tuple(wanted[start : start + _CHUNK])
        marks = ", ".join("?" * len(part))
        rows = db.rows(f"SELECT token, app FROM decisions WHERE token IN ({marks})", part)
        found.update({str(token): str(app) for token, app in rows})
    return found
