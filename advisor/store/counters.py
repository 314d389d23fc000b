"""Merges what agents measured into the summaries of `sql/0003_counters.sql`, each sample exactly once.

A sample is named by its node, the run of the agent and a number. Which numbers are in the summaries is written in the
same transaction as the summaries themselves, so a batch that arrives twice, late, or in pieces changes nothing that it
should not. All times are by the daemon's clock: a node's own may be minutes off.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from advisor.store.database import Database
from advisor.store.moments import Moments

HOUR_S = 3600
DAY_S = 86400
# A run of a job is the same run while its samples are no further apart than this; a job id used again is years later.
_SAME_RUN_S = 30 * DAY_S

_NAME = re.compile(r"[\w.:/,=@+~-]{1,120}$")
MOST_METRICS = 400
_MOST = 1e150  # its square still is a number

Name = Annotated[str, Meta(min_length=1, max_length=255)]
# A rate or a level; of an event also the seconds it was enabled and running. Checked by `_check`: with limits on the
# number beside a tuple of three, msgspec 0.22 crashes the interpreter when garbage is collected.
Metric = float | list[float]
Metrics = Annotated[dict[str, Metric], Meta(max_length=MOST_METRICS)]


class JobSample(msgspec.Struct, frozen=True):
    """One job in one period."""

    job: Annotated[int, Meta(gt=0, lt=2**32)]
    m: Metrics
    restarts: Annotated[int, Meta(ge=0, lt=100_000)] = 0
    cluster: Annotated[str, Meta(max_length=255)] = ""


class Sample(msgspec.Struct, frozen=True):
    """One period of a node."""

    n: Annotated[int, Meta(ge=0, lt=2**53)]
    t: Annotated[float, Meta(ge=0, le=1e11)]  # the node's clock
    b: Annotated[float, Meta(ge=0, le=1e11)]  # seconds since its boot
    dt: Annotated[float, Meta(gt=0, le=1e7)]
    jobs: Annotated[list[JobSample], Meta(max_length=10_000)] = []
    node: Metrics = {}
    notes: Annotated[list[tuple[str, str, str]], Meta(max_length=1000)] = []


class Batch(msgspec.Struct, frozen=True):
    """What an agent sends at once: samples of one of its runs."""

    v: int
    node: Name
    boot: Name
    run: Name
    now: Annotated[float, Meta(ge=0, le=1e11)]  # the node's clock when it was sent
    samples: Annotated[list[Sample], Meta(max_length=100_000)]
    now_b: Annotated[float, Meta(ge=0, le=1e11)] | None = None  # seconds since boot, if it still is that boot
    cluster: Annotated[str, Meta(max_length=255)] = ""


class Merged(msgspec.Struct, frozen=True):
    """What became of a batch's samples."""

    new: int = 0
    known: int = 0
    old: int = 0


Rows = dict[tuple[int, ...], Moments]  # by the key of their table

_decoder = msgspec.json.Decoder(Batch)


def decode(text: bytes) -> Batch:
    """A batch from its JSON text; raises `ValueError` with a sentence on what is wrong in it."""
    try:
        batch = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the batch cannot be read: {error}") from None
    for sample in batch.samples:
        for metrics in (sample.node, *(job.m for job in sample.jobs)):
            for name, value in metrics.items():
                _check(name, value)
    return batch


def _check(name: str, value: Metric) -> None:
    if not _NAME.match(name):
        raise ValueError(f"the batch cannot be read: {name[:60]!r} is not the name of a metric")
    if not isinstance(value, list):
        sound = -_MOST < value < _MOST
    elif len(value) == 3:
        rate, enabled_s, running_s = value
        sound = -_MOST < rate < _MOST and 0 <= running_s < _MOST and 0 <= enabled_s < _MOST
    else:
        sound = False
    if not sound:
        raise ValueError(f"the batch cannot be read: {name} has the value {str(value)[:60]}")


class CounterStore:
    """The summaries in one database; belongs to one thread, as the connection does."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._metrics: dict[str, int] = {}
        self._nodes: dict[tuple[str, str], int] = {}

    def merge(self, batches: Sequence[Batch], now: float, accept_s: float) -> list[Merged]:
        """Merges batches in one transaction; raises `StoreError`, and then none of them is in."""
        try:
            with self.db.transaction() as connection:
                work = _Work(connection, self._metrics, self._nodes, now)
                results = [work.take(batch, accept_s) for batch in batches]
                work.write()
                return results
        except BaseException:
            # Ids given within a transaction that was rolled back are not there.
            self._metrics.clear()
            self._nodes.clear()
            raise


class _Work:
    """One transaction: gathers what is new by row, then writes each row once."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        metrics: dict[str, int],
        nodes: dict[tuple[str, str], int],
        now: float,
    ) -> None:
        self._connection = connection
        self._metrics, self._nodes, self._now = metrics, nodes, now
        self._jobs: dict[int, tuple[float, float, int, float]] = {}  # job_node → first, last, samples, seconds
        self._job_counters: Rows = {}
        self._node_counters: Rows = {}

    def take(self, batch: Batch, accept_s: float) -> Merged:
        """Gathers the samples of a batch that are not in yet."""
        clusters = [job.cluster for sample in batch.samples for job in sample.jobs if job.cluster]
        node = self._node(batch.cluster or (clusters[0] if clusters else ""), batch.node)
        received = self._received(batch.node, batch.run)
        fresh: list[int] = []
        known = old = 0
        for sample in batch.samples:
            at = self._time(batch, sample)
            if received.has(sample.n):
                known += 1
            elif at < self._now - accept_s:
                old += 1
            else:
                received.add(sample.n)
                fresh.append(sample.n)
                self._sample(node, sample, at)
        if fresh:
            self._write_received(batch.node, batch.run, received)
        return Merged(len(fresh), known, old)

    def _time(self, batch: Batch, sample: Sample) -> float:
        """When a sample was made, by this host's clock: never later than now."""
        # Of a sample from before a reboot only the node's own clock tells.
        age = batch.now_b - sample.b if batch.now_b is not None else batch.now - sample.t
        return self._now - max(0.0, age)

    def _sample(self, node: int, sample: Sample, at: float) -> None:
        for job in sample.jobs:
            row = self._job_node(node, job, at)
            first, last, samples, seconds = self._jobs.get(row, (at, at, 0, 0.0))
            self._jobs[row] = (min(first, at), max(last, at), samples + 1, seconds + sample.dt)
            for name, value in job.m.items():
                _add(self._job_counters, (row, self._metric(name)), value)
        hour = int(at - sample.dt / 2) // HOUR_S * HOUR_S
        for name, value in sample.node.items():
            _add(self._node_counters, (node, HOUR_S, hour, self._metric(name)), value)
        for subject, what, text in sample.notes:
            self._connection.execute(
                "INSERT INTO agent_notes (node, subject, what, text, first_at, last_at) "
                "VALUES (?1, ?2, ?3, ?4, ?5, ?5) ON CONFLICT DO UPDATE SET text = excluded.text, "
                "first_at = min(first_at, excluded.first_at), last_at = max(last_at, excluded.last_at)",
                (node, subject[:200], what[:60], text[:500], at),
            )

    def _job_node(self, node: int, job: JobSample, at: float) -> int:
        # No cache: a batch has few jobs, and the index answers in microseconds.
        found = self._connection.execute(
            "SELECT id FROM job_nodes WHERE job_id = ?1 AND node = ?2 AND restarts = ?3 "
            "AND first_at - ?4 <= ?5 AND last_at + ?4 >= ?5 ORDER BY last_at DESC LIMIT 1",
            (job.job, node, job.restarts, _SAME_RUN_S, at),
        ).fetchone()
        if found:
            return int(found[0])
        made = self._connection.execute(
            "INSERT INTO job_nodes (job_id, node, restarts, first_at, last_at, samples, seconds) "
            "VALUES (?, ?, ?, ?, ?, 0, 0)",
            (job.job, node, job.restarts, at, at),
        )
        assert made.lastrowid is not None
        return made.lastrowid

    def _node(self, cluster: str, node: str) -> int:
        known = self._nodes.get((cluster, node))
        row = self._connection.execute(
            "INSERT INTO agent_nodes (cluster, node, heard_at) VALUES (?, ?, ?) "
            "ON CONFLICT (cluster, node) DO UPDATE SET heard_at = excluded.heard_at RETURNING id",
            (cluster, node, self._now),
        ).fetchone()
        self._nodes[cluster, node] = int(row[0])
        return known or int(row[0])

    def _metric(self, name: str) -> int:
        known = self._metrics.get(name)
        if known is None:
            self._connection.execute("INSERT INTO metrics (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
            row = self._connection.execute("SELECT id FROM metrics WHERE name = ?", (name,)).fetchone()
            known = self._metrics[name] = int(row[0])
        return known

    def _received(self, node: str, run: str) -> Ranges:
        rows = self._connection.execute(
            "SELECT first, last FROM received_samples WHERE node = ? AND run = ? ORDER BY first", (node, run)
        )
        return Ranges((int(first), int(last)) for first, last in rows)

    def _write_received(self, node: str, run: str, received: Ranges) -> None:
        self._connection.execute("DELETE FROM received_samples WHERE node = ? AND run = ?", (node, run))
        self._connection.executemany(
            "INSERT INTO received_samples (node, run, first, last, heard_at) VALUES (?, ?, ?, ?, ?)",
            [(node, run, first, last, self._now) for first, last in received.ranges],
        )

    def write(self) -> None:
        """Merges what was gathered with what is there."""
        self._connection.executemany(
            "UPDATE job_nodes SET first_at = min(first_at, ?), last_at = max(last_at, ?), samples = samples + ?, "
            "seconds = seconds + ? WHERE id = ?",
            [(*change, row) for row, change in self._jobs.items()],
        )
        _merge_rows(self._connection, "job_counters", ("job_node", "metric"), self._job_counters, timed=True)
        _merge_rows(
            self._connection, "node_counters", ("node", "span", "start", "metric"), self._node_counters, timed=False
        )


def _add(rows: Rows, key: tuple[int, ...], value: Metric) -> None:
    moments = rows.get(key)
    if moments is None:
        moments = rows[key] = Moments()
    if isinstance(value, list):
        moments.add(*value)
    else:
        moments.add(value)


def _merge_rows(
    connection: sqlite3.Connection,
    table: str,
    keys: tuple[str, ...],
    rows: Rows,
    *,
    timed: bool,
) -> None:
    """Merges moments into rows of a table; `Moments.merge` in SQL's words, so that one statement does it."""
    columns = [*keys, "n", "mean", "m2", *(("enabled_s", "running_s") if timed else ())]
    both = "(n + excluded.n)"
    # In an UPDATE every right-hand side sees the row as it was.
    sets = [
        f"m2 = m2 + excluded.m2 + (excluded.mean - mean) * (excluded.mean - mean) * n * excluded.n / {both}",
        f"mean = (n * mean + excluded.n * excluded.mean) / {both}",
        f"n = {both}",
    ]
    if timed:
        sets += [f"{c} = coalesce({c} + excluded.{c}, {c}, excluded.{c})" for c in ("enabled_s", "running_s")]
    connection.executemany(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {', '.join(sets)}",
        [(*key, m.n, m.mean, m.m2, *((m.enabled_s, m.running_s) if timed else ())) for key, m in sorted(rows.items())],
    )


class Ranges:
    """A set of numbers as ranges, none of which touch."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges = sorted(ranges)

    def has(self, number: int) -> bool:
        """Whether the number is in the set."""
        return any(first <= number <= last for first, last in reversed(self.ranges))

    def add(self, number: int) -> None:
        """Puts a number in."""
        ranges = self.ranges
        if ranges and ranges[-1][1] == number - 1:  # as nearly always
            ranges[-1] = (ranges[-1][0], number)
            return
        joined = [(number, number)]
        for first, last in ranges:
            low, high = joined[-1]
            if last < low - 1 or first > high + 1:
                joined.insert(0, (first, last))
            else:
                joined[-1] = (min(first, low), max(last, high))
        self.ranges = sorted(joined)


def job_summary(db: Database, job_id: int, cluster: str | None = None) -> dict[tuple[int, str], dict[str, Moments]]:
    """The summaries of a job: (restarts, node) → metric → moments; of a job id used again, the last one."""
    found: dict[tuple[int, str], dict[str, Moments]] = {}
    rows = db.rows(
        "SELECT j.restarts, a.node, m.name, c.n, c.mean, c.m2, c.enabled_s, c.running_s FROM job_nodes AS j "
        "JOIN agent_nodes AS a ON a.id = j.node JOIN job_counters AS c ON c.job_node = j.id "
        "JOIN metrics AS m ON m.id = c.metric WHERE j.job_id = ?1 AND (?2 IS NULL OR a.cluster = ?2) "
        "ORDER BY j.last_at, m.name",
        (job_id, cluster),
    )
    for restarts, node, name, n, mean, m2, enabled_s, running_s in rows:
        found.setdefault((restarts, node), {})[name] = Moments(n, mean, m2, enabled_s, running_s)
    return found
