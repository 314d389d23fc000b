"""Slowdowns: sensible before anything was seen, better after, and honest about what is not known."""

import numpy as np
import pytest

from advisor.contention.neighbours import NeighbourModel, PairOutcome
from advisor.contention.slowdown import Demand, NodeBelief, PressureModel, PressureOutcome

STREAM = Demand("stream", use={"core": 0.3, "memory_bandwidth": 0.7})
PRIME = Demand("prime", use={"core": 0.3, "memory_bandwidth": 0.01})


def node(bandwidth, sd=0.02, core=0.2):
    return NodeBelief({"core": (core, 0.02), "memory_bandwidth": (bandwidth, sd)})


def test_before_any_outcome_a_busy_bus_slows_those_who_need_it():
    model = PressureModel()
    quiet, busy = node(0.05), node(0.8)
    assert model.predict(STREAM, quiet).mean < 1.35
    assert model.predict(STREAM, busy).mean > 1.8
    assert model.predict(PRIME, busy).mean < 1.2
    assert model.predict(STREAM, NodeBelief()).mean == pytest.approx(1.0)


def test_a_vaguer_belief_gives_a_wider_slowdown():
    model = PressureModel()
    assert model.predict(STREAM, node(0.5, 0.3)).sd > 1.2 * model.predict(STREAM, node(0.5, 0.01)).sd
    unknown = model.predict(Demand("new"), node(0.5, 0.01))
    assert unknown.sd > model.predict(Demand("new", use={"core": 0.3, "memory_bandwidth": 0.3}), node(0.5, 0.01)).sd


def test_outcomes_move_the_knee():
    draw = np.random.default_rng(0)
    # On this site the bus takes far more than the prior thinks: nothing hurts below 0.95.
    outcomes = []
    for _ in range(200):
        use = float(draw.uniform(0, 1))
        asked = float(draw.uniform(0.1, 0.8))
        truth = 1 + 1.5 * max(0.0, use + asked - 0.95) * asked / (asked + 0.1)
        demand = Demand("x", use={"core": 0.1, "memory_bandwidth": asked})
        outcomes.append(PressureOutcome(demand, node(use, core=0.1), truth * float(np.exp(draw.normal(0, 0.03)))))
    model, before = PressureModel(), PressureModel()
    model.fit(outcomes[:150])

    def miss(which):
        return np.mean([abs(which.predict(o.demand, o.belief).mean - o.slowdown) for o in outcomes[150:]])

    assert miss(model) < 0.4 * miss(before)
    knee = float(model.knee[model.resources.index("memory_bandwidth")])
    assert knee == pytest.approx(0.95, abs=0.1)


def test_one_absurd_outcome_moves_little():
    model = PressureModel()
    model.fit([PressureOutcome(STREAM, node(0.05), 50.0)])
    assert model.predict(STREAM, node(0.05)).mean < 2.0


def world(seed=0):
    """Apps in families of sizes, whose hidden demands decide what they do to each other."""
    draw = np.random.default_rng(seed)
    apps = []
    for family in range(5):
        press, feel = draw.uniform(0.1, 0.9, 2)
        for size in range(4):
            demand = Demand(f"f{family}s{size}", f"f{family}", float(size), float(np.exp(3 - size)))
            apps.append((demand, press * (0.6 + 0.2 * size), feel * (0.8 + 0.1 * size), 0.3 * 2.0 ** (size - 1)))
    outcomes = {}
    for a, (one, _, feel, memory) in enumerate(apps):
        for b, (other, press, _, more) in enumerate(apps):
            share = 0.0 if memory + more > 2.2 else 1 / (1 + feel * press) * float(np.exp(draw.normal(0, 0.01)))
            outcomes[a, b] = PairOutcome(one, other, "gpu", min(share, 1.0))
    return apps, outcomes


def test_an_app_seen_beside_a_few_is_known_beside_the_others():
    apps, outcomes = world()
    draw = np.random.default_rng(1)
    cells = sorted(outcomes)
    seen = {cells[i] for i in draw.choice(len(cells), len(cells) // 4, replace=False)}
    model = NeighbourModel(steps=60)
    model.fit([outcomes[cell] for cell in sorted(seen)])
    hidden = [outcomes[cell] for cell in cells if cell not in seen]
    mean, sd, fits = model.throughput([(o.demand, o.neighbour, o.processor) for o in hidden])
    truth = np.array([o.throughput for o in hidden])
    ran = truth > 0
    average = np.mean([outcomes[cell].throughput for cell in seen if outcomes[cell].throughput > 0])
    assert np.abs(mean - truth)[ran].mean() < 0.35 * np.abs(average - truth)[ran].mean()
    assert 0.75 < (np.abs(mean - truth) < 1.645 * sd)[ran].mean() <= 1.0
    assert np.mean((fits > 0.5) == ran) > 0.9
    assert len(apps) == 20


def test_an_unknown_app_is_less_certain_than_a_known_one():
    _, outcomes = world()
    model = NeighbourModel(steps=40)
    model.fit([outcomes[cell] for cell in sorted(outcomes)[::3]])
    known, stranger = outcomes[2, 7].demand, Demand("stranger", "no such family", 1.0, 10.0)
    _, sd, _ = model.throughput([(known, outcomes[2, 7].neighbour, "gpu"), (stranger, outcomes[2, 7].neighbour, "gpu")])
    assert sd[1] > 1.5 * sd[0]


def test_a_processor_whose_pairs_follow_no_rule_is_less_certain_than_one_whose_pairs_do():
    _, outcomes = world()
    draw = np.random.default_rng(2)
    both = []
    for cell in sorted(outcomes)[::3]:
        o = outcomes[cell]
        if o.throughput > 0:
            wild = float(np.clip(o.throughput + draw.normal(0, 0.15), 0.05, 1.0))
            both += [o, PairOutcome(o.demand, o.neighbour, "wild", wild)]
    model = NeighbourModel(steps=40)
    model.fit(both)
    hidden = outcomes[1, 6]
    _, sd, _ = model.throughput([(hidden.demand, hidden.neighbour, kind) for kind in ("gpu", "wild")])
    assert sd[1] > 1.5 * sd[0]


def test_outcomes_taken_in_without_a_fit_are_known():
    _, outcomes = world()
    model = NeighbourModel(steps=40)
    some = [outcomes[cell] for cell in sorted(outcomes)[::3]]
    model.fit(some)
    late = [o for o in (outcomes[cell] for cell in sorted(outcomes)[1::3]) if o.throughput > 0][:40]
    asked = [(o.demand, o.neighbour, o.processor) for o in late]
    _, before, _ = model.throughput(asked)
    model.condition([*some, *late])
    mean, after, _ = model.throughput(asked)
    assert (after <= before + 1e-9).all()
    assert np.abs(mean - [o.throughput for o in late]).mean() < 0.02


def test_a_policy_reads_slowdown_and_whether_it_fits():
    _, outcomes = world()
    model = NeighbourModel(steps=40)
    before = model.predict(STREAM, node(0.8))
    assert before == PressureModel().predict(STREAM, node(0.8)), "before outcomes, what pressure tells"
    model.fit([outcomes[cell] for cell in sorted(outcomes)[::2]])
    pair = outcomes[1, 6]
    told = model.predict(pair.demand, NodeBelief(neighbours=(pair.neighbour,), processor="gpu"))
    assert told.mean == pytest.approx(1 / pair.throughput, rel=0.1)
    assert told.sd > 0 and 0 <= told.fits <= 1
    crowd = model.predict(pair.demand, NodeBelief(neighbours=(pair.neighbour,) * 3, processor="gpu"))
    assert crowd.mean > told.mean
    with pytest.raises(ValueError, match="call fit"):
        NeighbourModel().throughput([(STREAM, PRIME, "gpu")])
