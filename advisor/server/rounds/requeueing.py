"""The lever `requeue`: running jobs that said `requeue: true` start again where they would end much sooner.

Only to a place that is free and that nobody waits for, once for each job, one job a round. A job is taken to begin from
nothing, and to lose `rounds.restart_s` besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from advisor.cluster.gres import PART
from advisor.cluster.pending import safe
from advisor.cluster.types import Job
from advisor.performance.snapshot import Snapshot
from advisor.policy.candidates import Choice
from advisor.policy.interface import Candidate, Policy, score
from advisor.policy.plans import Reading, plan
from advisor.policy.words import duration
from advisor.protocol import PartitionLimits
from advisor.server.rounds.known import Known, fields_of
from advisor.server.rounds.places import TYPES_FROM, Proposal, gpus_of, request_today
from advisor.server.rounds.walk import Walk
from advisor.settings import Mode, Processor, Settings

# A place is free where a job would wait no longer than this.
_FREE_S = 1.0
# What has run for longer than was expected is taken to last this part of its run so far.
_OVERDUE = 0.05


class Runs(msgspec.Struct, frozen=True):
    """A running job that may be requeued, with the places that were open to it at its submission and still are."""

    job: Job
    known: Known
    mode: Mode
    choice: Choice
    fields: tuple[dict[str, str], ...]  # of each candidate


def may_restart(
    job: Job,
    known: Known,
    mode: Mode,
    snapshot: Snapshot,
    listed: Sequence[PartitionLimits],
    settings: Settings,
    processors: Mapping[str, Processor],
    now: float,
) -> Runs | None:
    """The job, if its user let it be requeued, it never was, and it was not moved a moment ago."""
    wanted = known.annotation is not None and known.annotation.requeue
    if not wanted or known.fixed or job.restarts or job.array_job_id is not None or known.place.endswith(PART):
        return None
    if now - known.touched_at < settings.rounds.rest_s:
        return None
    request = request_today(known, listed)
    choice = plan(request, Reading(known.annotation, None), snapshot, settings, processors).choice
    if choice is None:
        return None
    places = tuple(each for each in choice.candidates if each.name in known.places and not each.shared)
    fields = tuple(fields_of(request, each.set, snapshot) for each in places)
    return Runs(job, known, mode, msgspec.structs.replace(choice, candidates=places), fields)


def requeues(walk: Walk, running: Sequence[Runs], policy: Policy, settings: Settings, now: float) -> list[Proposal]:
    """The job that gains most, if any gains enough; `walk` has everyone that waits on the pools."""
    found = [each for one in running if (each := _requeue(walk, one, policy, settings, now)) is not None]
    return sorted(found, key=lambda each: -each.gain_s)[:1]


def _requeue(walk: Walk, one: Runs, policy: Policy, settings: Settings, now: float) -> Proposal | None:
    job, snapshot, rounds = one.job, walk.snapshot, settings.rounds
    here = walk.pool_of.get(job.nodes[0]) if job.nodes else None
    if here is None or job.start_time is None or len(job.partitions) != 1:
        return None
    current = next((_only(each, here) for each in one.choice.candidates if here in each.pools), None)
    if current is None:
        return None
    own = {name: value for name, value in (one.known.fields or {}).items() if name != "partition"}
    if not own:
        sets = one.known.places.get(one.known.place, {})
        own = {
            name: value for name, value in fields_of(one.known.request, sets, snapshot).items() if name != "partition"
        }
    others = [
        (each, fields)
        for each, fields in zip(one.choice.candidates, one.fields, strict=True)
        if here not in each.pools and safe(fields) and (snapshot.release >= TYPES_FROM or gpus_of(fields) == own)
    ]
    choice = msgspec.structs.replace(one.choice, candidates=(current, *(each for each, _ in others)))
    scored = score(policy, choice.shape, choice.candidates, walk.view(choice), now)
    predictions, limit = scored.predictions, choice.shape.time_limit_s
    elapsed = max(now - job.start_time, 0.0)
    left = max(predictions[0].run_s * predictions[0].slowdown - elapsed, _OVERDUE * elapsed, 1.0)
    best: tuple[float, int] | None = None
    for number, prediction in enumerate(predictions[1:], 1):
        run_s = prediction.run_s * prediction.slowdown
        gain = left - run_s - rounds.restart_s
        if prediction.pool is None or prediction.wait_s > _FREE_S or (limit is not None and run_s > limit):
            continue
        if gain >= max(rounds.requeue_gain * left, rounds.requeue_least_s) and (best is None or gain > best[0]):
            best = (gain, number)
    if best is None:
        return None
    gain, number = best
    there, fields = others[number - 1]
    if one.mode != "enforce" and one.known.thought_of == there.name:
        return None
    why = (
        f"it is free and nobody waits for it; started anew there it is expected to end {duration(gain)} sooner than "
        f"here, where it has ~{duration(left)} left; {there.name}: {scored.explained()[number].reason}"
    )
    return Proposal(
        lever="requeue",
        job_id=job.job_id,
        known=one.known,
        mode=one.mode,
        from_place=one.known.place,
        to_place=there.name,
        before={"partition": job.partitions[0], **own},
        after=fields,
        gain_s=gain,
        why=why,
    )


def _only(place: Candidate, pool: int) -> Candidate:
    """The place as far as it is this pool."""
    at = place.pools.index(pool)
    return msgspec.structs.replace(
        place, pools=(pool,), needs=(place.needs[at],), tiers=(place.tiers[at],) if place.tiers else ()
    )
