"""Final states of jobs from Slurm's accounting, caught up after any pause without losing or doubling a record.

Finished records are read by the time they ended, in windows, with an overlap, and their steps with them; each has
accounting's own key (DBIndex), so reading one again changes nothing. Asking by state also finds jobs that were
cancelled while held, which sacct leaves out otherwise.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from itertools import chain

import msgspec

from advisor.store import outcomes
from advisor.store.database import Database
from advisor.store.outcomes import OutcomeRow, StepRow
from advisor.telemetry.sacct_records import FIELDS, Fields, is_step, parse_record, parse_step, split_records

CURSOR = "sacct"
# slurmctld holds records back while slurmdbd is away and sends them in order, so the newest end seen is how far
# accounting has come; records that end together may still arrive in another order.
OVERLAP_S = 3600
# So an empty stretch is no sign that nothing more comes for it: after an outage the first answer may be empty, and
# the records follow. Only this far back is it believed, so that an idle cluster is not read from its first day on.
IDLE_S = 7 * 86400
# One sacct reads at most so much time: a long pause is caught up piece by piece, and each piece is kept.
WINDOW_S = 86400

# Every way a record can end; a resized or requeued job leaves one record for each part.
STATES = "CD,F,TO,NF,PR,CA,OOM,DL,BF,RQ,RS,RV"
Run = Callable[..., bytes]  # `advisor.cluster.command.SlurmCommand.run`: Unix times, and raises SourceError


Progress = Callable[[int, int], None]  # read up to this end, records so far


class CollectResult(msgspec.Struct, frozen=True):
    """What one collection did."""

    since: int  # Unix seconds: the ends it asked for
    until: int
    read: int  # records
    new: int  # of them, not in the log before
    lost: int  # tokens found for the first time whose decision is not in the log
    unreadable: int  # records that were not understood, and left out


def collect(
    db: Database,
    run: Run,
    since: float,
    now: float,
    gpu_types: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> CollectResult:
    """Brings the outcomes up to date; the first time, from `since`. Raises `SourceError` or `StoreError`.

    What was read before an error stays, and the next collection goes on from there. `gpu_types` (node → GPU type)
    helps where accounting counts GPUs without their type (AccountingStorageTRES=gres/gpu). `progress` hears of each
    window while there are more to come.
    """
    position = outcomes.cursor(db, CURSOR)
    begin = int(since) if position is None else position - OVERLAP_S
    until = math.ceil(now)
    begin = start = min(begin, until)
    read = new = lost = unreadable = 0
    newest = position or begin
    while True:
        end = min(start + WINDOW_S, until)
        rows, steps, failed = _read_window(run, start, end, gpu_types or {})
        newest = max(newest, *(row.end for row in rows), 0) if rows else newest
        position = min(max(newest, until - IDLE_S), end)  # never past what was read
        added, missing = outcomes.store(db, rows, (CURSOR, position), now, steps)
        read += len(rows)
        new += added
        lost += missing
        unreadable += failed
        if end >= until:
            outcomes.found_again(db)
            return CollectResult(begin, until, read, new, lost, unreadable)
        if progress is not None:
            progress(end, read)
        start = end + 1  # sacct counts both ends of a window in


def _read_window(
    run: Run, start: int, end: int, gpu_types: Mapping[str, str]
) -> tuple[list[OutcomeRow], list[StepRow], int]:
    """The records that ended in a window, their steps, and how many of both were not understood."""
    # Users' text may hold any fixed separator, and line breaks: one that nobody can guess keeps records apart.
    separator = f"\x1f{secrets.token_urlsafe(6)}"
    output = run(
        "sacct",
        "--allusers",
        "--duplicates",
        "--local",
        "--noheader",
        "--noconvert",
        "--parsable2",
        f"--delimiter={separator}",
        f"--state={STATES}",
        f"--starttime=uts{start}",
        f"--endtime=uts{end}",
        f"--format={','.join(FIELDS)}",
    ).decode("utf-8", "replace")
    rows: list[OutcomeRow] = []
    steps: list[StepRow] = []
    failed = 0
    job: Fields | None = None
    max_rss_mb: int | None = None  # of the job's steps, which sacct prints beneath it: the record itself has none
    for fields in chain(split_records(output, separator), (None,)):
        try:
            if fields is not None and is_step(fields):
                step = parse_step(fields)
                steps.append(step)
                if step.max_rss_mb and job and job[0] == step.db_index:
                    max_rss_mb = max(max_rss_mb or 0, step.max_rss_mb)
                continue
            before, job = job, fields
            rss, max_rss_mb = max_rss_mb, None
            if before is not None:
                rows.append(parse_record(before, gpu_types, rss))
        except ValueError:
            failed += 1
    return rows, steps, failed
