"""From the log to evidence about a new policy: which rows tell something, which do not and why, and what they say.

Only jobs whose place was drawn with a known probability count, and of them only those that both policies might have
sent where they would. What is left out is counted by reason; where too little is left, the verdict says so.

A job that a round moved later counts as what it is: the end of a decision at submission and of what rounds make of
such decisions. To leave it out would be to choose by what came after the draw (jobs are moved from where they wait
long), and would flatter the place it was moved from. Such jobs are counted.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.store.experience import CLOCK_S, Ended, Experience, Place, Predicted
from advisor.training.off_policy import LEAST_PROBABILITY, Effect, Logged, effect

# Where the new policy differs, at least this share of such jobs must lie where the log has tried what it prefers.
LEAST_OVERLAP = 0.5


class Choice(NamedTuple):
    """What a policy would have done with a logged job."""

    preferred: int
    expected_s: list[float] | None = None  # its turnaround at each candidate, as the policy sees it; None: as logged


Chooser = Callable[[Experience, list[Predicted], list[Place]], Choice]


class EvidenceError(Exception):
    """The log cannot tell anything about another policy; the text says why and what to do."""


class Evidence(msgspec.Struct, frozen=True):
    """What the log says of a new policy, and on how much of it that rests."""

    verdict: str  # "enough" or "not enough evidence"
    why: str
    decisions: int  # eligible ones that were looked at
    used: int
    left_out: dict[str, int]  # reason → decisions
    differ: int  # jobs, also those left out for want of overlap, that the new policy would have placed elsewhere
    overlap: float  # share of them that lie where the log has tried both places
    effect: Effect | None = None
    moved: int = 0  # of those used, jobs that a round moved later: they speak for the policy together with its rounds

    @property
    def enough(self) -> bool:
        """Whether the effect can be relied on."""
        return self.verdict == "enough"


def gather(rows: Iterable[Experience], chooser: Chooser, least_jobs: int) -> Evidence:
    """Looks at every row; raises `EvidenceError` where not one decision has probabilities."""
    left_out: Counter[str] = Counter()
    kept: list[tuple[float, ...]] = []
    decisions = with_probabilities = differ = unsupported = moved = 0
    for row in rows:
        if not row.eligible:
            continue
        decisions += 1
        try:
            places, predictions, probabilities = row.candidates(), row.predictions(), row.probabilities()
        except msgspec.DecodeError:
            left_out["its candidates, predictions or probabilities cannot be read"] += 1
            continue
        reason = drawn_wrongly(row, len(places), probabilities, predictions)
        if not reason:
            with_probabilities += 1
            reason = ended_wrongly(row)
        if reason:
            left_out[reason] += 1
            continue
        old, was = int(row.preferred or 0), int(row.chosen or 0)
        choice = chooser(row, predictions, places)
        differ += choice.preferred != old
        if min(probabilities[choice.preferred], probabilities[old]) < LEAST_PROBABILITY:
            unsupported += choice.preferred != old
            left_out[f"the log never tried where it would go now (mode {row.mode})"] += 1
            continue
        expected = choice.expected_s or [p.wait_s + p.run_s * p.slowdown for p in predictions]
        assert row.ended is not None and row.ended.turnaround is not None
        moved += row.moved
        kept.append(
            (
                max(row.ended.turnaround, 1.0),
                probabilities[was],
                was == choice.preferred,
                was == old,
                choice.preferred == old,
                expected[was],
                expected[choice.preferred],
                expected[old],
                probabilities[choice.preferred],
                probabilities[old],
                zlib.crc32(row.token.encode()),
            )
        )
    if decisions and not with_probabilities:
        raise EvidenceError(
            "no decision in this log has probabilities, so nothing can be told about another policy; "
            "log with this slurm-advisor for a while (mode enforce, experiment.holdout above 0) and try again"
        )
    overlap = 1.0 - unsupported / differ if differ else 1.0
    found = effect(_logged(kept)) if len(kept) > 1 else None
    verdict, why = _verdict(found, decisions, differ, overlap, least_jobs)
    return Evidence(verdict, why, decisions, len(kept), dict(left_out.most_common()), differ, overlap, found, moved)


def drawn_wrongly(row: Experience, places: int, probabilities: list[float], predictions: list[Predicted]) -> str:
    """Why a decision cannot be weighed; empty where it can."""
    if not probabilities or row.probability is None or row.chosen is None or row.preferred is None:
        return "no probabilities were logged"
    if len(probabilities) != places or len(predictions) != places or not 0 <= row.chosen < places:
        return "candidates, predictions and probabilities do not match"
    if abs(sum(probabilities) - 1.0) > 1e-6 or min(probabilities) < 0 or not 0 <= row.preferred < places:
        return "its probabilities are none (they do not sum to 1)"
    if probabilities[row.chosen] <= 0 or abs(probabilities[row.chosen] - row.probability) > 1e-6:
        return "it was chosen with probability 0, or with another than was logged"
    return ""


def ended_wrongly(row: Experience) -> str:
    """Why the end of a job says nothing about where it went; empty where it does."""
    ended = row.ended
    if ended is None:
        return "its job has not ended, or accounting does not know it"
    if ended.cluster != row.cluster and row.cluster:
        return "its job ran on another cluster than it was decided for"
    if ended.never_started:
        return "its job never started"
    if ended.backwards or ended.turnaround is None or ended.submit is None:
        return "a clock jumped: it ended before it began"
    if abs(ended.submit - row.decided_at) > CLOCK_S:
        return "a clock jumped: decided and submitted at different times"
    if ended.completed + ended.timed_out + ended.sent_back < ended.records:
        return "its job failed or was cancelled"
    return ""


class Foretold(NamedTuple):
    """A job that ran to its end, and what was predicted of it."""

    row: Experience
    ended: Ended
    run: Predicted | None  # of the processor it ran on
    wait: Predicted | None  # of where it was sent, unless a round moved it later


def foretold(rows: Iterable[Experience]) -> Iterator[Foretold]:
    """Those of the jobs whose end can be held against a prediction."""
    for row in rows:
        ended = row.ended
        if ended is None or ended_wrongly(row) or not ended.completed:
            continue
        try:
            told = row.predictions()
        except msgspec.DecodeError:
            continue
        was = (row.chosen or 0) if row.applied else 0
        sent = told[was] if was < len(told) else None
        run = None
        if ended.run > 0:
            at = [sent, *told] if sent is not None else told
            run = next((each for each in at if each.processor == ended.processor and each.run_s > 0), None)
        yield Foretold(row, ended, run, sent if ended.wait is not None and not row.moved else None)


def _logged(rows: list[tuple[float, ...]]) -> Logged:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    numbers = [column.astype(np.float64) for column in columns]
    new, old, agree = (columns[i].astype(np.bool_) for i in (2, 3, 4))
    expected, expected_new, expected_old, probability_new, probability_old = numbers[5:10]
    return Logged(
        turnaround=numbers[0],
        probability=numbers[1],
        new=new,
        old=old,
        agree=agree,
        expected=expected,
        expected_new=expected_new,
        expected_old=expected_old,
        probability_new=probability_new,
        probability_old=probability_old,
        fold=columns[10].astype(np.int64),
    )


def _verdict(found: Effect | None, decisions: int, differ: int, overlap: float, least_jobs: int) -> tuple[str, str]:
    missing = "not enough evidence"
    if not decisions:
        return missing, "the log holds no decision about a job that could have gone elsewhere"
    if overlap < LEAST_OVERLAP:
        return missing, (
            f"of {differ} jobs that would go elsewhere now, the log has tried that for {overlap:.0%} only; "
            "let it explore (explore.max_regret above 0) or a larger control group (experiment.holdout) run for a while"
        )
    if found is None:
        return missing, "not one logged job can be compared"
    if found.effective_jobs < least_jobs:
        return missing, (
            f"the logged jobs tell as much as {found.effective_jobs:.0f} would, "
            f"{least_jobs} are wanted (gate.least_jobs); wait for more"
        )
    return (
        "enough",
        f"{found.jobs} logged jobs, which tell as much as {found.effective_jobs:.0f} drawn by the new policy",
    )
