from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.dfg.graph import Annotation, Edge, Kernel
from advisor.performance.processors import load, lookup, speed
from advisor.performance.runtime import can_run, expected, remaining
from advisor.performance.snapshot import RunTimes
from advisor.settings import Processor

TABLE = load()
MANY = RunTimes(100, log(1000), 0.1)


def estimate(processor, *, limit=3600.0, history=None, annotation=None, **more):
    return expected("app", "ada", processor, limit, annotation, history or {}, TABLE, **more)


def test_past_runs_on_the_same_processor_are_the_best_evidence():
    found = estimate("v100", history={"app": {"v100": MANY, "p100": RunTimes(500, log(50), 0.1)}})
    assert found.seconds == pytest.approx(1000, rel=0.05)
    assert (found.source, found.detail) == ("history", "100 past runs of app")


def test_a_users_own_runs_count_before_those_of_everybody():
    history = {"app": {"v100": MANY}, "app@ada": {"v100": RunTimes(4, log(50), 0.1)}}
    assert estimate("v100", history=history).seconds < 100


def test_past_runs_elsewhere_are_scaled_and_less_certain():
    history = {"app": {"v100": MANY}}
    here, there = estimate("v100", history=history), estimate("p100", history=history)
    assert there.seconds > here.seconds * 1.2
    assert there.sd_log > here.sd_log
    assert (there.source, there.detail) == ("history elsewhere", "100 past runs of app on v100, scaled to p100")
    assert "not known" in estimate("weird", history=history).detail
    assert estimate("v100", history={"app": {"cpu": MANY}}).source == "time limit"


def test_the_annotation_counts_where_there_is_no_history():
    work = Annotation(kernels=(Kernel("train", ("gpu",), 1e16),))
    v100, p100 = estimate("v100", annotation=work, gpus=1), estimate("p100", annotation=work, gpus=1)
    assert p100.seconds / v100.seconds == pytest.approx(15.7 / 9.3)
    assert estimate("v100", annotation=work, gpus=2).seconds == pytest.approx(v100.seconds / 2)
    assert v100.source == "annotation"
    chain = Annotation(
        kernels=(Kernel("read", ("cpu",), 1e13), Kernel("train", ("gpu", "cpu"), 1e16)),
        edges=(Edge("read", "train", 20 << 30),),
    )
    assert estimate("v100", annotation=chain, gpus=1).seconds > v100.seconds + 2  # the CPU's part and the transfer


def test_work_that_only_states_nothing_falls_back_to_the_limit():
    assert estimate("v100", annotation=Annotation(kernels=(Kernel("k", ("gpu",)),)), gpus=1).source == "time limit"


def test_with_nothing_known_the_limit_stands_everywhere_and_slower_types_exceed_it():
    assert estimate("p100", reference="p100").seconds == 3600
    assert estimate("cpu").seconds == 3600
    faster = estimate("v100", reference="p100").seconds
    assert 0.8 * 3600 < faster < 3600
    assert estimate("k80", reference="p100").seconds > 3600
    assert estimate("unheard-of", reference="p100").seconds > 3600
    assert estimate("cpu", limit=None).seconds == 86_400


@pytest.mark.parametrize(
    ("kernel", "where"),
    [
        (Kernel("k", ("gpu",)), {"v100": True, "k80": True, "cpu": False}),
        (Kernel("k", ("v100",)), {"v100": True, "k80": False, "cpu": False}),
        (Kernel("k", ("gpu", "cpu"), memory=20 << 30), {"v100": True, "k80": True, "cpu": True}),
        (Kernel("k", ("gpu",), memory=20 << 30), {"v100": True, "k80": False, "unheard-of": True}),
    ],
)
def test_a_kernel_runs_where_it_says_and_has_the_memory(kernel, where):
    for processor, possible in where.items():
        assert can_run(Annotation(kernels=(kernel,)), processor, TABLE) == possible


@pytest.mark.parametrize(
    ("spelled", "means"),
    [
        ("V100", "v100"),
        ("tesla_v100-sxm2-32gb", "v100"),
        ("nvidia_a100_80gb_pcie", "a100"),
        ("a100_1g.5gb", None),
        ("1g.5gb", None),
        ("gpu", None),
    ],
)
def test_types_are_known_as_sites_spell_them(spelled, means):
    assert lookup(TABLE, spelled) == (TABLE[means] if means else None)


def test_a_site_corrects_and_adds_types():
    table = load({"V100": Processor(tflops=1, memory_gbs=1), "tpu": Processor(tflops=4, memory_gbs=9)})
    assert speed(table["v100"]) == 1
    assert speed(table["tpu"]) == 6
    assert table["p100"] == TABLE["p100"]


@given(st.floats(1, 1e6), st.floats(0.01, 2), st.floats(0, 1e7), st.integers(1, 1000))
def test_what_is_left_of_a_run_is_never_negative_nor_nonsense(median, sd, elapsed, count):
    left = remaining(RunTimes(count, log(median), sd), elapsed)
    assert 0 <= left < 1e9


def test_a_run_that_has_only_begun_has_its_mean_left():
    assert remaining(RunTimes(1000, log(100), 0.2), 1.0) == pytest.approx(100 * exp(0.02) - 1, rel=0.01)


def test_a_job_that_tells_its_work_is_expected_to_take_that_much_longer():
    past = RunTimes(9, log(1000), 0.1, True, log_work=log(500.0), work_sd=0.8)
    history = {"app": {"v100": past}}
    usual = estimate("v100", history=history, annotation=Annotation(work=500.0))
    long = estimate("v100", history=history, annotation=Annotation(work=2000.0))
    assert long.seconds == pytest.approx(4 * usual.seconds) and "work" in long.detail
    untold = estimate("v100", history=history)
    assert untold.sd_log > usual.sd_log + 0.5 and "work" not in untold.detail
