"""How jobs really ended, which decision each of them came from, and what that says about run times."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from advisor.store.database import Database

# `advisor=TOKEN` anywhere in AdminComment, where other tools write as well.
_TOKEN = re.compile(r"(?:^|[^\w.-])advisor=([A-Za-z0-9_-]{1,64})(?![A-Za-z0-9_-])")


class OutcomeRow(msgspec.Struct, frozen=True, gc=False):
    """One finished record of accounting; see `sql/0001_log.sql` for what each field is."""

    cluster: str
    db_index: str
    job: str
    job_id: int
    end: int
    state: str
    elapsed: int = 0
    array_job_id: int | None = None
    array_task: str | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    token: str | None = None
    submit: int | None = None
    eligible: int | None = None
    start: int | None = None
    log_elapsed: float | None = None
    exit_code: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    name: str | None = None
    node_count: int | None = None
    nodes: str | None = None
    tres: str | None = None
    cpus: int | None = None
    memory_mb: int | None = None
    gpus: int = 0
    gpu_type: str | None = None
    processor: str = "cpu"
    time_limit: int | None = None
    admin_comment: str | None = None
    cpu_s: float | None = None
    max_rss_mb: int | None = None


class StepRow(msgspec.Struct, frozen=True, gc=False):
    """One step of a record; see `sql/0004_steps.sql`."""

    cluster: str
    db_index: str
    step: str
    state: str
    elapsed: int = 0
    name: str | None = None
    exit_code: str | None = None
    start: int | None = None
    end: int | None = None
    tasks: int | None = None
    node_count: int | None = None
    nodes: str | None = None
    tres: str | None = None
    user_s: float | None = None
    system_s: float | None = None
    max_rss_mb: int | None = None


STEP_COLUMNS = StepRow.__struct_fields__
COLUMNS = OutcomeRow.__struct_fields__
_KEY = ("cluster", "db_index")
_AT = {column: f"?{number}" for number, column in enumerate(COLUMNS, 1)}
# Records whose AdminComment was overwritten get the token that was seen while the job was live. A job id is used again
# when Slurm's counter wraps, so the token must be of about this job's time. A requeue counts as a new submission, so it
# may have been seen long before; and hosts' clocks differ a little.
_SEEN_LIVE = (
    f"(SELECT t.token FROM job_tokens AS t WHERE t.cluster = {_AT['cluster']} "
    f"AND t.job_id = coalesce({_AT['array_job_id']}, {_AT['het_job_id']}, {_AT['job_id']}) "
    f"AND t.first_seen BETWEEN coalesce({_AT['submit']}, {_AT['end']}) - 90 * 86400 AND {_AT['end']} + 3600 "
    "ORDER BY t.first_seen DESC LIMIT 1)"
)
# A token once known is kept: the next reading may find AdminComment overwritten.
_UPSERT = (
    f"INSERT INTO outcomes ({', '.join(COLUMNS)}) VALUES ("
    + ", ".join(f"coalesce({at}, {_SEEN_LIVE})" if column == "token" else at for column, at in _AT.items())
    + f") ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in COLUMNS if column not in (*_KEY, "token"))
    + f", token = coalesce({_AT['token']}, token, excluded.token)"
)
_FOUND_AGAIN = "DELETE FROM lost_decisions WHERE token IN (SELECT token FROM decisions)"
_STEP_KEY = (*_KEY, "step")
_STEP_UPSERT = (
    f"INSERT INTO steps ({', '.join(STEP_COLUMNS)}) VALUES ({', '.join('?' * len(STEP_COLUMNS))}) "
    f"ON CONFLICT ({', '.join(_STEP_KEY)}) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in STEP_COLUMNS if column not in _STEP_KEY)
)


class LiveJob(msgspec.Struct, frozen=True):
    """What `map_tokens` needs of a job that Slurm shows."""

    cluster: str
    job_id: int  # of an array task: the array's base id; of a het component: the leader's
    admin_comment: str | None
    seen_at: float


def token_in(admin_comment: str | None) -> str | None:
    """The advisor's token in an AdminComment, among whatever else is there."""
    match = _TOKEN.search(admin_comment) if admin_comment else None
    return match[1] if match else None


def map_tokens(db: Database, jobs: Iterable[LiveJob]) -> int:
    """Remembers which job carries which token, while that can be seen. Returns how many pairs were new."""
    pairs = {(job.cluster, job.job_id, token): job.seen_at for job in jobs if (token := token_in(job.admin_comment))}
    if not pairs:
        return 0
    with db.transaction() as connection:
        before = connection.total_changes
        connection.executemany(
            "INSERT INTO job_tokens (cluster, job_id, token, first_seen) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [(*pair, seen_at) for pair, seen_at in pairs.items()],
        )
        return connection.total_changes - before


def store(
    db: Database,
    rows: Sequence[OutcomeRow],
    cursor: tuple[str, int] | None,
    now: float,
    steps: Sequence[StepRow] = (),
) -> tuple[int, int]:
    """Writes outcomes, and how far the collection has come, in one transaction.

    A record that is there already is brought up to date. Returns how many records were new, and how many
    tokens were found for the first time whose decision is not in the log.
    """
    if not rows and cursor is None and not steps:
        return 0, 0
    with db.transaction() as connection:
        before = _ended_within(connection, rows)
        connection.executemany(_UPSERT, map(msgspec.structs.astuple, rows))
        connection.executemany(_STEP_UPSERT, map(msgspec.structs.astuple, steps))
        new = _ended_within(connection, rows) - before
        lost = _note_lost(connection, rows, now)
        if cursor is not None:
            connection.execute(
                "INSERT INTO cursors (name, position, updated_at) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE "
                "SET position = excluded.position, updated_at = excluded.updated_at",
                (*cursor, now),
            )
        return new, lost


def _ended_within(connection: sqlite3.Connection, rows: Sequence[OutcomeRow]) -> int:
    """How many records ended between the first and the last of these; to count all of a million takes too long."""
    if not rows:
        return 0
    ends = [row.end for row in rows]
    found = connection.execute("SELECT count(*) FROM outcomes WHERE end BETWEEN ? AND ?", (min(ends), max(ends)))
    return int(found.fetchone()[0])


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _note_lost(connection: sqlite3.Connection, rows: Sequence[OutcomeRow], now: float) -> int:
    """Notes tokens without a decision; how many were not noted before.

    A decision may still be in the daemon's buffer while its job has already ended: `found_again` takes it out.
    """
    tokens = {row.token: row for row in rows if row.token}
    before = connection.total_changes
    connection.executemany(
        "INSERT INTO lost_decisions (token, cluster, job_id, first_seen) SELECT ?1, ?2, ?3, ?4 "
        "WHERE NOT EXISTS (SELECT 1 FROM decisions WHERE token = ?1) ON CONFLICT DO NOTHING",
        [(token, row.cluster, row.array_job_id or row.job_id, now) for token, row in tokens.items()],
    )
    return connection.total_changes - before


def found_again(db: Database) -> None:
    """Takes out of the lost decisions those that have reached the log since."""
    with db.transaction() as connection:
        connection.execute(_FOUND_AGAIN)


def note_lost_tokens(db: Database, before: float, now: float) -> int:
    """Counts as lost the tokens of live jobs, first seen before `before`, whose decision never reached the log."""
    with db.transaction() as connection:
        connection.execute(_FOUND_AGAIN)
        lost_before = _count(connection, "lost_decisions")
        connection.execute(
            "INSERT INTO lost_decisions (token, cluster, job_id, first_seen) "
            "SELECT token, cluster, min(job_id), ?2 FROM job_tokens AS t WHERE first_seen < ?1 "
            "AND NOT EXISTS (SELECT 1 FROM decisions AS d WHERE d.token = t.token) GROUP BY token "
            "ON CONFLICT DO NOTHING",
            (before, now),
        )
        return _count(connection, "lost_decisions") - lost_before


def lost_decisions(db: Database) -> int:
    """How many jobs carry a token whose decision is not in the log."""
    return int(db.rows("SELECT count(*) FROM lost_decisions WHERE token NOT IN (SELECT token FROM decisions)")[0][0])


def cursor(db: Database, name: str) -> int | None:
    """How far a collection has come; None if it never ran."""
    rows = db.rows("SELECT position FROM cursors WHERE name = ?", (name,))
    return int(rows[0][0]) if rows else None


def by_token(db: Database, token: str) -> list[OutcomeRow]:
    """Every record of the job (its array tasks, its runs) that a decision became, in order of submission."""
    return _decoded(db.rows("SELECT * FROM outcomes WHERE token = ? ORDER BY submit, job_id, end", (token,)))


def by_job(db: Database, job_id: int, cluster: str | None = None) -> list[OutcomeRow]:
    """Every record of a job id, or of the tasks of an array."""
    return _decoded(
        db.rows(
            "SELECT * FROM outcomes WHERE (job_id = ?1 OR array_job_id = ?1) AND (?2 IS NULL OR cluster = ?2) "
            "ORDER BY submit, job_id, end",
            (job_id, cluster),
        )
    )


def _decoded(rows: list[sqlite3.Row]) -> list[OutcomeRow]:
    return [OutcomeRow(**{column: row[column] for column in COLUMNS}) for row in rows]


def run_time_history(db: Database) -> dict[str, dict[str, tuple[int, float, float]]]:
    """Past run times: app → processor → (completed runs, mean and standard deviation of log seconds)."""
    history: dict[str, dict[str, tuple[int, float, float]]] = {}
    for app, processor, runs, mean, variance in db.rows(
        "SELECT app, processor, runs, mean_log, variance_log FROM run_time_history ORDER BY app, processor"
    ):
        history.setdefault(app, {})[processor] = (int(runs), float(mean), math.sqrt(variance))
    return history
