"""What sacct prints, as typed rows: records told apart whatever users wrote into them, every figure in one unit.

A site's first collection is a million of these, so each text that comes again and again (what a job was given, how it
ended, CPU times of a minute) is read once and remembered, and no field is looked up by its name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from advisor.cluster.gres import part_of
from advisor.cluster.hostlist import HostlistError, expand_hostlist
from advisor.cluster.types import SourceError
from advisor.store.outcomes import OutcomeRow, StepRow, token_in

# The first and the last hold no user's text, so that records can be told apart whatever is in the others.
FIELDS = (
    "DBIndex",
    "Cluster",
    "JobID",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "ElapsedRaw",
    "State",
    "ExitCode",
    "User",
    "Account",
    "Partition",
    "QOS",
    "JobName",
    "NNodes",
    "NodeList",
    "AllocTRES",
    "TimelimitRaw",
    "AdminComment",
    "NTasks",
    "UserCPU",
    "SystemCPU",
    "TotalCPU",
    "MaxRSS",
    "JobIDRaw",
)

Fields = list[str]  # one record or step, in the order of FIELDS

_NO_NODES = ("", "None assigned", "(null)")
_REMEMBERED = 4096  # texts of each kind


def split_records(output: str, separator: str) -> Iterator[Fields]:
    """The records of sacct's output; raises `SourceError` if it does not have the shape that was asked for."""
    if not output:
        return
    pieces = output.split(separator)
    inner = len(FIELDS) - 1  # the last field of a record and the first of the next share a piece
    if len(pieces) % inner != 1 or not output.endswith("\n"):
        raise SourceError("sacct's output ends in the middle of a record; it is read again at the next collection")
    first = pieces[0]
    for at in range(0, len(pieces) - 1, inner):
        record = pieces[at : at + inner + 1]
        record[0] = first
        record[-1], _, first = record[-1].partition("\n")
        yield record


def is_step(fields: Fields) -> bool:
    """Whether this is a step, not a record of its own."""
    return "." in fields[-1]


def parse_record(fields: Fields, gpu_types: Mapping[str, str], max_rss_mb: int | None) -> OutcomeRow:
    """One record as it goes into the log; raises `ValueError` if a number in it is none.

    `max_rss_mb` is that of its largest step: the record itself has none.
    """
    (
        db_index, cluster, job, submit, eligible, start, end, elapsed, state, exit_code, user, account, partition, qos,
        name, node_count, node_list, alloc_tres, time_limit, comment, _, _, _, total_cpu, _, raw_id,
    ) = fields  # fmt: skip
    if not end.isdecimal() or not db_index.isdecimal():
        raise ValueError(f"job {job}: no end, or no DBIndex")
    array_job = array_task = het_job = het_offset = None
    if not job.isdecimal():
        before, _, array_task = job.partition("_")
        array_job = int(before) if array_task else None
        before, _, offset = job.partition("+")
        het_job, het_offset = (int(before), int(offset)) if offset else (None, None)
    nodes = None if node_list in _NO_NODES else node_list
    seconds = int(elapsed) if elapsed.isdecimal() else 0
    given = _allocation(alloc_tres)
    gpu_type = given.gpu_type
    if gpu_type is None and given.gpu_like and nodes:
        gpu_type = _types_of(nodes, gpu_types)
    # By position, in the order of the table: by name takes twice as long.
    return OutcomeRow(
        cluster,
        db_index,
        job,
        int(raw_id),
        int(end),
        _word(state),
        seconds,
        array_job,
        array_task or None,
        het_job,
        het_offset,
        token_in(comment) if comment else None,
        int(submit) if submit.isdecimal() else None,
        int(eligible) if eligible.isdecimal() else None,
        # 22.05 gives a job that was cancelled while held the moment of its end.
        int(start) if nodes and start.isdecimal() else None,
        math.log(seconds) if seconds else None,
        exit_code or None,
        user or None,
        account or None,
        partition or None,
        qos or None,
        name or None,
        int(node_count) if nodes and node_count.isdecimal() else None,
        nodes,
        alloc_tres or None,
        given.cpus,
        given.memory_mb,
        given.gpus,
        gpu_type,
        _processor(given, gpu_type) if nodes else "",
        _number(time_limit),
        comment or None,
        cpu_seconds(total_cpu) if nodes else None,
        max_rss_mb,
    )


def _processor(given: _Allocation, gpu_type: str | None) -> str:
    if not given.gpu_like:
        return "cpu"
    whole = gpu_type or "gpu"
    return whole if given.gpus else part_of(whole)


def parse_step(fields: Fields) -> StepRow:
    """One step as it goes into the log; raises `ValueError` if it has no name or no DBIndex."""
    (
        db_index, cluster, job, _, _, start, end, elapsed, state, exit_code, _, _, _, _, name, node_count, node_list,
        tres, _, _, tasks, user_cpu, system_cpu, _, max_rss, raw_id,
    ) = fields  # fmt: skip
    step = raw_id.partition(".")[2]
    if not step or not db_index.isdecimal():
        raise ValueError(f"step {job}: no name, or no DBIndex")
    return StepRow(
        cluster,
        db_index,
        step,
        _word(state),
        int(elapsed) if elapsed.isdecimal() else 0,
        name or None,
        exit_code or None,
        int(start) if start.isdecimal() else None,
        int(end) if end.isdecimal() else None,
        _number(tasks),
        _number(node_count),
        None if node_list in _NO_NODES else node_list,
        tres or None,
        cpu_seconds(user_cpu),
        cpu_seconds(system_cpu),
        _megabytes(max_rss),
    )


class _Allocation(NamedTuple):
    """What AllocTRES says a job had."""

    cpus: int | None
    memory_mb: int | None
    gpus: int
    gpu_type: str | None  # several are named together (`k80+p100`), as no one of them ran it
    gpu_like: bool  # GPUs or shards of some


@functools.lru_cache(_REMEMBERED)  # most jobs of a site ask for one of a few things
def _allocation(text: str) -> _Allocation:
    tres = dict(item.split("=", 1) for item in text.split(",") if "=" in item)
    types = {
        name.partition(":")[2]: _number(count) or 0 for name, count in tres.items() if name.startswith("gres/gpu:")
    }
    gpus = _number(tres.get("gres/gpu", "")) or sum(types.values())
    return _Allocation(
        cpus=_number(tres.get("cpu", "")),
        memory_mb=_megabytes(tres.get("mem", "")),
        gpus=gpus,
        gpu_type="+".join(sorted(types)) or None,
        gpu_like=bool(gpus) or any(name.startswith("gres/shard") for name in tres),
    )


def _types_of(nodes: str, gpu_types: Mapping[str, str]) -> str | None:
    """The GPU types of a job's nodes, where accounting counts GPUs without their type."""
    try:
        found = {gpu_types[node] for node in expand_hostlist(nodes) if node in gpu_types} if gpu_types else set()
    except HostlistError:
        return None
    return "+".join(sorted(found)) or None


@functools.lru_cache(_REMEMBERED)
def _word(state: str) -> str:
    """The first word: `CANCELLED` of "CANCELLED by 1000"."""
    return (state.split() or ["UNKNOWN"])[0]


@functools.lru_cache(_REMEMBERED)
def _number(text: str) -> int | None:
    """A count or a time; None for what sacct calls Unknown, None, UNLIMITED or Partition_Limit."""
    return int(text) if text.isdecimal() else None


@functools.lru_cache(_REMEMBERED)
def cpu_seconds(text: str) -> float | None:
    """`1-02:03:04`, `02:03:04`, or below an hour `03:04.567`; None for anything else."""
    days, _, rest = text.rpartition("-")
    parts = rest.split(":")
    try:
        seconds = float(parts[-1]) if len(parts) > 1 else float("nan")
        for part, unit in zip(reversed(parts[:-1]), (60, 3600), strict=False):
            seconds += int(part) * unit
        seconds += int(days) * 86400 if days else 0
    except ValueError:
        return None
    return round(seconds, 3) if seconds >= 0 else None


@functools.lru_cache(_REMEMBERED)
def _megabytes(text: str) -> int | None:
    units = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
    number, unit = (text[:-1], units.get(text[-1:].upper(), 0)) if text[-1:].isalpha() else (text, 1 / 1024**2)
    try:
        return round(float(number) * unit)
    except (ValueError, OverflowError):
        return None
