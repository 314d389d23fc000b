"""Jobs that a round moved: they speak for the policy with its rounds, and their waits for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.store import moves
from advisor.store.database import Database
from advisor.store.experience import experiences
from advisor.store.learning import wait_records
from advisor.store.moves import MoveRow
from advisor.training.drift import residuals
from advisor.training.evidence import Choice, gather
from tests.training import logs


def moved(token: str, outcome: str = moves.OK) -> MoveRow:
    return MoveRow(
        round=1.0, moved_at=1.0, cluster="mini", job_id=1, token=token, lever="place", mode="enforce",
        from_place="gpu/v100", to_place="gpu/p100", why="it was free", outcome=outcome,
    )  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return logs.trial(tmp_path, 400, gain=0.2)


def test_evidence_counts_them_and_does_not_leave_them_out(log: Path) -> None:
    def as_logged(row, predictions, places):
        return Choice(1)

    with Database(log) as db:
        before = gather(experiences(db), as_logged, 10)
        treated = [row.token for row in experiences(db) if row.applied][:50]
        for token in treated:
            moves.add(db, moved(token))
        after = gather(experiences(db), as_logged, 10)
    assert (before.moved, after.moved) == (0, 50)
    assert after.used == before.used and after.effect == before.effect, "what is weighed, and how, stays the same"


def test_their_waits_are_neither_learned_nor_watched_for_drift(log: Path) -> None:
    with Database(log) as db:
        for number in range(400):
            if number % 2:
                moves.add(db, moved(f"t{number}"))
            else:
                moves.add(db, moved(f"t{number}", moves.REFUSED))
                moves.add(db, moved(f"t{number}", moves.WOULD))
        assert len(wait_records(db)) == 200
        found = residuals(experiences(db))
    assert sum(residual.what == "wait" for residual in found) == 200
    assert sum(residual.what == "run time" for residual in found) == 400, "it ran where it ran"
