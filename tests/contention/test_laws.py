"""What must hold between counters corrects their errors, on the vendor's own graphs."""

import shutil

import networkx as nx
import numpy as np
import pytest
from pgmpy.factors.continuous import LinearGaussianCPD
from pgmpy.models import LinearGaussianBayesianNetwork

from advisor.contention.laws import LAWS, Corrector, Law
from advisor.contention.multiplex import Settings, reconstruct
from advisor.contention.network import pmu_of
from advisor.contention.programs import Pmu, measure, truth
from advisor.contention.vendor import Relations, from_listing, read

needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="needs linux-perf")
NOTHING = Relations("none", {})
ALWAYS_ON = ("INST_RETIRED.ANY", "CPU_CLK_UNHALTED.THREAD", "CPU_CLK_UNHALTED.REF_TSC")
QUICK = Settings(factors=4, passes=2, steps=12, own_steps=0)
SUM = (Law("total", "reads + writes", 0.01),)


def correct(counts, spreads, laws=SUM, relations=NOTHING, events=("reads", "writes", "total")):
    corrector = Corrector(relations, events, laws=laws)
    return corrector(np.array([counts], dtype=float), np.array([spreads], dtype=float), 1.0)


def test_a_linear_law_gives_pgmpys_exact_posterior():
    # Relative tolerance 1 % of 100: one unit.
    mean, sd = correct([40.0, 60.0, 90.0], [4.0, 2.0, 6.0], laws=(Law("reads + writes", "total", 1 / 90),))
    exact = LinearGaussianBayesianNetwork([(x, "gap") for x in ("reads", "writes", "total")])
    exact.add_cpds(
        LinearGaussianCPD("reads", [40.0], 4.0),
        LinearGaussianCPD("writes", [60.0], 2.0),
        LinearGaussianCPD("total", [90.0], 6.0),
        LinearGaussianCPD("gap", [0.0, 1.0, 1.0, -1.0], 1.0, ["reads", "writes", "total"]),
    )
    joint_mean, joint = (np.asarray(part) for part in exact.to_joint_gaussian()[:2])
    order = list(nx.topological_sort(exact))
    hidden, gap = [order.index(x) for x in ("reads", "writes", "total")], order.index("gap")
    gain = joint[hidden, gap] / joint[gap, gap]
    assert mean[0] == pytest.approx(joint_mean[hidden] - gain * joint_mean[gap], rel=0.02)
    left = np.sqrt(np.diag(joint)[hidden] - gain * joint[hidden, gap])
    assert sd[0] == pytest.approx(left, rel=0.1)


def test_a_count_that_was_not_made_follows_from_the_others():
    corrector = Corrector(NOTHING, ("reads", "writes", "total"), laws=SUM)
    mean = np.array([[40.0, 60.0, 100.0], [20.0, np.nan, 100.0]])
    corrected, sd = corrector(mean, np.where(np.isnan(mean), np.nan, 0.5), 1.0)
    assert corrected[1, 1] == pytest.approx(80, rel=0.05)
    assert sd[1, 1] < 10


def test_a_law_that_is_badly_broken_is_not_believed():
    mean, _ = correct([40.0, 60.0, 300.0], [1.0, 1.0, 1.0])
    assert mean[0] == pytest.approx([40.0, 60.0, 300.0], rel=0.1)


def test_a_law_over_metrics_goes_through_the_vendors_definition():
    relations = from_listing("toy", "  rate\n       [x]\n       [(reads + writes) * 64 / duration_time]\n")
    laws = (Law("rate", "total * 64 / duration_time", 0.001),)
    mean, _ = correct([40.0, 60.0, 110.0], [0.1, 0.1, 10.0], laws=laws, relations=relations)
    assert mean[0, 2] == pytest.approx(100, rel=0.01)


def test_laws_that_a_cpu_cannot_compute_do_not_hold_there():
    corrector = Corrector(NOTHING, ("reads", "writes"), laws=SUM)
    counts = np.ones((2, 2))
    assert corrector.laws == () and corrector(counts, counts, 1.0)[0] is counts


@needs_perf
@pytest.mark.parametrize("cpu", ["skx", "icx"])
def test_on_the_vendors_graph_relations_correct_what_multiplexing_got_wrong(cpu):
    relations = read(cpu)
    whole = [e for e in relations.events if pmu_of(e) != "software" and not e.startswith("cstate")]
    assert len(Corrector(relations, whole).laws) >= 10
    # What laws are about, and the counters that are always on: the whole table takes too long for a test.
    events = [*ALWAYS_ON, *(e for e in Corrector(relations, whole).bound if e not in ALWAYS_ON)]
    corrector = Corrector(relations, events)
    true = truth(events, 2.0, 21)
    seen = measure(true, events, Pmu(core_counters=2, uncore_counters=2), 21)
    ours = reconstruct(seen, 25, QUICK)
    corrected, _ = corrector(ours.mean, ours.sd, 0.1)
    windows = true.reshape(-1, 25, len(events)).sum(axis=1)
    floor = np.maximum(windows, 0.1 * windows.mean(axis=0))
    turned = np.isnan(seen).mean(axis=0) > 0.1
    before = (np.abs(ours.mean - windows) / floor)[:, turned].mean()
    after = (np.abs(corrected - windows) / floor)[:, turned].mean()
    assert after < 0.97 * before, (before, after)


@needs_perf
def test_the_synthetic_programs_obey_the_laws():
    relations = read("skx")
    events = [e for e in relations.events if pmu_of(e) != "software" and not e.startswith("cstate")]
    corrector = Corrector(relations, events)
    counts = truth(events, 4.0, 5).sum(axis=0, keepdims=True)
    columns = [events.index(event) for event in corrector.bound]
    gap, _, _ = corrector._look(np.ones((1, len(columns))), counts[:, columns], 4.0)
    assert np.abs(gap).max() < 0.02, {
        law.left: round(float(g), 3) for law, g in zip(corrector.laws, gap[0], strict=True)
    }
    assert set(corrector.laws) <= set(LAWS)


def test_errors_that_go_together_are_not_thought_corrected():
    # Counted in the same turn, all three are wrong by the same share: the law holds and says nothing.
    draw = np.random.default_rng(3)
    true = np.array([40.0, 60.0, 100.0]) * draw.uniform(0.5, 2.0, size=(60, 1))
    together = true * (1 + draw.normal(0, 0.05, size=(60, 1)))
    apart = true * (1 + draw.normal(0, 0.05, size=(60, 3)))
    corrector = Corrector(NOTHING, ("reads", "writes", "total"), laws=SUM)
    _, sd = corrector(together, 0.05 * together, 1.0)
    assert (sd > 0.95 * 0.05 * together).all()
    mean, sd = corrector(apart, 0.05 * apart, 1.0)
    assert sd[:, 2].mean() < 0.85 * 0.05 * apart[:, 2].mean()
    assert np.abs(mean - true).mean() < 0.9 * np.abs(apart - true).mean()
