"""Decisions in the log: one row for each submission, written once and never changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from advisor.store.database import Database


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `decisions`. What is `Any` is stored as JSON; it is encoded when written, not when made."""

    token: str
    decided_at: float
    cluster: str
    app: str
    mode: str
    action: str
    eligible: bool
    why: str
    uid: int | None = None
    user: str | None = None
    account: str | None = None
    qos: str | None = None
    name: str | None = None
    partition: str | None = None
    request: Any = {}
    applied: bool = False
    holdout: bool = False
    candidates: Any = []
    predictions: Any = []
    features: Any = {}
    chosen: int | None = None
    preferred: int | None = None
    probability: float | None = None
    probabilities: Any = []
    policy: str | None = None
    policy_version: str | None = None
    message: str | None = None
    set_fields: Any = {}
    annotation: Any = None
    annotation_error: str | None = None
    latency_us: float | None = None
    snapshot_age_s: float | None = None


_CHUNK = 500  # tokens in one query
COLUMNS = DecisionRow.__struct_fields__
JSON_COLUMNS = frozenset(
    ("request", "candidates", "predictions", "features", "probabilities", "set_fields", "annotation")
)
# Only a token that is there already is passed over; OR IGNORE would also swallow rows that break a constraint.
_INSERT = (
    f"INSERT INTO decisions ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "
    "ON CONFLICT (token) DO NOTHING"
)


def values(row: DecisionRow) -> tuple[object, ...]:
    """The row as SQLite takes it."""
    return tuple(_json(getattr(row, column)) if column in JSON_COLUMNS else getattr(row, column) for column in COLUMNS)


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def insert_many(db: Database, rows: Sequence[DecisionRow]) -> int:
    """Writes rows, all or none; those whose token is there already are left as they are. Returns how many were new."""
    return insert_values(db, [values(row) for row in rows])


def insert_values(db: Database, encoded: Sequence[tuple[object, ...]]) -> int:
    """The same for rows that `values` has made ready."""
    with db.transaction() as connection:
        before = connection.total_changes
        connection.executemany(_INSERT, encoded)
        return connection.total_changes - before


def by_token(db: Database, token: str) -> DecisionRow | None:
    """The decision with this token."""
    rows = db.rows("SELECT * FROM decisions WHERE token = ?", (token,))
    return _decoded(rows[0]) if rows else None


def by_tokens(db: Database, tokens: Sequence[str]) -> list[DecisionRow]:
    """Those of these decisions that are in the log, in no order."""
    found: list[DecisionRow] = []
    for start in range(0, len(tokens), _CHUNK):
        part = tuple(tokens[start : start + _CHUNK])
        marks = ", ".join("?" * len(part))
        found += map(_decoded, db.rows(f"SELECT * FROM decisions WHERE token IN ({marks})", part))
    return found


def by_job(db: Database, job_id: int, cluster: str | None = None) -> list[DecisionRow]:
    """The decisions of a job (or of the array it is a task of), newest first.

    Normally one; Slurm begins again at the first job id some day, and then there are two.
    """
    rows = db.rows(
        "SELECT * FROM decisions WHERE token IN ("
        "SELECT token FROM job_tokens WHERE job_id = ?1 AND (?2 IS NULL OR cluster = ?2) UNION "
        "SELECT token FROM moves WHERE job_id = ?1 AND (?2 IS NULL OR cluster = ?2) UNION "
        "SELECT token FROM outcomes WHERE job_id = ?1 AND (?2 IS NULL OR cluster = ?2) UNION "
        "SELECT token FROM outcomes WHERE array_job_id = ?1 AND (?2 IS NULL OR cluster = ?2)"
        ") ORDER BY decided_at DESC",
        (job_id, cluster),
    )
    return [_decoded(row) for row in rows]


def count(db: Database) -> int:
    """How many decisions are in the log."""
    return int(db.rows("SELECT count(*) FROM decisions")[0][0])


def _decoded(row: sqlite3.Row) -> DecisionRow:
    fields: dict[str, Any] = {column: row[column] for column in COLUMNS}
    for column in JSON_COLUMNS:
        if fields[column] is not None:
            fields[column] = msgspec.json.decode(fields[column])
    for column in ("eligible", "applied", "holdout"):
        fields[column] = bool(fields[column])
    return DecisionRow(**fields)
