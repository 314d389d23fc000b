"""What waits come to, once the log shows how they really were."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.performance.wait_model import (
    KNOTS_S,
    WaitModel,
    corrected,
    corrections,
    decode,
    encode,
    learned,
)

OFF = {"gpu": 0.7, "cpu": -0.5, "debug": 0.0}
AT_ONCE = {"gpu": 0.5, "cpu": 0.9, "debug": 0.8}


def waits(seed: int, count: int) -> Iterator[tuple[str, float, float]]:
    """A cluster on which some jobs start at once whatever was expected, and the others late by partition."""
    rng = random.Random(seed)
    for _ in range(count):
        partition = rng.choice(list(OFF))
        expected = 0.0 if rng.random() < 0.4 else math.exp(rng.gauss(7.0, 1.2))
        if rng.random() < (AT_ONCE[partition] if expected < 60 else 0.1):
            yield partition, expected, rng.uniform(0, 30)
        else:
            late = OFF[partition] + rng.gauss(0, 0.5) + (rng.random() if rng.random() < 0.1 else 0.0)
            yield partition, expected, (expected + 60) * math.exp(late)


@pytest.mark.parametrize("count", [300, 3000])
def test_nine_of_ten_waits_lie_within_the_interval(count: int) -> None:
    model = learned(waits(1, count))
    inside = []
    for partition, expected, real in waits(2, 4000):
        told = model.predict(partition, expected)
        inside.append(told.low_s <= real <= told.high_s)
    assert 0.85 <= sum(inside) / len(inside) <= 0.95


def test_the_bias_of_each_partition_shrinks_as_jobs_are_seen() -> None:
    def bias(model: WaitModel, partition: str) -> float:
        """Of expected against real waits, both of jobs that were to wait, as a factor."""
        rows = [(e, r) for name, e, r in waits(3, 20_000) if name == partition and 60 < e < 20_000]
        expected = sum(model.predict(partition, e).expected_s for e, _ in rows[:1500])
        return abs(math.log(expected / sum(r for _, r in rows[:1500])))

    for partition in ("gpu", "cpu"):
        found = [bias(learned(waits(4, count)), partition) for count in (0, 300, 5000)]
        assert found[0] > found[1] > found[2]
        assert found[2] < 0.2


def test_without_any_job_seen_the_expectation_stands() -> None:
    model = WaitModel()
    for expected in (0.0, 100.0, 5000.0, 1e6):
        assert model.predict("gpu", expected).expected_s == pytest.approx(expected)


def test_a_new_partition_leans_on_the_others() -> None:
    late = learned([("gpu", 1000.0, 4000.0)] * 200)
    assert late.predict("new", 1000.0).expected_s > 3000
    late.update("new", 1000.0, 1000.0)
    assert late.predict("new", 1000.0).expected_s > 2500


def test_a_queue_that_starts_at_once_says_so() -> None:
    model = learned([("debug", 0.0, 2.0)] * 200)
    told = model.predict("debug", 0.0)
    assert told.at_once > 0.9
    assert told.low_s == 0.0 and told.high_s <= 60.0


def test_a_longer_expectation_is_never_corrected_to_a_shorter_wait() -> None:
    table = corrections(learned(waits(5, 2000)))
    for partition in ("gpu", "cpu", "debug", "unheard of"):
        line = [corrected(table, partition, seconds) for seconds in range(0, 200_000, 500)]
        assert line == sorted(line)


def test_the_table_of_corrections_agrees_with_the_model() -> None:
    model = learned(waits(6, 3000))
    table = corrections(model)
    for knot in KNOTS_S:
        assert corrected(table, "gpu", knot) == pytest.approx(model.predict("gpu", knot).expected_s, rel=0.2, abs=30)
    assert corrected({}, "gpu", 77.0) == 77.0


def test_saved_and_read_it_is_the_same() -> None:
    model = learned(waits(7, 500))
    again = decode(encode(model))
    assert encode(again) == encode(model)
    assert again.predict("gpu", 900.0) == model.predict("gpu", 900.0)


def test_a_model_of_another_shape_is_refused() -> None:
    for text in (b"", b"[]", b'{"knots": {"": []}}', b'{"knots": {"gpu": []}}'):
        with pytest.raises(msgspec.DecodeError):
            decode(text)


@pytest.mark.parametrize(("expected", "real"), [(-1.0, 5.0), (5.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_what_is_no_wait_is_refused(expected: float, real: float) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        WaitModel().update("gpu", expected, real)


@given(st.lists(st.tuples(st.text(max_size=5), st.floats(), st.floats()), max_size=30), st.floats(0, 1e9))
def test_whatever_the_log_says_the_answer_is_a_number(found: list[tuple[str, float, float]], expected: float) -> None:
    told = learned(found).predict("gpu", expected)
    assert 0 <= told.low_s <= told.high_s < math.inf
    assert 0 <= told.expected_s < math.inf
    assert 0 <= told.at_once <= 1
