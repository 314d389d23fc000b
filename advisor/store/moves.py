"""Moves in the log: what rounds did to jobs after their submission, and what became of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from advisor.store.database import Database

# Outcomes: the job is where it was to go; Slurm did not take it; it took half of it, and that was taken back; or was
# not; it was only thought of (modes shadow and advise). `sent`: the daemon died before it knew.
SENT, OK, REFUSED, UNDONE, HALF_DONE, WOULD = "sent", "ok", "refused", "undone", "half done", "would"

_CHUNK = 500


class MoveRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `moves`; see `sql/0007_moves.sql` for what each field is."""

    round: float
    moved_at: float
    cluster: str
    job_id: int
    token: str
    lever: str
    mode: str
    from_place: str
    to_place: str
    why: str
    outcome: str
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    gain_s: float | None = None
    probability: float = 1.0
    said: str | None = None


COLUMNS = MoveRow.__struct_fields__
_JSON = frozenset(("before", "after"))
_INSERT = f"INSERT INTO moves ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


def add(db: Database, row: MoveRow) -> int:
    """Writes one row; its number, for `settle`."""
    values = [
        msgspec.json.encode(getattr(row, column)).decode() if column in _JSON else getattr(row, column)
        for column in COLUMNS
    ]
    with db.transaction() as connection:
        return int(connection.execute(_INSERT, values).lastrowid or 0)


def settle(db: Database, number: int, outcome: str, said: str | None = None) -> None:
    """What became of a move."""
    with db.transaction() as connection:
        connection.execute("UPDATE moves SET outcome = ?, said = ? WHERE id = ?", (outcome, said, number))


def by_tokens(db: Database, tokens: Sequence[str]) -> dict[str, list[MoveRow]]:
    """All moves of each of these decisions' jobs, oldest first."""
    found: dict[str, list[MoveRow]] = {}
    for start in range(0, len(tokens), _CHUNK):
        part = tuple(tokens[start : start + _CHUNK])
        marks = ", ".join("?" * len(part))
        for row in db.rows(f"SELECT * FROM moves WHERE token IN ({marks}) ORDER BY id", part):
            found.setdefault(row["token"], []).append(_decoded(row))
    return found


def of_token(db: Database, token: str) -> list[MoveRow]:
    """The moves of one decision's job, oldest first."""
    return by_tokens(db, (token,)).get(token, [])


def _decoded(row: sqlite3.Row) -> MoveRow:
    fields: dict[str, Any] = {column: row[column] for column in COLUMNS}
    for column in _JSON:
        fields[column] = msgspec.json.decode(fields[column])
    return MoveRow(**fields)
