"""Keeps what the log says about run times and waits: fitted, updated with every outcome, now and then fitted again.

Lives in the collector's bookkeeping thread. It needs numpy and scipy (in the `sim` and `learn` extras); without them
past run times are plain means, as the log's own view has them, and that is said once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from advisor.performance import processors, told
from advisor.performance.snapshot import RunTimes
from advisor.performance.told import Told
from advisor.performance.wait_model import corrections
from advisor.performance.wait_model import learned as learned_waits
from advisor.server import saved_run_times
from advisor.settings import Settings
from advisor.store import learning, outcomes
from advisor.store.database import Database
from advisor.training import serving
from advisor.training.versions import VersionError

if TYPE_CHECKING:
    from advisor.performance.model.model import RunTimeModel

log = logging.getLogger(__name__)

History = dict[str, dict[str, RunTimes]]
Waits = dict[str, tuple[tuple[float, float, float], ...]]

# Spreads are learned anew when the log has grown by this share, and at least this often.
GROWN = 0.25
REFIT_S = 6 * 3600.0
# Before this many new runs a refit tells nothing new.
FEW_RUNS = 50
# Records may come into the log so long after others that ended later; accounting has them in no order.
LATE_S = 3600
# A controller's clock may be ahead by so much.
CLOCKS_S = 60
# The last so many waits are what the next ones are like; looked at again this often.
WAITS = 20_000
WAITS_S = 600.0


class RunningJob(NamedTuple):
    """A job that has not ended: it runs at least as long as it has."""

    app: str
    user: str
    processor: str
    gpus: int
    cpus: int
    elapsed_s: float


class Learner:
    """The models, and how far into the log they have read."""

    def __init__(self) -> None:
        self._model: RunTimeModel | None = None
        self._table: History = {}
        self._until = 0  # the ends of records read so far
        self._fitted_runs = 0
        self._new_runs = 0
        self._fitted_at = 0.0
        self._processors: frozenset[str] = frozenset()
        self._without_numpy = False
        self._waits: Waits = {}
        self._next_waits = 0.0
        self._in_force = serving.InForce()
        self._told_refused = ""
        self._place: Path | None = None  # where the model is saved
        self._recent: dict[tuple[str, str], int] = {}  # records of the last while that are in the model → their end

    def history(
        self, db: Database, settings: Settings, site: Iterable[str], running: Iterable[RunningJob] = ()
    ) -> History:
        """App → processor → run time, up to date with the log; `site`: its processors. Raises `StoreError`."""
        if not self._without_numpy:
            try:
                return self._modelled(db, settings, frozenset(site), running)
            except ImportError as error:
                self._without_numpy = True
                log.warning(
                    "run times are plain means of past runs: %s (pip install 'slurm-advisor[sim]' for the model)", error
                )
        return {
            app: {processor: RunTimes(*figures) for processor, figures in runs.items()}
            for app, runs in outcomes.run_time_history(db).items()
        }

    def waits(self, db: Database) -> Waits:
        """Corrections of expected waits; empty while no job with a decision has started. Raises `StoreError`."""
        if time.monotonic() >= self._next_waits:
            version = self._in_force.version
            model = serving.waits(version) if version is not None else None
            since = version.manifest.decided_until if version is not None and model is not None else 0.0
            found = learning.wait_records(db, WAITS, since)
            self._waits = corrections(learned_waits(found, model)) if found or model else {}
            self._next_waits = time.monotonic() + WAITS_S
        return self._waits

    def told(self) -> Told | None:
        """How far off annotations are: by the version in force, or as shipped; None where that cannot be read."""
        try:
            found = serving.told(self._in_force.version) if self._in_force.version is not None else None
            return found if found is not None else told.shipped()
        except (told.ToldError, VersionError) as error:
            if str(error) != self._told_refused:
                log.error("annotations are taken at their word: %s", error)
            self._told_refused = str(error)
            return None

    def _modelled(
        self, db: Database, settings: Settings, site: frozenset[str], running: Iterable[RunningJob]
    ) -> History:
        # A record from a clock that is ahead must not hide what ends before its time has come.
        until = learning.ended_until(db, time.time() + CLOCKS_S)
        if self._in_force.changed(settings):
            self._adopt(settings, site)
        place = saved_run_times.folder(settings)
        if self._in_force.version is None and place != self._place:
            self._resume(settings, site)
        self._place = place
        model = self._model
        if model is None or self._due():
            return self._refitted(db, settings, site, running, until)
        changed = self._update(model, db, until)
        if site != self._processors:
            from advisor.performance.model.table import table

            self._table, self._processors = table(model, site), site
        elif changed:
            self._table = self._table | self._entries(model, changed)
        return self._table

    def _adopt(self, settings: Settings, site: frozenset[str]) -> None:
        """Goes on from the version that has come into force; from the log alone where there is none."""
        from advisor.performance.model.table import table

        version = self._in_force.version
        self._model = model = serving.run_times(version, settings) if version is not None else None
        self._next_waits = 0.0
        if version is not None and model is not None:
            self._until, self._new_runs, self._recent = version.manifest.ended_until, 0, {}
            self._table, self._processors = table(model, site), site
            log.info("run times and waits are those of version %s", version.name)

    def _resume(self, settings: Settings, site: frozenset[str]) -> None:
        """Goes on from the model that was saved beside this log, if there is one that can be used."""
        from advisor.performance.model.table import table

        saved = saved_run_times.load(settings)
        self._model, self._recent = None, {}
        if saved is not None:
            self._model, self._until, self._fitted_runs, self._new_runs = saved.model, saved.ended_until, saved.runs, 0
            self._fitted_at = time.monotonic()
            self._table, self._processors = table(saved.model, site), site
            log.info("run times of %d runs loaded from %s", saved.runs, saved_run_times.folder(settings))

    def _due(self) -> bool:
        if self._in_force.version is not None:
            return False  # what decides is a version that was judged, brought up to date with every outcome
        grown = self._new_runs >= max(FEW_RUNS, GROWN * self._fitted_runs)
        return grown or (self._new_runs > 0 and time.monotonic() - self._fitted_at > REFIT_S)

    def _refitted(
        self, db: Database, settings: Settings, site: frozenset[str], running: Iterable[RunningJob], until: int
    ) -> History:
        from advisor.performance.model.model import RunTimeModel
        from advisor.performance.model.observations import Runs
        from advisor.performance.model.table import table

        started = time.monotonic()
        runs = Runs()
        runs.add_records(learning.run_records(db, until=until))
        finished = len(runs)
        for job in running:
            runs.add_record(
                app=job.app, user=job.user, processor=job.processor, state="RUNNING", elapsed_s=job.elapsed_s,
                gpus=job.gpus, cpus=job.cpus,
            )  # fmt: skip
        self._model = model = RunTimeModel.fitted(runs, processors.load(settings.processors))
        self._until, self._fitted_runs, self._new_runs = until, finished, 0
        self._fitted_at = time.monotonic()
        self._table, self._processors = table(model, site), site
        log.info("run times fitted to %d runs in %.1f s", finished, self._fitted_at - started)
        self._recent = {
            (key.cluster, key.db_index): key.end for key, _ in learning.keyed_run_records(db, until - LATE_S, until)
        }
        saved_run_times.save(model, settings, until, runs.refused)
        return self._table

    def _update(self, model: RunTimeModel, db: Database, until: int) -> set[str]:
        """Takes in what has ended since; the apps of which something is new."""
        from advisor.performance.model.observations import Refused, observe

        changed = set()
        # What a resumed model has taken in shortly before it was saved is not known one by one.
        after = self._until - LATE_S if self._recent else self._until
        for key, record in learning.keyed_run_records(db, after, until):
            if (key.cluster, key.db_index) in self._recent:
                continue
            self._recent[key.cluster, key.db_index] = key.end
            try:
                run = observe(**record._asdict())
            except Refused:
                continue
            model.update(run)
            changed.add(run.app)
            self._new_runs += 1
        self._until = max(until, self._until)
        if changed:
            self._recent = {key: end for key, end in self._recent.items() if end > self._until - LATE_S}
        return changed

    def _entries(self, model: RunTimeModel, apps: set[str]) -> History:
        from advisor.performance.model.table import entries_of

        names = sorted({*self._processors, *model.names.processors})
        found: History = {}
        for app in sorted(apps):
            found.update(entries_of(model, app, names))
        return found
