"""What the log knows of a job that still waits: how it was decided, where it was sent since, and whether it may move.

Everything is read back from the log, so that a restarted daemon knows what the one before it did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from advisor.cluster.hostlist import count_tasks
from advisor.cluster.types import Job
from advisor.dfg.graph import Annotation
from advisor.performance.snapshot import Snapshot
from advisor.policy.eligibility import named_partitions
from advisor.policy.guardrails import CAUTION, resolve_mode
from advisor.policy.shape import GPU_FIELDS
from advisor.protocol import PartitionLimits, SubmitRequest
from advisor.settings import Mode, Settings
from advisor.store import moves
from advisor.store.decisions import DecisionRow
from advisor.store.moves import MoveRow

KEEP = "keep"


class Known(msgspec.Struct, frozen=True):
    """A decision and what followed, as far as it bears on moving its job."""

    token: str
    request: SubmitRequest
    annotation: Annotation | None
    mode: Mode  # when it was submitted
    places: dict[str, dict[str, str]]  # the candidates of then, by name: the fields that each sets
    fixed: str  # why it is never moved; empty: it may be
    place: str  # the one it was last sent to
    fields: dict[str, str] | None  # what that set, all of it; None: as submitted
    touched_at: float = 0.0  # when a move of it was last tried, or thought of
    thought_of: str = ""  # where it would have been sent then, in a mode that does not
    # Place and fields before a move of which nobody knows whether Slurm took it; what Slurm shows decides.
    came_from: tuple[str, dict[str, str]] | None = None
    points: int = 0  # of priority, given to it by the lever order
    thought_points: int = 0  # the same, as it would have been in a mode that does not


def known(row: DecisionRow, past: Sequence[MoveRow]) -> Known:
    """What is known of a decision's job; raises `msgspec.ValidationError` where the row cannot be read."""
    request = msgspec.convert(row.request, SubmitRequest)
    annotation = None if row.annotation is None else msgspec.convert(row.annotation, Annotation)
    places = {place["name"]: dict(place.get("set", {})) for place in row.candidates}
    names = [place["name"] for place in row.candidates]
    chosen = row.chosen or 0
    fixed = ""
    if not row.eligible:
        fixed = "nothing of it was open"
    elif row.holdout:
        fixed = "it is in the control group"
    elif row.mode == "enforce" and row.chosen != row.preferred:
        fixed = "it was sent there to learn how long it runs there"
    found = Known(
        row.token,
        request,
        annotation,
        _mode(row.mode),
        places,
        fixed,
        names[chosen] if row.applied and chosen < len(names) else KEEP,
        None,
    )
    for move in past:
        found = after(found, move)
    return found


def after(found: Known, move: MoveRow) -> Known:
    """The same after one more move."""
    if move.lever == "order":
        points = int(move.after.get("points", 0))
        if move.outcome == moves.WOULD:
            return msgspec.structs.replace(found, thought_points=points)
        return msgspec.structs.replace(found, points=points) if move.outcome in (moves.OK, moves.SENT) else found
    changes: dict[str, object] = {"touched_at": move.moved_at}
    if move.outcome == moves.WOULD:
        changes["thought_of"] = move.to_place
    elif move.outcome in (moves.OK, moves.SENT):
        changes |= {"place": move.to_place, "fields": dict(move.after), "thought_of": ""}
        changes["came_from"] = (move.from_place, dict(move.before)) if move.outcome == moves.SENT else None
    return msgspec.structs.replace(found, **changes)


def fields_of(request: SubmitRequest, sets: Mapping[str, str], snapshot: Snapshot) -> dict[str, str]:
    """All that a place fixes of a job: its partition, and every request for GPUs as it is written there."""
    fields = {"partition": sets.get("partition") or request.partition or _default(snapshot)}
    for field in GPU_FIELDS:
        value = sets.get(field) or getattr(request, field)
        if value:
            fields[field] = value
    return fields


def mode_now(found: Known, settings: Settings, listed: Sequence[PartitionLimits]) -> Mode:
    """The more cautious of what held when the job was submitted and of what holds now."""
    request = msgspec.structs.replace(found.request, partitions=list(listed))
    return min(found.mode, resolve_mode(settings.modes, request, named_partitions(request)), key=CAUTION.index)


def as_shown(found: Known, job: Job) -> Known:
    """The same, where a move that nobody saw the end of was not made after all."""
    if found.came_from is None or set(job.partitions) != set(found.came_from[1].get("partition", "").split(",")):
        return found
    place, fields = found.came_from
    return msgspec.structs.replace(found, place=place, fields=fields, came_from=None)


def stays(found: Known, job: Job, begun: frozenset[int]) -> str:
    """Why this pending job is not looked at, by what the last poll showed; empty where it is."""
    if found.fixed:
        return found.fixed
    if job.priority == 0 or "Held" in job.reason:
        return "it is held"
    if job.restarts:
        return "it has run before"
    if job.array_job_id is not None:
        asked = found.request.array
        if job.array_job_id in begun or asked is None or job.tasks < count_tasks(asked):
            return "tasks of the array have begun"
    return ""


def _default(snapshot: Snapshot) -> str:
    return next((partition.name for partition in snapshot.partitions.values() if partition.default), "")


def _mode(text: str) -> Mode:
    return next((mode for mode in CAUTION if mode == text), "off")
