"""Reads what `sacct -P` prints: last month's jobs of a real site, to ask what a policy would have done to them.

    sacct -P -a -X -S 2024-01-01 -o JobID,JobName,User,Account,Partition,Submit,Start,ElapsedRaw,TimelimitRaw,\\
        NNodes,NCPUS,ReqMem,AllocTRES,State

A job's run time is known on the processor it ran on. With `speeds` (how fast each processor is, relative to the
others) it is carried over to the others in proportion; without, the job can run only where it did.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from advisor.sim.workload import SimJob, TraceError, Workload, checked

_NEEDED = ("JobID", "Submit")
_GPU = re.compile(r"gres/gpu(?::([\w.-]+))?=(\d+)")


def parse(text: str, file: str, speeds: Mapping[str, float] | None = None) -> Workload:
    """The jobs that ran; raises `TraceError` with the line and the field."""
    rows = text.splitlines()
    if not rows:
        raise TraceError(file, 1, "header", "the file is empty; sacct -P prints the field names first")
    header = rows[0].split("|")
    for needed in _NEEDED:
        if needed not in header:
            raise TraceError(file, 1, needed, "is missing in the header; add it to sacct -o")
    if "ElapsedRaw" not in header and "Elapsed" not in header:
        raise TraceError(file, 1, "ElapsedRaw", "is missing in the header; add it to sacct -o")
    jobs: list[tuple[int, SimJob]] = []
    for line, row in enumerate(rows[1:], 2):
        if not row.strip():
            continue
        words = row.split("|")
        if len(words) != len(header):
            raise TraceError(
                file,
                line,
                header[len(words)] if len(words) < len(header) else header[-1],
                f"{len(words)} fields, the header has {len(header)}",
            )
        job = _job(dict(zip(header, words, strict=True)), speeds, file, line)
        if job is not None:
            jobs.append((line, job))
    first = min((job.submit for _, job in jobs), default=0.0)
    moved = [(line, msgspec.structs.replace(job, submit=job.submit - first)) for line, job in jobs]
    return checked(file, moved, file)


def _job(row: dict[str, str], speeds: Mapping[str, float] | None, file: str, line: int) -> SimJob | None:
    name = row["JobID"]
    if "." in name or row.get("Start", "x") in ("Unknown", "None", ""):
        return None
    run = _elapsed(row, file, line)
    if run <= 0 and row.get("State", "").startswith(("CANCELLED", "PENDING")):
        return None
    kind, gpus = "cpu", 0
    for found in _GPU.finditer(row.get("AllocTRES", "") or row.get("ReqTRES", "")):
        gpus = max(gpus, int(found[2]))
        kind = found[1] or (kind if kind != "cpu" else "gpu")
    nodes = max(1, _count(row, "NNodes", file, line))
    cpus = max(1, _count(row, "NCPUS" if "NCPUS" in row else "AllocCPUS", file, line))
    run_time = {kind: run}
    if speeds and kind in speeds:
        run_time |= {other: run * speeds[kind] / speed for other, speed in speeds.items() if other != kind}
    array = name.split("_")[0] if "_" in name else None
    return SimJob(
        id=name,
        submit=_time(row["Submit"], "Submit", file, line),
        run_time=run_time,
        app=row.get("JobName", ""),
        user=row.get("User", ""),
        account=row.get("Account", ""),
        nodes=nodes,
        cpus=max(cpus, nodes),
        memory_mb=_memory(row.get("ReqMem", ""), nodes, cpus, file, line),
        gpus=gpus,
        time_limit=_limit(row, run, file, line),
        partitions=tuple(p for p in row.get("Partition", "").split(",") if p),
        array=array,
    )


def _time(text: str, field: str, file: str, line: int) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise TraceError(file, line, field, f"{text!r} is not a time such as 2024-01-31T12:00:00") from None


def _elapsed(row: dict[str, str], file: str, line: int) -> float:
    if row.get("ElapsedRaw"):
        return float(_count(row, "ElapsedRaw", file, line))
    return _clock(row.get("Elapsed", ""), "Elapsed", file, line)


def _clock(text: str, field: str, file: str, line: int) -> float:
    """Seconds of `[days-]hours:minutes:seconds`."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?", text)
    if found is None:
        raise TraceError(file, line, field, f"{text!r} is not [days-]hours:minutes:seconds")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _limit(row: dict[str, str], run: float, file: str, line: int) -> float | None:
    raw, text = row.get("TimelimitRaw", ""), row.get("Timelimit", "")
    if raw.isdigit():
        limit = float(raw) * 60
    elif text and text[0].isdigit():
        limit = _clock(text, "Timelimit", file, line)
    else:
        return None  # UNLIMITED, Partition_Limit, or not asked for
    # OverTimeLimit and the grace before the kill let jobs end a little past their limit.
    return max(limit, run) or None


def _count(row: dict[str, str], field: str, file: str, line: int) -> int:
    text = row.get(field, "")
    if not text:
        return 0
    if not text.isdigit():
        raise TraceError(file, line, field, f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _memory(text: str, nodes: int, cpus: int, file: str, line: int) -> int:
    """MB for the whole job. Before 21.08 sacct wrote `4Gn` (per node) and `2Gc` (per CPU)."""
    if not text or text in ("0", "?"):
        return 0
    found = re.fullmatch(r"([\d.]+)([KMGTP]?)([nc]?)", text)
    if found is None:
        raise TraceError(file, line, "ReqMem", f"{text!r} is not a size such as 4000M, 4G, 4Gn or 2Gc")
    scale = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}[found[2]]
    return int(float(found[1]) * scale * {"n": nodes, "c": cpus, "": 1}[found[3]])
