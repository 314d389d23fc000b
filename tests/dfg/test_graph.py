"""Arithmetic on dataflow graphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.dfg.graph import (
    Annotation,
    CycleError,
    Edge,
    Kernel,
    preferred_work,
    runs_on,
    topological_order,
    total_work,
)

PIPELINE = Annotation(
    kernels=(
        Kernel("decode", ("cpu",), 3.0),
        Kernel("train", ("gpu", "cpu"), 8.0),
        Kernel("solve", ("a100",), 5.0),
    )
)


def test_a_kernel_runs_on_what_it_names_and_gpu_means_any_type():
    decode, train, solve = PIPELINE.kernels
    assert [runs_on(decode, kind) for kind in ("cpu", "gpu", "v100")] == [True, False, False]
    assert [runs_on(train, kind) for kind in ("cpu", "gpu", "v100")] == [True, True, True]
    assert [runs_on(solve, kind) for kind in ("cpu", "gpu", "v100", "a100")] == [False, True, False, True]


def test_total_work_counts_the_kernels_that_can_run_there():
    assert [total_work(PIPELINE, kind) for kind in ("cpu", "gpu", "v100", "a100")] == [11.0, 13.0, 8.0, 13.0]


def test_each_kernel_goes_to_the_first_kind_it_names_that_the_node_has():
    assert preferred_work(PIPELINE, "a100") == (13.0, 3.0)
    assert preferred_work(PIPELINE, "v100") == (8.0, 8.0)
    assert preferred_work(PIPELINE, "cpu") == (0.0, 16.0)


@given(st.integers(0, 12), st.data())
def test_the_order_puts_every_kernel_after_those_that_feed_it(count, data):
    names = [f"k{i}" for i in range(count)]
    order = data.draw(st.permutations(names))
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    edges = [Edge(a, b) for a, b in data.draw(st.lists(st.sampled_from(pairs), max_size=20))] if pairs else []
    found = topological_order([Kernel(name) for name in names], edges)
    assert sorted(found) == sorted(names)
    assert all(found.index(edge.source) < found.index(edge.target) for edge in edges)


def test_a_ring_is_named_in_the_direction_of_its_edges():
    kernels = [Kernel(name) for name in "abcde"]
    edges = [Edge("a", "b"), Edge("b", "c"), Edge("c", "d"), Edge("d", "b"), Edge("d", "e")]
    with pytest.raises(CycleError) as error:
        topological_order(kernels, edges)
    ring = error.value.ring
    assert sorted(ring) == ["b", "c", "d"]
    assert {(ring[i], ring[(i + 1) % 3]) for i in range(3)} == {("b", "c"), ("c", "d"), ("d", "b")}


def test_a_kernel_that_feeds_itself_is_a_ring():
    with pytest.raises(CycleError, match="a → a"):
        topological_order([Kernel("a")], [Edge("a", "a")])
