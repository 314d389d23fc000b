"""A pending job with the places that it may go to now: those that were open at its submission and still are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from advisor.cluster.gres import PART
from advisor.cluster.pending import safe
from advisor.cluster.types import Job
from advisor.performance.snapshot import Snapshot
from advisor.policy.candidates import Choice
from advisor.policy.interface import Candidate
from advisor.policy.plans import Reading, plan
from advisor.protocol import PartitionLimits, SubmitRequest
from advisor.server.rounds.known import KEEP, Known, as_shown, fields_of
from advisor.settings import Mode, Processor, Settings

# From this release on, an update of a pending job may name another GPU type. 22.05 refuses it, or says that it took it
# and asks for both types from then on (docs/levers.md).
TYPES_FROM = (24, 11)


class Movable(msgspec.Struct, frozen=True):
    """A pending job that may move, with the places it may go to; the first is where it waits."""

    job: Job
    known: Known
    mode: Mode
    choice: Choice
    fields: tuple[dict[str, str], ...]  # of each candidate: all that it fixes of the job
    resting: bool  # it stays for now, whatever the gain


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be done with one job; see `sql/0007_moves.sql` for what the fields are."""

    lever: str
    job_id: int
    known: Known
    mode: Mode
    from_place: str
    to_place: str
    before: dict[str, Any]
    after: dict[str, Any]
    gain_s: float
    why: str


def request_today(known: Known, listed: Sequence[PartitionLimits]) -> SubmitRequest:
    """The submission with the partitions that were open to it then, as they are `listed` now."""
    allowed = {limits.name for limits in known.request.partitions}
    return msgspec.structs.replace(known.request, partitions=[each for each in listed if each.name in allowed])


def movable(
    job: Job,
    known: Known,
    mode: Mode,
    snapshot: Snapshot,
    listed: Sequence[PartitionLimits],
    settings: Settings,
    processors: Mapping[str, Processor],
    now: float,
) -> Movable | str:
    """The job with where it may go now, or why it stays. Only places that were open to it at its submission count."""
    if known.place.endswith(PART):
        return "it shares a GPU"  # what Slurm makes of another request for gres is not tried on such jobs
    known = as_shown(known, job)
    request = request_today(known, listed)
    planned = plan(request, Reading(known.annotation, None), snapshot, settings, processors)
    choice = planned.choice
    if choice is None:
        return planned.left_alone or "the cluster is not known"
    sets = {**known.places, **{each.name: each.set for each in choice.candidates}}
    here = known.fields or fields_of(request, sets.get(known.place, {}), snapshot)
    if set(job.partitions) != set(here["partition"].split(",")):
        return "its partition was changed by somebody else"
    current = next((each for each in choice.candidates if each.name == known.place), None)
    if current is None:
        # Its nodes are gone, or it may not go there any more: nothing is expected of it.
        current = Candidate(known.place, here["partition"], keep=known.place == KEEP)
    places, fields = [current], [here]
    for each in choice.candidates:
        there = fields_of(request, each.set, snapshot)
        if each.name == known.place or each.name not in known.places or there == here or not safe(there):
            continue
        if each.shared:
            continue
        if snapshot.release < TYPES_FROM and gpus_of(there) != gpus_of(here):
            continue
        places.append(each)
        fields.append(there)
    if len(places) == 1:
        return choice.why or "there is no other place for it"
    resting = now - known.touched_at < settings.rounds.rest_s
    return Movable(job, known, mode, msgspec.structs.replace(choice, candidates=tuple(places)), tuple(fields), resting)


def gpus_of(fields: Mapping[str, str]) -> dict[str, str]:
    """The requests for GPUs among these fields."""
    return {name: value for name, value in fields.items() if name != "partition"}
