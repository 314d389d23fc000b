"""What a user with an annotation gets before the app has ever run."""

import math

import msgspec
import pytest

from advisor.dfg.graph import Annotation, Kernel
from advisor.performance import told
from advisor.performance.processors import load
from advisor.performance.runtime import expected
from advisor.performance.snapshot import RunTimes
from advisor.policy.learned.graphs import graph_of
from advisor.store.learning import AnnotatedRun
from advisor.training.told_fit import updated

TABLE = load()
ARITHMETIC = Annotation(kernels=(Kernel("train", ("gpu",), 8e15, 2 << 30),))
MEMORY = Annotation(kernels=(Kernel("scan", ("gpu",), 4e13, 10 << 30), Kernel("read", ("cpu",), 1e10)))


def estimate(annotation, processor="v100", prior=None, history=None):
    return expected("app", "ada", processor, 3600.0, annotation, history or {}, TABLE, gpus=1, cpus=4, told=prior)


@pytest.mark.parametrize("annotation", [ARITHMETIC, MEMORY, Annotation(kernels=(Kernel("a", ("cpu",)),))])
def test_what_memory_bounds_is_what_the_network_sees(annotation):
    assert told.sensitivity_of(annotation) == pytest.approx(graph_of(annotation).sensitivity)


def test_a_job_bound_by_memory_is_expected_to_take_longer_than_its_work_tells():
    prior = told.shipped()
    longer = estimate(MEMORY, prior=prior).seconds / estimate(MEMORY).seconds
    other = estimate(ARITHMETIC, prior=prior).seconds / estimate(ARITHMETIC).seconds
    assert longer > 1.5 * other


def test_the_reason_says_where_the_correction_comes_from():
    found = estimate(ARITHMETIC, prior=told.shipped())
    assert found.source == "annotation"
    assert found.detail == "the work its annotation tells, corrected by what other sites taught"
    assert 0.3 < found.sd_log < 1.5 and found.apart_log > 0


def test_past_runs_count_before_any_prior():
    history = {"app": {"v100": RunTimes(9, math.log(50.0), 0.1)}}
    assert estimate(ARITHMETIC, prior=told.shipped(), history=history).source == "history"


def test_what_is_not_known_of_a_processor_is_not_corrected():
    for processor in ("weird", "cpu"):
        assert estimate(MEMORY, processor, told.shipped()) == estimate(MEMORY, processor)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"format": 1, "mean": [1], "slopes": [], "own": 0}', told.encode(told.shipped())[:-40]]
)
def test_a_damaged_prior_is_refused_with_its_name(content):
    with pytest.raises(told.ToldError, match=r"told\.json"):
        told.decode(content, "told.json")


def test_a_prior_of_another_format_is_refused():
    content = told.encode(told.shipped()).replace(b'"format": 1', b'"format": 9')
    with pytest.raises(told.ToldError, match="format 9"):
        told.decode(content, "told.json")


def runs_of(app, annotation, factor, processors=("v100", "k80")):
    text = msgspec.json.encode(annotation).decode()
    return [
        AnnotatedRun(app, name, factor * estimate(annotation, name).seconds, 1, 4, text)
        for name in processors
        for _ in range(3)
    ]


def test_a_site_whose_annotations_are_all_off_is_followed():
    before = told.shipped()
    runs = [run for n in range(12) for run in runs_of(f"app{n}", ARITHMETIC if n % 2 else MEMORY, 4.0)]
    after = updated(before, runs, TABLE)
    assert after.runs == len(runs)
    off = [
        sum(abs(math.log(estimate(a, prior=p).seconds / (4.0 * estimate(a).seconds))) for a in (ARITHMETIC, MEMORY))
        for p in (before, after)
    ]
    assert off[1] < 0.8 * off[0]
    assert f"{len(runs)} annotated runs here" in estimate(MEMORY, prior=after).detail


def test_a_few_runs_of_one_app_move_it_little_and_none_not_at_all():
    before = told.shipped()
    assert updated(before, [], TABLE) is before
    assert updated(before, [AnnotatedRun("a", "v100", 10.0, 1, 1, "not JSON")], TABLE) is before
    after = updated(before, runs_of("app", ARITHMETIC, 4.0, ("v100",)), TABLE)
    moved = math.log(estimate(ARITHMETIC, prior=after).seconds / estimate(ARITHMETIC, prior=before).seconds)
    assert 0 < moved < math.log(4.0) / 2


def test_the_same_prior_gives_the_same_bytes():
    prior = told.shipped()
    assert told.decode(told.encode(prior), "x") == prior
    assert told.encode(told.decode(told.encode(prior), "x")) == told.encode(prior)
