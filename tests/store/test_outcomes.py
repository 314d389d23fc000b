"""Outcomes: joined to their decisions, counted as lost, learnt from."""

import math

import pytest

from advisor.store import decisions, outcomes
from advisor.store.database import Database
from advisor.store.outcomes import LiveJob
from tests.store.rows import decision, outcome


@pytest.fixture
def db(tmp_path):
    with Database(tmp_path / "advisor.db") as opened:
        yield opened


@pytest.mark.parametrize(
    ("comment", "token"),
    [
        ("advisor=01HZX3", "01HZX3"),
        ("note=x advisor=a-b_c more", "a-b_c"),
        ('{"js":1};advisor=T1;x', "T1"),
        ("myadvisor=T1", None),
        ("advisor=", None),
        ("advisor=" + "x" * 65, None),
        ("", None),
        (None, None),
    ],
)
def test_the_token_is_found_among_what_other_tools_wrote(comment, token):
    assert outcomes.token_in(comment) == token


def test_a_record_read_again_is_brought_up_to_date_and_not_doubled(db):
    assert outcomes.store(db, [outcome(1, state="RUNNING"), outcome(2)], ("sacct", 5), 10.0) == (2, 0)
    assert outcomes.store(db, [outcome(1, state="FAILED"), outcome(2)], ("sacct", 7), 11.0) == (0, 0)
    assert [row.state for row in outcomes.by_job(db, 1)] == ["FAILED", "COMPLETED"]
    assert outcomes.cursor(db, "sacct") == 7
    assert outcomes.cursor(db, "other") is None


def test_a_key_above_what_sqlite_counts_to_is_kept(db):
    outcomes.store(db, [outcome(12715499621253534720)], None, 0.0)
    assert outcomes.by_job(db, 1)[0].db_index == "12715499621253534720"


def test_a_token_once_known_survives_an_overwritten_comment(db):
    decisions.insert_many(db, [decision("t1")])
    outcomes.store(db, [outcome(1, token="t1")], None, 0.0)
    outcomes.store(db, [outcome(1, admin_comment="jobstats")], None, 0.0)
    assert [row.db_index for row in outcomes.by_token(db, "t1")] == ["1"]


def test_the_token_seen_while_the_job_was_live_is_used_when_the_comment_was_overwritten(db):
    assert outcomes.map_tokens(db, [LiveJob("mini", 8, "advisor=t1", 1001.0), LiveJob("mini", 9, "x", 1001.0)]) == 1
    assert outcomes.map_tokens(db, [LiveJob("mini", 8, "advisor=t1", 1005.0)]) == 0
    rows = [
        outcome(1, 8, array_job_id=8, array_task="2"),
        outcome(2, 10, array_job_id=8, array_task="1"),
        outcome(3, 9),
        outcome(4, 8, cluster="other"),
    ]
    outcomes.store(db, rows, None, 0.0)
    assert [row.db_index for row in outcomes.by_token(db, "t1")] == ["1", "2"]


def test_a_job_id_that_is_used_again_does_not_inherit_the_old_token(db):
    outcomes.map_tokens(db, [LiveJob("mini", 8, "advisor=old", 1000.0)])
    year = 365 * 86400
    outcomes.store(db, [outcome(1, 8, submit=year, end=year + 10)], None, 0.0)
    assert outcomes.by_job(db, 8)[0].token is None


def test_tokens_without_a_decision_are_counted_as_lost_until_the_decision_arrives(db):
    rows = [outcome(1, token="t1"), outcome(2, 2, token="t2"), outcome(3, 2, token="t2")]
    decisions.insert_many(db, [decision("t1")])
    assert outcomes.store(db, rows, None, 5.0) == (3, 1)
    assert outcomes.store(db, rows, None, 5.0) == (0, 0)
    assert outcomes.lost_decisions(db) == 1
    decisions.insert_many(db, [decision("t2")])
    assert outcomes.lost_decisions(db) == 0


def test_tokens_of_live_jobs_are_lost_only_after_the_log_had_time_to_catch_up(db):
    outcomes.map_tokens(db, [LiveJob("mini", 1, "advisor=t1", 100.0), LiveJob("mini", 2, "advisor=t2", 900.0)])
    assert outcomes.note_lost_tokens(db, before=500.0, now=1000.0) == 1
    assert outcomes.lost_decisions(db) == 1


def test_history_has_mean_and_spread_of_log_seconds_by_app_and_processor(db):
    decisions.insert_many(db, [decision("t1", app="resnet50")])

    def run(index, seconds, **fields):
        return outcome(index, index, elapsed=seconds, log_elapsed=math.log(seconds), name="train.sh", **fields)

    rows = [
        run(1, 100, token="t1", processor="v100"),
        run(2, 400, token="t1", processor="v100"),
        run(3, 50, processor="cpu"),
        run(4, 9, state="FAILED", processor="cpu"),
        outcome(5, 5, name="train.sh", processor="cpu"),
    ]
    outcomes.store(db, rows, None, 0.0)
    history = outcomes.run_time_history(db)
    assert set(history) == {"resnet50", "train.sh"}
    count, mean, spread = history["resnet50"]["v100"]
    assert (count, mean) == (2, pytest.approx(math.log(200)))
    assert spread == pytest.approx(math.log(2) * math.sqrt(2))
    assert history["train.sh"] == {"cpu": (1, pytest.approx(math.log(50)), 0.0)}


def test_the_story_of_a_job_shows_each_run_beside_what_was_predicted(db):
    row = decision(
        "t1",
        candidates=[{"name": "keep"}, {"name": "v100/v100"}],
        predictions=[{"wait_s": 9.0, "run_s": 9.0}, {"wait_s": 3.0, "run_s": 60.0}],
        chosen=1,
        preferred=1,
    )
    decisions.insert_many(db, [row, decision("t2")])
    runs = [outcome(1, 7, token="t1", state="REQUEUED", start=1004, elapsed=5),
            outcome(2, 7, token="t1", submit=1100, start=1105, elapsed=61)]  # fmt: skip
    outcomes.store(db, runs, None, 0.0)
    story = [
        (s["token"], s["chosen"], s["predicted_run"], s["restarts"], s["state"], s["wait"], s["run"])
        for s in db.rows("SELECT * FROM job_story ORDER BY token, restarts")
    ]
    assert story == [
        ("t1", "v100/v100", 60.0, 0, "REQUEUED", 4, 5),
        ("t1", "v100/v100", 60.0, 1, "COMPLETED", 5, 61),
        ("t2", None, None, 0, None, None, None),
    ]
    assert [tuple(r)[3:5] for r in db.rows("SELECT * FROM states_by_mode")] == [("COMPLETED", 1), ("REQUEUED", 1)]
