"""Summaries in SQLite are those of the samples, each once, whatever way these arrived; what is old is folded away."""

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.store import counters, outcomes
from advisor.store.counter_retention import sweep
from advisor.store.counters import CounterStore, Ranges
from advisor.store.database import Database
from advisor.store.moments import Moments

NOW = 1_800_000_000.0
DAY = 86400.0
ACCEPT = 7 * DAY


def sample(n, value=1.0, job=12, **fields):
    return {
        "n": n,
        "t": NOW - 1000 + 10 * n,
        "b": 5000 + 10 * n,
        "dt": 10.0,
        "jobs": [{"job": job, "m": {"cpu.user": value, "perf.cycles": [value * 1e9, 10.0, 2.5]}}],
        "node": {"memory": value * 1e9},
        **fields,
    }


def batch(samples, node="n1", run="boot.1", now_b=6000.0, **fields):
    given = {"v": 1, "node": node, "boot": "boot", "run": run, "now": NOW, "now_b": now_b, "cluster": "mini"}
    return counters.decode(counters.msgspec.json.encode({**given, "samples": samples, **fields}))


@pytest.fixture
def store(tmp_path):
    with Database(tmp_path / "advisor.db") as db:
        yield CounterStore(db)


def merge(store, *batches, now=NOW):
    return store.merge(list(batches), now, ACCEPT)


def test_a_jobs_summary_has_count_mean_deviation_and_the_time_its_events_were_counted(store):
    values = [1.0, 2.0, 4.0, 9.0]
    merge(store, batch([sample(n, value) for n, value in enumerate(values)]))
    found = counters.job_summary(store.db, 12, "mini")[(0, "n1")]
    assert found["cpu.user"].n == 4
    assert found["cpu.user"].mean == pytest.approx(4.0)
    assert found["cpu.user"].sd == pytest.approx(statistics.stdev(values))
    assert found["cpu.user"].enabled_s is None
    assert (found["perf.cycles"].enabled_s, found["perf.cycles"].running_s) == (40.0, 10.0)
    (row,) = store.db.rows("SELECT * FROM job_summaries WHERE metric = 'cpu.user'")
    assert row["variance"] == pytest.approx(statistics.variance(values))
    assert (row["job_id"], row["node"], row["cluster"], row["seconds"]) == (12, "n1", "mini", 40.0)


@settings(deadline=None, max_examples=40)
@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    seed=st.integers(0, 2**32),
    copies=st.integers(1, 3),
    size=st.integers(1, 7),
)
def test_order_duplicates_and_batch_sizes_do_not_matter(tmp_path_factory, values, seed, copies, size):
    samples = [sample(n, value) for n, value in enumerate(values)] * copies
    random.Random(seed).shuffle(samples)
    with Database(tmp_path_factory.mktemp("db") / "advisor.db") as db:
        store = CounterStore(db)
        results = []
        for start in range(0, len(samples), size):
            results += merge(store, batch(samples[start : start + size]))
        assert sum(r.new for r in results) == len(values)
        assert sum(r.known for r in results) == len(values) * (copies - 1)
        found = counters.job_summary(db, 12)[(0, "n1")]["cpu.user"]
        assert found.n == len(values)
        assert math.isclose(found.mean, statistics.fmean(values), rel_tol=1e-9, abs_tol=1e-6)
        if len(values) > 1:
            assert math.isclose(found.sd, statistics.stdev(values), rel_tol=1e-6, abs_tol=1e-4)
        assert db.rows("SELECT sum(n) FROM node_counters")[0][0] == len(values)
        assert len(db.rows("SELECT * FROM received_samples")) == 1


def test_a_batch_that_could_not_be_written_whole_leaves_nothing(store):
    merge(store, batch([sample(0)]))
    store.db.connection.execute(
        "CREATE TRIGGER full BEFORE INSERT ON node_counters BEGIN SELECT RAISE(ABORT, 'disk'); END"
    )
    with pytest.raises(Exception, match="disk"):
        merge(store, batch([sample(1)]))
    store.db.connection.execute("DROP TRIGGER full")
    assert merge(store, batch([sample(0), sample(1)]))[0] == counters.Merged(new=1, known=1)
    assert counters.job_summary(store.db, 12)[(0, "n1")]["cpu.user"].n == 2


def test_the_same_numbers_of_another_run_or_node_are_other_samples(store):
    merge(store, batch([sample(0)]), batch([sample(0)], run="boot.2"), batch([sample(0)], node="n2"))
    found = counters.job_summary(store.db, 12)
    assert found[(0, "n1")]["cpu.user"].n == 2
    assert found[(0, "n2")]["cpu.user"].n == 1


def test_an_agent_that_learns_its_clusters_name_late_is_not_counted_twice(store):
    one = sample(0)
    assert merge(store, batch([one], cluster=""))[0].new == 1
    assert merge(store, batch([one], cluster="mini"))[0] == counters.Merged(known=1)


def test_runs_of_a_requeued_job_and_jobs_that_share_an_id_are_kept_apart(store):
    again = sample(1)
    again["jobs"][0]["restarts"] = 1
    merge(store, batch([sample(0), again]))
    assert set(counters.job_summary(store.db, 12)) == {(0, "n1"), (1, "n1")}
    merge(store, batch([sample(2)]), now=NOW + 300 * DAY)
    assert store.db.rows("SELECT count(*) FROM job_nodes WHERE job_id = 12 AND restarts = 0")[0][0] == 2


@pytest.mark.parametrize("off", [-60.0, 0.0, 60.0, 86400.0 * 365])
@pytest.mark.parametrize("rebooted", [False, True])
def test_a_nodes_clock_may_be_wrong(store, off, rebooted):
    """Samples are filed by the daemon's clock, whatever the node believes."""
    one = sample(0, t=NOW - 1800 + off, b=4200.0)
    merge(store, batch([one], now=NOW + off, now_b=None if rebooted else 6000.0))
    (row,) = store.db.rows("SELECT first_at FROM job_nodes")
    assert row["first_at"] == pytest.approx(NOW - 1800)
    (hour,) = store.db.rows("SELECT DISTINCT start FROM node_counters")
    assert hour["start"] == (NOW - 1805) // 3600 * 3600


def test_a_clock_that_was_set_meanwhile_does_not_matter_within_a_boot(store):
    merge(store, batch([sample(0, t=12.0, b=4200.0)]))
    assert store.db.rows("SELECT first_at FROM job_nodes")[0][0] == pytest.approx(NOW - 1800)


def test_samples_too_old_to_be_told_from_known_ones_are_passed_over(store):
    ancient = sample(0, t=NOW - 8 * DAY, b=0.0)
    assert merge(store, batch([ancient, sample(1)], now_b=None))[0] == counters.Merged(new=1, old=1)


@given(st.lists(st.integers(0, 40), max_size=60))
def test_ranges_hold_what_was_put_in(numbers):
    ranges = Ranges()
    for number in numbers:
        if not ranges.has(number):
            ranges.add(number)
    assert [n for n in range(-2, 45) if ranges.has(n)] == sorted(set(numbers))
    assert all(b[0] > a[1] + 1 for a, b in zip(ranges.ranges, ranges.ranges[1:], strict=False))
    assert Ranges(ranges.ranges).ranges == ranges.ranges


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20), st.integers(0, 20))
def test_moments_merge_like_one_pile(values, cut):
    one, other, all_ = Moments(), Moments(), Moments()
    for index, value in enumerate(values):
        (one if index < cut else other).add(value)
        all_.add(value)
    other.merge(one)
    assert other.n == all_.n
    assert math.isclose(other.mean, statistics.fmean(values), rel_tol=1e-9, abs_tol=1e-3)
    assert math.isclose(other.m2, all_.m2, rel_tol=1e-6, abs_tol=1e-3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"samples": [{"n": -1}]}, "n"),
        ({"samples": [sample(0, jobs=[{"job": 0, "m": {}}])]}, "job"),
        ({"samples": [sample(0, jobs=[{"job": 1, "m": {"cpu": "x"}}])]}, "got `str`"),
        ({"samples": [sample(0, jobs=[{"job": 1, "m": {"cpu": 1e300}}])]}, "cpu has the value"),
        ({"samples": [sample(0, jobs=[{"job": 1, "m": {"cpu": [1.0, -2.0, 3.0]}}])]}, "cpu has the value"),
        ({"samples": [sample(0, jobs=[{"job": 1, "m": {"cpu": [1.0]}}])]}, "cpu has the value"),
        ({"samples": [sample(0, jobs=[{"job": 1, "m": {"a b": 1.0}}])]}, "name of a metric"),
        ({"samples": [sample(0, node={str(n): 1.0 for n in range(401)})]}, "400"),
        ({"node": ""}, "node"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused_with_what_is_wrong(change, says):
    with pytest.raises(ValueError, match=says):
        batch(**{"samples": [], **change})


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"v":1}', b"\xff\xfe", b"[" * 100_000, b'{"v":1e999}'])
def test_a_batch_that_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match="cannot be read"):
        counters.decode(text)


def outcome(job_id, end, name="heat", processor="cpu"):
    return outcomes.OutcomeRow(
        cluster="mini", db_index=str(job_id), job=str(job_id), job_id=job_id, end=int(end), start=int(end) - 3600,
        submit=int(end) - 4000, state="COMPLETED", elapsed=3600, name=name, processor=processor,
    )  # fmt: skip


def test_jobs_past_their_time_are_folded_into_their_app(store):
    for job in (1, 2, 3):
        merge(store, batch([sample(job * 10 + n, value=job * 1.0, job=job) for n in range(4)]))
    outcomes.store(store.db, [outcome(1, NOW), outcome(2, NOW)], None, NOW)  # of 3 accounting knows nothing
    assert sweep(store.db, NOW + 80 * DAY, 90, 30, 730, ACCEPT).jobs == 0
    assert sweep(store.db, NOW + 91 * DAY, 90, 30, 730, ACCEPT).jobs == 3
    assert store.db.rows("SELECT count(*) FROM job_counters")[0][0] == 0
    (row,) = store.db.rows(
        "SELECT a.* FROM app_counters AS a JOIN metrics AS m ON m.id = a.metric WHERE m.name = 'cpu.user'"
    )
    assert (row["app"], row["processor"], row["runs"], row["n"]) == ("heat", "cpu", 2, 8)
    assert row["mean"] == pytest.approx(1.5)
    assert row["m2"] == pytest.approx(8 * 0.25)
    # Later ones are added to it.
    merge(store, batch([sample(99, value=1.5, job=4)], run="boot.9"), now=NOW + 100 * DAY)
    outcomes.store(store.db, [outcome(4, NOW + 100 * DAY)], None, NOW)
    sweep(store.db, NOW + 200 * DAY, 90, 30, 730, ACCEPT)
    (row,) = store.db.rows(
        "SELECT a.* FROM app_counters AS a JOIN metrics AS m ON m.id = a.metric WHERE m.name = 'cpu.user'"
    )
    assert (row["runs"], row["n"]) == (3, 9)


def test_hours_of_a_node_become_days_and_days_end(store):
    for hour in range(30):
        merge(store, batch([sample(hour, value=float(hour), t=0.0, b=0.0)], now_b=0.0), now=NOW + hour * 3600)
    before = store.db.rows("SELECT sum(n) AS n, sum(n * mean) / sum(n) AS mean FROM node_counters")[0]
    later = NOW + 40 * DAY
    while sweep(store.db, later, 90, 30, 730, ACCEPT).hours:
        pass
    rows = store.db.rows("SELECT span, start, n, mean, m2 FROM node_counters ORDER BY start")
    assert {row["span"] for row in rows} == {86400}
    assert sum(row["n"] for row in rows) == before["n"] == 30
    assert sum(row["n"] * row["mean"] for row in rows) / 30 == pytest.approx(before["mean"])
    assert sweep(store.db, NOW + 800 * DAY, 90, 30, 730, ACCEPT).days == len(rows)


def test_what_was_received_is_forgotten_only_when_it_would_not_be_accepted_again(store):
    one = sample(0)
    merge(store, batch([one]))
    assert sweep(store.db, NOW + 10 * DAY, 90, 30, 730, ACCEPT).runs == 0
    assert sweep(store.db, NOW + 15 * DAY, 90, 30, 730, ACCEPT).runs == 1
    assert merge(store, batch([one], now_b=5000.0 + 15 * DAY), now=NOW + 15 * DAY)[0] == counters.Merged(old=1)


def test_notes_are_kept_once_with_when_they_were_made(store):
    note = ["perf.instructions", "not supported", "this node's PMU does not have it"]
    merge(store, batch([sample(0, notes=[note])]), batch([sample(0, notes=[note])], run="boot.2"))
    (row,) = store.db.rows("SELECT * FROM agent_notes")
    assert (row["subject"], row["what"]) == ("perf.instructions", "not supported")
