"""Exact inference, against which the sampled one is checked: pgmpy's, and elimination that torch differentiates.

Both are exponential in how tangled the network is, which is why nothing at run time uses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from advisor.contention.gradient import BeliefNetwork, distribution
from advisor.contention.network import Network

_Factor = tuple[tuple[str, ...], torch.Tensor]


def table(network: BeliefNetwork, name: str, parameters: torch.Tensor) -> torch.Tensor:
    """A variable's conditional distribution as a table with one axis for each parent, its own last."""
    variable = network.variables[network.index[name]]
    sizes = [network.variables[network.index[parent]].states for parent in variable.parents]
    axes = [torch.linspace(0.0, 1.0, size, dtype=torch.float64) for size in sizes]
    if axes:
        levels = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    else:
        levels = torch.zeros((0,), dtype=torch.float64)
    return distribution(variable.states, parameters, levels)


def probability(
    network: BeliefNetwork, parameters: Sequence[torch.Tensor], query: str, evidence: Mapping[str, int]
) -> torch.Tensor:
    """Pr(query | evidence) by variable elimination, cheapest first; gradients flow through it."""
    factors: list[_Factor] = []
    wanted = set(network.above(query))
    for name in evidence:
        wanted |= set(network.above(name))
    for variable in network.variables:
        if variable.name not in wanted:
            continue
        names = (*variable.parents, variable.name)
        values = table(network, variable.name, parameters[network.index[variable.name]])
        for axis in reversed(range(len(names))):
            if names[axis] in evidence:
                values = values.select(axis, evidence[names[axis]])
        factors.append((tuple(n for n in names if n not in evidence), values))
    hidden = {name for names, _ in factors for name in names} - {query}
    while hidden:
        cost = {name: _result(factors, name) for name in hidden}
        cheapest = min(hidden, key=lambda name: (len(cost[name]), name))
        touched = [factor for factor in factors if cheapest in factor[0]]
        factors = [factor for factor in factors if cheapest not in factor[0]]
        factors.append(_product(touched, cost[cheapest]))
        hidden.remove(cheapest)
    _, joint = _product(factors, (query,))
    result: torch.Tensor = joint / joint.sum()
    return result


def _result(factors: list[_Factor], name: str) -> tuple[str, ...]:
    return tuple(sorted({other for names, _ in factors if name in names for other in names} - {name}))


def _product(factors: list[_Factor], keep: tuple[str, ...]) -> _Factor:
    number = {name: index for index, name in enumerate(dict.fromkeys(n for names, _ in factors for n in names))}
    operands: list[Any] = []
    for names, values in factors:
        operands += [values, [number[name] for name in names]]
    return keep, torch.einsum(*operands, [number[name] for name in keep])


def to_pgmpy(network: BeliefNetwork, parameters: Sequence[torch.Tensor]) -> Any:
    """The same network as pgmpy's, with its tables."""
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.models import DiscreteBayesianNetwork

    model = DiscreteBayesianNetwork([(parent, v.name) for v in network.variables for parent in v.parents])
    model.add_nodes_from([variable.name for variable in network.variables])
    for variable in network.variables:
        values = table(network, variable.name, parameters[network.index[variable.name]]).detach().numpy()
        sizes = [network.variables[network.index[parent]].states for parent in variable.parents]
        flat = values.reshape(int(np.prod(sizes)), variable.states).T
        model.add_cpds(TabularCPD(variable.name, variable.states, flat, list(variable.parents) or None, sizes or None))
    model.check_model()
    return model


def structure(network: Network) -> Any:
    """The structure of a vendor network as pgmpy's graph, for questions of independence (d-separation)."""
    from pgmpy.base import DAG

    graph = DAG()
    graph.add_nodes_from([*network.events, *network.metrics, *(resource.name for resource in network.resources)])
    graph.add_edges_from(network.edges)
    return graph
