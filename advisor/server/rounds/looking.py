"""Looks at the queue as Slurm would go through it, and says which pending jobs would end sooner elsewhere.

Jobs are put on the cluster's pools in the order of the queue, so that each finds only those before it ahead; one that
may move is scored by the policy in force, with the daemon's own candidates and predictions. Does nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from advisor.cluster.pending import safe
from advisor.cluster.types import ClusterState, Job
from advisor.config import Mode, PolicySettings, Processor, Settings
from advisor.performance.pools import build_pools
from advisor.performance.queue import Schedule, followers_of, in_line
from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import place as put_on
from advisor.policy.candidates import Choice
from advisor.policy.guardrails import prefer
from advisor.policy.interface import Candidate, Policy, Prediction, score
from advisor.policy.plans import Reading, plan
from advisor.policy.words import duration
from advisor.protocol import PartitionLimits
from advisor.server.rounds.known import KEEP, Known, as_shown, fields_of

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


class Proposal(msgspec.Struct, frozen=True):
    """One job that would end sooner elsewhere."""

    job_id: int
    known: Known
    mode: Mode
    to_place: str
    before: dict[str, str]
    after: dict[str, str]
    gain_s: float
    why: str


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
    known = as_shown(known, job)
    allowed = {limits.name for limits in known.request.partitions}
    request = msgspec.structs.replace(known.request, partitions=[limits for limits in listed if limits.name in allowed])
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
        if snapshot.release < TYPES_FROM and _gpus(there) != _gpus(here):
            continue
        places.append(each)
        fields.append(there)
    if len(places) == 1:
        return choice.why or "there is no other place for it"
    resting = now - known.touched_at < settings.rounds.rest_s
    return Movable(job, known, mode, msgspec.structs.replace(choice, candidates=tuple(places)), tuple(fields), resting)


def look(
    state: ClusterState,
    snapshot: Snapshot,
    jobs: Mapping[int, Movable],
    policy: Policy,
    settings: Settings,
    now: float,
) -> list[Proposal]:
    """The moves that are worth it, in the order of the queue; at most as many as a round may make."""
    walk = _Walk(state, snapshot)
    margin = msgspec.structs.replace(
        settings.policy, min_gain=settings.rounds.min_gain, min_gain_s=settings.rounds.min_gain_s
    )
    found: list[Proposal] = []
    for job in walk.line:
        mine = jobs.get(job.job_id)
        if mine is None:
            walk.schedule.queue([job], walk.followers)
            continue
        predictions = score(policy, mine.choice.shape, mine.choice.candidates, walk.view(mine), now).explained()
        moves = sum(1 for each in found if each.mode == "enforce")
        to, proposal = _proposal(mine, predictions, margin)
        if proposal is not None and moves < settings.rounds.most_moves:
            found.append(proposal)
            if mine.mode != "enforce":
                to = 0  # only thought of: for those behind it, it stays
        else:
            to = 0
        walk.put(mine, to, predictions[to])
    return found


def _proposal(mine: Movable, predictions: list[Prediction], margin: PolicySettings) -> tuple[int, Proposal | None]:
    to, clause = prefer(predictions, mine.choice.shape, margin)
    there = mine.choice.candidates[to]
    if to == 0 or mine.resting or (mine.mode != "enforce" and mine.known.thought_of == there.name):
        return 0, None
    here_s, there_s = predictions[0].score, predictions[to].score
    if not mine.choice.candidates[0].pools:
        clause = "where it waits no usable node can hold it"
    why = f"{clause}; {there.name}: {predictions[to].reason}; {mine.known.place}: {predictions[0].reason}"
    return to, Proposal(
        mine.job.array_job_id or mine.job.job_id,
        mine.known,
        mine.mode,
        there.name,
        mine.fields[0],
        mine.fields[to],
        here_s - there_s,
        why,
    )


class _Walk:
    """The pools while the queue is put on them, job by job."""

    def __init__(self, state: ClusterState, snapshot: Snapshot) -> None:
        self._base = snapshot
        self._now = state.taken_at
        _, pool_of = build_pools(state, snapshot.pools)
        self.schedule = Schedule(state, snapshot.pools, snapshot.history)
        self.schedule.occupy([job for job in state.jobs if job.running], pool_of)
        waiting = [job for job in state.jobs if job.pending]
        self.followers = followers_of(waiting, self._now)
        by_tier = in_line(waiting, self.schedule.tier, snapshot.tiers, self.followers, self._now)
        self.line = [job for tier in snapshot.tiers for job in by_tier[tier]]

    def view(self, mine: Movable) -> Snapshot:
        """What this job finds: of the pools it could go to, what those before it leave."""
        gpus, cpus = dict(self._base.gpu_timelines), dict(self._base.cpu_timelines)
        tiers = len(self._base.tiers)
        for index in {index for each in mine.choice.candidates for index in each.pools}:
            cpus[index] = (self.schedule.cpus[index].freeze(),) * tiers
            if index in gpus:
                gpus[index] = (self.schedule.gpus[index].freeze(),) * tiers
        return msgspec.structs.replace(self._base, gpu_timelines=gpus, cpu_timelines=cpus)

    def put(self, mine: Movable, to: int, prediction: Prediction) -> None:
        """Puts the job where it is to wait."""
        there, pool = mine.choice.candidates[to], prediction.pool
        if pool is None:
            return
        shape = mine.choice.shape
        expected_s = prediction.run_s * prediction.slowdown
        run_s = min(expected_s, shape.time_limit_s or expected_s) * -(-shape.tasks // shape.tasks_at_once)
        need = there.needs[there.pools.index(pool)]
        if need.nodes <= self._base.pools[pool].nodes:
            put_on(self.schedule.gpus[pool], self.schedule.cpus[pool], need, run_s, self._now, shape.tasks_at_once)


def _gpus(fields: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if name != "partition"}


def said_in_short(proposal: Proposal) -> str:
    """For the daemon's log."""
    place = proposal.known.place
    start = "as submitted" if place == KEEP else place
    return f"job {proposal.job_id}: {start} → {proposal.to_place}, {duration(proposal.gain_s)} sooner"
