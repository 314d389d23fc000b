"""Reads logs in the Standard Workload Format, version 2.2.

Each processor is a node of one CPU, which is what the format's logs (and the NASA one) count. Jobs that the log
marks as never started (run time or size -1) are left out, as the format's own advice is.
"""

from __future__ import annotations

import math

import msgspec

from advisor.sim.cluster import SimCluster, from_counts
from advisor.sim.workload import ANY, SimJob, TraceError, Workload, checked

FIELDS = (
    "job",
    "submit",
    "wait",
    "run time",
    "processors",
    "CPU time",
    "memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
)


def parse(text: str, file: str) -> Workload:
    """The log's jobs; raises `TraceError` with the line and the field."""
    jobs: list[tuple[int, SimJob]] = []
    processors: int | None = None
    for line, row in enumerate(text.splitlines(), 1):
        if row.startswith(";"):
            name, _, value = row[1:].partition(":")
            if name.strip() in ("MaxProcs", "MaxNodes") and value.strip().isdigit():
                processors = max(processors or 0, int(value))
            continue
        if not row.strip():
            continue
        words = row.split()
        if len(words) < len(FIELDS):
            raise TraceError(
                file, line, FIELDS[len(words)], f"is missing: {len(words)} of {len(FIELDS)} columns are there"
            )
        values: list[float] = []
        for field, word in zip(FIELDS, words, strict=False):
            try:
                number = float(word)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                raise TraceError(file, line, field, f"{word!r} is not a number")
            values.append(number)
        job = _job(values, file, line)
        if job is not None:
            jobs.append((line, job))
    kept = {job.id for _, job in jobs}
    # A preceding job that was left out has, for this log, already ended.
    jobs = [(line, _known(job, kept)) for line, job in jobs]
    workload = checked(file, jobs, file)
    largest = max((job.nodes for job in workload.jobs), default=1)
    return Workload(workload.name, workload.jobs, max(processors or 0, largest))


def cluster_of(workload: Workload) -> SimCluster:
    """The machine of the log: as many one-CPU nodes as it had processors."""
    return from_counts({"cpu": (workload.processors or 1, 1)}, name=f"{workload.processors} processors")


def _job(values: list[float], file: str, line: int) -> SimJob | None:
    submit, run = values[1], values[3]
    size = int(values[4] if values[4] > 0 else values[7])
    if submit < 0:
        raise TraceError(file, line, "submit", f"{submit:g} is not a time of 0 or more")
    if run < -1:
        raise TraceError(file, line, "run time", f"{run:g} is neither a time nor -1 (unknown)")
    if run < 0 or size < 1:
        return None
    asked = values[8]
    return SimJob(
        id=f"{values[0]:.0f}",
        submit=submit,
        run_time={ANY: run},
        app=f"app{values[13]:.0f}" if values[13] >= 0 else "",
        user=f"user{values[11]:.0f}" if values[11] >= 0 else "",
        account=f"group{values[12]:.0f}" if values[12] >= 0 else "",
        nodes=size,
        cpus=size,
        # A log may hold jobs that ran past their request; the site let them, so no kill here.
        time_limit=max(asked, run) if asked > 0 else None,
        depends=(f"{values[16]:.0f}",) if values[16] > 0 else (),
    )


def _known(job: SimJob, ids: set[str]) -> SimJob:
    if all(other in ids for other in job.depends):
        return job
    return msgspec.structs.replace(job, depends=())
