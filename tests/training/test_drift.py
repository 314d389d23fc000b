"""Drift: seldom cried where nothing changes, soon where something does, and it says what and since when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor.settings import Drift
from advisor.store.database import Database
from advisor.training.drift import EVERYTHING, Detector, Residual, detect, scan, threshold
from tests.training import logs


def stream(seed: int, jobs: int, shift_at: int | None = None, shift: float = 0.0, heavy: bool = False, app: str = "a"):
    rng = np.random.default_rng(seed)
    noise = rng.standard_t(4, jobs) / np.sqrt(2) if heavy else rng.normal(0, 1, jobs)
    for number in range(jobs):
        moved = shift if shift_at is not None and number >= shift_at else 0.0
        yield Residual(float(number), app, "run time", 0.1 + 0.4 * float(noise[number]) + moved, 0.4)


def alarms(residuals, between: float = 2000.0):
    detector, found = Detector(threshold(between)), []
    for residual in residuals:
        alarm = detector.add(residual.at, residual.off, residual.spread)
        if alarm is not None:
            found.append((residual.at, *alarm))
    return found


@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "heavy tails"])
def test_false_alarms_are_about_as_seldom_as_they_were_asked_to_be(heavy: bool) -> None:
    jobs, runs = 10_000, 6
    count = sum(len(alarms(stream(seed, jobs, heavy=heavy))) for seed in range(runs))
    # 30 are asked for: a Poisson number, and the level is learned from few jobs; twice as many would be a fault.
    assert 4 <= count <= 60, count


def test_a_higher_bar_alarms_more_seldom() -> None:
    often = len(alarms(stream(1, 20_000), between=300))
    seldom = len(alarms(stream(1, 20_000), between=10_000))
    assert often > 4 * max(seldom, 1)


@pytest.mark.parametrize(("shift", "direction"), [(0.4, "longer"), (-0.4, "shorter")])
def test_a_shift_is_found_within_a_few_dozen_jobs_and_told(shift: float, direction: str) -> None:
    late = []
    for seed in range(20):
        found = [a for a in alarms(stream(seed, 900, 500, shift), between=20_000) if a[0] >= 500]
        assert found and found[0][1] == direction
        late.append(found[0][0] - 500)
        assert abs(found[0][2] - 500) < 120  # since about when
        assert found[0][3] > 1.15 if shift > 0 else found[0][3] < 0.87
    assert np.median(late) < 60


def test_one_app_that_drifts_is_named_and_the_others_are_not() -> None:
    rows = [
        *stream(1, 400, 200, 0.8, app="moved"),
        *stream(2, 400, app="steady"),
    ]
    found = scan(sorted(rows, key=lambda r: r.at), Drift())
    assert {alarm.app for alarm in found.alarms} - {EVERYTHING} == {"moved"}
    alarm = next(a for a in found.alarms if a.app == "moved")
    assert alarm.direction == "longer" and 1.8 < alarm.factor < 2.8 and 195 <= alarm.since <= 215


def test_drift_is_found_in_a_log(tmp_path: Path) -> None:
    path = logs.trial(tmp_path, 1200, gain=0.0, kinds=4)
    with Database(path) as db:
        assert detect(db, Drift()).alarms == []
        with db.transaction() as connection:
            connection.execute(
                "UPDATE outcomes SET elapsed = elapsed * 3, end = start + elapsed * 3 "
                "WHERE name = 'app1' AND job_id > 600"
            )
        found = detect(db, Drift())
    assert found.jobs == 1200
    assert {"app1"} <= {alarm.app for alarm in found.alarms} <= {"app1", EVERYTHING}
