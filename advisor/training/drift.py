"""Notices that what was predicted is no longer what happens: a change detector on every app, and on all together.

Of each ended job the distance of the real from the predicted log run time (and wait) is divided by the spread of its
app so far. A CUSUM on each side of these grows while they lean to that side; what odd jobs add is bounded. It alarms
beyond a threshold that is chosen for how seldom it may do so where nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from advisor.settings import Drift
from advisor.store.database import Database
from advisor.store.experience import Experience, experiences
from advisor.training.evidence import foretold

# The lean that is looked for, in spreads: half of it is what a residual must exceed to count.
LEAN = 1.0
# A single job counts as no more than so many spreads.
MOST = 3.0
# Jobs of an app before its own level and spread are known.
LEARNING = 10
EVERYTHING = "(all apps)"


class Alarm(msgspec.Struct, frozen=True):
    """When something changed, and what."""

    app: str  # or `EVERYTHING`
    what: str  # "run time", "wait"
    at: float  # the end of the job that made it certain
    since: float  # about when it began: the end of the first job of the lean
    direction: str  # "longer", "shorter"
    factor: float  # real / predicted of the jobs since then, against before (geometric mean)
    jobs: int  # jobs since then


class Drifts(msgspec.Struct, frozen=True):
    """What the detector found in a log."""

    jobs: int
    apps: int
    threshold: float
    alarms: list[Alarm]


class Residual(NamedTuple):
    """One ended job: log(real / predicted), and the spread it was predicted with (0: not told)."""

    at: float
    app: str
    what: str
    off: float
    spread: float


def threshold(jobs_between: float, lean: float = LEAN) -> float:
    """The height of a two-sided CUSUM that is passed once in so many jobs where nothing changes (Siegmund 1985)."""
    # One side alarms half as often as both together; Siegmund's corrected diffusion gives its mean run length.
    wanted = 2.0 * max(jobs_between, 10.0)
    k = lean / 2.0
    low, high = 0.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2.0
        b = middle + 1.166
        run_length = (math.exp(2.0 * k * b) - 2.0 * k * b - 1.0) / (2.0 * k * k)
        low, high = (middle, high) if run_length < wanted else (low, middle)
    return high


class Detector:
    """Follows one stream of residuals; after an alarm it learns anew what is usual."""

    def __init__(self, height: float, lean: float = LEAN) -> None:
        self._height, self._slack = height, lean / 2.0
        self._reset()

    def _reset(self) -> None:
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        self._sides = [0.0, 0.0]
        self._begun = [(0.0, 0, 0.0), (0.0, 0, 0.0)]  # of each side: since when, jobs, sum of residuals

    def add(self, at: float, off: float, spread: float) -> tuple[str, float, float, int] | None:
        """Takes one residual; direction, since when, factor and jobs where that makes an alarm."""
        if self._count < LEARNING:
            self._learn(off)
            return None
        # The level may differ from what was predicted from the start; drift is a change of it.
        usual = math.sqrt(max((self._squares + 2.0 * max(spread, 0.1) ** 2) / (self._count + 1.0), 0.01))
        # How far the level itself is known makes early residuals count less.
        known = math.sqrt(1.0 + 1.0 / self._count)
        z = max(-MOST, min((off - self._mean) / (usual * known), MOST))
        for side, sign in enumerate((1.0, -1.0)):
            before = self._sides[side]
            self._sides[side] = max(0.0, before + sign * z - self._slack)
            since, jobs, total = self._begun[side] if before > 0.0 else (at, 0, 0.0)
            self._begun[side] = (since, jobs + 1, total + off - self._mean)
            if self._sides[side] > self._height:
                since, jobs, total = self._begun[side]
                self._reset()
                return ("longer" if sign > 0 else "shorter"), since, math.exp(total / jobs), jobs
        # What leans is not learned from: it would become the new usual before it is noticed.
        if max(self._sides) < self._height / 2.0:
            self._learn(off)
        return None

    def _learn(self, off: float) -> None:
        self._count += 1
        step = off - self._mean
        self._mean += step / self._count
        self._squares += step * (off - self._mean)


def residuals(rows: Iterable[Experience]) -> list[Residual]:
    """What every ended job tells about predictions, in the order of their ends."""
    found = []
    for row, ended, run, wait in foretold(rows):
        if run is not None:
            off = math.log(max(ended.run, 1.0) / max(run.run_s * run.slowdown, 1.0))
            found.append(Residual(ended.end, row.app, "run time", off, run.sd_log))
        if wait is not None:
            # A minute more on both: whether a job starts after one second or ten is no drift.
            off = math.log((max(ended.wait or 0.0, 0.0) + 60.0) / (wait.wait_s + 60.0))
            found.append(Residual(ended.end, EVERYTHING, "wait", off, 1.0))
    return sorted(found, key=lambda residual: (residual.at, residual.app, residual.what))


def detect(db: Database, settings: Drift, since: float = 0.0) -> Drifts:
    """Every alarm in the log on decisions after `since`; raises `StoreError`."""
    return scan(residuals(experiences(db, since)), settings)


def scan(found: Iterable[Residual], settings: Drift) -> Drifts:
    """Runs the detectors over residuals: one for each app, one for all run times, one for all waits."""
    height = threshold(settings.jobs_between_false_alarms)
    detectors: dict[tuple[str, str], Detector] = {}
    alarms = []
    jobs = 0
    for residual in found:
        jobs += residual.what == "run time"
        for app in dict.fromkeys((residual.app, EVERYTHING)):
            detector = detectors.setdefault((app, residual.what), Detector(height))
            alarm = detector.add(residual.at, residual.off, residual.spread)
            if alarm is not None:
                direction, begun, factor, count = alarm
                alarms.append(Alarm(app, residual.what, residual.at, begun, direction, round(factor, 3), count))
    apps = len({app for app, _ in detectors} - {EVERYTHING})
    return Drifts(jobs, apps, round(height, 3), alarms)
