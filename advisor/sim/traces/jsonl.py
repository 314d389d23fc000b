"""Reads and writes the advisor's own form of a workload: one JSON object a line.

    {"id": "17", "submit": 0, "app": "resnet50", "user": "ann", "account": "vision", "cpus": 4, "memory_mb": 16000,
     "gpus": 1, "nodes": 1, "time_limit": 14400, "run_time": {"v100": 3600, "k80": 21600}, "share": true,
     "depends": ["16"], "dfg": {…}}

Times are seconds, counts are for the whole job. `id`, `submit` and `run_time` must be there. A processor type that
is missing in `run_time` cannot run the job; the type `any` stands for all that are not named. `partitions`,
`gpu_type`, `priority`, `exclusive`, `requeue`, `array` and `array_limit` are optional too (see `SimJob`).
"""

from __future__ import annotations

import re

import msgspec

from advisor.sim.workload import SimJob, TraceError, Workload, checked


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A job as written; checked here for its types, in `checked` for its values."""

    id: str | int
    submit: float
    run_time: dict[str, float]
    app: str = ""
    user: str = ""
    account: str = ""
    cpus: int = 1
    memory_mb: int = 0
    gpus: int = 0
    nodes: int = 1
    time_limit: float | None = None
    partitions: list[str] = []
    gpu_type: str | None = None
    priority: float = 0.0
    share: bool = False
    exclusive: bool = False
    requeue: bool = False
    depends: list[str | int] = []
    array: str | None = None
    array_limit: int = 0
    steps: float = 0.0
    weight: float = 1.0
    dfg: dict[str, object] = {}


_DECODER = msgspec.json.Decoder(_Line)


def parse(text: str, file: str) -> Workload:
    """The workload; raises `TraceError` with the line and the field."""
    jobs: list[tuple[int, SimJob]] = []
    for number, row in enumerate(text.splitlines(), 1):
        if not row.strip():
            continue
        try:
            line = _DECODER.decode(row)
        except msgspec.ValidationError as error:
            raise TraceError(file, number, _field(str(error)), str(error)) from None
        except msgspec.DecodeError as error:
            raise TraceError(file, number, "JSON", str(error)) from None
        values = msgspec.structs.asdict(line)
        values["id"] = str(line.id)
        values["depends"] = tuple(str(other) for other in line.depends)
        values["partitions"] = tuple(line.partitions)
        jobs.append((number, SimJob(**values)))
    return checked(file, jobs, file)


def write(workload: Workload) -> str:
    """The text that `parse` reads back."""
    return "".join(msgspec.json.encode(job).decode() + "\n" for job in workload.jobs)


def _field(message: str) -> str:
    """The field that msgspec names: ``- at `$.run_time[...]` ``, or ``missing required field `submit` ``."""
    path = re.search(r"at `\$\.?([^`]*)`", message)
    if path and path[1]:
        return path[1]
    named = re.search(r"field `([^`]+)`", message)
    return named[1] if named else "line"
