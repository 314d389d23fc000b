"""`--dependency` is read as Slurm reads it; what is not understood is not guessed at."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.performance.dependency import MOST_JOBS, parse
from advisor.performance.queue import build_snapshot
from tests.policy import site


@pytest.mark.parametrize(
    ("text", "jobs", "one"),
    [
        (None, (), False),
        ("afterok:12", (12,), False),
        ("afterok:12:13,afterany:14", (12, 13, 14), False),
        ("afterany:7?afterok:8", (7, 8), True),
        ("afterok:12_3:14_*", (12, 14), False),
        ("afterok:12(unfulfilled),afterany:9_*(unfulfilled)", (12, 9), False),
        ("after:12+30,afterok:13", (13,), False),
        ("singleton", (), False),
        ("AfterOK:5", (5,), False),
    ],
)
def test_what_users_and_slurm_write_is_understood(text, jobs, one):
    found = parse(text)
    assert (found.jobs, found.one) == (jobs, one)


@pytest.mark.parametrize(
    "text", ["afterok:x", "afterok:", "expand:3", "afterok:1?afterok:2,afterok:3", ";", "a" * 99_999]
)
def test_what_is_not_understood_is_not_known(text):
    assert parse(text) is None


@given(st.text(alphabet="afteroknyc:,?_+*()0123456789 \x00é", max_size=300))
def test_no_text_does_harm(text):
    found = parse(text)
    assert found is None or len(found.jobs) <= MOST_JOBS


def test_a_job_that_waits_for_another_is_expected_behind_it():
    leader = site.running("c1", 0, None, hours=2, cpus=24)
    follower = site.pending(
        "cpu", minutes=60, cpus=24, dependency=f"afterok:{leader.job_id}(unfulfilled)", reason="Dependency"
    )
    snapshot = build_snapshot(site.state(leader, follower), {})
    assert snapshot.underway[leader.job_id].end == pytest.approx(site.NOW + 7200)
    assert snapshot.underway[follower.job_id].end == pytest.approx(site.NOW + 3 * 3600)
    assert snapshot.newest_job == max(leader.job_id, follower.job_id)


def test_a_job_whose_leaders_are_not_known_is_passed_over():
    follower = site.pending("cpu", minutes=60, cpus=24, dependency="afterok:999999999", reason="Dependency")
    never = site.pending("cpu", minutes=60, cpus=24, dependency="afterok:1", reason="DependencyNeverSatisfied")
    snapshot = build_snapshot(site.state(follower, never), {})
    assert not snapshot.underway
    assert snapshot == msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=type(snapshot))
