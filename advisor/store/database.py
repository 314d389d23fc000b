"""Opens the SQLite log, brings its tables up to date from `sql/`, and explains what is wrong when it cannot.

One `Database` is one connection and belongs to one thread. The file is in WAL mode, so that commands read
while the daemon writes. A file that is not a database any more is set aside under another name, never deleted.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from advisor.resources import folder

if TYPE_CHECKING:
    import sqlite_utils

BUSY_TIMEOUT_S = 5.0
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MIGRATION = re.compile(r"(\d{4})_(\w+)\.sql")


class StoreError(Exception):
    """The log could not be used; the text says which file, why, and what to do."""

    def __init__(self, message: str, corrupt: bool = False) -> None:
        super().__init__(message)
        self.corrupt = corrupt


class RowError(Exception):
    """A row that the tables refuse; the database itself is well."""


class Database:
    """The log, open and at the newest schema."""

    def __init__(
        self,
        path: Path | str,
        *,
        set_aside: bool = False,
        read_only: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        """Opens the file and creates it if need be; raises `StoreError`.

        `set_aside`: a corrupt file is renamed to NAME.corrupt-TIME and a new one begun, instead of an error.
        `read_only`: nothing is created or changed, not even tables that are missing.
        """
        self.path = Path(path)
        self.set_aside_as: Path | None = None
        self._read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        try:
            self.connection = self._open()
        except StoreError as error:
            if not (error.corrupt and set_aside and not read_only):
                raise
            self.set_aside_as = put_aside(self.path)
            self.connection = self._open()
        self._inode = _inode(self.path)

    def _open(self) -> sqlite3.Connection:
        with explained(self.path):
            if not self._read_only:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            mode = "ro" if self._read_only else "rwc"
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=self._busy_timeout_s,
                isolation_level=None,  # transactions are begun and ended by `transaction`, nowhere else
            )
            try:
                connection.row_factory = sqlite3.Row
                if not self._read_only:
                    connection.execute("PRAGMA journal_mode = WAL")
                    # With WAL, NORMAL survives a killed process; only a power cut may lose the last moments.
                    connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA foreign_keys = ON")
                migrate(connection, self.path, apply=not self._read_only)
            except BaseException:
                connection.close()
                raise
            return connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; waits for other writers up to the busy time-out. Raises `StoreError`."""
        with explained(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                # SQLite has already rolled back by itself after some errors (a full disk, for one).
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def rows(self, sql: str, parameters: tuple[object, ...] = ()) -> list[sqlite3.Row]:
        """The result of a query; raises `StoreError`."""
        with explained(self.path):
            return self.connection.execute(sql, parameters).fetchall()

    @property
    def tables(self) -> sqlite_utils.Database:
        """The same connection through sqlite-utils, for reports; imported late, since that takes a while."""
        import sqlite_utils

        return sqlite_utils.Database(self.connection)

    def same_file(self) -> bool:
        """Whether the path still is the file that was opened: false once it was moved, deleted or replaced."""
        return _inode(self.path) == self._inode

    def close(self) -> None:
        """Closes the connection; the last one to close folds the WAL into the file."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def migrations() -> list[tuple[int, Path]]:
    """The shipped migrations, in order."""
    found = [(int(match[1]), path) for path in folder("sql").iterdir() if (match := _MIGRATION.fullmatch(path.name))]
    return sorted(found)


def migrate(connection: sqlite3.Connection, path: Path, *, apply: bool = True) -> None:
    """Applies what is missing, all in one transaction; refuses a database of a newer version."""
    shipped = migrations()
    newest = shipped[-1][0]
    version = _version(connection)
    if version < newest and not apply:
        raise StoreError(
            f"{path} has tables of version {version}, this slurm-advisor needs {newest}; start the daemon "
            "(advisor serve) or run `advisor collect` once, as a user that may write it"
        )
    if version < newest:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _version(connection)  # another process may have come first
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations "
                "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at REAL NOT NULL)"
            )
            for number, file in shipped:
                if number > version:
                    for statement in statements(file.read_text(encoding="utf-8")):
                        connection.execute(statement)
                    connection.execute(
                        "INSERT INTO schema_migrations VALUES (?, ?, ?)", (number, file.stem, time.time())
                    )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    if version > newest:
        raise StoreError(
            f"{path} was written by a newer slurm-advisor (tables of version {version}, this one knows {newest}); "
            "upgrade slurm-advisor, or point it at another file"
        )


def _version(connection: sqlite3.Connection) -> int:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_migrations'").fetchone()
    if not known:
        return 0
    return int(connection.execute("SELECT coalesce(max(version), 0) FROM schema_migrations").fetchone()[0])


def statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would commit between them."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if re.sub(r"--.*", "", statement).strip():
        raise ValueError(f"a statement without its semicolon: {statement.strip()[:80]}")


def put_aside(path: Path) -> Path:
    """Renames a corrupt database, with its WAL, and returns its new name."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    with explained(path):
        for suffix in ("-wal", "-shm", ""):  # the database last: until then, a crash here leaves it in place
            part = Path(f"{path}{suffix}")
            if part.exists():
                part.rename(f"{aside}{suffix}")
    return aside


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what SQLite and the file system say into a `StoreError` with a sentence."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
        raise RowError(str(error)) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) or 0
        raise StoreError(_sentence(path, error, code & 0xFF), corrupt=(code & 0xFF) in _CORRUPT) from error
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror or error}; check that its folder exists and may be written"
        ) from error


def _sentence(path: Path, error: sqlite3.Error, code: int) -> str:
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"{path} is locked by another process; see who holds it with `fuser {path}`"
    if code == sqlite3.SQLITE_FULL:
        return f"{path}: the disk is full; make room on its file system"
    if code == sqlite3.SQLITE_IOERR:
        return f"{path} cannot be read or written ({error}); is its file system full or failing (see dmesg)?"
    if code == sqlite3.SQLITE_READONLY:
        return (
            f"{path} is read-only for this user; give it, its -wal and -shm files and its folder "
            "to the user that runs the daemon"
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return f"{path} cannot be opened; it, and its folder, must exist and be writable by the user that runs this"
    if code in _CORRUPT:
        return f"{path} is damaged, or not a database ({error}); the daemon sets such a file aside and begins a new one"
    return f"{path}: {error}"


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
