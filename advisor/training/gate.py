"""Decides whether a new version may decide: by what the log says, what the simulation says, and how quick it is.

All must agree, and every reason, for or against, goes into the version's card. Where the log never tried what the new
version prefers, no estimate from it means anything; then (`gate.without_overlap`) its predictions of jobs it has not
seen must be no worse than those that were made at the time, or it is refused.
"""

from __future__ import annotations

import msgspec

from advisor.settings import Gate
from advisor.training.evidence import Evidence
from advisor.training.off_policy import Interval

# Mean distance of log run times: 0.02 is about 2 % of a run time.
PREDICTION_TOLERANCE = 0.02


class Predictions(msgspec.Struct, frozen=True):
    """How far predicted run times of jobs that a model had not seen were from the real ones (mean |log ratio|)."""

    jobs: int
    new: float
    old: float
    gain: Interval  # old - new, paired by job


class Simulated(msgspec.Struct, frozen=True):
    """Mean turnaround in the simulated site, over several of its histories."""

    histories: int
    jobs: int
    new_s: float
    old_s: float
    gain: Interval  # 1 - new / old


class Latency(msgspec.Struct, frozen=True):
    """CPU time of one decision with the new version."""

    decisions: int
    p50_ms: float
    p99_ms: float


class Judgement(msgspec.Struct, frozen=True):
    """What the gate says, with its reasons."""

    passed: bool
    verdict: str  # "passed", "refused", "not enough evidence"
    reasons: list[str]


def judge(
    gate: Gate,
    evidence: Evidence | None,
    predictions: Predictions | None,
    simulated: Simulated | None,
    latency: Latency | None,
    no_evidence: str = "",
) -> Judgement:
    """The gate's word. `evidence` None: the log refused to tell, `no_evidence` says why."""
    reasons: list[str] = []
    verdicts = [
        _by_log(gate, evidence, predictions, no_evidence, reasons),
        _by_simulation(gate, simulated, reasons),
        _by_latency(gate, latency, reasons),
    ]
    for verdict in ("refused", "not enough evidence"):
        if verdict in verdicts:
            return Judgement(False, verdict, reasons)
    return Judgement(True, "passed", reasons)


def by_log_alone(gate: Gate, evidence: Evidence) -> bool:
    """Whether the log alone shows that the new policy is not worse by more than the tolerance."""
    return _by_log(gate, evidence, None, "", []) == "passed"


def _by_log(
    gate: Gate, evidence: Evidence | None, predictions: Predictions | None, no_evidence: str, reasons: list[str]
) -> str:
    if evidence is None:
        # Whatever its predictions are worth: what chance had a part in is not known, nor what the log left out.
        reasons.append(f"log: refused: {no_evidence}")
        return "refused"
    if evidence.decisions and not evidence.differ:
        reasons.append(f"log: it decides like the one in force on all {evidence.decisions} logged jobs")
        return "passed"
    if evidence.enough and evidence.effect is not None:
        gain = evidence.effect.dr.gain
        said = f"log: turnaround {-gain.value:+.1%} (95 %: {-gain.high:+.1%} to {-gain.low:+.1%}), {evidence.why}"
        if gain.low >= -gate.tolerance:
            reasons.append(f"{said}; at worst within the tolerance of {gate.tolerance:.1%}")
            return "passed"
        reasons.append(f"{said}; at worst it is longer by more than the tolerance of {gate.tolerance:.1%}")
        # An interval that lies wholly beyond the tolerance shows harm; one that reaches into it shows nothing yet.
        return "refused" if gain.high < -gate.tolerance else "not enough evidence"
    reasons.append(f"log: not enough evidence: {evidence.why}")
    return _by_predictions(gate, predictions, reasons)


def _by_predictions(gate: Gate, predictions: Predictions | None, reasons: list[str]) -> str:
    if gate.without_overlap == "refuse":
        reasons.append("predictions: not asked (gate.without_overlap: refuse)")
        return "not enough evidence"
    if predictions is None or not predictions.jobs:
        reasons.append("predictions: no ended job to compare them with")
        return "not enough evidence"
    gain = predictions.gain
    said = (
        f"predictions: of {predictions.jobs} jobs it had not seen, run times are off by {predictions.new:.2f} in "
        f"logarithms, at the time it was {predictions.old:.2f} (better by {gain.low:.3f} to {gain.high:.3f})"
    )
    reasons.append(said)
    if gain.low < -PREDICTION_TOLERANCE:
        return "refused" if gain.high < -PREDICTION_TOLERANCE else "not enough evidence"
    return "passed"


def _by_simulation(gate: Gate, simulated: Simulated | None, reasons: list[str]) -> str:
    if simulated is None:
        reasons.append("simulation: there was nothing to simulate")
        return "not enough evidence"
    gain = simulated.gain
    reasons.append(
        f"simulation of this site ({simulated.jobs} jobs, {simulated.histories} histories): turnaround "
        f"{-gain.value:+.1%} (95 %: {-gain.high:+.1%} to {-gain.low:+.1%})"
    )
    return "passed" if gain.value >= -gate.tolerance else "refused"


def _by_latency(gate: Gate, latency: Latency | None, reasons: list[str]) -> str:
    if latency is None:
        reasons.append("latency: not measured")
        return "not enough evidence"
    reasons.append(
        f"latency: p99 {latency.p99_ms:.2f} ms of {latency.decisions} decisions, {gate.latency_ms:g} allowed"
    )
    return "passed" if latency.p99_ms <= gate.latency_ms else "refused"
