"""Fits the models of a version to a log: run times, waits, and how jobs slow each other down.

Run times are fitted once to everything, which is what the version holds, and once more for each of a few parts of the
log without that part: what the version is judged by on a logged job comes from a fit that has not seen that job.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from advisor.performance import processors
from advisor.performance.model.files import encode
from advisor.performance.model.model import RunTimeModel
from advisor.performance.model.observations import Runs
from advisor.performance.model.table import table
from advisor.performance.snapshot import RunTimes
from advisor.performance.told import Told, shipped
from advisor.performance.told import encode as encode_told
from advisor.performance.wait_model import WaitModel
from advisor.performance.wait_model import encode as encode_waits
from advisor.performance.wait_model import learned as learned_waits
from advisor.settings import Settings
from advisor.store import learning
from advisor.store.database import Database
from advisor.training.serving import RUN_TIMES, TOLD, WAITS
from advisor.training.told_fit import updated

FOLDS = 3
# Of waits, the last so many are what the next ones are like; as the daemon has it.
WAIT_RECORDS = 20_000

History = dict[str, dict[str, RunTimes]]
Progress = Callable[[str], None]


class Fitted(NamedTuple):
    """Models fitted to a log, and what they were fitted to."""

    run_times: RunTimeModel
    unseen: list[History]  # for each fold, the run times by a fit without it
    waits: WaitModel
    runs: int
    refused: dict[str, int]  # reason → records that say nothing about run times
    wait_records: int
    ended_until: int
    decided_until: float
    told: Told

    def files(self) -> dict[str, bytes]:
        """As they stand in a version."""
        return {
            RUN_TIMES: encode(self.run_times),
            WAITS: encode_waits(self.waits),
            TOLD: encode_told(self.told),
        }


class Span(msgspec.Struct, frozen=True):
    """What part of time a log is of."""

    ended_until: int
    decided_until: float


def fold_of(token: str) -> int:
    """The fold that a decision is in."""
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) % FOLDS


def span(db: Database) -> Span:
    """Until when the log reaches."""
    decided = db.rows("SELECT coalesce(max(decided_at), 0) FROM decisions")[0][0]
    return Span(learning.ended_until(db), float(decided))


def fit(db: Database, settings: Settings, progress: Progress) -> Fitted:
    """Fits everything; the same log gives the same models. Raises `StoreError`."""
    reach = span(db)
    figures = processors.load(settings.processors)
    runs = Runs()
    runs.add_records(learning.run_records(db, until=reach.ended_until))
    progress(f"fitting run times to {len(runs)} runs")
    model = RunTimeModel.fitted(runs, figures)
    names = frozenset(model.names.processors) | {"cpu"}
    unseen = []
    for fold in range(FOLDS):
        progress(f"fitting run times without part {fold + 1} of {FOLDS}, to judge by it")
        rest = Runs()
        rest.add_records(learning.run_records(db, until=reach.ended_until, keep=_outside(fold)))
        # The spreads of the whole log: they are a handful of numbers, and learning them is what takes long.
        unseen.append(table(RunTimeModel.fitted(rest, figures, learned=model.learned), names))
    progress("fitting waits")
    records = learning.wait_records(db, WAIT_RECORDS)
    return Fitted(
        model,
        unseen,
        learned_waits(records),
        len(runs),
        dict(sorted(runs.refused.items())),
        len(records),
        reach.ended_until,
        reach.decided_until,
        updated(shipped(), learning.annotated_runs(db, reach.ended_until), figures),
    )


def _outside(fold: int) -> Callable[[str | None], bool]:
    return lambda token: token is None or fold_of(token) != fold
