"""The network in torch, for gradients: graph layers over the cluster and the job's dataflow graph, an LSTM, two heads.

Its answer is a residual: logarithms of two factors on the arithmetic's wait and run time, zero at the start. Weights
have the names and shapes of `advisor.policy.learned.shapes`, so what was trained here is what the daemon runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch_geometric.nn import MessagePassing

from advisor.contention.gradient import BeliefNetwork, Variable, distribution, probability
from advisor.policy.learned.shapes import (
    COUNTERS,
    LEVELS,
    MEMORY,
    MOST,
    RANGES,
    SHAPES,
    Floats,
    Weights,
    bounds,
    weights_of,
)

# Counters above, contention below: what is seen → what is used → how much it hurts.
BELIEFS = BeliefNetwork(
    (
        *(Variable(f"counter{k}", (), LEVELS) for k in range(COUNTERS)),
        Variable("bandwidth", ("counter0", "counter1"), LEVELS),
        Variable("traffic", ("counter1", "counter2"), LEVELS),
        Variable("contention", ("bandwidth", "traffic"), LEVELS),
    )
)


@dataclass(frozen=True)
class Batch:
    """Decisions side by side; rows of all their pools, candidates and kernels follow each other."""

    pools: torch.Tensor  # [pool, features]
    pool_of: torch.Tensor  # [pool] its decision
    pool_counters: torch.Tensor  # [pool] number of its counters' levels, or -1
    edge_index: torch.Tensor  # [2, edge]
    edges: torch.Tensor
    moments: torch.Tensor  # [decision, tick, features]
    kernels: torch.Tensor
    kernel_of: torch.Tensor  # [kernel] its decision
    flow_index: torch.Tensor
    flows: torch.Tensor
    candidates: torch.Tensor  # [candidate, features]
    decision_of: torch.Tensor  # [candidate]
    place_of: torch.Tensor  # [candidate] row of pools
    counters: torch.Tensor  # [candidate] number of its counters' levels, or -1
    sensitivity: torch.Tensor  # [candidate]
    wait: torch.Tensor  # [candidate] by the arithmetic
    run: torch.Tensor
    scale: torch.Tensor  # [candidate] its task's usual run time


@dataclass(frozen=True)
class Without:
    """What an ablation leaves out."""

    beliefs: bool = False
    graph: bool = False  # the dataflow graph
    topology: bool = False
    memory: bool = False  # the LSTM
    residual: bool = False  # the network scores alone; what the arithmetic expects is one input among others
    features: bool = False  # it is shown plain observations (`advisor.training.observed`); builds on all of the above


class _Gather(MessagePassing):  # type: ignore[misc]
    """Sums over incoming edges what a small network makes of both ends and the edge."""

    def __init__(self) -> None:
        super().__init__(aggr="sum")

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Nothing: torch-geometric would write `propagate` anew into the temporary folder, and leave it there."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edges: torch.Tensor, net: nn.Module) -> torch.Tensor:
        found: torch.Tensor = self.propagate(edge_index, x=x, edges=edges, net=net, size=(len(x), len(x)))
        return found

    def message(self, x_i: torch.Tensor, x_j: torch.Tensor, edges: torch.Tensor, net: nn.Module) -> torch.Tensor:
        answer: torch.Tensor = net(torch.cat([x_j, x_i, edges], dim=1))
        return answer


class _Edge(nn.Module):
    def __init__(self, owner: PlacementNetwork) -> None:
        super().__init__()
        self._weights = owner.weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self._weights
        return torch.relu(torch.relu(x @ w["edge_w1"] + w["edge_b1"]) @ w["edge_w2"] + w["edge_b2"])


class _Flow(nn.Module):
    def __init__(self, owner: PlacementNetwork, features: int) -> None:
        super().__init__()
        self._weights = owner.weights
        self._features = features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self._weights
        # The kernel that hands over, and the bytes; the one that takes them is not looked at.
        used = torch.cat([x[:, : self._features], x[:, 2 * self._features :]], dim=1)
        return torch.relu(used @ w["flow_w"] + w["flow_b"])


class PlacementNetwork(nn.Module):
    """Actor and critic. The belief network's parameters are among its own."""

    def __init__(self, seed: int = 0, without: Without | None = None) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.without = without or Without()
        self.weights = nn.ParameterDict()
        for name, shape in SHAPES.items():
            if name in ("belief", "belief_parameters", "alone", *RANGES):
                continue
            if len(shape) == 2 and name != "head_w3":
                start = torch.randn(shape, generator=draw, dtype=torch.float64) / np.sqrt(shape[0])
            else:
                start = torch.zeros(shape, dtype=torch.float64)
            self.weights[name] = nn.Parameter(start)
        self.beliefs = nn.ParameterList([nn.Parameter(p) for p in _first_beliefs()])
        self._gather = _Gather()
        self._edge = _Edge(self)
        self._draw = draw

    def belief_table(self, samples: int) -> torch.Tensor:
        """Pr(contention level | levels of the counters), a row for each combination; differentiable by sampling."""
        return probability(BELIEFS, list(self.beliefs), "contention", _combinations(), samples, self._draw)

    def forward(self, batch: Batch, samples: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
        """(Residuals [candidate, 2], the critic's value [decision])."""
        w = self.weights
        pools, candidates = batch.pools, batch.candidates
        if not self.without.beliefs:
            levels = torch.linspace(0.0, 1.0, LEVELS, dtype=torch.float64)
            table = self.belief_table(samples)
            mean = table @ levels
            spread = torch.sqrt((table @ levels**2 - mean**2).clamp(min=1e-9))
            pools = torch.cat([pools[:, :10], mean[batch.pool_counters, None], spread[batch.pool_counters, None]], 1)
            felt = torch.stack([mean[batch.counters], spread[batch.counters]], 1) * batch.sensitivity[:, None]
            candidates = torch.cat([candidates[:, :9], felt, candidates[:, 11:]], 1)
        count = len(batch.moments)
        whole = batch.moments[:, -1]
        gathered = self._gather(pools, batch.edge_index, batch.edges, self._edge)
        inputs = torch.cat([pools, gathered, whole[batch.pool_of]], 1)
        nodes = torch.tanh(torch.relu(inputs @ w["node_w1"] + w["node_b1"]) @ w["node_w2"] + w["node_b2"])
        total = torch.zeros((count, nodes.shape[1]), dtype=torch.float64).index_add(0, batch.pool_of, nodes)
        cluster = torch.tanh(torch.cat([whole, total], 1) @ w["global_w"] + w["global_b"])
        memory = self._remember(batch.moments)
        if self.without.topology:
            nodes, cluster = torch.zeros_like(nodes), torch.zeros_like(cluster)
        if self.without.memory:
            memory = torch.zeros_like(memory)
        shared = torch.cat([cluster, memory, self._graphs(batch, count)], 1)
        x = torch.cat([candidates, nodes[batch.place_of], shared[batch.decision_of]], 1)
        hidden = torch.relu(x @ w["head_w1"] + w["head_b1"])
        hidden = torch.relu(hidden @ w["head_w2"] + w["head_b2"])
        residuals = MOST * torch.tanh((hidden @ w["head_w3"] + w["head_b3"]) / MOST)
        seen = torch.relu(torch.cat([cluster, memory], 1) @ w["critic_w1"] + w["critic_b1"])
        return residuals, (seen @ w["critic_w2"] + w["critic_b2"])[:, 0]

    def _remember(self, moments: torch.Tensor) -> torch.Tensor:
        w = self.weights
        h = c = torch.zeros((len(moments), MEMORY), dtype=torch.float64)
        for t in range(moments.shape[1]):
            gates = moments[:, t] @ w["lstm_x"] + h @ w["lstm_h"] + w["lstm_b"]
            enter, forget, new, let = gates.split(MEMORY, dim=1)
            c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
            h = torch.sigmoid(let) * torch.tanh(c)
        return h

    def _graphs(self, batch: Batch, count: int) -> torch.Tensor:
        w = self.weights
        size = w["kernel_b"].shape[0]
        if self.without.graph:
            return torch.zeros((count, size), dtype=torch.float64)
        flow = _Flow(self, batch.kernels.shape[1])
        gathered = self._gather(batch.kernels, batch.flow_index, batch.flows, flow)
        each = torch.tanh(torch.cat([batch.kernels, gathered], 1) @ w["kernel_w"] + w["kernel_b"])
        weighted = each * batch.kernels[:, :1]
        return torch.zeros((count, size), dtype=torch.float64).index_add(0, batch.kernel_of, weighted)

    def generator_state(self) -> torch.Tensor:
        """Where the belief network's sampling stands."""
        return self._draw.get_state()

    def restore_generator(self, state: torch.Tensor) -> None:
        """Goes on sampling from there."""
        self._draw.set_state(state)

    def export(self, ranges: Mapping[str, Floats] | None = None) -> Weights:
        """The weights for the daemon; beliefs as their exact table, parts left out as zeros.

        `ranges`: of the features in training, by the names in `RANGES`; none: the network is asked whatever it sees.
        """
        arrays = {name: parameter.detach().numpy().copy() for name, parameter in self.weights.items()}
        arrays["belief"] = exact_table([p.detach() for p in self.beliefs]).numpy()
        arrays["belief_parameters"] = torch.cat([p.detach() for p in self.beliefs]).numpy()
        arrays |= {name: bounds(name) for name in RANGES} if ranges is None else ranges
        arrays["alone"] = np.full(1, 2.0 if self.without.features else float(self.without.residual))
        if self.without.topology:
            for name in ("node_w2", "node_b2", "global_w", "global_b"):
                arrays[name] = np.zeros_like(arrays[name])
        if self.without.memory:
            for name in ("lstm_x", "lstm_h", "lstm_b"):
                arrays[name] = np.zeros_like(arrays[name])
        if self.without.graph:
            for name in ("kernel_w", "kernel_b"):
                arrays[name] = np.zeros_like(arrays[name])
        return weights_of(arrays)

    def take(self, weights: Weights) -> None:
        """Starts from exported weights."""
        with torch.no_grad():
            told = torch.from_numpy(np.array(weights.belief_parameters))
            first = 0
            for parameter in self.beliefs:
                parameter.copy_(told[first : first + len(parameter)])
                first += len(parameter)
            for name, parameter in self.weights.items():
                parameter.copy_(torch.from_numpy(np.array(getattr(weights, name))))


def _first_beliefs() -> list[torch.Tensor]:
    """Parents weigh the same; widths of a quarter: what somebody would write down who knows only what counts what."""
    found = []
    for variable in BELIEFS.variables:
        count = len(variable.parents)
        rest = [0.0, -1.2] if count else [0.5, -1.2]
        found.append(torch.tensor([1.0 / max(count, 1)] * count + rest, dtype=torch.float64))
    return found


def _combinations() -> dict[str, torch.Tensor]:
    grid = torch.cartesian_prod(*(torch.arange(LEVELS) for _ in range(COUNTERS)))
    return {f"counter{k}": grid[:, k] for k in range(COUNTERS)}


def exact_table(parameters: list[torch.Tensor]) -> torch.Tensor:
    """As `belief_table`, by summing over everything in between instead of sampling it."""
    levels = torch.linspace(0.0, 1.0, LEVELS, dtype=torch.float64)
    evidence = _combinations()
    seen = [levels[evidence[f"counter{k}"]] for k in range(COUNTERS)]
    index = BELIEFS.index
    bandwidth = distribution(LEVELS, parameters[index["bandwidth"]], torch.stack([seen[0], seen[1]], 1))
    traffic = distribution(LEVELS, parameters[index["traffic"]], torch.stack([seen[1], seen[2]], 1))
    pairs = torch.cartesian_prod(levels, levels)
    given = distribution(LEVELS, parameters[index["contention"]], pairs).reshape(LEVELS, LEVELS, LEVELS)
    return torch.einsum("ra,rb,abx->rx", bandwidth, traffic, given)
