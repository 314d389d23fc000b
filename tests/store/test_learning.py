"""What the models read from the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.store import decisions, outcomes
from advisor.store.database import Database
from advisor.store.learning import ended_until, run_records, wait_records
from tests.store.rows import decision, outcome


@pytest.fixture
def db(tmp_path: Path):
    with Database(tmp_path / "advisor.db") as opened:
        yield opened


def ran(db_index, job_id=1, **fields):
    given = {"start": 1500, "elapsed": 500, "processor": "v100", "gpus": 2, "user": "ann", "name": "train", "cpus": 8}
    return outcome(db_index, job_id, **(given | fields))


def test_a_record_is_told_under_the_app_of_its_decision(db: Database) -> None:
    decisions.insert_many(db, [decision("t1", app="resnet50")])
    outcomes.store(db, [ran(1, token="t1", time_limit=30), ran(2, 2)], None, 0.0)
    found = sorted(run_records(db), key=lambda record: record.app or "")
    assert [record.app for record in found] == ["resnet50", "train"]
    assert found[0].limit_s == 1800.0 and found[1].limit_s is None
    assert (found[0].gpus, found[0].cpus, found[0].elapsed_s) == (2, 8, 500.0)


def test_a_record_has_the_work_that_its_annotation_told(db: Database) -> None:
    decisions.insert_many(db, [decision("t1", annotation={"app": "train", "work": 5e4}), decision("t2", annotation={})])
    outcomes.store(db, [ran(1, token="t1"), ran(2, 2, token="t2"), ran(3, 3)], None, 0.0)
    assert sorted(record.work or 0.0 for record in run_records(db)) == [0.0, 0.0, 5e4]


def test_jobs_that_never_started_are_left_out(db: Database) -> None:
    outcomes.store(db, [ran(1, start=None, state="CANCELLED")], None, 0.0)
    assert list(run_records(db)) == []


def test_only_what_ended_since_is_read_again(db: Database) -> None:
    outcomes.store(db, [ran(1, end=2000), ran(2, 2, end=3000)], None, 0.0)
    assert ended_until(db) == 3000
    assert len(list(run_records(db, after=2000))) == 1
    assert len(list(run_records(db, until=2000))) == 1


def test_a_run_after_a_requeue_is_marked(db: Database) -> None:
    outcomes.store(
        db,
        [
            ran(1, 7, state="REQUEUED", start=1000, end=1200),
            ran(2, 7, start=1300, end=1400),
            ran(3, 8, start=1300, end=1400),
        ],
        None,
        0.0,
    )
    assert sorted((record.state, record.restarted) for record in run_records(db)) == [
        ("COMPLETED", False),
        ("COMPLETED", True),
        ("REQUEUED", False),
    ]


def test_expected_and_real_waits_are_those_of_where_the_job_went(db: Database) -> None:
    predictions = [{"candidate": 0, "wait_s": 900.0}, {"candidate": 1, "wait_s": 60.0}]
    decisions.insert_many(
        db,
        [
            decision("moved", applied=True, chosen=1, predictions=predictions),
            decision("shadow", decided_at=2000.0, applied=False, chosen=1, predictions=predictions),
            decision("left alone", decided_at=3000.0, eligible=False, predictions=[]),
        ],
    )
    outcomes.store(
        db,
        [
            ran(1, 1, token="moved", partition="fast", submit=1000, start=1050),
            ran(2, 2, token="shadow", partition="slow", submit=2000, eligible=2300, start=2500),
            ran(3, 3, token="left alone", submit=3000, start=3001),
        ],
        None,
        0.0,
    )
    assert wait_records(db) == [("fast", 60.0, 50.0), ("slow", 900.0, 200.0)]
    assert wait_records(db, last=1) == [("slow", 900.0, 200.0)]


def test_of_an_array_the_mean_and_of_a_requeued_job_the_first_wait_counts(db: Database) -> None:
    predictions = [{"candidate": 0, "wait_s": 10.0}]
    decisions.insert_many(db, [decision(t, chosen=0, predictions=predictions) for t in ("array", "again")])
    outcomes.store(
        db,
        [
            ran(1, 1, token="array", partition="p", submit=1000, start=1100),
            ran(2, 2, token="array", partition="p", submit=1000, start=1300),
            ran(3, 3, token="again", partition="p", submit=1000, start=1040, state="REQUEUED"),
            ran(4, 3, token="again", partition="p", submit=1500, start=9000),
        ],
        None,
        0.0,
    )
    assert sorted(record.real_s for record in wait_records(db)) == [40.0, 200.0]
