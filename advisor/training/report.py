"""What the advisor did to the site: the effect with its interval, from jobs that chance left alone.

Of the jobs that would be changed, some are drawn to stay as they are. The two groups differ by chance alone, so the
difference of their turnarounds is the advisor's doing; each job counts by one over the probability of its group, which
the log holds, so that a control group whose size was changed half-way is no bias. Also: how well predictions were
calibrated, what was changed, GPU hours, drift.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from advisor.settings import Drift
from advisor.store.experience import Experience
from advisor.training.drift import Alarm, residuals, scan
from advisor.training.evidence import drawn_wrongly, ended_wrongly, foretold
from advisor.training.off_policy import Floats, Interval, normalised, ratio
from advisor.training.versions import Promotion

# Fewer in either group tell nothing.
LEAST_GROUP = 20
MOST_ROWS = 12
WEEK_S = 7 * 86_400.0


class Effect(msgspec.Struct, frozen=True):
    """One comparison of changed jobs with the control group; `gain` None: too few jobs to tell."""

    name: str
    changed: int
    control: int
    changed_mean: float  # seconds
    control_mean: float
    gain: Interval | None  # share by which it is shorter


class Saved(msgspec.Struct, frozen=True):
    """Hours saved by changing jobs (negative: lost), with their interval; None: too few jobs to tell."""

    gpu_hours: Interval | None
    job_hours: Interval | None  # of turnaround, summed over the changed jobs
    gpu_hours_used: float  # by all jobs of the log that have ended
    control_gpu_hours: float  # by those left alone as the control group: what the evidence costs lies within this


class Bin(msgspec.Struct, frozen=True):
    """Jobs with about the same prediction: the middle of it, and of what came, with its quartiles (seconds)."""

    predicted: float
    low: float
    middle: float
    high: float
    jobs: int


class Calibration(msgspec.Struct, frozen=True):
    """How predictions and outcomes go together."""

    what: str
    jobs: int
    within_half: float | None  # share within the predicted 50 % interval; None: no intervals were predicted
    within_nine: float | None
    middle_ratio: float  # median of real / predicted
    off_by: float  # median of |log(real / predicted)|, as a factor
    bins: list[Bin]


class Week(msgspec.Struct, frozen=True):
    """One week: mean turnaround in hours of changed and control jobs, and how many."""

    begins: float
    changed: int
    control: int
    changed_h: float | None
    control_h: float | None


class Report(msgspec.Struct, frozen=True):
    """Everything `advisor report` tells."""

    begins: float
    until: float
    decisions: dict[str, int]  # submissions, eligible, in enforce mode, changed, control, ended
    effects: list[Effect]  # turnaround, wait, run time
    by_partition: list[Effect]  # turnaround; partition as the user asked
    by_app: list[Effect]
    by_account: list[Effect]
    saved: Saved
    unhappy: dict[str, tuple[float, float]]  # state → share of changed and of control jobs that ended so
    calibration: list[Calibration]
    changes: dict[str, int]  # "cpu → gpu/v100" → jobs
    weeks: list[Week]
    drift: list[Alarm]
    promotions: list[Promotion]
    left_out: dict[str, int]
    verdict: str


class _Row(msgspec.Struct, frozen=True):
    row: Experience
    changed: bool
    weight: float
    expected: dict[str, float]  # of the job as it was submitted, before the draw: makes unlike jobs comparable


def make(rows: Sequence[Experience], drift: Drift, promotions: Sequence[Promotion] = ()) -> Report:
    """The report of these decisions (also those with nothing to decide), oldest first."""
    left_out: Counter[str] = Counter()
    compared: list[_Row] = []
    ends: Counter[tuple[bool, str]] = Counter()
    for row in rows:
        if not row.eligible or row.mode != "enforce" or not row.preferred:
            continue
        try:
            probabilities, places, told = row.probabilities(), row.candidates(), row.predictions()
        except msgspec.DecodeError:
            left_out["its candidates, predictions or probabilities cannot be read"] += 1
            continue
        why = drawn_wrongly(row, len(places), probabilities, told)
        stay = probabilities[0] if not why else 0.0
        if not why and not 0.0 < stay < 1.0:
            why = "there was no control group (experiment.holdout is 0)"
        if not why:
            ends[bool(row.chosen), _state(row)] += 1
            why = ended_wrongly(row)
        if why:
            left_out[why] += 1
            continue
        changed = bool(row.chosen)
        as_submitted = {"wait": told[0].wait_s, "run time": told[0].run_s * told[0].slowdown}
        as_submitted["turnaround"] = as_submitted["wait"] + as_submitted["run time"]
        compared.append(_Row(row, changed, 1.0 / (1.0 - stay if changed else stay), as_submitted))
    effects = [_effect(name, compared, name) for name in _MEASURES]
    known = [row for row in rows if row.ended is not None]
    return Report(
        rows[0].decided_at if rows else 0.0,
        rows[-1].decided_at if rows else 0.0,
        _counts(rows),
        effects,
        _grouped(compared, lambda row: row.partition or "(default)"),
        _grouped(compared, lambda row: row.app),
        _grouped(compared, lambda row: row.account or "(none)"),
        _saved(compared, known),
        _unhappy(ends),
        _calibration(rows),
        _changes(rows),
        _weeks(compared),
        scan(residuals(rows), drift).alarms,
        list(promotions),
        dict(left_out.most_common()),
        _verdict(effects[0], len(rows)),
    )


_MEASURES: dict[str, Callable[[Experience], float]] = {
    "turnaround": lambda row: row.ended.turnaround or 0.0 if row.ended else 0.0,
    "wait": lambda row: row.ended.wait or 0.0 if row.ended else 0.0,
    "run time": lambda row: row.ended.run if row.ended else 0.0,
}


def _effect(name: str, rows: Sequence[_Row], measure: str) -> Effect:
    changed = np.array([row.changed for row in rows], dtype=np.bool_)
    weights = np.array([row.weight for row in rows])
    values = _adjusted(rows, _MEASURES[measure], measure, weights)
    few = min(int(changed.sum()), int((~changed).sum()))
    means = [float(np.average(values[g], weights=weights[g])) if g.any() else 0.0 for g in (changed, ~changed)]
    gain = None
    if few >= LEAST_GROUP and means[1] > 0:
        gain = ratio(*normalised(np.where(changed, weights, 0.0), np.where(changed, 0.0, weights), values)).gain
    return Effect(name, int(changed.sum()), int((~changed).sum()), means[0], means[1], gain)


def _adjusted(rows: Sequence[_Row], what: Callable[[Experience], float], by: str, weights: Floats) -> Floats:
    """Values, less what chance alone put into one group: jobs that were expected to be long before anything was drawn.

    A regression on what was expected of the job as submitted; the means of the two groups keep their meaning.
    """
    values = np.array([what(row.row) for row in rows], dtype=np.float64)
    if len(rows) < 2 * LEAST_GROUP:
        return values
    expected = np.array([row.expected[by] for row in rows])
    away = expected - np.average(expected, weights=weights)
    spread = float(np.average(away**2, weights=weights))
    if spread <= 0:
        return values
    slope = float(np.average(away * (values - np.average(values, weights=weights)), weights=weights)) / spread
    return np.asarray(values - slope * away)


def _grouped(rows: Sequence[_Row], key: Callable[[Experience], str]) -> list[Effect]:
    groups: dict[str, list[_Row]] = {}
    for row in rows:
        groups.setdefault(key(row.row), []).append(row)
    largest = sorted(groups, key=lambda name: (-len(groups[name]), name))[:MOST_ROWS]
    return [_effect(name, groups[name], "turnaround") for name in largest]


def _saved(rows: Sequence[_Row], known: Sequence[Experience]) -> Saved:
    used = sum(row.ended.gpu_s for row in known if row.ended) / 3600.0
    control = sum(row.row.ended.gpu_s for row in rows if not row.changed and row.row.ended) / 3600.0
    changed = sum(row.changed for row in rows)
    if min(changed, len(rows) - changed) < LEAST_GROUP:
        return Saved(None, None, round(used, 2), round(control, 2))
    return Saved(
        _difference(rows, lambda row: row.ended.gpu_s if row.ended else 0.0, "run time", changed),
        _difference(rows, _MEASURES["turnaround"], "turnaround", changed),
        round(used, 2),
        round(control, 2),
    )


def _difference(rows: Sequence[_Row], what: Callable[[Experience], float], by: str, changed: int) -> Interval:
    """Hours by which the changed jobs together are below what they would have had as they were submitted."""
    from advisor.training.off_policy import mean_interval

    flags = np.array([row.changed for row in rows], dtype=np.bool_)
    weights = np.array([row.weight for row in rows])
    values = _adjusted(rows, what, by, weights) / 3600.0
    new, old = normalised(np.where(flags, weights, 0.0), np.where(flags, 0.0, weights), values)
    found = mean_interval(old - new)
    return Interval(*(round(changed * value, 2) for value in (found.value, found.low, found.high)))


def _state(row: Experience) -> str:
    ended = row.ended
    if ended is None:
        return "not ended"
    if ended.timed_out:
        return "timed out"
    if ended.completed + ended.sent_back < ended.records:
        return "failed or cancelled"
    return "completed"


def _unhappy(ends: Counter[tuple[bool, str]]) -> dict[str, tuple[float, float]]:
    totals = {
        side: sum(n for (s, state), n in ends.items() if s == side and state != "not ended") for side in (True, False)
    }
    return {
        state: (ends[True, state] / max(totals[True], 1), ends[False, state] / max(totals[False], 1))
        for state in ("completed", "timed out", "failed or cancelled")
    }


def _counts(rows: Sequence[Experience]) -> dict[str, int]:
    return {
        "submissions": len(rows),
        "eligible": sum(row.eligible for row in rows),
        "enforced": sum(row.eligible and row.mode == "enforce" for row in rows),
        "would change": sum(bool(row.eligible and row.preferred) for row in rows),
        "changed": sum(row.applied for row in rows),
        "moved later": sum(row.moved for row in rows),
        "control": sum(bool(row.holdout and row.preferred) for row in rows),
        "ended": sum(row.ended is not None for row in rows),
    }


def _changes(rows: Sequence[Experience]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for row in rows:
        if row.applied and row.chosen:
            try:
                found[f"{row.partition or '(default)'} → {row.candidates()[row.chosen].name}"] += 1
            except (msgspec.DecodeError, IndexError):
                continue
    return dict(found.most_common(MOST_ROWS))


def _weeks(rows: Sequence[_Row]) -> list[Week]:
    if not rows:
        return []
    first = rows[0].row.decided_at
    weeks: dict[int, list[_Row]] = {}
    for row in rows:
        weeks.setdefault(int((row.row.decided_at - first) // WEEK_S), []).append(row)
    found = []
    for number in sorted(weeks):
        effect = _effect("", weeks[number], "turnaround")
        found.append(
            Week(
                first + number * WEEK_S,
                effect.changed,
                effect.control,
                round(effect.changed_mean / 3600, 4) if effect.changed else None,
                round(effect.control_mean / 3600, 4) if effect.control else None,
            )
        )
    return found


def _calibration(rows: Sequence[Experience]) -> list[Calibration]:
    runs: list[tuple[float, float, float]] = []
    waits: list[tuple[float, float, float]] = []
    for _, ended, run, wait in foretold(row for row in rows if row.eligible):
        if run is not None:
            runs.append((max(run.run_s * run.slowdown, 1.0), float(ended.run), run.sd_log))
        if wait is not None:
            waits.append((max(wait.wait_s, 0.0) + 60.0, max(ended.wait or 0.0, 0.0) + 60.0, 0.0))
    return [_calibrated(what, found) for what, found in (("run time", runs), ("wait, plus a minute", waits)) if found]


def _calibrated(what: str, found: list[tuple[float, float, float]]) -> Calibration:
    predicted, real, sd = (np.array(column) for column in zip(*found, strict=True))
    off = np.log(real / predicted)
    half = nine = None
    if (sd > 0).any():
        # The prediction is a mean; the interval lies around the median of a log-normal with that mean.
        z = (off[sd > 0] + np.minimum(sd[sd > 0], 1.0) ** 2 / 2) / sd[sd > 0]
        half, nine = float(np.mean(np.abs(z) <= 0.6745)), float(np.mean(np.abs(z) <= 1.6449))
    return Calibration(
        what,
        len(found),
        half,
        nine,
        float(np.exp(np.median(off))),
        float(np.exp(np.median(np.abs(off)))),
        _bins(predicted, real),
    )


def _bins(predicted: Floats, real: Floats) -> list[Bin]:
    order = np.argsort(predicted, kind="stable")
    found = []
    for part in np.array_split(order, min(10, max(1, len(order) // 10))):
        low, middle, high = (float(q) for q in np.quantile(real[part], (0.25, 0.5, 0.75)))
        found.append(Bin(float(np.median(predicted[part])), low, middle, high, len(part)))
    return found


def _verdict(turnaround: Effect, submissions: int) -> str:
    if not submissions:
        return "The log is empty: nothing was decided yet."
    if turnaround.gain is None:
        return (
            f"Not enough evidence: {turnaround.changed} changed and {turnaround.control} control jobs have "
            f"ended, {LEAST_GROUP} of each are wanted. Mode enforce with experiment.holdout above 0 brings them."
        )
    gain = turnaround.gain
    if gain.low > 0:
        return f"Changed jobs finish {gain.value:.1%} sooner (95 %: {gain.low:.1%} to {gain.high:.1%})."
    if gain.high < 0:
        return (
            f"Changed jobs finish {-gain.value:.1%} LATER (95 %: {-gain.high:.1%} to {-gain.low:.1%}): go to shadow, "
            "or roll the model back (`advisor models rollback`)."
        )
    if not math.isfinite(gain.low + gain.high):
        return "No effect can be told."
    return f"No effect is certain yet: {gain.value:+.1%} sooner, 95 % between {gain.low:+.1%} and {gain.high:+.1%}."
