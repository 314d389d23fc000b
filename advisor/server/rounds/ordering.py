"""The lever `order`: in which turn the advisor's jobs start, by exchanging their priorities (`nice`).

Jobs that wait for the same pool exchange their turns among each other; nobody else's comes later. What may be given to
or taken from a job is bounded, and a job that has waited too long loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from advisor.policy.words import duration
from advisor.server.rounds.places import Movable, Proposal
from advisor.server.rounds.planning import Planned, Turn
from advisor.settings import Settings

# Priorities closer than this are as good as equal: Slurm rounds them, and shows none below 1.
APART = 10


def exchanges(
    jobs: Mapping[int, Movable],
    moving: Collection[int],
    line: Sequence[Turn],
    planned: Planned | None,
    settings: Settings,
) -> list[Proposal]:
    """What is to be given and taken, in the order of the queue; without a plan that is better, only what is due."""
    rounds = settings.rounds
    late = frozenset(turn.job_id for turn in line if turn.waited_s > rounds.longest_wait_s)
    wanted = {job: 0 for job in late if job in jobs and jobs[job].known.points < 0}
    if planned is not None and planned.better:
        turns = {
            turn.job_id: (jobs[turn.job_id].job.priority - jobs[turn.job_id].known.points, turn.here)
            for turn in line
            # Who moves, or was planned elsewhere, gets its turn where it is going, in a later round.
            if turn.job_id in jobs and planned.pool.get(turn.job_id) == turn.here and turn.job_id not in moving
        }
        wanted |= order_of(turns, planned.start, rounds.most_nice, late)
    found: list[Proposal] = []
    for turn in line:
        points, mine = wanted.get(turn.job_id), jobs.get(turn.job_id)
        if points is None or mine is None:
            continue
        before = mine.known.points if mine.mode == "enforce" else mine.known.thought_points
        if points == before:
            continue
        sooner = planned.sooner.get(turn.job_id, 0.0) if planned is not None else 0.0
        if turn.job_id in late and points >= 0:
            why = (
                f"it has waited {duration(turn.waited_s)}, longer than rounds.longest_wait_s: it loses nothing any more"
            )
        else:
            when = "sooner" if sooner >= 0 else "later"
            why = f"its turn comes ~{duration(abs(sooner))} {when}; together the jobs that wait there end sooner"
        found.append(
            Proposal(
                lever="order",
                job_id=mine.job.array_job_id or turn.job_id,
                known=mine.known,
                mode=mine.mode,
                from_place=f"{before:+d} points",
                to_place=f"{points:+d} points",
                before={"points": before},
                after={"points": points},
                gain_s=sooner,
                why=why,
            )
        )
    # Nobody who yields does so for nothing: those that get points come first, should the round end early.
    found.sort(key=lambda each: -each.after["points"])
    return found[: rounds.most_moves]


def order_of(
    turns: Mapping[int, tuple[int, int]], start: Mapping[int, float], most: int, late: frozenset[int]
) -> dict[int, int]:
    """Points of priority to give to each of these jobs so that they start in the plan's order.

    `turns`: job → its priority without our points, and the pool that it waits for. Jobs of one pool exchange their
    priorities among each other, so that nobody else's turn comes later; no job gets or loses more than `most`, and
    those that are `late` lose nothing.
    """
    found: dict[int, int] = {}
    for pool in {pool for _, pool in turns.values()}:
        jobs = [job for job, (_, where) in turns.items() if where == pool]
        wanted = sorted(jobs, key=lambda job: (job not in late, start.get(job, math.inf), -turns[job][0], job))
        points = sorted((turns[job][0] for job in jobs), reverse=True)
        for k in range(len(points) - 2, -1, -1):
            points[k] = max(points[k], points[k + 1] + APART)
        for job, priority in zip(wanted, points, strict=True):
            given = max(-most, min(most, priority - turns[job][0]))
            found[job] = max(given, 0) if job in late else given
    return found
