"""Which jobs may be changed, and what of them: only what the user left open, or named as flexible.

Everything else is left alone, with the reason, so that `advisor explain` can tell a user why nothing happened.
Where the job would fit is not asked here; see `feasibility` and `candidates`.
"""

from __future__ import annotations

import msgspec

from advisor.dfg.graph import Annotation
from advisor.policy.interface import JobShape
from advisor.protocol import SubmitRequest
from advisor.settings import Exclude


class Open(msgspec.Struct, frozen=True):
    """What may change. `named` are the partitions the submission goes to as it is written."""

    partition: bool
    gpu_type: bool
    named: tuple[str, ...]
    anywhere: bool = False  # with partition: any of the user's partitions, not only those named


class LeftAlone(msgspec.Struct, frozen=True):
    """Nothing may change; `why` is a clause that follows "left alone: "."""

    why: str


def named_partitions(request: SubmitRequest) -> tuple[str, ...]:
    """The partitions the job goes to as it was written: those named, else the default one."""
    if request.partition:
        names = (name.strip() for name in request.partition.split(","))
        return tuple(dict.fromkeys(name for name in names if name))
    return tuple(limits.name for limits in request.partitions if limits.default)[:1]


def who_is_excluded(request: SubmitRequest, named: tuple[str, ...], exclude: Exclude) -> str | None:
    """The site's own exclusion that covers this job, if there is one."""
    account = (request.account or request.default_account or "").lower()
    if account and account in {name.lower() for name in exclude.accounts}:
        return f"the site excludes account {account}"
    if request.user in exclude.users or str(request.uid) in exclude.users:
        return f"the site excludes user {request.user or request.uid}"
    for name in named:
        if name in exclude.partitions:
            return f"the site excludes partition {name}"
    return None


def what_is_open(
    request: SubmitRequest, shape: JobShape, annotation: Annotation | None, exclude: Exclude
) -> Open | LeftAlone:
    """What of this job may change, or why nothing may."""
    note = annotation or Annotation()
    named = named_partitions(request)
    why = _fixed_by_its_kind(request, note) or who_is_excluded(request, named, exclude)
    if why:
        return LeftAlone(why)
    if not named:
        return LeftAlone("it names no partition and there is no default one")
    anywhere = not request.partition or "partition" in note.flexible
    partition = anywhere or len(named) > 1
    gpu_type = bool(shape.gpu_fields) and (shape.demand.gpu_type is None or "gpu_type" in note.flexible)
    if not partition and not gpu_type:
        if shape.gpu_fields:
            return LeftAlone(f"partition {named[0]} and GPU type {shape.demand.gpu_type} were asked for")
        return LeftAlone(f"partition {named[0]} was asked for and the job has no GPUs")
    return Open(partition, gpu_type, named, anywhere)


def _fixed_by_its_kind(request: SubmitRequest, note: Annotation) -> str | None:
    if note.off:
        return "its user wrote #ADVISOR off"
    if request.het_offset is not None:
        return "it is part of a heterogeneous job"
    if request.reservation:
        return "it uses a reservation"
    if request.req_nodes:
        return "it names the nodes it wants"
    if request.clusters:
        return "it names the clusters it may go to"
    return None
