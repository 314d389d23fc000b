"""Lets go of what is no longer needed in the summaries, a little at a time, without losing what was learnt.

Hours of a node become days; jobs become one row for their app on their processor type. Both are exact merges, so a mean
over a year is the mean of all its samples. Deleted pages are used again by SQLite: the file stops growing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from advisor.store.counters import DAY_S, HOUR_S
from advisor.store.database import Database
from advisor.store.moments import Moments

CHUNK = 2000  # jobs or node-days in one transaction: other writers wait for it


class Swept(msgspec.Struct, frozen=True):
    """What one sweep let go of."""

    jobs: int = 0  # job × node
    hours: int = 0  # rows folded into days
    days: int = 0
    runs: int = 0  # ranges of received samples


def sweep(db: Database, now: float, job_days: float, hour_days: float, day_days: float, accept_s: float) -> Swept:
    """One bounded round; call it again while it finds work. Raises `StoreError`."""
    jobs = _fold_jobs(db, now - job_days * DAY_S)
    hours = _fold_hours(db, now - hour_days * DAY_S)
    with db.transaction() as connection:
        days = connection.execute(
            "DELETE FROM node_counters WHERE span = ? AND start < ?", (DAY_S, now - day_days * DAY_S)
        ).rowcount
        # Older samples are not accepted any more, so nobody need know that they came. A run that goes on renews this.
        runs = connection.execute(
            "DELETE FROM received_samples WHERE (node, run) IN (SELECT node, run FROM received_samples "
            "GROUP BY node, run HAVING max(heard_at) < ?)",
            (now - 2 * accept_s,),
        ).rowcount
        # The job's own record keeps what its steps used together.
        connection.execute(
            "DELETE FROM steps WHERE (cluster, db_index, step) IN "
            "(SELECT cluster, db_index, step FROM steps WHERE end < ? ORDER BY end LIMIT ?)",
            (now - job_days * DAY_S, 10 * CHUNK),
        )
    return Swept(jobs, hours, days, runs)


def _fold_jobs(db: Database, before: float) -> int:
    """Folds finished jobs into `app_counters`; those of which accounting knows nothing are let go."""
    with db.transaction() as connection:
        rows = connection.execute(
            "SELECT id FROM job_nodes WHERE last_at < ? ORDER BY last_at LIMIT ?", (before, CHUNK)
        ).fetchall()
        ids = [(int(row[0]),) for row in rows]
        folded: dict[tuple[str, str, str, int], tuple[int, Moments]] = {}
        for (job_node,) in ids:
            _fold_job(connection, job_node, folded)
        for key, (runs, moments) in folded.items():
            _merge_app(connection, key, runs, moments)
        connection.executemany("DELETE FROM job_counters WHERE job_node = ?", ids)
        connection.executemany("DELETE FROM job_nodes WHERE id = ?", ids)
    return len(ids)


def _fold_job(
    connection: sqlite3.Connection, job_node: int, folded: dict[tuple[str, str, str, int], tuple[int, Moments]]
) -> None:
    found = connection.execute(
        "SELECT o.cluster, coalesce(d.app, o.name), o.processor FROM job_nodes AS j "
        "JOIN agent_nodes AS a ON a.id = j.node "
        "JOIN outcomes AS o ON o.job_id = j.job_id AND o.cluster = a.cluster "
        "AND coalesce(o.start, o.end) - 3600 <= j.last_at AND o.end + 3600 >= j.first_at "
        "LEFT JOIN decisions AS d ON d.token = o.token "
        "WHERE j.id = ? AND coalesce(d.app, o.name, '') <> '' ORDER BY o.end DESC LIMIT 1",
        (job_node,),
    ).fetchone()
    if found is None:
        return
    counters = connection.execute(
        "SELECT metric, n, mean, m2, enabled_s, running_s FROM job_counters WHERE job_node = ?", (job_node,)
    )
    for metric, *moments in counters:
        key = (str(found[0]), str(found[1]), str(found[2]), int(metric))
        runs, sum_of = folded.get(key) or (0, Moments())
        sum_of.merge(Moments(*moments))
        folded[key] = (runs + 1, sum_of)


def _merge_app(connection: sqlite3.Connection, key: tuple[str, str, str, int], runs: int, moments: Moments) -> None:
    row = connection.execute(
        "SELECT runs, n, mean, m2, enabled_s, running_s FROM app_counters "
        "WHERE cluster = ? AND app = ? AND processor = ? AND metric = ?",
        key,
    ).fetchone()
    if row is not None:
        runs += int(row[0])
        moments.merge(Moments(*tuple(row)[1:]))
    connection.execute(
        "INSERT OR REPLACE INTO app_counters "
        "(cluster, app, processor, metric, runs, n, mean, m2, enabled_s, running_s) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*key, runs, moments.n, moments.mean, moments.m2, moments.enabled_s, moments.running_s),
    )


def _fold_hours(db: Database, before: float) -> int:
    """Folds the hours of whole past days into days."""
    horizon = int(before) // DAY_S * DAY_S
    with db.transaction() as connection:
        rows = connection.execute(
            "SELECT node, start, metric, n, mean, m2 FROM node_counters WHERE span = ? AND start < ? LIMIT ?",
            (HOUR_S, horizon, CHUNK * 10),
        ).fetchall()
        days: dict[tuple[int, int, int], Moments] = {}
        for node, start, metric, n, mean, m2 in rows:
            days.setdefault((node, start // DAY_S * DAY_S, metric), Moments()).merge(Moments(n, mean, m2))
        for (node, day, metric), moments in days.items():
            _merge_day(connection, (node, DAY_S, day, metric), moments)
        connection.executemany(
            "DELETE FROM node_counters WHERE node = ? AND span = ? AND start = ? AND metric = ?",
            [(row[0], HOUR_S, row[1], row[2]) for row in rows],
        )
    return len(rows)


def _merge_day(connection: sqlite3.Connection, key: Sequence[int], moments: Moments) -> None:
    row = connection.execute(
        "SELECT n, mean, m2 FROM node_counters WHERE node = ? AND span = ? AND start = ? AND metric = ?", tuple(key)
    ).fetchone()
    if row is not None:
        moments.merge(Moments(*tuple(row)))
    connection.execute(
        "INSERT OR REPLACE INTO node_counters (node, span, start, metric, n, mean, m2) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*key, moments.n, moments.mean, moments.m2),
    )
