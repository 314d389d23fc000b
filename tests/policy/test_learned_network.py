"""The network in torch, in numpy and compiled is one network; untrained it answers with the arithmetic."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from advisor.policy.learned import forward
from advisor.policy.learned.files import Card, ModelError, read_model, write_model
from advisor.policy.learned.graphs import graph_from
from advisor.policy.learned.memory import edges_between
from advisor.policy.learned.network import BELIEFS, Batch, PlacementNetwork, exact_table
from advisor.policy.learned.shapes import (
    CANDIDATE_FEATURES,
    COUNTERS,
    GLOBAL_FEATURES,
    LEVELS,
    POOL_FEATURES,
    TICKS,
    zero_weights,
)


def shaken(seed=3):
    """A network whose last layer is no longer zero."""
    network = PlacementNetwork(seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.weights.values():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return network


def one_decision(pools=4, seed=0):
    """A batch of a single decision, and the same as numpy arrays."""
    draw = np.random.default_rng(seed)
    names = [frozenset({"a"}), frozenset({"a", "b"}), frozenset({"b"}), frozenset({"c"})][:pools]
    sources, targets, edges = edges_between(names, ["x", "y", "y", "z"][:pools], draw.normal(size=pools))
    graph = graph_from(
        np.array([1e15, 3e14, 2e13]),
        np.array([2e9, 30e9, 1e9]),
        np.array([0.0, 0.0, 1.0]),
        np.array([0, 1]),
        np.array([1, 2]),
        np.array([1e9, 5e8]),
    )
    numbers = draw.integers(LEVELS**COUNTERS, size=pools)
    arrays = {
        "pools": draw.normal(size=(pools, len(POOL_FEATURES))),
        "moments": draw.normal(size=(1, TICKS, len(GLOBAL_FEATURES))),
        "candidates": draw.normal(size=(pools, len(CANDIDATE_FEATURES))),
    }
    batch = Batch(
        pools=torch.from_numpy(arrays["pools"]),
        pool_of=torch.zeros(pools, dtype=torch.int64),
        pool_counters=torch.from_numpy(numbers),
        edge_index=torch.from_numpy(np.stack([sources, targets])),
        edges=torch.from_numpy(edges),
        moments=torch.from_numpy(arrays["moments"]),
        kernels=torch.from_numpy(graph.kernels),
        kernel_of=torch.zeros(3, dtype=torch.int64),
        flow_index=torch.from_numpy(np.stack([graph.sources, graph.targets])),
        flows=torch.from_numpy(graph.flows),
        candidates=torch.from_numpy(arrays["candidates"]),
        decision_of=torch.zeros(pools, dtype=torch.int64),
        place_of=torch.arange(pools),
        counters=torch.from_numpy(numbers),
        sensitivity=torch.full((pools,), graph.sensitivity, dtype=torch.float64),
        wait=torch.ones(pools, dtype=torch.float64),
        run=torch.ones(pools, dtype=torch.float64),
        scale=torch.ones(pools, dtype=torch.float64),
    )
    return batch, arrays, (sources, targets, edges), graph


def answered_by_numpy(weights, batch, arrays, edges, graph):
    pools, candidates = arrays["pools"].copy(), arrays["candidates"].copy()
    levels = np.linspace(0.0, 1.0, LEVELS)
    chance = weights.belief[batch.counters.numpy()]
    mean = chance @ levels
    spread = np.sqrt(np.maximum(chance @ levels**2 - mean**2, 1e-9))
    pools[:, 10], pools[:, 11] = mean, spread
    candidates[:, 9], candidates[:, 10] = mean * graph.sensitivity, spread * graph.sensitivity
    topology = forward.embed_topology(weights, pools, *edges, arrays["moments"][0, -1])
    memory = forward.remember(weights, arrays["moments"][0])
    told = forward.embed_graph(weights, graph.kernels, graph.sources, graph.targets, graph.flows)
    where = np.arange(len(pools))
    return (
        forward.residuals(weights, candidates, forward.ground(weights, topology, memory), told, where),
        forward.value(weights, topology, memory),
        (pools, candidates, topology, memory, told),
    )


def test_an_untrained_network_corrects_nothing_whatever_it_sees():
    batch, *_ = one_decision()
    residuals, _ = PlacementNetwork(1)(batch)
    assert (residuals == 0).all()
    weights = zero_weights()
    drawn = np.random.default_rng(0)
    assert (
        forward.residuals(
            weights,
            drawn.normal(size=(3, len(CANDIDATE_FEATURES))) * 100,
            forward.ground(weights, drawn.normal(size=(4, 16)), drawn.normal(size=8)),
            drawn.normal(size=8),
            np.arange(3),
        )
        == 0
    ).all()


def test_torch_and_numpy_give_the_same_answer(monkeypatch):
    network = shaken()
    # Sampled beliefs would differ by their sampling; the exact ones are what the daemon has.
    monkeypatch.setattr(network, "belief_table", lambda samples: exact_table(list(network.beliefs)))
    for pools in (2, 3, 4):
        batch, arrays, edges, graph = one_decision(pools, seed=pools)
        with torch.no_grad():
            residuals, value = network(batch)
        ours, our_value, _ = answered_by_numpy(network.export(), batch, arrays, edges, graph)
        np.testing.assert_allclose(ours, residuals.numpy(), atol=1e-9)
        assert our_value == pytest.approx(float(value[0]), abs=1e-9)


def test_the_compiled_loops_give_the_same_answer_as_numpy():
    from advisor.training import compiled_forward as compiled

    network = shaken(5)
    batch, arrays, (sources, targets, edges), graph = one_decision(4, seed=9)
    weights = network.export()
    ours, our_value, (pools, candidates, topology, memory, told) = answered_by_numpy(
        weights, batch, arrays, (sources, targets, edges), graph
    )
    flat = compiled.flat(weights)
    assert len(flat) == compiled.SIZE
    embedded, remembered, both = np.zeros_like(topology), np.zeros_like(memory), np.zeros(2)
    compiled.embed_topology(flat, pools, sources, targets, edges, arrays["moments"][0, -1], embedded)
    compiled.remember(flat, arrays["moments"][0], remembered)
    np.testing.assert_allclose(embedded, topology, atol=1e-9)
    np.testing.assert_allclose(remembered, memory, atol=1e-9)
    for p in range(4):
        compiled.residuals(flat, candidates[p], candidates.shape[1], embedded, p, remembered, told, both)
        np.testing.assert_allclose(both, ours[p], atol=1e-9)
    assert compiled.value(flat, embedded, remembered) == pytest.approx(our_value, abs=1e-9)


def test_the_belief_networks_parameters_learn_through_the_sampled_gradient():
    network = shaken()
    batch, *_ = one_decision()
    residuals, _ = network(batch, samples=256)
    residuals.sum().backward()
    for variable, parameter in zip(BELIEFS.variables, network.beliefs, strict=True):
        if variable.parents:
            assert parameter.grad is not None and (parameter.grad != 0).any(), variable.name


def test_sampled_beliefs_approach_the_exact_ones():
    network = PlacementNetwork(0)
    sampled = network.belief_table(4000).detach()
    assert float((sampled - exact_table(list(network.beliefs)).detach()).abs().max()) < 0.05


def test_the_order_of_pools_does_not_matter(monkeypatch):
    network = shaken()
    monkeypatch.setattr(network, "belief_table", lambda samples: exact_table(list(network.beliefs)))
    batch, arrays, (sources, targets, edges), graph = one_decision(4)
    answer, _, _ = answered_by_numpy(network.export(), batch, arrays, (sources, targets, edges), graph)
    turned = np.array([2, 0, 3, 1])
    back = np.argsort(turned)
    other = {"pools": arrays["pools"][turned], "candidates": arrays["candidates"][turned], "moments": arrays["moments"]}
    counters = Batch(**{**vars(batch), "counters": batch.counters[torch.from_numpy(turned)]})
    again, _, _ = answered_by_numpy(network.export(), counters, other, (back[sources], back[targets], edges), graph)
    np.testing.assert_allclose(again, answer[turned], atol=1e-9)


def test_a_model_is_read_back_as_it_was_written(tmp_path):
    weights = shaken().export()
    write_model(tmp_path, weights, Card("mine", seed=4))
    again, card = read_model(tmp_path)
    assert card.name == "mine"
    for name, array in again._asdict().items():
        np.testing.assert_array_equal(array, getattr(weights, name).astype(np.float32))
    network = PlacementNetwork(9)
    network.take(again)
    np.testing.assert_allclose(network.export().belief, weights.belief, atol=1e-6)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / "weights.safetensors").unlink(), "cannot be read"),
        (lambda folder: (folder / "weights.safetensors").write_bytes(b"\x10" * 40), "weights.safetensors"),
        (lambda folder: (folder / "card.yaml").write_text("name: x\nformat: 99\n"), "format 99"),
        (lambda folder: (folder / "card.yaml").write_text("name: [1"), "card.yaml"),
    ],
)
def test_a_damaged_or_foreign_model_is_refused_with_the_reason(tmp_path, damage, told):
    write_model(tmp_path, zero_weights(), Card("mine"))
    damage(tmp_path)
    with pytest.raises(ModelError, match=told):
        read_model(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    write_model(tmp_path, zero_weights(), Card("mine"))
    arrays = load_file(tmp_path / "weights.safetensors")
    arrays["head_b3"] = np.zeros(3, dtype=np.float32)
    save_file(arrays, tmp_path / "weights.safetensors")
    with pytest.raises(ModelError, match="head_b3"):
        read_model(tmp_path)


def test_several_jobs_in_one_go_are_told_what_each_is_told_alone():
    weights = shaken().export()
    drawn = np.random.default_rng(4)
    pools = forward.ground(weights, drawn.normal(size=(6, 16)), drawn.normal(size=8))
    jobs = [
        (drawn.normal(size=(count, len(CANDIDATE_FEATURES))), drawn.normal(size=8), drawn.integers(5, size=count))
        for count in (2, 5, 3)
    ]
    alone = [forward.residuals(weights, table, pools, graph, where) for table, graph, where in jobs]
    together = forward.residuals(
        weights,
        np.concatenate([table for table, _, _ in jobs]),
        pools,
        np.concatenate([np.tile(graph, (len(table), 1)) for table, graph, _ in jobs]),
        np.concatenate([where for _, _, where in jobs]),
    )
    assert together == pytest.approx(np.concatenate(alone), rel=1e-12)


def test_loading_the_network_leaves_no_file_behind():
    """torch-geometric writes the code of a layer to the temporary folder in each process, and never removes it."""
    PlacementNetwork()
    written = [name for name, module in sys.modules.items() if "_Gather_" in name and getattr(module, "__file__", None)]
    assert written == []
