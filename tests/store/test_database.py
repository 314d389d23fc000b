"""The log's file: created, brought up to date, refused, set aside."""

import sqlite3

import pytest

from advisor.resources import folder
from advisor.store import database, decisions, outcomes
from advisor.store.database import Database, StoreError
from tests.store.rows import decision, outcome


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "advisor.db"


def test_the_first_opening_creates_folder_file_and_tables_and_the_second_changes_nothing(path):
    with Database(path) as db:
        assert {"decisions", "job_tokens", "outcomes", "cursors", "lost_decisions"} <= set(db.tables.table_names())
        assert {"job_story", "run_time_history"} <= set(db.tables.view_names())
        first = [tuple(row) for row in db.rows("SELECT * FROM schema_migrations")]
        assert db.rows("PRAGMA journal_mode")[0][0] == "wal"
    with Database(path) as db:
        assert [tuple(row) for row in db.rows("SELECT * FROM schema_migrations")] == first


def test_a_database_of_an_older_version_keeps_its_rows_and_gets_the_new_tables(path, monkeypatch):
    every = database.migrations()
    monkeypatch.setattr(database, "migrations", lambda: every[:1])
    with Database(path) as db:
        decisions.insert_many(db, [decision()])
    monkeypatch.undo()
    with Database(path) as db:
        assert db.rows("SELECT token FROM job_story")[0]["token"] == "t1"


def test_a_migration_that_fails_leaves_nothing_of_itself_behind(path, monkeypatch, tmp_path):
    bad = tmp_path / "0003_bad.sql"
    bad.write_text("CREATE TABLE half (x);\nCREATE TABLE half (x);\n")
    monkeypatch.setattr(database, "migrations", lambda: [*original, (3, bad)])
    original = [(int(file.name[:4]), file) for file in sorted(folder("sql").glob("*.sql"))]
    with pytest.raises(StoreError, match="half already exists"):
        Database(path)
    monkeypatch.undo()
    with Database(path) as db:
        assert "half" not in db.tables.table_names()


def test_a_database_of_a_newer_version_is_refused_with_a_sentence(path):
    with Database(path) as db:
        db.connection.execute("INSERT INTO schema_migrations VALUES (9999, 'later', 0)")
    with pytest.raises(StoreError, match=r"was written by a newer slurm-advisor \(tables of version 9999"):
        Database(path, set_aside=True)
    assert list(path.parent.glob("*corrupt*")) == []


def test_every_shipped_script_is_numbered_without_gaps():
    assert [number for number, _ in database.migrations()] == list(range(1, len(list(folder("sql").glob("*.sql"))) + 1))


def test_a_script_without_its_last_semicolon_is_refused():
    assert list(database.statements("SELECT 1;\n-- the end\n")) == ["SELECT 1;\n"]
    with pytest.raises(ValueError, match="without its semicolon"):
        list(database.statements("SELECT 1;\nSELECT 2"))


def test_reading_only_creates_nothing(path):
    with pytest.raises(StoreError, match="cannot be opened"):
        Database(path, read_only=True)
    assert not path.parent.exists()
    Database(path).close()
    with Database(path, read_only=True) as db, pytest.raises(StoreError, match="read-only"):
        decisions.insert_many(db, [decision()])


@pytest.mark.parametrize(
    "garbage", [b"not a database, but long enough to be one " * 100, b"SQLite format 3\0" + b"\xff" * 8192]
)
def test_a_file_that_is_not_a_database_is_set_aside_only_when_asked_and_never_deleted(path, garbage):
    path.parent.mkdir()
    path.write_bytes(garbage)
    with pytest.raises(StoreError, match="damaged, or not a database") as error:
        Database(path)
    assert error.value.corrupt and path.read_bytes() == garbage
    with Database(path, set_aside=True) as db:
        assert decisions.count(db) == 0
        assert db.set_aside_as.read_bytes() == garbage
        assert db.set_aside_as.name.startswith("advisor.db.corrupt-")


def test_a_locked_database_says_so(path):
    Database(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with Database(path, busy_timeout_s=0.05) as db, pytest.raises(StoreError, match="locked by another process"):
        decisions.insert_many(db, [decision()])
    other.close()


def test_a_folder_in_the_place_of_the_file_or_a_file_in_the_place_of_the_folder_is_explained(path):
    path.mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be opened"):
        Database(path)
    with pytest.raises(StoreError, match="check that its folder exists"):
        Database(__file__ + "/advisor.db")


def test_a_decision_comes_back_as_it_was_written_and_a_second_one_with_its_token_is_passed_over(path):
    row = decision(
        request={"name": "x'); DROP TABLE decisions; --"},
        candidates=[{"name": "keep"}, {"name": "v100/v100"}],
        chosen=1,
        probability=0.95,
        probabilities=[0.05, 0.95],
        annotation={"app": "ü"},
        message="placed on v100",
    )
    with Database(path) as db:
        assert decisions.insert_many(db, [row]) == 1
        assert decisions.insert_many(db, [decision(app="other"), decision("t2")]) == 1
        assert decisions.by_token(db, "t1") == row
        assert decisions.by_token(db, "t3") is None
        assert decisions.count(db) == 2


def test_a_decision_is_found_by_job_id_while_it_runs_and_after_it_ended(path):
    with Database(path) as db:
        decisions.insert_many(db, [decision("t1"), decision("t2", decided_at=2000.0)])
        outcomes.map_tokens(db, [outcomes.LiveJob("mini", 7, "jobstats=x;advisor=t1", 1001.0)])
        assert [row.token for row in decisions.by_job(db, 7)] == ["t1"]
        outcomes.store(db, [outcome(5, 9, token="t2", array_job_id=8, array_task="1")], None, 3000.0)
        assert [row.token for row in decisions.by_job(db, 8)] == ["t2"]
        assert [row.token for row in decisions.by_job(db, 9, "mini")] == ["t2"]
        assert decisions.by_job(db, 9, "elsewhere") == []
