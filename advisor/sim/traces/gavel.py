"""Reads Gavel's traces and its tables of measured throughput.

A trace has one job a line, ten tab-separated columns (type, command, folder, argument, needs data, steps, GPUs,
weight, SLO, arrival). The table gives steps per second by GPU type, alone and beside another job.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import msgspec

from advisor.sim.workload import SimJob, TraceError, Workload, checked

COLUMNS = (
    "job type",
    "command",
    "working directory",
    "steps argument",
    "needs data directory",
    "total steps",
    "number of GPUs",
    "priority weight",
    "SLO",
    "arrival",
)

JobType = tuple[str, int]  # type and number of GPUs


class Throughputs(msgspec.Struct, frozen=True):
    """Steps per second: `alone[gpu][type]`, and `beside[gpu][type][other]` = (mine, theirs) on one GPU."""

    alone: dict[str, dict[JobType, float]]
    beside: dict[str, dict[JobType, dict[JobType, tuple[float, float]]]]


def read_throughputs(path: Path) -> Throughputs:
    """Reads a table; raises `TraceError` naming the GPU type and the entry that is wrong."""
    try:
        tree: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(str(path), None, "file", f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise TraceError(str(path), getattr(error, "lineno", None), "JSON", str(error)) from None
    alone: dict[str, dict[JobType, float]] = {}
    beside: dict[str, dict[JobType, dict[JobType, tuple[float, float]]]] = {}
    try:
        for gpu, table in tree.items():
            if gpu.endswith("_unconsolidated"):
                continue
            alone[gpu], beside[gpu] = {}, {}
            for name, row in table.items():
                key = _job_type(name, path, gpu)
                alone[gpu][key] = float(row["null"])
                beside[gpu][key] = {
                    _job_type(other, path, gpu): (float(pair[0]), float(pair[1]))
                    for other, pair in row.items()
                    if other != "null"
                }
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise TraceError(str(path), None, "table", f"has not the shape {{gpu: {{type: …}}}} ({error!r})") from None
    return Throughputs(alone, beside)


def parse(text: str, table: Throughputs, file: str) -> Workload:
    """The trace's jobs with run times on each GPU type; raises `TraceError` with the line and the column."""
    jobs: list[tuple[int, SimJob]] = []
    for line, row in enumerate(text.splitlines(), 1):
        if not row.strip():
            continue
        words = row.split("\t")
        if len(words) != len(COLUMNS):
            field = COLUMNS[len(words)] if len(words) < len(COLUMNS) else "columns"
            raise TraceError(file, line, field, f"{len(words)} tab-separated columns, {len(COLUMNS)} expected")
        steps, arrival = _number(words, 5, file, line), _number(words, 9, file, line)
        gpus, weight = int(_number(words, 6, file, line)), _number(words, 7, file, line)
        key = (words[0], gpus)
        run = {gpu: steps / speeds[key] for gpu, speeds in table.alone.items() if speeds.get(key, 0.0) > 0}
        if not any(key in speeds for speeds in table.alone.values()):
            raise TraceError(file, line, "job type", f"{words[0]!r} on {gpus} GPUs is not in the throughput table")
        jobs.append(
            (
                line,
                SimJob(
                    id=str(line),
                    submit=arrival,
                    run_time=run,
                    app=words[0],
                    # One GPU a server, as in Gavel's own runs: a job of k GPUs takes k servers.
                    nodes=gpus,
                    gpus=gpus,
                    cpus=gpus,
                    steps=steps,
                    weight=weight,
                    share=True,
                ),
            )
        )
    return checked(file, jobs, file)


def _number(words: list[str], column: int, file: str, line: int) -> float:
    try:
        value = float(words[column])
    except ValueError:
        raise TraceError(file, line, COLUMNS[column], f"{words[column]!r} is not a number") from None
    if not (0 <= value < float("inf")):
        raise TraceError(file, line, COLUMNS[column], f"{words[column].strip()} is not a number of 0 or more")
    return value


def _job_type(name: str, path: Path, gpu: str) -> JobType:
    try:
        kind, gpus = ast.literal_eval(name)
        return str(kind), int(gpus)
    except (ValueError, SyntaxError, TypeError):
        raise TraceError(str(path), None, gpu, f"{name!r} is not ('<job type>', <gpus>)") from None
