"""Takes a consistent copy of a log while the daemon writes it, brings the copy up to date, and merges several.

The source is only ever read: what has to be migrated, mended or left out is so on the copy. A file that is cut short,
foreign, empty or newer than this version is refused with a sentence that says what to do.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from advisor.store.database import Database, StoreError, explained

_TABLES = ("decisions", "outcomes", "job_tokens", "steps")
_DAY_S = 86_400


class Copied(msgspec.Struct, frozen=True):
    """One log as it was taken."""

    source: str
    clusters: tuple[str, ...]
    decisions: int
    outcomes: int
    left_out: dict[str, int]  # reason → records of accounting


def copy_log(source: Path, target: Path, now: float) -> Copied:
    """Copies the log as it is at this moment; raises `StoreError` where it cannot be learned from."""
    if not source.is_file():
        raise StoreError(f"{source} is not there; name the log with --log, or set paths.database")
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with explained(source):
        _copy(source, target)
    _refuse_foreign(source, target)
    with _named(source, target), Database(target) as db:
        if (told := db.rows("PRAGMA quick_check(1)")[0][0]) != "ok":
            raise StoreError(
                f"{source} is damaged ({told}); recover it with `sqlite3 {source} .recover`, or go without it",
                corrupt=True,
            )
        left_out = _leave_out(db, now)
        decisions, outcomes = (int(db.rows(f"SELECT count(*) FROM {t}")[0][0]) for t in ("decisions", "outcomes"))
        if not outcomes:
            why = "every record in it is from a clock that jumped" if left_out else "no job in it has ended"
            raise StoreError(
                f"{source} holds nothing to learn from: {why}; let the daemon collect for a while, or run "
                "`advisor collect`, and try again"
            )
        clusters = db.rows("SELECT cluster, count(*) FROM outcomes GROUP BY cluster ORDER BY 2 DESC, 1")
    return Copied(str(source), tuple(row[0] for row in clusters), decisions, outcomes, left_out)


def merge(into: Path, others: Sequence[Path]) -> dict[str, int]:
    """Adds other copies to the first; how many records of each table were in several. Raises `StoreError`."""
    twice: dict[str, int] = {}
    with Database(into) as db:
        for other in others:
            with explained(other):
                db.connection.execute("ATTACH DATABASE ? AS other", (str(other),))
            try:
                _refuse_different(db, other)
                with db.transaction() as connection:
                    for table in _TABLES:
                        there = connection.execute(f"SELECT count(*) FROM other.{table}").fetchone()[0]
                        before = connection.total_changes
                        columns = [row[1] for row in connection.execute(f"PRAGMA other.table_info({table})")]
                        names = ", ".join(columns)
                        connection.execute(f"INSERT OR IGNORE INTO {table} ({names}) SELECT {names} FROM other.{table}")
                        twice[table] = twice.get(table, 0) + there - (connection.total_changes - before)
            finally:
                db.connection.execute("DETACH DATABASE other")
    return {table: count for table, count in twice.items() if count}


def _copy(source: Path, target: Path) -> None:
    # Opening a file in WAL mode creates its -wal and -shm: where nobody writes, the plain bytes are the log.
    wal = source.with_name(f"{source.name}-wal")
    for _ in range(3):
        if wal.exists() and wal.stat().st_size:
            break
        before = source.stat()
        shutil.copyfile(source, target)
        after = source.stat()
        if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size) and not (
            wal.exists() and wal.stat().st_size
        ):
            return
    target.unlink(missing_ok=True)
    # One read transaction: in WAL mode the daemon writes on meanwhile, and what it writes is not in the copy.
    uri = f"{source.absolute().as_uri()}?mode=ro"
    with (
        contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30.0)) as reading,
        contextlib.closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing, pages=-1)


def _refuse_foreign(source: Path, target: Path) -> None:
    with (
        _named(source, target),
        explained(target),
        contextlib.closing(sqlite3.connect(f"{target.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as look,
    ):
        names = {row[0] for row in look.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if names and not {"decisions", "outcomes", "schema_migrations"} <= names:
        raise StoreError(f"{source} is a SQLite file, but not a log of slurm-advisor; name another with --log")


@contextlib.contextmanager
def _named(source: Path, target: Path) -> Iterator[None]:
    """Errors tell of the file that the user knows, not of its copy."""
    try:
        yield
    except StoreError as error:
        text = str(error).replace(str(target), str(source))
        if error.corrupt and "daemon sets such a file aside" in text:
            text = (
                f"{source} is cut short, damaged or not a log of slurm-advisor; recover what is left with "
                f"`sqlite3 {source} .recover`, or go without it"
            )
        raise StoreError(text, corrupt=error.corrupt) from error


def _leave_out(db: Database, now: float) -> dict[str, int]:
    """Takes records out of the copy that a clock which jumped has made; they would teach nonsense."""
    wrong = {
        "a clock jumped: it ended before it started": "end < start",
        "a clock jumped: it started before it was submitted": "start < submit - 3600",
        "a clock jumped: it ended in the future": f"end > {now + _DAY_S:.0f}",
        # The other way round is usual: a suspended job does not run all the time.
        "a clock jumped: it ran for longer than from its start to its end": "elapsed > end - start + 60",
    }
    found = {}
    with db.transaction() as connection:
        for why, where in wrong.items():
            count = connection.execute(f"DELETE FROM outcomes WHERE {where}").rowcount
            if count:
                found[why] = count
    return found


def _refuse_different(db: Database, other: Path) -> None:
    rows = db.rows(
        "SELECT a.cluster, count(*) FROM outcomes AS a JOIN other.outcomes AS b USING (cluster, db_index) "
        "WHERE a.job_id <> b.job_id OR a.submit IS NOT b.submit GROUP BY a.cluster LIMIT 1"
    )
    if rows:
        raise StoreError(
            f"{other.name}: {rows[0][1]} records have the numbers of others in the first log, although both name their "
            f"cluster {rows[0][0]!r}; two clusters of one name cannot be merged: retrain each by itself"
        )
