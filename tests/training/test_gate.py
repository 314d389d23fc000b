"""The gate lets a version pass only when everything speaks for it, and always says why."""

from __future__ import annotations

import msgspec
import pytest

from advisor.settings import Gate
from advisor.training.evidence import Evidence
from advisor.training.gate import Latency, Predictions, Simulated, judge
from advisor.training.off_policy import Effect, Estimate, Interval

GATE = Gate(tolerance=0.02)


def evidence(low: float, high: float, **more) -> Evidence:
    middle = Estimate(90.0, 100.0, Interval((low + high) / 2, low, high))
    given = {"verdict": "enough", "why": "5000 logged jobs", "decisions": 5000, "used": 5000, "left_out": {}}
    given |= {"differ": 800, "overlap": 1.0, "effect": Effect(5000, 800, 3000.0, middle, middle, middle)}
    return Evidence(**(given | more))


NOTHING = evidence(0, 0, verdict="not enough evidence", why="never tried", effect=None, overlap=0.1)
BETTER = Predictions(500, 0.2, 0.4, Interval(0.2, 0.15, 0.25))
WORSE = Predictions(500, 0.5, 0.3, Interval(-0.2, -0.25, -0.15))
UNSURE = Predictions(20, 0.5, 0.5, Interval(0.0, -0.1, 0.1))
AGREES = Simulated(8, 1000, 95.0, 100.0, Interval(0.05, 0.04, 0.06))
DISAGREES = Simulated(8, 1000, 110.0, 100.0, Interval(-0.1, -0.12, -0.08))
QUICK, SLOW = Latency(400, 0.1, 0.5), Latency(400, 2.0, 12.0)


@pytest.mark.parametrize(
    ("told", "predictions", "simulated", "latency", "verdict", "reason"),
    [
        (evidence(0.01, 0.09), None, AGREES, QUICK, "passed", "within the tolerance"),
        (evidence(-0.019, 0.05), None, AGREES, QUICK, "passed", "within the tolerance"),
        (evidence(-0.05, 0.05), None, AGREES, QUICK, "not enough evidence", "longer by more than the tolerance"),
        (evidence(-0.2, -0.1), None, AGREES, QUICK, "refused", "longer by more than the tolerance"),
        (evidence(0.01, 0.09), None, DISAGREES, QUICK, "refused", "simulation of this site"),
        (evidence(0.01, 0.09), None, None, QUICK, "not enough evidence", "nothing to simulate"),
        (evidence(0.01, 0.09), None, AGREES, SLOW, "refused", "p99 12.00 ms"),
        (evidence(0.01, 0.09), None, AGREES, None, "not enough evidence", "not measured"),
        (evidence(0, 0, differ=0), None, AGREES, QUICK, "passed", "decides like the one in force"),
        (NOTHING, BETTER, AGREES, QUICK, "passed", "never tried"),
        (NOTHING, WORSE, AGREES, QUICK, "refused", "had not seen"),
        (NOTHING, UNSURE, AGREES, QUICK, "not enough evidence", "had not seen"),
        (NOTHING, None, AGREES, QUICK, "not enough evidence", "no ended job"),
        (None, BETTER, AGREES, QUICK, "refused", "no probabilities"),
    ],
)
def test_it_passes_when_all_agree_and_says_why(told, predictions, simulated, latency, verdict, reason) -> None:
    found = judge(GATE, told, predictions, simulated, latency, "no probabilities")
    assert found.verdict == verdict and found.passed == (verdict == "passed")
    assert any(reason in line for line in found.reasons), found.reasons


def test_a_site_may_refuse_what_the_log_cannot_judge() -> None:
    strict = msgspec.structs.replace(GATE, without_overlap="refuse")
    assert judge(strict, NOTHING, BETTER, AGREES, QUICK).verdict == "not enough evidence"


def test_a_wider_tolerance_lets_a_worse_one_pass() -> None:
    told = evidence(-0.08, 0.0)
    assert not judge(GATE, told, None, AGREES, QUICK).passed
    assert judge(msgspec.structs.replace(GATE, tolerance=0.1), told, None, AGREES, QUICK).passed
