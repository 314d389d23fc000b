"""Outcomes from accounting: whatever the pauses and the failures, each record is in the log once."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cluster.types import SourceError
from advisor.store import decisions, outcomes
from advisor.store.database import Database
from advisor.store.outcomes import LiveJob
from advisor.telemetry import sacct, sacct_records
from advisor.telemetry.sacct import collect
from tests.store.rows import decision
from tests.telemetry.recorded import RELEASES, RecordedSacct, recording

DAY = 86400


@pytest.fixture
def db(tmp_path):
    with Database(tmp_path / "advisor.db") as opened:
        yield opened


def everything(db):
    return sorted(tuple(row) for row in db.rows("SELECT * FROM outcomes"))


def made_up(count, step=300, first=1_000_000):
    """Many finished jobs, each `step` seconds after the other, like a record of 24.11."""
    template = next(row for row in recording("24.11") if row["JobName"] == "resnet50")
    rows = []
    for number in range(count):
        end = first + number * step
        rows.append(
            template
            | {"DBIndex": str(2**63 + number), "JobID": str(number), "JobIDRaw": str(number)}
            | {"Submit": str(end - 20), "Eligible": str(end - 20), "Start": str(end - 10), "End": str(end)}
            | {"ElapsedRaw": "10", "AdminComment": ""}
        )
    return rows


@pytest.mark.parametrize("release", RELEASES)
def test_every_way_to_end_is_in_the_log_once_on_each_release(db, release):
    rows = recording(release)
    latest = max(int(row["End"]) for row in rows if row["End"].isdigit())
    result = collect(db, RecordedSacct(rows), latest - DAY, latest + 60.0)
    assert (result.unreadable, result.new) == (0, result.read)
    ended = {
        (row["job"], row["state"], row["exit_code"], row["processor"])
        for row in db.rows("SELECT * FROM outcomes WHERE name NOT LIKE 'limited%'")
    }
    assert ended >= {
        ("1", "TIMEOUT", "0:0", "cpu"),
        ("2", "COMPLETED", "0:0", "v100"),
        ("3", "FAILED", "3:0", "p100"),
        ("4", "FAILED", "0:9", "cpu"),
        ("5", "CANCELLED", "0:0", "cpu"),
        ("6", "CANCELLED", "0:0", ""),
        ("8_1", "COMPLETED", "0:0", "k80"),
        ("8_2", "FAILED", "1:0", "k80"),
        ("8_3", "COMPLETED", "0:0", "k80"),
        ("9+0", "COMPLETED", "0:0", "cpu"),
        ("9+1", "COMPLETED", "0:0", "k80"),
        ("12", "REQUEUED", "0:0", "p100"),
        ("12", "COMPLETED", "0:0", "p100"),
    }
    assert [(row.state, row.processor) for row in outcomes.by_job(db, 13)] == [("NODE_FAIL", "k80")]
    assert not db.rows("SELECT * FROM outcomes WHERE state IN ('RUNNING', 'PENDING') OR job LIKE '%.%'")


@pytest.mark.parametrize("release", RELEASES)
def test_the_numbers_of_a_record_are_read_as_slurm_means_them(db, release):
    rows = recording(release)
    latest = max(int(row["End"]) for row in rows if row["End"].isdigit())
    collect(db, RecordedSacct(rows), latest - DAY, latest + 60.0)
    (trained,) = outcomes.by_job(db, 2)
    recorded = next(row for row in rows if row["JobID"] == "2")
    assert (trained.cpus, trained.memory_mb, trained.gpus, trained.gpu_type) == (4, 2048, 1, "v100")
    assert (trained.elapsed, trained.time_limit, trained.node_count, trained.nodes) == (7, 10, 1, "v1")
    assert (trained.start, trained.end) == (int(recorded["Start"]), int(recorded["End"]))
    assert (trained.user, trained.account, trained.name) == ("alice", "physics", "resnet50")
    assert trained.token == "01HZX3V7K2"
    (never_ran,) = outcomes.by_job(db, 6)
    assert (never_ran.start, never_ran.nodes, never_ran.log_elapsed) == (None, None, None)
    tasks = outcomes.by_job(db, 8)
    assert sorted((task.array_job_id, task.array_task) for task in tasks) == [(8, "1"), (8, "2"), (8, "3")]
    (second,) = outcomes.by_job(db, 10)
    assert (second.het_job_id, second.het_offset) == (9, 1)


@pytest.mark.parametrize("release", RELEASES)
def test_each_run_of_a_requeued_job_is_a_record_of_the_same_decision(db, release):
    rows = recording(release)
    latest = max(int(row["End"]) for row in rows if row["End"].isdigit())
    decisions.insert_many(db, [decision("01HZX3V7K3")])
    result = collect(db, RecordedSacct(rows), latest - DAY, latest + 60.0)
    assert [row.state for row in outcomes.by_token(db, "01HZX3V7K3")] == ["REQUEUED", "COMPLETED"]
    assert result.lost == 1  # the recording's other token has no decision here
    assert outcomes.lost_decisions(db) == 1


def test_collecting_again_changes_nothing(db):
    run = RecordedSacct(recording("24.11"))
    latest = max(int(row["End"]) for row in run.rows if row["End"].isdigit())
    first = collect(db, run, latest - DAY, latest + 60.0)
    before = everything(db)
    second = collect(db, run, latest - DAY, latest + 120.0)
    assert (first.new > 0, second.new, second.lost) == (True, 0, 0)
    assert everything(db) == before


def test_a_job_that_was_running_is_in_the_log_once_it_has_ended(db):
    run = RecordedSacct(made_up(1))
    ended = dict(run.rows[0])
    run.rows[0] |= {"State": "RUNNING", "End": "Unknown"}
    assert collect(db, run, 0.0, 1_000_000.0).read == 0
    run.rows[0] = ended
    assert collect(db, run, 0.0, 1_000_060.0).new == 1


def test_a_pause_of_weeks_is_caught_up_in_pieces(db):
    rows = made_up(5000, step=600)
    run = RecordedSacct(rows[:100])
    collect(db, run, 1_000_000.0, 1_000_000.0 + 100 * 600)
    run.rows, run.windows = rows, []
    now = 1_000_000.0 + 5000 * 600
    result = collect(db, run, 0.0, now)
    assert result.new == 4900
    assert len(everything(db)) == 5000
    assert all(end - start <= sacct.WINDOW_S for start, end in run.windows)
    assert len(run.windows) > 30


def test_when_sacct_fails_in_the_middle_what_was_read_stays_and_the_rest_follows(db):
    run = RecordedSacct(made_up(3000, step=900))  # a month
    now = 1_000_000.0 + 3000 * 900
    run.fails_after = 4
    with pytest.raises(SourceError, match="Problem talking to the database"):
        collect(db, run, 1_000_000.0, now)
    kept = len(everything(db))
    position = outcomes.cursor(db, sacct.CURSOR)
    assert (0 < kept < 3000, position) == (True, run.windows[3][1])
    with pytest.raises(SourceError):
        collect(db, run, 1_000_000.0, now)
    assert outcomes.cursor(db, sacct.CURSOR) == position
    run.fails_after = None
    collect(db, run, 1_000_000.0, now)
    assert len(everything(db)) == 3000


def test_output_that_breaks_off_is_refused_whole(db):
    run = RecordedSacct(made_up(3))
    run.cut = 25
    with pytest.raises(SourceError, match="in the middle of a record"):
        collect(db, run, 990_000.0, 1_000_900.0)
    assert (everything(db), outcomes.cursor(db, sacct.CURSOR)) == ([], None)


def test_records_that_slurmdbd_received_late_are_not_missed(db):
    """slurmctld keeps records while slurmdbd is away: for hours accounting shows nothing, then all of it."""
    rows = made_up(200, step=300)
    run = RecordedSacct(rows[:20])
    for hour in range(1, 10):
        collect(db, run, 1_000_000.0, 1_000_000.0 + hour * 3600)
    run.rows = rows[:100]
    collect(db, run, 1_000_000.0, 1_000_000.0 + 10 * 3600)
    assert len(everything(db)) == 100


def test_after_days_without_slurmdbd_an_answer_that_comes_before_the_records_loses_none(db):
    rows = made_up(1000, step=300)  # three and a half days
    run = RecordedSacct(rows[:50])
    collect(db, run, 1_000_000.0, 1_000_000.0 + 50 * 300)
    now = 1_000_000.0 + 1000 * 300
    for received in (50, 50, 400, 1000):  # slurmdbd is back; slurmctld sends what it kept, oldest first
        run.rows = rows[:received]
        now += 60
        collect(db, run, 0.0, now)
    assert len(everything(db)) == 1000


@given(st.lists(st.integers(60, 40_000), min_size=1, max_size=12), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_whenever_it_is_run_nothing_is_lost_or_doubled(tmp_path_factory, pauses, seed):
    rows = made_up(400, step=700)
    chance = random.Random(seed)
    run = RecordedSacct([])
    with Database(tmp_path_factory.mktemp("collect") / "advisor.db") as db:
        now = 1_000_000.0
        for pause in [*pauses, 400 * 700]:
            now += pause
            # Accounting has what ended by now, but for the last moments, and in no order.
            run.rows = [row for row in rows if int(row["End"]) <= now - chance.choice([0, 30, 1200])]
            chance.shuffle(run.rows)
            run.fails_after = len(run.windows) + 1 if chance.random() < 0.3 else None
            try:
                collect(db, run, 1_000_000.0, now)
            except SourceError:
                continue
        run.rows, run.fails_after = rows, None
        collect(db, run, 1_000_000.0, now + 400 * 700)
        found = sorted(row[0] for row in db.rows("SELECT job_id FROM outcomes"))
    assert found == list(range(400))


@given(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=60),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_users_text_cannot_break_a_record_or_forge_one(name, comment):
    rows = made_up(3)
    rows[1] |= {"JobName": name, "AdminComment": comment}
    forged = "\x1f".join(rows[2][field] for field in sacct.FIELDS)
    rows[0] |= {"JobName": f"x\n{forged}\n{'|'.join(rows[2].values())}\n"}
    found, _, failed = sacct._read_window(RecordedSacct(rows), 0, 2_000_000, {})
    assert (len(found), failed) == (3, 0)
    assert (found[1].name or "", found[1].admin_comment or "") == (name, comment)
    assert [row.job_id for row in found] == [0, 1, 2]


def test_a_record_that_makes_no_sense_is_left_out_and_counted(db):
    rows = made_up(3)
    rows[1] |= {"JobIDRaw": "x"}
    result = collect(db, RecordedSacct(rows), 900_000.0, 1_001_000.0)
    assert (result.read, result.unreadable) == (2, 1)


def test_the_token_of_an_overwritten_comment_comes_from_when_the_job_was_live(db):
    rows = made_up(1)
    rows[0] |= {"AdminComment": "JS1:H4sIAAAA"}
    outcomes.map_tokens(db, [LiveJob("mini", 0, "advisor=t1", 999_990.0)])
    collect(db, RecordedSacct(rows), 900_000.0, 1_000_010.0)
    assert outcomes.by_job(db, 0)[0].token == "t1"


@pytest.mark.parametrize(
    ("tres", "nodes", "types", "processor", "gpus"),
    [
        ("cpu=1,gres/gpu:v100=2,gres/gpu=2", "v1", {}, "v100", 2),
        ("cpu=1,gres/gpu=2", "v1", {"v1": "v100"}, "v100", 2),
        ("cpu=1,gres/gpu=2", "v1", {}, "gpu", 2),
        ("cpu=1,gres/gpu=2", "k[1-2]", {"k1": "k80", "k2": "k80"}, "k80", 2),
        ("cpu=1,gres/gpu:k80=1,gres/gpu:p100=1,gres/gpu=2", "k1,p1", {}, "k80+p100", 2),
        ("cpu=1,gres/shard=2", "k1", {"k1": "k80"}, "k80/shard", 0),
        ("cpu=1,gres/shard=2", "k[", {"k1": "k80"}, "gpu/shard", 0),
        ("cpu=1", "v1", {"v1": "v100"}, "cpu", 0),
        ("", "None assigned", {}, "", 0),
    ],
)
def test_the_processor_is_the_gpu_type_a_job_had(db, tres, nodes, types, processor, gpus):
    rows = made_up(1)
    rows[0] |= {"AllocTRES": tres, "NodeList": nodes}
    collect(db, RecordedSacct(rows), 900_000.0, 1_000_010.0, types)
    (row,) = outcomes.by_job(db, 0)
    assert (row.processor, row.gpus) == (processor, gpus)


@pytest.mark.parametrize("release", RELEASES)
def test_steps_are_in_the_log_with_what_they_used(db, release):
    rows = recording(release)
    latest = max(int(row["End"]) for row in rows if row["End"].isdigit())
    run = RecordedSacct(rows)
    collect(db, run, latest - DAY, latest + 60.0)
    collect(db, run, latest - DAY, latest + 120.0)  # once more changes nothing
    (job,) = outcomes.by_job(db, 2)
    steps = {row["step"]: row for row in db.rows("SELECT * FROM steps WHERE db_index = ?", (job.db_index,))}
    assert set(steps) == {"batch", "0"}
    assert {(row["state"], row["exit_code"], row["tasks"]) for row in steps.values()} == {("COMPLETED", "0:0", 1)}
    assert all(row["nodes"] == job.nodes and row["node_count"] == 1 for row in steps.values())
    assert all("gres/gpu:v100=1" in row["tres"] for row in steps.values())
    recorded = {row["JobID"]: row for row in rows}
    assert job.cpu_s == float(recorded["2"]["TotalCPU"].partition(":")[2])
    assert steps["batch"]["user_s"] == float(recorded["2.batch"]["UserCPU"].partition(":")[2])
    assert job.max_rss_mb == steps["batch"]["max_rss_mb"] == round(int(recorded["2.batch"]["MaxRSS"][:-1]) / 1024)
    # A step may end otherwise than its job.
    (timed_out,) = outcomes.by_job(db, 1)
    (step,) = db.rows("SELECT * FROM steps WHERE db_index = ?", (timed_out.db_index,))
    assert (timed_out.state, step["state"], step["exit_code"]) == ("TIMEOUT", "CANCELLED", "0:15")
    orphans = "SELECT count(*) FROM steps AS s LEFT JOIN outcomes AS o USING (cluster, db_index) WHERE o.job IS NULL"
    assert db.rows(orphans)[0][0] == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00.002", 0.002),
        ("00:00:00", 0),
        ("03:04.567", 184.567),
        ("02:03:04", 7384),
        ("1-02:03:04", 93784),
        ("100-00:00:01", 8640001),
        ("", None),
        ("INVALID", None),
        ("12", None),
        ("a:b", None),
    ],
)
def test_cpu_time_is_read_however_sacct_writes_it(text, seconds):
    assert sacct_records.cpu_seconds(text) == seconds


def test_a_step_that_cannot_be_read_is_counted_and_costs_no_job(db):
    rows = made_up(2)
    rows.append(rows[0] | {"JobID": "0.batch", "JobIDRaw": "0.", "State": "COMPLETED"})
    result = collect(db, RecordedSacct(rows), 0, 2_000_000.0)
    assert (result.new, result.unreadable) == (2, 1)


def test_the_first_collection_begins_where_it_is_told_and_reads_nothing_older(db):
    run = RecordedSacct(made_up(4000, step=3600))  # half a year
    now = 1_000_000.0 + 4000 * 3600
    since = now - 10 * DAY
    told = []
    result = collect(db, run, since, now, progress=lambda until, read: told.append((until, read)))
    assert run.windows[0][0] == since and len(run.windows) <= 11
    assert [until for until, _ in told] == [end for _, end in run.windows[:-1]] and told == sorted(told)
    assert (result.read, len(everything(db))) == (240, 240)
    run.windows = []
    collect(db, run, 0.0, now + 60)  # from then on its own cursor counts
    assert run.windows[0][0] >= now - sacct.OVERLAP_S - 3600


def test_a_long_text_is_not_cut_short(db):
    rows = made_up(1)
    rows[0] |= {"JobName": "x" * 500, "NodeList": ",".join(f"n{i}" for i in range(900)), "AdminComment": "y" * 5000}
    run = RecordedSacct(rows)
    collect(db, run, 900_000.0, 1_000_010.0)
    (row,) = outcomes.by_job(db, 0)
    assert (len(row.name), row.nodes.count(","), len(row.admin_comment)) == (500, 899, 5000)
