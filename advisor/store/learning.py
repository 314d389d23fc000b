"""What the log says about run times and waits, as the models of `advisor.performance` learn from it. Only reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from advisor.store.database import Database, explained

# A job with such a record began again: a later run may have gone on from a checkpoint.
# Spelt as in the index that answers it (sql/0005).
_SENT_BACK = "state IN ('REQUEUED', 'PREEMPTED', 'NODE_FAIL')"
_WHERE = "'$[' || CASE WHEN d.applied THEN d.chosen ELSE 0 END || ']'"


class RunRecord(NamedTuple):
    """One record of accounting, as far as it tells a run time; the fields of `observe`."""

    app: str | None
    user: str | None
    processor: str | None
    state: str
    elapsed_s: float
    gpus: int | None
    cpus: int | None
    limit_s: float | None
    restarted: bool
    work: float | None  # as its annotation told, in the app's own unit


class AnnotatedRun(NamedTuple):
    """A run whose annotation told its kernels."""

    app: str
    processor: str
    elapsed_s: float
    gpus: int | None
    cpus: int | None
    annotation: str  # JSON


class RecordKey(NamedTuple):
    """Accounting's own key of a record, and when it ended."""

    cluster: str
    db_index: str
    end: int


class WaitRecord(NamedTuple):
    """A decision whose job has started."""

    partition: str
    expected_s: float
    real_s: float


def ended_until(db: Database, now: float | None = None) -> int:
    """The latest end of any record, with `now` of those that have come; 0 where there is none."""
    rows = db.rows("SELECT coalesce(max(end), 0) FROM outcomes WHERE end <= ?", (2**62 if now is None else int(now),))
    return int(rows[0][0])


def run_records(
    db: Database, after: int = 0, until: int | None = None, keep: Callable[[str | None], bool] | None = None
) -> Iterator[RunRecord]:
    """Records that ended after `after` and no later than `until`, a few at a time; raises `StoreError`.

    `keep`: of those whose token passes only (None: a job without a decision).
    """
    for _, token, record in _records(db, after, until):
        if keep is None or keep(token):
            yield record


def keyed_run_records(db: Database, after: int, until: int) -> Iterator[tuple[RecordKey, RunRecord]]:
    """The same with each record's key, for whoever must know a record that it has read before."""
    for key, _, record in _records(db, after, until):
        yield key, record


def _records(db: Database, after: int, until: int | None) -> Iterator[tuple[RecordKey, str | None, RunRecord]]:
    with explained(db.path):
        sent_back = {
            (cluster, job_id): int(end)
            for cluster, job_id, end in db.connection.execute(
                f"SELECT cluster, job_id, min(end) FROM outcomes WHERE {_SENT_BACK} GROUP BY cluster, job_id"
            )
        }
        found = db.connection.cursor()
        found.row_factory = None  # plain tuples: there may be a million
        found.execute(
            "SELECT coalesce(d.app, o.name), o.user, o.processor, o.state, o.elapsed, o.gpus, o.cpus, o.time_limit, "
            "o.cluster, o.job_id, o.start, o.token, o.db_index, o.end, "
            "CASE WHEN d.annotation IS NULL THEN NULL ELSE json_extract(d.annotation, '$.work') END "
            "FROM outcomes AS o LEFT JOIN decisions AS d ON d.token = o.token "
            # The unary plus: most of a log is read faster row by row than through the index of ends.
            f"WHERE {'o.end' if after else '+o.end'} > ? AND o.end <= ? AND o.start IS NOT NULL",
            (after, 2**62 if until is None else until),
        )
        while rows := found.fetchmany(5000):
            for row in rows:
                app, user, processor, state, elapsed, gpus, cpus, limit = row[:8]
                cluster, job_id, start, token, index, end, work = row[8:]
                first_end = sent_back.get((cluster, job_id)) if sent_back else None
                restarted = first_end is not None and start >= first_end
                limit_s = None if limit is None else limit * 60.0
                record = RunRecord(app, user, processor, state, elapsed, gpus, cpus, limit_s, restarted, work)
                yield RecordKey(cluster, index, end), token, record


def annotated_runs(db: Database, until: int, last: int = 20_000) -> list[AnnotatedRun]:
    """The last completed runs whose annotation told of kernels, by when they ended; raises `StoreError`."""
    rows = db.rows(
        "SELECT coalesce(d.app, o.name, ''), o.processor, o.elapsed, o.gpus, o.cpus, d.annotation "
        "FROM decisions AS d JOIN outcomes AS o ON o.token = d.token "
        "WHERE d.annotation LIKE '%\"kernels\"%' AND o.state = 'COMPLETED' AND o.processor IS NOT NULL "
        "AND o.elapsed > 0 AND o.end <= ? ORDER BY o.end DESC, o.token LIMIT ?",
        (until, last),
    )
    return [AnnotatedRun(*row) for row in reversed(rows)]


def wait_records(db: Database, last: int = 1_000_000, since: float = 0.0) -> list[WaitRecord]:
    """The last decisions after `since` whose job has started, oldest first: expected and real wait, of arrays the mean.

    The wait counts from when the job could start (dependencies, begin time), and to its first start, not a later one.
    What counts is the candidate that the job really became: the first, `keep`, where it was not changed. Jobs that a
    round moved are left out: the wait that was expected is not the one they had.
    """
    rows = db.rows(
        "SELECT o.partition, "
        # What the queue alone told: a correction is not learned from what it has corrected itself.
        f"coalesce(json_extract(d.predictions, {_WHERE} || '.queue_wait_s'), "
        f"json_extract(d.predictions, {_WHERE} || '.wait_s')), "
        "avg(o.start - max(o.submit, coalesce(o.eligible, o.submit))) "
        "FROM decisions AS d JOIN outcomes AS o ON o.token = d.token "
        "WHERE d.eligible AND d.decided_at > ? AND o.start IS NOT NULL AND o.submit IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM moved AS m WHERE m.token = d.token) "
        "AND o.submit = (SELECT min(f.submit) FROM outcomes AS f WHERE f.token = d.token) "
        "GROUP BY d.token ORDER BY d.decided_at DESC, d.token LIMIT ?",
        (since, last),
    )
    return [
        WaitRecord(partition or "", float(expected), max(float(real), 0.0))
        for partition, expected, real in reversed(rows)
        if expected is not None and real is not None
    ]
