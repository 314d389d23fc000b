"""What slurmctld's log tells of a run, to the millisecond; Slurm's job records only know whole seconds.

The lines are those of `SlurmctldDebug=debug2` in the releases 22.05 to 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

import msgspec

from advisor.cluster.hostlist import expand_hostlist


class Record(msgspec.Struct):
    """One job in the log; times are seconds since the epoch."""

    job_id: int
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    freed: float | None = None  # when its last node had answered that it is clean
    partition: str = ""
    nodes: tuple[str, ...] = ()
    by_backfill: bool = False

    @property
    def complete(self) -> bool:
        """Whether the log told all of its life."""
        return None not in (self.submit, self.start, self.end)


class Log(msgspec.Struct, frozen=True):
    """A stretch of slurmctld's log."""

    jobs: dict[int, Record]
    cycles: tuple[float, ...]  # when backfill began to look
    passes: tuple[float, ...]  # when the main scheduler did


_LINE = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+)\] (.*)")
_SUBMITTED = re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+)")
_ALLOCATED = re.compile(r"sched: Allocate JobId=(\d+) NodeList=(\S+) #CPUs=\d+ Partition=(\S+)")
_BACKFILLED = re.compile(r"Started JobId=(\d+) in (\S+) on (\S+)")
_ENDED = re.compile(r"_job_complete: JobId=(\d+) done")
_FREED = re.compile(r"_slurm_rpc_epilog_complete: JobId=(\d+) Node=(\S+)")
_ANSWERED = re.compile(r"Tree head got back ([1-9]\d*)$")
_PASS = re.compile(r"sched: Running job scheduler")
_CYCLE = re.compile(r"backfill: (?:_attempt_backfill: )?beginning")


def read_log(lines: Iterable[str]) -> Log:
    """Reads the lines in the order in which slurmctld wrote them."""
    jobs: dict[int, Record] = {}
    cycles: list[float] = []
    passes: list[float] = []
    cleaning: list[Record] = []  # ended, and their nodes were asked to clean up
    for line in lines:
        stamped = _LINE.match(line)
        if stamped is None:
            continue
        time = datetime.fromisoformat(stamped[1]).timestamp()
        text = stamped[2]
        if found := _SUBMITTED.search(text):
            jobs.setdefault(int(found[1]), Record(int(found[1]))).submit = time
        elif found := _ALLOCATED.search(text):
            _started(jobs, int(found[1]), time, found[2], found[3], by_backfill=False)
        elif found := _BACKFILLED.search(text):
            _started(jobs, int(found[1]), time, found[3], found[2], by_backfill=True)
        elif (found := _ENDED.search(text)) and int(found[1]) in jobs:
            jobs[int(found[1])].end = time
            cleaning.append(jobs[int(found[1])])
        elif found := _ANSWERED.search(text):
            # Answers come in the order of the questions; the log does not name the job.
            for record in cleaning:
                if len(record.nodes) == int(found[1]):
                    record.freed = time
                    cleaning.remove(record)
                    break
        elif (found := _FREED.search(text)) and int(found[1]) in jobs:
            jobs[int(found[1])].freed = time
        elif _CYCLE.search(text):
            cycles.append(time)
        elif _PASS.search(text):
            passes.append(time)
    return Log(jobs, tuple(cycles), tuple(passes))


def _started(jobs: dict[int, Record], job_id: int, time: float, nodes: str, partition: str, by_backfill: bool) -> None:
    job = jobs.setdefault(job_id, Record(job_id))
    job.start, job.partition, job.nodes, job.by_backfill = time, partition, expand_hostlist(nodes), by_backfill
