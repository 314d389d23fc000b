"""Where to send a job so that something is learned from it, and never at more than a bounded expected loss.

Tempered Thompson sampling: each place is chosen as often as it might be the best, by what is not known yet of the app's
run time there (`Prediction.doubt_log`, `apart_log`) and of how its neighbours slow it down (`slowdown_sd`). The
probabilities are worked out, not sampled, because the log must hold them; the choice is then drawn by the job's token,
so that it can be repeated.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

from advisor.policy.interface import JobShape, Prediction
from advisor.settings import Explore, PolicySettings

# Places beyond the best few hardly ever win; leaving them out bounds the work.
MOST_ARMS = 6
# A run that is longer than this share of runs must still end within its limit where a job is sent to learn.
WITHIN_LIMIT = 0.95
# How much of the doubt is acted on. All of it would be Thompson sampling as such, which tries more than pays back
# within the few hundred jobs of an app's life (advisor.training.exploration_study).
ACTED_ON = 0.5
# What might be true: so many equally likely cases, spread evenly. A place is chosen with the share of cases in which it
# would be the best, so that no probability is below one case, and none is an estimate.
CASES = 64
_NORMAL = NormalDist()
_REACH = _NORMAL.inv_cdf(WITHIN_LIMIT)
# Less doubt than this is none: a place whose run time is known to 1 %.
_SURE = 0.01


def _cases() -> tuple[tuple[float, ...], ...]:
    """Points of the additive sequence with the least gaps (Roberts), in spreads: one shared, one of each place."""
    dimensions = 1 + MOST_ARMS
    ratio = 2.0
    for _ in range(60):  # the root of x ** (d + 1) = x + 1
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    steps = [ratio ** -(number + 1) for number in range(dimensions)]
    return tuple(
        tuple(_NORMAL.inv_cdf(min(max((0.5 + step * number) % 1.0, 1e-4), 1.0 - 1e-4)) for step in steps)
        for number in range(1, CASES + 1)
    )


_CASES = _cases()

# Of each candidate, how likely it is to be chosen; they sum to 1.
Probabilities = tuple[float, ...]
Explorer = Callable[[int, Sequence[Prediction], JobShape, PolicySettings, Explore], Probabilities]


class Arm(NamedTuple):
    """A place as exploration sees it: seconds that are taken as known, and a run time that is not."""

    sure_s: float  # expected wait, and whatever else the policy's score holds
    run_s: float  # expected
    shared: float  # doubt about its log that all places have in common
    own: float


def explore(
    preferred: int,
    predictions: Sequence[Prediction],
    shape: JobShape,
    policy: PolicySettings,
    settings: Explore,
) -> Probabilities:
    """How often each candidate should be chosen; all of it on `preferred` where nothing may be risked or learned."""
    numbers = safe(preferred, predictions, shape, settings)
    probabilities = [0.0] * len(predictions)
    if len(numbers) == 1:
        probabilities[preferred] = 1.0
        return tuple(probabilities)
    arms = [_arm(predictions[number], policy, changed=number != 0) for number in numbers]
    for number, share in zip(numbers, best_of(arms), strict=True):
        probabilities[number] = share
    return tuple(probabilities)


def epsilon_greedy(epsilon: float) -> Explorer:
    """The plain alternative, to compare with: any candidate at random in a share `epsilon` of all decisions."""

    def spread(
        preferred: int, predictions: Sequence[Prediction], shape: JobShape, policy: PolicySettings, settings: Explore
    ) -> Probabilities:
        places = [number for number, each in enumerate(predictions) if each.pool is not None]
        probabilities = [0.0] * len(predictions)
        for number in places:
            probabilities[number] = epsilon / len(places)
        probabilities[preferred] += 1.0 - epsilon if places else 1.0
        return tuple(probabilities)

    return spread


def safe(preferred: int, predictions: Sequence[Prediction], shape: JobShape, settings: Explore) -> list[int]:
    """The candidates whose expected loss is within bounds, of each kind the best; `preferred` first."""
    best = predictions[preferred]
    bound = min(settings.max_regret * best.score, settings.max_regret_s)
    found = [preferred]
    if bound <= 0:
        return found
    seen = {_kind(best)}
    for prediction in sorted(predictions, key=lambda each: (each.score, each.candidate)):
        if len(found) == MOST_ARMS or prediction.score - best.score > bound:
            break
        if prediction.pool is None or _kind(prediction) in seen or _may_be_cut(prediction, shape):
            continue
        seen.add(_kind(prediction))
        found.append(prediction.candidate)
    return found


def draw_by(token: str, probabilities: Sequence[float]) -> int:
    """The candidate that this token draws; the same token always draws the same."""
    digest = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8, person=b"explore").digest()
    left = int.from_bytes(digest, "big") / 2**64 * sum(probabilities)
    last = 0
    for number, share in enumerate(probabilities):
        if share <= 0.0:
            continue
        last = number
        left -= share
        if left < 0.0:
            return number
    return last


def best_of(arms: Sequence[Arm]) -> list[float]:
    """In what share of cases each would finish first, by what is not known of their run times; sums to 1."""
    wins = [0] * len(arms)
    # The mean of a log-normal is above its median: without this, what is doubtful would look slow as such.
    terms = [
        (arm.sure_s, max(arm.run_s, 1e-3) * math.exp(-(arm.shared**2 + arm.own**2) / 2), arm.shared, arm.own)
        for arm in arms
    ]
    if all(shared <= _SURE and own <= _SURE for _, _, shared, own in terms):
        wins[min(range(len(arms)), key=lambda number: arms[number].sure_s + arms[number].run_s)] = CASES
    else:
        exp = math.exp
        for shared_at, *own_at in _CASES:
            first, best = 0, math.inf
            for number, (sure, middle, shared, own) in enumerate(terms):
                finish = sure + middle * exp(shared * shared_at + own * own_at[number])
                if finish < best:
                    first, best = number, finish
            wins[first] += 1
    return [won / CASES for won in wins]


def _arm(prediction: Prediction, policy: PolicySettings, changed: bool) -> Arm:
    run_s = prediction.run_s * prediction.slowdown
    sure = prediction.score - run_s
    if not changed:
        # A change must be worth it, as in `guardrails.prefer`.
        sure -= max(policy.min_gain_s, policy.min_gain * prediction.score)
    own = math.hypot(prediction.apart_log, prediction.slowdown_sd / prediction.slowdown)
    return Arm(sure, run_s, prediction.doubt_log, ACTED_ON * own)


def _kind(prediction: Prediction) -> tuple[str, int | None]:
    """Two places with the same processor take the same time, but for the neighbours: else there is nothing to learn."""
    return prediction.processor, prediction.pool if prediction.slowdown_sd else None


def _may_be_cut(prediction: Prediction, shape: JobShape) -> bool:
    if shape.time_limit_s is None:
        return False
    sd = prediction.sd_log
    high = prediction.run_s * prediction.slowdown * math.exp(_REACH * sd - min(sd, 1.0) ** 2 / 2)
    return high > shape.time_limit_s
