"""Beliefs about utilisation: exact where exact inference exists, wider where less is measured."""

import shutil

import networkx as nx
import numpy as np
import pytest
from pgmpy.factors.continuous import LinearGaussianCPD
from pgmpy.models import LinearGaussianBayesianNetwork

from advisor.contention.beliefs import Inference, Measurements, condition, counter_error, from_mapping, truncated
from advisor.contention.evaluate import Machine
from advisor.contention.network import RESOURCES, Resource, View, build, counters
from advisor.contention.vendor import Relations, from_listing, read

needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="needs linux-perf")
NOTHING = Relations("none", {})
TOTALS = from_listing("toy", "  total\n       [All]\n       [reads + writes]\n")


def measured(network, values, sd=0.1, samples=10, running=1.0):
    rows = {e: (m, abs(m) * sd, samples, running) for e, m in values.items() if e in network.events}
    return from_mapping(network, rows)


def test_posterior_of_a_linear_network_equals_pgmpys_exact_inference():
    # Two counters a, b; a utilisation u; two relations a + b = u and a = 2u, each within a tolerance.
    mean, variance = np.array([[1.0, 2.0, 0.5]]), np.array([[0.25, 0.5, 1.0]])
    slopes = np.array([[[1.0, 1.0, -1.0], [1.0, 0.0, -2.0]]])
    noise = np.array([[0.04, 0.09]])
    ours, ours_variance = condition(mean, variance, slopes, -np.einsum("nve,ne->nv", slopes, mean), noise)

    edges = [(x, v) for v in ("v1", "v2") for x in ("a", "b", "u")]
    exact = LinearGaussianBayesianNetwork(edges)
    exact.add_cpds(
        LinearGaussianCPD("a", [1.0], 0.5),
        LinearGaussianCPD("b", [2.0], np.sqrt(0.5)),
        LinearGaussianCPD("u", [0.5], 1.0),
        LinearGaussianCPD("v1", [0.0, 1.0, 1.0, -1.0], 0.2, ["a", "b", "u"]),
        LinearGaussianCPD("v2", [0.0, 1.0, 0.0, -2.0], 0.3, ["a", "b", "u"]),
    )
    # pgmpy's own joint normal, conditioned on both relations holding.
    joint_mean, joint_covariance = (np.asarray(part) for part in exact.to_joint_gaussian()[:2])
    order = list(nx.topological_sort(exact))
    hidden, shown = [order.index(x) for x in ("a", "b", "u")], [order.index(x) for x in ("v1", "v2")]
    gain = joint_covariance[np.ix_(hidden, shown)] @ np.linalg.inv(joint_covariance[np.ix_(shown, shown)])
    expected = joint_mean[hidden] + gain @ (0.0 - joint_mean[shown])
    left = joint_covariance[np.ix_(hidden, hidden)] - gain @ joint_covariance[np.ix_(shown, hidden)]
    assert ours[0] == pytest.approx(expected, abs=1e-3)
    assert ours_variance[0] == pytest.approx(np.diag(left), abs=1e-3)


def test_the_spread_of_a_counter_is_student_with_multiplexing():
    error = counter_error(
        Measurements(*(np.array([row]) for row in ([100.0, 100.0, np.nan], [10.0] * 3, [25.0] * 3, [1.0, 0.25, 1.0])))
    )
    assert error.scale[0, 0] == pytest.approx(10 / 5 / 100)
    assert error.scale[0, 1] == pytest.approx(2 * error.scale[0, 0]), "a quarter of the time doubles the error"
    assert error.freedom[0, 0] == 24
    assert error.scale[0, 2] > 1, "an unmeasured counter may be anything"


def test_two_views_of_one_resource_correct_each_others_counters():
    resources = (Resource("bus", "toy", (View("total / 100", 0.01), View("both / 100", 0.01)), 0.3, 0.5),)
    relations = from_listing("toy", "  total\n       [x]\n       [reads + writes]\n  both\n       [x]\n       [sum]\n")
    network = build(relations, resources)
    # Reads were multiplexed and read far too high; the sum, counted all the time, says so.
    rows = {"reads": (40.0, 20.0, 4, 0.25), "writes": (20.0, 0.5, 100, 1.0), "sum": (50.0, 0.5, 100, 1.0)}
    belief = Inference(network, correct_counters=True)(from_mapping(network, rows))
    corrected = dict(zip(belief.events, belief.counts[0], strict=True))
    assert corrected["reads"] == pytest.approx(30, abs=2)
    assert belief.mean[0, 0] == pytest.approx(0.5, abs=0.01)
    assert belief.counts_sd[0, belief.events.index("reads")] < 5


def test_one_wild_view_does_not_drag_the_belief():
    views = (View("a / 100", 0.02), View("b / 100", 0.02), View("c / 100", 0.02))
    relations = from_listing("toy", "".join(f"  {m}\n       [x]\n       [{m}_raw]\n" for m in "abc"))
    network = build(relations, (Resource("bus", "toy", views),))
    values = {"a_raw": 50.0, "b_raw": 51.0, "c_raw": 90.0}
    belief = Inference(network, iterations=6)(measured(network, values, sd=0.01, samples=100))
    assert belief.mean[0, 0] < 0.6


def test_software_events_alone_give_wider_beliefs():
    machine = Machine()
    values = {
        "cgroup@cpu_seconds@": 320.0,
        "duration_time": 10.0,
        "cgroup@io_bytes@": 1e9,
        "cgroup@memory_bytes@": 64e9,
    }
    network = build(NOTHING)
    belief = Inference(network, machine)(measured(network, values, sd=0.01))
    use = dict(zip(belief.resources, zip(belief.mean[0], belief.sd[0], strict=True), strict=True))
    assert use["core"][0] == pytest.approx(0.5, abs=0.03)
    assert use["memory"][0] == pytest.approx(0.25, abs=0.02)
    assert use["memory_bandwidth"][1] > 3 * use["core"][1]
    assert use["gpu_sm"][1] > 0.15, "nothing was measured: the prior stays"


@needs_perf
@pytest.mark.parametrize("cpu", ["skx", "icx", "spr", "zen3"])
def test_counters_narrow_what_software_events_leave_open(cpu):
    network = build(read(cpu))
    assert {r.name for r in network.resources} == {r.name for r in RESOURCES}
    draw = np.random.default_rng(0)
    values = {event: 10 ** draw.uniform(7, 9) for event in network.events} | {"duration_time": 10.0, "msr@tsc@": 2.4e10}
    values["cgroup@cpu_seconds@"] = 100.0
    full = Inference(network)(measured(network, values))
    software = {event: value for event, value in values.items() if "@" in event or event == "duration_time"}
    blind = build(read(cpu), countable=frozenset())
    less = Inference(blind)(measured(blind, software))
    which = full.resources.index("memory_bandwidth")
    assert full.sd[0, which] < less.sd[0, which]
    assert np.all((full.mean >= 0) & (full.mean <= 1) & np.isfinite(full.sd))


@needs_perf
def test_a_batch_gives_each_node_what_it_would_get_alone():
    network = build(read("skx"))
    draw = np.random.default_rng(3)
    mean = 10 ** draw.uniform(6, 10, size=(70, len(network.events)))
    mean[draw.random(mean.shape) < 0.1] = np.nan
    mean[:, network.events.index("duration_time")] = 10.0
    mean[:, network.events.index("msr@tsc@")] = 2.4e10
    known = np.isfinite(mean).all(axis=0)  # what is missing elsewhere sets a usual value; compare the fully known
    together = Inference(network)(Measurements(mean, mean * 0.1, np.full(mean.shape, 8.0), np.full(mean.shape, 0.5)))
    again = Inference(network)(
        Measurements(*(table[::-1] for table in (mean, mean * 0.1, np.full(mean.shape, 8.0), np.full(mean.shape, 0.5))))
    )
    assert known.any()
    assert together.mean == pytest.approx(again.mean[::-1], abs=1e-9)
    assert np.isfinite(together.mean).all() and (together.sd > 0).all()


def test_beliefs_stay_inside_zero_and_one():
    mean, sd = truncated(np.array([[-3.0, 0.5, 1.4, 0.0]]), np.array([[0.1, 0.01, 0.2, 0.5]]))
    assert ((mean >= 0) & (mean <= 1)).all() and (sd > 0).all()
    assert mean[0, 1] == pytest.approx(0.5)
    draws = np.random.default_rng(0).normal(0.0, 0.5, 400_000)
    inside = draws[(draws > 0) & (draws < 1)]
    assert mean[0, 3] == pytest.approx(inside.mean(), abs=0.005)
    assert sd[0, 3] == pytest.approx(inside.std(), abs=0.005)


def test_measurements_of_another_network_are_refused():
    with pytest.raises(ValueError, match="columns of measurements"):
        Inference(build(TOTALS))(Measurements(*(np.ones((1, 99)),) * 4))


@needs_perf
def test_counters_are_listed_by_the_unit_that_counts_them():
    by_unit = counters(build(read("skx")))
    assert "CPU_CLK_UNHALTED.THREAD" in by_unit["core"]
    assert "UNC_M_CAS_COUNT.RD" in by_unit["uncore m"] and "uncore_imc@cas_count_read@" in by_unit["uncore m"]
    assert "duration_time" in by_unit["software"]
