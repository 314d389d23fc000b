"""What the log says about another policy: right on average, sure by as much as it is, silent where it cannot tell."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.store.database import Database
from advisor.store.experience import Experience, experiences
from advisor.training.evidence import Choice, EvidenceError, gather
from advisor.training.off_policy import Logged, effect
from tests.training import logs


def logged(seed: int, jobs: int = 1500, gain: float = 0.2, stay: float = 0.3) -> Logged:
    """Every job was drawn to stay (probability `stay`) or to go; the policy in force stays, the new one goes."""
    rng = np.random.default_rng(seed)
    went = rng.random(jobs) >= stay
    level = np.exp(rng.normal(7, 1, jobs))
    seen = level * np.exp(rng.normal(0, 0.5, jobs)) * np.where(went, 1 - gain, 1.0)
    probability = np.where(went, 1 - stay, stay)
    told = level * np.exp(rng.normal(0, 0.3, jobs))
    always, never = np.ones(jobs, dtype=bool), np.zeros(jobs, dtype=bool)
    return Logged(
        seen, probability, went, ~went, never, told, told, told, np.full(jobs, 1 - stay), np.full(jobs, stay),
        np.arange(jobs) * always,
    )  # fmt: skip


def test_all_three_estimators_find_the_true_effect() -> None:
    found = effect(logged(1, jobs=20_000))
    for estimate in (found.ips, found.snips, found.dr):
        assert estimate.gain.low < 0.2 < estimate.gain.high
        assert estimate.gain.high - estimate.gain.low < 0.2
    # Predictions take out what unlike jobs put in, which weights alone cannot.
    assert found.dr.gain.high - found.dr.gain.low < found.ips.gain.high - found.ips.gain.low


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    found = [effect(logged(seed)) for seed in range(100, 400)]
    for kind, least, most in (("dr", 0.92, 0.995), ("snips", 0.9, 0.99)):
        held = np.mean([getattr(e, kind).gain.low <= 0.2 <= getattr(e, kind).gain.high for e in found])
        assert least <= held <= most, (kind, held)


def test_where_both_policies_agree_there_is_no_effect_and_no_doubt() -> None:
    rows = logged(3)
    same = msgspec.structs.replace(rows, old=rows.new, agree=np.ones(len(rows), dtype=bool))
    gain = effect(same).dr.gain
    assert (gain.value, gain.low, gain.high) == (0.0, 0.0, 0.0)


def test_the_effective_number_of_jobs_shrinks_as_the_new_policy_was_drawn_more_seldom() -> None:
    often, seldom = effect(logged(5, stay=0.3)), effect(logged(5, stay=0.9))
    assert often.effective_jobs > 900 and seldom.effective_jobs < 250


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e9), st.floats(0.05, 1.0), st.booleans(), st.booleans(), st.floats(0, 1e9)),
        min_size=2,
        max_size=30,
    )
)
def test_wild_numbers_give_an_ordered_interval(rows) -> None:
    seen, p, new, old, told = (np.array(column) for column in zip(*rows, strict=True))
    n = np.arange(len(rows))
    found = effect(Logged(seen, p, new, old, new == old, told, told, told, p, p, n))
    for estimate in (found.ips, found.snips, found.dr):
        assert estimate.gain.low <= estimate.gain.high or np.isnan(estimate.gain.value)


# From a log.


def read(path: Path) -> list[Experience]:
    with Database(path) as db:
        return list(experiences(db))


def stays(row, predictions, places) -> Choice:
    return Choice(0)


def test_the_log_of_a_trial_tells_what_leaving_all_jobs_alone_would_cost(tmp_path: Path) -> None:
    rows = read(logs.trial(tmp_path, 4000, gain=0.2))
    found = gather(rows, stays, 200)
    assert found.enough and found.effect is not None
    assert found.used == found.differ == 4000 and found.overlap == 1.0
    # 1 / 0.8 = 1.25 times as long.
    assert found.effect.dr.gain.low < -0.25 < found.effect.dr.gain.high < 0


def test_a_place_that_was_never_tried_is_no_evidence(tmp_path: Path) -> None:
    rows = read(logs.trial(tmp_path, 300, gain=0.2))
    found = gather(rows, lambda *_: Choice(2), 200)
    assert found.verdict == "not enough evidence" and "explore.max_regret" in found.why
    assert found.left_out == {"the log never tried where it would go now (mode enforce)": 300}


def test_too_few_jobs_are_not_enough_evidence(tmp_path: Path) -> None:
    found = gather(read(logs.trial(tmp_path, 100, gain=0.2)), stays, 200)
    assert found.verdict == "not enough evidence" and "gate.least_jobs" in found.why


def test_a_log_without_probabilities_is_refused(tmp_path: Path) -> None:
    path = logs.trial(tmp_path, 30, gain=0.2)
    with Database(path) as db, db.transaction() as connection:
        connection.execute("UPDATE decisions SET probabilities = '[]', probability = NULL")
    with pytest.raises(EvidenceError, match=r"no decision in this log has probabilities.*enforce"):
        gather(read(path), stays, 200)


def test_every_row_that_is_left_out_is_counted_with_its_reason(tmp_path: Path) -> None:
    path = logs.trial(tmp_path, 60, gain=0.2)
    harm = [
        ("DELETE FROM outcomes WHERE token = 't0'", "its job has not ended, or accounting does not know it"),
        ("UPDATE outcomes SET state = 'FAILED' WHERE token = 't1'", "its job failed or was cancelled"),
        ("UPDATE outcomes SET start = NULL, state = 'CANCELLED' WHERE token = 't2'", "its job never started"),
        ("UPDATE outcomes SET end = start - 50 WHERE token = 't3'", "a clock jumped: it ended before it began"),
        (
            "UPDATE decisions SET decided_at = decided_at - 90000 WHERE token = 't4'",
            "a clock jumped: decided and submitted at different times",
        ),
        ("UPDATE decisions SET probabilities = '[0.5, 0.9, 0]' WHERE token = 't5'", "do not sum to 1"),
        ("UPDATE decisions SET predictions = 'x' WHERE token = 't6'", "cannot be read"),
        ("UPDATE decisions SET probability = NULL WHERE token = 't7'", "no probabilities were logged"),
        ("UPDATE outcomes SET cluster = 'other' WHERE token = 't8'", "another cluster"),
        ("UPDATE decisions SET probability = 0.123 WHERE token = 't9'", "with another than was logged"),
    ]
    with Database(path) as db, db.transaction() as connection:
        for sql, _ in harm:
            connection.execute(sql)
    found = gather(read(path), stays, 1)
    assert found.decisions == 60 and found.used == 50 and sum(found.left_out.values()) == 10
    for _, reason in harm:
        assert any(reason in told for told in found.left_out), reason
