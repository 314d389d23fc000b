"""The figures in `status` are close to the true ones and cost a fixed amount of memory."""

from hypothesis import given
from hypothesis import strategies as st

from advisor.server.counters import Counters, Latencies


@given(st.lists(st.integers(min_value=0, max_value=2**31 - 1), min_size=1, max_size=300))
def test_percentiles_are_within_seven_percent_of_the_true_ones(values):
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    ordered = sorted(values)
    figures = latencies.figures()
    assert figures.count == len(values)
    assert figures.max_us == ordered[-1]
    for share, told in ((0.5, figures.p50_us), (0.99, figures.p99_us)):
        true = ordered[int(share * (len(ordered) - 1))]
        assert abs(told - true) <= 0.07 * true + 1


def test_an_absurd_latency_is_counted_not_raised():
    latencies = Latencies()
    latencies.add(2**60)
    latencies.add(-5)
    assert latencies.figures().count == 2
    assert latencies.figures().max_us == 2**60


def test_nothing_measured_yet_reads_as_zero():
    assert Latencies().figures().p99_us == 0


def test_reasons_beyond_the_limit_are_counted_together():
    counters = Counters()
    for number in range(10_000):
        counters.reason(f"reason {number}")
    counters.reason("reason 3")
    assert len(counters.reasons) <= 65
    assert sum(counters.reasons.values()) == 10_001
    assert counters.reasons["reason 3"] == 2
