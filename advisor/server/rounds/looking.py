"""Looks at the queue as Slurm would go through it, and says which pending jobs would end sooner elsewhere.

Jobs are put on the cluster's pools in the order of the queue, so that each finds only those before it ahead; one that
may move is scored by the policy in force, with the daemon's own candidates and predictions. Does nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from advisor.cluster.types import ClusterState
from advisor.performance.demand import Need
from advisor.performance.queue import followers_of
from advisor.performance.snapshot import Snapshot
from advisor.policy.guardrails import prefer
from advisor.policy.interface import Policy, Prediction, correct, expect
from advisor.policy.words import duration
from advisor.policy.workflow_urgency import urgencies
from advisor.server.rounds.ordering import exchanges
from advisor.server.rounds.places import Movable, Proposal
from advisor.server.rounds.planning import Planned, Planner, Turn
from advisor.server.rounds.requeueing import Runs, requeues
from advisor.server.rounds.walk import Walk, expected_s
from advisor.settings import Settings


def look(
    state: ClusterState,
    snapshot: Snapshot,
    jobs: Mapping[int, Movable],
    policy: Policy,
    settings: Settings,
    now: float,
    planner: Planner | None = None,
    running: Sequence[Runs] = (),
) -> list[Proposal]:
    """What is worth doing; at most as much as a round may. With a planner several jobs are planned together."""
    planned: Planned | None = None
    line: list[Turn] = []
    order = "order" in settings.levers
    if planner is not None and len(jobs) > 1 and planner.ready():
        line = _weighed(_survey(state, snapshot, jobs, policy, now, settings.rounds.most_jobs), state, snapshot, now)
        rounds = settings.rounds
        fresh = Walk(state, snapshot)
        planned = planner.plan(line, fresh.schedule, now, rounds.objective, order, rounds.longest_wait_s)
    walk = Walk(state, snapshot)
    found = _moves(walk, jobs, policy, settings, now, planned, whole=bool(running))
    moving = {each.job_id for each in found}
    turns = exchanges(jobs, moving, line, planned, settings) if order else []
    return found + turns + requeues(walk, running, policy, settings, now)


def _moves(
    walk: Walk,
    jobs: Mapping[int, Movable],
    policy: Policy,
    settings: Settings,
    now: float,
    planned: Planned | None,
    whole: bool,
) -> list[Proposal]:
    """Goes through the line: as far as there are jobs that may move, or where `whole` to its end."""
    place = "place" in settings.levers
    found: list[Proposal] = []
    moving = 0
    left = len(jobs)
    for job in walk.line:
        if not left and not whole:
            break
        mine = jobs.get(job.job_id)
        if mine is None:
            walk.schedule.queue([job], walk.followers)
            continue
        left -= 1
        shape, view = mine.choice.shape, walk.view(mine.choice)
        expected = expect(policy, shape, mine.choice.candidates, view, now)
        predictions, proposal, to = expected.predictions, None, 0
        if place and moving < settings.rounds.most_moves and not _stays(mine, planned):
            predictions = correct(policy, ((shape, expected),), view, now)[0].explained()
            to, proposal = _proposal(mine, predictions, settings, planned)
        if proposal is not None:
            found.append(proposal)
            moving += mine.mode == "enforce"
            if mine.mode != "enforce":
                to = 0  # only thought of: for those behind it, it stays
        else:
            to = 0
        walk.put(mine, to, predictions[to])
    return found


def _survey(
    state: ClusterState, snapshot: Snapshot, jobs: Mapping[int, Movable], policy: Policy, now: float, most: int
) -> list[Turn]:
    """The line as it is, with what each job would take wherever it may go."""
    walk = Walk(state, snapshot)
    line: list[Turn] = []
    for job in walk.line[:most]:
        waited = max(now - max(job.submit_time, job.eligible_time), 0.0)
        mine = jobs.get(job.job_id)
        if mine is None:
            walk.schedule.queue([job], walk.followers)
            if job.job_id in walk.schedule.placed and job.job_id not in walk.followers:
                pool, need, run_s = walk.schedule.placed[job.job_id]
                line.append(Turn(job.job_id, pool, {pool: (need, run_s)}, waited, job.tasks))
            continue
        shape, places = mine.choice.shape, mine.choice.candidates
        # What it would take wherever it may go: the policy's own opinion of places is for those that move.
        predictions = expect(policy, shape, places, walk.view(mine.choice), now).predictions
        options: dict[int, tuple[Need, float]] = {}
        for each, prediction in zip(places, predictions, strict=True):
            if prediction.pool is None:
                continue
            processor = snapshot.pools[prediction.pool].processor
            for pool, need in zip(each.pools, each.needs, strict=True):
                if snapshot.pools[pool].processor == processor and need.nodes <= snapshot.pools[pool].nodes:
                    options.setdefault(pool, (need, expected_s(mine, prediction)))
        here = predictions[0].pool
        if (mine.resting or mine.mode != "enforce") and here is not None:
            options = {here: options[here]} if here in options else {}
        if options:
            line.append(Turn(job.job_id, -1 if here is None else here, options, waited, shape.tasks_at_once))
        walk.put(mine, 0, predictions[0])
    return line


def _weighed(line: list[Turn], state: ClusterState, snapshot: Snapshot, now: float) -> list[Turn]:
    """The same line; jobs that hold up the end of a workflow count as jobs of their own do, others of it for less."""
    followers = followers_of((job for job in state.jobs if job.pending), state.taken_at)
    ends = {job: underway.end for job, underway in snapshot.underway.items()}
    leaders = {job: behind.jobs for job, behind in followers.items()}
    counted = urgencies(ends, leaders, [turn.job_id for turn in line], now)
    return [
        msgspec.structs.replace(turn, weight=counted[turn.job_id]) if turn.job_id in counted else turn for turn in line
    ]


def _stays(mine: Movable, planned: Planned | None) -> bool:
    """Whether it is not moved, whatever the policy thinks of other places."""
    pool = planned.pool.get(mine.job.job_id) if planned is not None and mine.mode == "enforce" else None
    return mine.resting or (pool is not None and pool in mine.choice.candidates[0].pools)


def _proposal(
    mine: Movable, predictions: list[Prediction], settings: Settings, planned: Planned | None
) -> tuple[int, Proposal | None]:
    """Where to, and the move: by the plan where there is one for this job, else by itself."""
    rounds, shape, places = settings.rounds, mine.choice.shape, mine.choice.candidates
    margin = msgspec.structs.replace(settings.policy, min_gain=rounds.min_gain, min_gain_s=rounds.min_gain_s)
    pool = planned.pool.get(mine.job.job_id) if planned is not None else None
    if planned is None or pool is None or mine.mode != "enforce":
        to, clause = prefer(predictions, shape, margin)
    elif pool in places[0].pools:
        return 0, None
    else:
        there = min(
            (k for k, each in enumerate(predictions) if each.pool == pool),
            key=lambda k: predictions[k].score,
            default=0,
        )
        if not there:
            return 0, None
        to, clause = prefer([predictions[0], predictions[there]], shape, margin)
        later = predictions[there].score - predictions[0].score
        if to == 0 and planned.better and 0 < later <= rounds.max_loss_s and _in_time(predictions[there], mine):
            to, clause = there, f"others end sooner where it waits; it is expected to end {duration(later)} later"
    goal = places[to]
    if to == 0 or mine.resting or (mine.mode != "enforce" and mine.known.thought_of == goal.name):
        return 0, None
    if not places[0].pools:
        clause = "where it waits no usable node can hold it"
    together = "; planned together with others" if pool is not None else ""
    why = f"{clause}; {goal.name}: {predictions[to].reason}; {mine.known.place}: {predictions[0].reason}{together}"
    return to, Proposal(
        lever="place",
        job_id=mine.job.array_job_id or mine.job.job_id,
        known=mine.known,
        mode=mine.mode,
        from_place=mine.known.place,
        to_place=goal.name,
        before=mine.fields[0],
        after=mine.fields[to],
        gain_s=predictions[0].score - predictions[to].score,
        why=why,
    )


def _in_time(prediction: Prediction, mine: Movable) -> bool:
    limit = mine.choice.shape.time_limit_s
    return limit is None or prediction.run_s * prediction.slowdown <= limit
