"""What belonging to a workflow does to the scores of a job's places: later starts, and yielding where there is time.

A job that waits for others is placed for the time at which they will have ended. A task whose workflow ends later
anyway, because of other tasks, goes where it takes least of what they would gain more from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from advisor.performance.arrays import Way, mean_wait
from advisor.performance.processors import lookup, speed
from advisor.performance.snapshot import Snapshot
from advisor.policy.candidates import Choice
from advisor.policy.interface import Prediction, Scored
from advisor.policy.workflow import COUNTED_ON, Belonging
from advisor.settings import Processor

# Less than that to spare is none: expectations are not so exact.
_LEAST_SPARE_S = 60.0
# A place with a shorter wait is idle.
_IDLE_S = 1.0
# In about this time the jobs that hold a cluster have given way to others.
TURNOVER_S = 7200.0

_Change = Callable[[Sequence[Prediction]], list[Prediction]]


class Placing(msgspec.Struct, frozen=True):
    """Scores that know of the workflow; `spare_s`: how much later than possible the task may end."""

    scored: Scored
    spare_s: float = 0.0


def placed(
    scored: Scored,
    choice: Choice,
    view: Snapshot,
    belonging: Belonging,
    now: float,
    processors: Mapping[str, Processor],
) -> Placing:
    """What belonging to others does to the scores of a job that is scored as if it were alone."""
    ahead_s = max(belonging.ready_at - now, 0.0) if belonging.known else 0.0
    if ahead_s:
        waits = [_wait_then(each, choice, view, belonging.ready_at, ahead_s) for each in scored.predictions]
        scored = _changed(
            scored,
            lambda predictions: [_later(each, ahead_s, wait) for each, wait in zip(predictions, waits, strict=True)],
        )
    if belonging.workflow is None:
        return Placing(scored)
    earliest = min((each.score for each in scored.predictions if each.pool is not None), default=0.0)
    spare_s = latest_end(belonging, now + earliest) - now - earliest
    if spare_s < _LEAST_SPARE_S:
        return Placing(scored)
    latest_s = earliest + spare_s
    first = min(each.score for each in scored.predictions)
    # Only to where nobody else is waiting: among busy places the one where it ends first is best for all.
    scores = yielding(
        [
            each.score if each.wait_s <= ahead_s + _IDLE_S or each.score == first else max(each.score, latest_s + 1.0)
            for each in scored.predictions
        ],
        [_cost(each, processors) for each in scored.predictions],
        latest_s,
    )
    return Placing(
        _changed(
            scored,
            lambda predictions: [
                msgspec.structs.replace(each, score=value) for each, value in zip(predictions, scores, strict=True)
            ],
        ),
        spare_s,
    )


def latest_end(belonging: Belonging, earliest: float) -> float:
    """When the task may end at the latest, if it could end at `earliest`, without its workflow ending later."""
    spare_s = max(belonging.others_end - belonging.tail_s - earliest, belonging.spare_s, 0.0)
    return earliest + COUNTED_ON * spare_s


def yielding(finish_s: Sequence[float], cost_s: Sequence[float], latest_s: float) -> list[float]:
    """Scores of places for a task that may end as late as `latest_s`: the cheapest of those in time is best.

    All others come after them, by when they finish.
    """
    in_time = [finish <= latest_s for finish in finish_s]
    dearest = max((cost for cost, fits in zip(cost_s, in_time, strict=True) if fits), default=0.0)
    return [
        max(latest_s - (dearest - cost), 0.0) if fits else finish
        for finish, cost, fits in zip(finish_s, cost_s, in_time, strict=True)
    ]


def _cost(prediction: Prediction, processors: Mapping[str, Processor]) -> float:
    """What the run takes from others: its time, weighed by what the processor could do in it (a V100 is 1)."""
    figures = lookup(processors, prediction.processor)
    reference = processors.get("v100")
    weight = speed(figures) / speed(reference) if figures is not None and reference is not None else 1.0
    return prediction.run_s * prediction.slowdown * weight


def _wait_then(prediction: Prediction, choice: Choice, view: Snapshot, ready_at: float, ahead_s: float) -> float:
    """How long the job will queue once it may start.

    By then what runs and waits now has moved on, which the timelines know; but others will have come, which they
    do not: where there is a queue today there will be one, the more surely the longer that is off.
    """
    if prediction.pool is None:
        return prediction.wait_s
    candidate = choice.candidates[prediction.candidate]
    at = candidate.pools.index(prediction.pool)
    way = Way(prediction.pool, candidate.tiers[at], candidate.needs[at], prediction.run_s)
    found = mean_wait(view, way, ready_at, choice.shape.tasks_at_once)
    if found is None:
        return prediction.wait_s
    queued = prediction.pool < len(view.waiting) and view.waiting[prediction.pool] > 0
    others = (1.0 - math.exp(-ahead_s / TURNOVER_S)) * max(prediction.wait_s - found, 0.0) if queued else 0.0
    return found + others


def _later(prediction: Prediction, ahead_s: float, wait_s: float) -> Prediction:
    later_s = ahead_s + wait_s - prediction.wait_s
    # What is learned from real waits counts from when a job could start: that part is kept apart.
    return msgspec.structs.replace(
        prediction, wait_s=ahead_s + wait_s, score=prediction.score + later_s, queue_wait_s=wait_s
    )


def _changed(scored: Scored, change: _Change) -> Scored:
    return msgspec.structs.replace(
        scored, predictions=change(scored.predictions), explained=lambda: change(scored.explained())
    )
