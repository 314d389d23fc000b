"""What stands between a policy's preference and a user's job: modes, least gain, time limits, chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from advisor.policy.exploration import Probabilities, draw_by
from advisor.policy.interface import JobShape, Prediction
from advisor.policy.words import duration
from advisor.protocol import SubmitRequest
from advisor.settings import Experiment, Mode, Modes, PolicySettings

# From the one that does least to the one that does most.
CAUTION: tuple[Mode, ...] = ("off", "shadow", "advise", "enforce")


class Draw(msgspec.Struct, frozen=True):
    """What the experiment chose, and with what probability it would have chosen each candidate."""

    chosen: int
    probabilities: tuple[float, ...]
    holdout: bool


def resolve_mode(modes: Modes, request: SubmitRequest, named: Sequence[str]) -> Mode:
    """The most specific word: of the user, account, partition (of several the most cautious), or the default."""
    if modes.users:
        for user in (request.user, str(request.uid)):
            if user is not None and user in modes.users:
                return modes.users[user]
    account = request.account or request.default_account
    if account is not None and modes.accounts:
        for name, mode in modes.accounts.items():
            if name.lower() == account.lower():
                return mode
    if any(name in modes.partitions for name in named):
        return min((modes.partitions.get(name, modes.default) for name in named), key=CAUTION.index)
    return modes.default


def prefer(predictions: Sequence[Prediction], shape: JobShape, policy: PolicySettings) -> tuple[int, str]:
    """The candidate to go for, and why, in a clause. `keep` (index 0) unless another is clearly better."""
    keep = predictions[0]
    limit = shape.time_limit_s
    allowed = [
        other
        for other in predictions[1:]
        # A run that the limit would cut short is no gain, unless the same holds where the job goes anyway.
        if limit is None or other.run_s * other.slowdown <= limit or keep.run_s * keep.slowdown > limit
    ]
    if not allowed:
        return 0, "everywhere else it might not end within its time limit"
    best = min(allowed, key=lambda other: (other.score, other.candidate))
    gain = keep.score - best.score
    # Not every policy scores by when a job ends; what a person is told is always that.
    saved = _finish(keep) - _finish(best)
    if gain <= 0:
        first = _finish(keep) <= min(map(_finish, allowed))
        return 0, "where it goes by itself it is expected to finish first" if first else "the policy leaves it there"
    if gain < policy.min_gain_s or gain < policy.min_gain * keep.score:
        little = f"the best alternative would save only {duration(saved)}"
        return 0, little if saved > 0 else "nothing is clearly better"
    if saved > 0:
        return best.candidate, f"it is expected to finish {duration(saved)} sooner"
    later = f", although it is expected to finish {duration(-saved)} later" if saved <= -1.0 else ""
    return best.candidate, "the policy prefers it" + later


def _finish(prediction: Prediction) -> float:
    return prediction.wait_s + prediction.run_s * prediction.slowdown


def draw(
    preferred: int,
    count: int,
    mode: Mode,
    experiment: Experiment,
    rng: random.Random,
    explored: Probabilities = (),
    token: str = "",
) -> Draw:
    """Leaves a random share of the jobs that would be changed untouched. Only `enforce` changes jobs at all.

    `explored`: how often each candidate is to be chosen otherwise, by a draw that the token decides; none: `preferred`.
    """
    if mode != "enforce":
        return Draw(0, (1.0,) + (0.0,) * (count - 1), False)
    probabilities = [0.0] * count
    kept = experiment.holdout
    chosen = preferred
    if explored:
        probabilities = [(1.0 - kept) * share for share in explored]
        chosen = draw_by(token, explored)
    else:
        probabilities[preferred] = 1.0 - kept
    probabilities[0] += kept
    # Drawn also where keep is preferred: those jobs belong to the control group's other half.
    holdout = rng.random() < kept
    return Draw(0 if holdout else chosen, tuple(probabilities), holdout)
