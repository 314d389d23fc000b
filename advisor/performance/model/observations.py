"""What one record of accounting says about a run time: exactly so long, at least so long, or nothing.

A job that was cut off (time limit, cancelled, node lost, still running) ran at least as long as it did; one that
failed says nothing, since nobody knows how far it came. Numbers that cannot be run times are refused with a reason.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

# Accounting counts whole seconds: what took less than one is as good as one.
SHORTEST_S = 1.0
# Ten years: no job ran longer, but broken clocks say so.
LONGEST_S = 10 * 365 * 86_400.0
MOST_UNITS = 1_000_000
_NAME_LENGTH = 200

# How a record ended → whether it was cut off. Others (FAILED, OUT_OF_MEMORY, REQUEUED, BOOT_FAIL, RESIZING, REVOKED)
# say nothing: a program that crashed or was sent back did not do its work.
CUT_OFF = {
    "COMPLETED": False,
    "TIMEOUT": True,
    "DEADLINE": True,
    "CANCELLED": True,
    "PREEMPTED": True,
    "NODE_FAIL": True,
    "RUNNING": True,
    "SUSPENDED": True,
}


class Observation(msgspec.Struct, frozen=True):
    """One run, as far as it tells how long its app runs."""

    app: str
    user: str
    processor: str  # the GPU type, "gpu" where it is not known, or "cpu"
    units: int  # GPUs; cores where there are none
    log_s: float  # natural logarithm of seconds
    cut_off: bool = False  # it ran at least so long
    log_limit: float | None = None  # natural logarithm of the time limit in seconds; None: no limit is known
    log_work: float | None = None  # natural logarithm of the work its annotation told, in the app's own unit


class Refused(ValueError):
    """The record says nothing about run times; the text says why, in the words in which reasons are counted."""


def observe(
    *,
    app: str | None,
    user: str | None,
    processor: str | None,
    state: str,
    elapsed_s: float,
    gpus: int | None = None,
    cpus: int | None = None,
    limit_s: float | None = None,
    restarted: bool = False,
    work: float | None = None,
) -> Observation:
    """The observation in a record; raises `Refused`.

    `restarted`: an earlier run of the same job was sent back or lost its node. A program that goes on from a
    checkpoint then needs less than its run time, so what it took counts as "at least". `work`: how much its annotation
    told it would do.
    """
    cut_off = CUT_OFF.get(state)
    if cut_off is None:
        raise Refused(f"state {state or '(none)'}")
    if not app:
        raise Refused("no name")
    if not processor:
        raise Refused("never started")
    if not math.isfinite(elapsed_s) or elapsed_s < 0:
        raise Refused("run time is no number of seconds, or negative")
    if elapsed_s > LONGEST_S:
        raise Refused("run time above ten years")
    if cut_off and elapsed_s < SHORTEST_S:
        raise Refused("cut off within a second")
    units = (cpus if processor == "cpu" else gpus) or 1
    return Observation(
        app[:_NAME_LENGTH],
        (user or "")[:_NAME_LENGTH],
        processor[:_NAME_LENGTH],
        min(max(units, 1), MOST_UNITS),
        math.log(max(elapsed_s, SHORTEST_S)),
        cut_off or restarted,
        math.log(min(limit_s, LONGEST_S)) if limit_s is not None and limit_s >= SHORTEST_S else None,
        log_of_work(work),
    )


def log_of_work(work: float | None) -> float | None:
    """The logarithm of a told amount of work; None where nothing, or no amount, was told."""
    return math.log(work) if work is not None and 0.0 < work < math.inf else None


class Runs:
    """Many observations, column by column, as a fit takes them; also counts what was refused, by reason."""

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self.app: dict[str, int] = {}
        self.user: dict[str, int] = {}
        self.processor: dict[str, int] = {}
        self.columns = (array("q"), array("q"), array("q"), array("q"), array("d"), array("b"), array("d"), array("d"))
        self.refused: Counter[str] = Counter()
        for observation in observations:
            self.add(observation)

    def __len__(self) -> int:
        return len(self.columns[0])

    def add(self, run: Observation) -> None:
        """Takes one more."""
        app, user, processor, units, log_s, cut_off, limit, work = self.columns
        app.append(self.app.setdefault(run.app, len(self.app)))
        user.append(self.user.setdefault(run.user, len(self.user)))
        processor.append(self.processor.setdefault(run.processor, len(self.processor)))
        units.append(run.units)
        log_s.append(run.log_s)
        cut_off.append(run.cut_off)
        limit.append(math.nan if run.log_limit is None else run.log_limit)
        work.append(math.nan if run.log_work is None else run.log_work)

    def add_record(self, **record: Any) -> Observation | None:
        """Takes what `observe` makes of a record, or counts why it made nothing of it."""
        try:
            run = observe(**record)
        except Refused as reason:
            self.refused[str(reason)] += 1
            return None
        self.add(run)
        return run

    def add_records(self, records: Iterable[tuple[Any, ...]]) -> None:
        """The same for many: each has the arguments of `observe`, in their order."""
        names = ("app", "user", "processor", "state", "elapsed_s", "gpus", "cpus", "limit_s", "restarted", "work")
        apps, users, kinds = self.app, self.user, self.processor
        (
            app_column,
            user_column,
            processor_column,
            units_column,
            log_s_column,
            cut_off_column,
            limit_column,
            work_column,
        ) = self.columns
        log, nan = math.log, math.nan
        for record in records:
            app, user, processor, state, elapsed_s, gpus, cpus, limit_s, restarted, work = record
            units = (cpus if processor == "cpu" else gpus) or 1
            # Nearly all are plain: these go by without a call for each.
            plain = state == "COMPLETED" and app and user and processor and SHORTEST_S <= elapsed_s <= LONGEST_S
            if (
                plain
                and units >= 1
                and max(len(app), len(user), len(processor)) <= _NAME_LENGTH
                and units <= MOST_UNITS
            ):
                app_column.append(apps.setdefault(app, len(apps)))
                user_column.append(users.setdefault(user, len(users)))
                processor_column.append(kinds.setdefault(processor, len(kinds)))
                units_column.append(units)
                log_s_column.append(log(elapsed_s))
                cut_off_column.append(restarted)
                limit_column.append(
                    log(min(limit_s, LONGEST_S)) if limit_s is not None and limit_s >= SHORTEST_S else nan
                )
                log_work = log_of_work(work) if work is not None else None
                work_column.append(nan if log_work is None else log_work)
            else:
                self.add_record(**dict(zip(names, record, strict=True)))
