"""Gavel's policies and rounds: what each promises, by hand on small cases, and Gavel's own figures where they are."""

import csv
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.policy.gavel import NAMES, make_allocation
from advisor.policy.gavel.makespan import bisected
from advisor.policy.gavel.offer import Offer
from advisor.policy.gavel.program import Program
from advisor.sim.cluster import from_counts, parse_cluster
from advisor.sim.rounds import Rounds
from advisor.sim.simulate import simulate
from advisor.sim.traces import read_workload
from advisor.sim.traces.gavel import Throughputs
from advisor.sim.workload import SimJob, Workload

DATA = Path(os.environ.get("ADVISOR_BENCH_DATA", Path(__file__).resolve().parents[3] / "shared/data")) / "gavel"
TYPES = ("k80", "v100")

TABLE = Throughputs(
    alone={
        "v100": {("fast", 1): 8.0, ("same", 1): 2.0, ("fast", 2): 15.0},
        "k80": {("fast", 1): 1.0, ("same", 1): 2.0, ("fast", 2): 1.5},
    },
    beside={
        "v100": {
            ("fast", 1): {("fast", 1): (5.0, 5.0), ("same", 1): (7.0, 1.5)},
            ("same", 1): {("fast", 1): (1.5, 7.0), ("same", 1): (1.8, 1.8)},
        },
        "k80": {
            ("fast", 1): {("fast", 1): (0.0, 0.0), ("same", 1): (0.5, 1.0)},
            ("same", 1): {("fast", 1): (1.0, 0.5), ("same", 1): (1.1, 1.1)},
        },
    },
)


def offer(speed, counts=(1.0, 1.0), steps=None, gpus=None, elapsed=None, pairs=(), pair_speed=()) -> Offer:
    m = len(speed)
    return Offer(
        jobs=np.arange(m),
        types=TYPES,
        counts=np.asarray(counts, dtype=float),
        speed=np.asarray(speed, dtype=float),
        gpus=np.asarray(gpus or [1.0] * m),
        weight=np.ones(m),
        steps_left=np.asarray(steps or [1000.0] * m),
        elapsed=np.asarray(elapsed or [0.0] * m),
        pairs=np.asarray(pairs, dtype=np.int64).reshape(-1, 2),
        pair_speed=np.asarray(pair_speed, dtype=float).reshape(-1, 2, 2),
    )


@st.composite
def offers(draw) -> Offer:
    m = draw(st.integers(1, 6))
    speeds = st.floats(0.1, 10.0)
    return offer(
        [[draw(speeds), draw(speeds)] for _ in range(m)],
        counts=[draw(st.integers(2, 4)), draw(st.integers(2, 4))],
        steps=[draw(st.floats(100.0, 1e5)) for _ in range(m)],
        gpus=[draw(st.sampled_from((1.0, 1.0, 2.0))) for _ in range(m)],
        elapsed=[draw(st.floats(0.0, 1e4)) for _ in range(m)],
    )


@settings(max_examples=60, deadline=None)
@given(offers(), st.sampled_from([n for n in NAMES if n != "allox"]))
def test_no_policy_promises_more_than_there_is(case, name):
    shares = make_allocation(name).shares(case)
    assert shares.shape == (case.rows, 2)
    assert (shares >= 0).all()
    assert (shares.sum(axis=1) <= 1 + 1e-4).all()
    if name != "fifo":
        assert ((shares * case.gpus[:, None]).sum(axis=0) <= case.counts + 1e-3).all()


@settings(max_examples=40, deadline=None)
@given(offers())
def test_max_min_is_the_best_the_worst_off_can_have(case):
    shares = make_allocation("max_min_fairness_perf").shares(case)
    part = case.counts / case.counts.sum()
    value = (case.speed * shares).sum(axis=1) * case.gpus / (case.speed @ part)
    # Any other split, for example everyone the same part of everything, leaves the worst-off no better.
    even = np.minimum(1.0, case.counts.sum() / case.gpus.sum()) * part[None, :].repeat(len(case.jobs), axis=0)
    assert value.min() >= ((case.speed * even).sum(axis=1) * case.gpus / (case.speed @ part)).min() - 1e-4


def test_equal_jobs_get_equal_shares():
    shares = make_allocation("max_min_fairness_perf").shares(offer([[1.0, 4.0]] * 4))
    assert shares == pytest.approx(np.full((4, 2), 0.25), abs=1e-3)


def test_the_job_that_gains_most_gets_the_fast_gpu():
    shares = make_allocation("max_min_fairness_perf").shares(offer([[1.0, 8.0], [2.0, 2.0]]))
    assert shares[0, 1] > shares[1, 1]
    assert shares[1, 0] > shares[0, 0]


@settings(max_examples=40, deadline=None)
@given(offers())
def test_makespan_shares_let_everything_end_in_time(case):
    least = 1.0 / Program(case).largest_factor(case.steps_left)
    shares = make_allocation("min_total_duration_perf").shares(case)
    ends = case.steps_left / np.maximum((case.speed * shares).sum(axis=1), 1e-12)
    assert ends.max() <= max(bisected(least), 100.0) * 1.001
    assert ends.max() >= least * 0.999


@pytest.mark.parametrize("least", [1.0, 100.0, 5000.0, 999_999.0, 3e6, 5e8])
def test_the_bisection_stops_within_five_per_cent_above(least):
    found = bisected(least)
    assert found >= least
    assert found <= max(least, 100.0) * 1.06


def test_finish_time_fairness_gives_more_to_who_has_waited_longer():
    case = offer([[1.0, 4.0]] * 2, counts=(1.0, 1.0), elapsed=[5000.0, 0.0])
    shares = make_allocation("finish_time_fairness_perf").shares(case)
    throughput = (case.speed * shares).sum(axis=1)
    assert throughput[0] > throughput[1]


def test_sharing_is_used_where_it_pays():
    both = {"pairs": [[0, 1]], "pair_speed": [[[0.9, 0.9], [3.6, 3.6]]]}
    case = offer([[1.0, 4.0], [1.0, 4.0]], counts=(0.0, 1.0), **both)
    alone = make_allocation("max_min_fairness_perf").shares(offer([[1.0, 4.0]] * 2, counts=(0.0, 1.0)))
    shares = make_allocation("max_min_fairness_packed").shares(case)
    assert shares[2, 1] > 0.9
    assert 3.6 * shares[2, 1] > 4.0 * alone[0, 1]


def test_fifo_keeps_its_gpu_until_the_end_and_the_aware_one_takes_the_fastest():
    aware = make_allocation("fifo_perf")
    assert aware.shares(offer([[1.0, 4.0]] * 3)).tolist() == [[0, 1], [1, 0], [0, 0]]
    plain = make_allocation("fifo", seed=1)
    first = plain.shares(offer([[1.0, 4.0]] * 3))
    assert (plain.shares(offer([[1.0, 4.0]] * 3)) == first).all()
    left = offer([[1.0, 4.0]] * 2)
    ended = plain.shares(msgspec.structs.replace(left, jobs=np.asarray([1, 2])))  # job 0 has ended
    assert (ended[0] == first[1]).all()  # job 1 stays
    assert (ended[1] == first[0]).all()  # job 2 takes over what job 0 had


def test_allox_runs_the_short_job_first_and_refuses_large_ones():
    allox = make_allocation("allox")
    shares = allox.shares(offer([[1.0, 1.0]] * 2, counts=(0.0, 1.0), steps=[1000.0, 10.0]))
    assert shares.tolist() == [[0, 0], [0, 1]]
    with pytest.raises(ValueError, match="one GPU only"):
        make_allocation("allox").shares(offer([[1.0, 1.0]], gpus=[2.0]))


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="'gandiva'; there are allox"):
        make_allocation("gandiva")


def jobs(count: int = 12) -> Workload:
    made = []
    for i in range(count):
        app, speed = ("fast", TABLE.alone["v100"]["fast", 1]) if i % 2 else ("same", TABLE.alone["v100"]["same", 1])
        steps = float(2000 + 531 * i)
        run_time = {kind: steps / TABLE.alone[kind][app, 1] for kind in TYPES}
        made.append(SimJob(id=str(i), submit=100.0 * i, app=app, gpus=1, steps=steps, run_time=run_time))
        assert speed > 0
    return Workload("w", tuple(made))


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_finishes_every_job_and_none_before_it_could(name):
    workload = jobs()
    cluster = parse_cluster("v100=2,k80=2")
    result = Rounds(workload, cluster, TABLE, make_allocation(name), name.startswith("fifo")).run()
    for job, end in zip(workload.jobs, result.end, strict=True):
        assert end - job.submit >= min(job.run_time.values()) * 0.999
    assert result.busy_s <= 4 * result.makespan_s


@pytest.mark.parametrize("name", ["max_min_fairness_packed", "min_total_duration_perf"])
def test_the_same_input_gives_the_same_ends(name):
    def ends():
        return Rounds(jobs(), parse_cluster("v100=2,k80=2"), TABLE, make_allocation(name)).run().end.tobytes()

    assert ends() == ends()


def test_a_job_too_small_for_its_gpus_is_given_up_as_in_gavel():
    job = SimJob(id="1", submit=0, app="fast", gpus=2, nodes=2, steps=1.0, run_time={"v100": 1.0})
    result = Rounds(
        Workload("w", (job,)), parse_cluster("v100=2,k80=2"), TABLE, make_allocation("fifo_perf"), True
    ).run()
    assert np.isnan(result.end[0])


def reference_rows():
    if not (DATA / "reference.csv").is_file():
        return []
    with (DATA / "reference.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # The shared ones take minutes; scripts/bench/gavel runs them all.
    return [row for row in rows if row["policy"] != "gandiva" and not row["policy"].endswith("_packed")]


@pytest.mark.skipif(not reference_rows(), reason="Gavel's traces are not there; set ADVISOR_BENCH_DATA")
@pytest.mark.parametrize("row", reference_rows(), ids=lambda row: f"{row['trace']}-{row['policy']}")
def test_the_figures_are_those_of_gavel_s_own_simulator_within_five_per_cent(row):
    table = DATA / ("physical_cluster_throughputs.json" if row["trace"] == "C" else "simulation_throughputs.json")
    workload = read_workload(str(DATA / f"{row['trace']}.trace"), table)
    counts = (int(count) for count in row["cluster"].split(":"))
    cluster = from_counts({kind: (count, 1) for kind, count in zip(("v100", "p100", "k80"), counts, strict=True)})
    (outcome,) = simulate(workload, cluster, [f"gavel:{row['policy']}"], throughputs=table)
    assert outcome.row.avg_jct_h == pytest.approx(float(row["avg_jct_h"]), rel=0.05)
    assert outcome.row.makespan_h == pytest.approx(float(row["makespan_h"]), rel=0.05)


# avg JCT, p99 JCT, makespan in hours of a plain list simulation on the same traces (README.md of the data folder).
PLAIN = {
    ("A", "random"): (39.9, 140, 153),
    ("A", "earliest-start"): (20.0, 37.1, 44.7),
    ("A", "fastest"): (24.8, 55.0, 55.0),
    ("A", "earliest-finish"): (16.1, 30.2, 31.5),
    ("A", "shortest-first"): (11.3, 33.0, 35.8),
    ("B", "random"): (30.2, 145, 182),
    ("B", "earliest-start"): (10.1, 35.1, 67.0),
    ("B", "fastest"): (13.2, 33.2, 63.0),
    ("B", "earliest-finish"): (5.50, 10.2, 39.0),
    ("B", "shortest-first"): (5.09, 36.9, 49.1),
}


@pytest.mark.skipif(not reference_rows(), reason="Gavel's traces are not there; set ADVISOR_BENCH_DATA")
@pytest.mark.parametrize(("trace", "policy"), PLAIN)
def test_the_rules_that_never_preempt_give_the_figures_of_a_plain_list_simulation(trace, policy):
    table = DATA / "simulation_throughputs.json"
    workload = read_workload(str(DATA / f"{trace}.trace"), table)
    cluster = parse_cluster("v100=4,p100=4,k80=4" if trace == "A" else "v100=8,p100=8,k80=8")
    (outcome,) = simulate(workload, cluster, [policy])
    found = (outcome.row.avg_jct_h, outcome.row.p99_jct_h, outcome.row.makespan_h)
    assert found == pytest.approx(PLAIN[trace, policy], rel=0.01)
