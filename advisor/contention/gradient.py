"""Probabilities of a belief network and their gradients by forward sampling, without inference.

For a query X with evidence on roots, samples y_1 … y_S of everything above X are drawn forward. Then Pr(X = x) is
the mean of f_X(x, y_i), and its gradient follows from the same samples: an ancestor with one path to X gets, sample by
sample, the sum over *all* its values of what each would do to X (the others held at the sample); an ancestor with
several paths, whose values the parents of X share, gets the value of the sample weighted by the score of what was
drawn, less the mean of the others. Both are unbiased; cost is linear in samples and in edges. As a torch
function, so that a policy's loss reaches the network's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

import torch

from advisor.contention.layers import Drawn
from advisor.contention.network import Network

# From so many variables on, those of one depth go together (`layers.py`): the same estimate in fewer, larger steps.
# Below it gains little, and what was trained with small networks comes out the same to the bit.
_LARGE = 16


@dataclass(frozen=True)
class Variable:
    """One node: how many levels it has, evenly spaced from 0 to 1, and whose levels it depends on."""

    name: str
    parents: tuple[str, ...] = ()
    states: int = 3


@dataclass(frozen=True)
class BeliefNetwork:
    """Variables, parents before children.

    A variable's distribution is ordinal: its level is near bias + Σ weight·(parent's level), within a width; what is
    beyond a knee can be expressed by its bias. Parameters of each: (weights…, bias, log width).
    """

    variables: tuple[Variable, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for variable in self.variables:
            if missing := [parent for parent in variable.parents if parent not in seen]:
                raise ValueError(f"{variable.name} stands before its parent {missing[0]}, or the parent is missing")
            if variable.name in seen or variable.states < 2:
                raise ValueError(f"{variable.name} occurs twice, or has fewer than 2 states")
            seen.add(variable.name)

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each variable."""
        return {variable.name: position for position, variable in enumerate(self.variables)}

    def initial(self, seed: int = 0) -> list[torch.Tensor]:
        """Parameters for a start: parents weigh about the same, with some variety; leaves of width 0.3."""
        draw = torch.Generator().manual_seed(seed)
        parameters = []
        for variable in self.variables:
            count = len(variable.parents)
            weights = torch.rand(count, generator=draw, dtype=torch.float64) * 1.5 / max(count, 1)
            rest = torch.tensor([0.1 if count else 0.5, -1.2], dtype=torch.float64)
            parameters.append(torch.cat([weights, rest]))
        return parameters

    def above(self, query: str) -> tuple[str, ...]:
        """The query's ancestors and itself, parents before children; nothing else matters to it."""
        wanted = {query}
        for variable in reversed(self.variables):
            if variable.name in wanted:
                wanted |= set(variable.parents)
        return tuple(variable.name for variable in self.variables if variable.name in wanted)

    def paths(self, query: str) -> dict[str, int]:
        """How many directed paths lead from each ancestor to the query."""
        count = dict.fromkeys(self.above(query), 0)
        count[query] = 1
        for name in reversed(self.above(query)):
            for parent in self.variables[self.index[name]].parents:
                count[parent] += count[name]
        return count


def from_vendor(network: Network, size: int, query: str = "contention", states: int = 5) -> BeliefNetwork:
    """A belief network over the vendor's graph, grown from a query on all resources up to so many variables."""
    parents: dict[str, list[str]] = {}
    for used, user in network.edges:
        parents.setdefault(user, []).append(used)
    parents[query] = [resource.name for resource in network.resources if resource.name in parents]
    kept = {query: None}
    frontier = [query]
    while frontier and len(kept) < size:
        name = frontier.pop(0)
        for parent in parents.get(name, []):
            if parent not in kept and len(kept) < size:
                kept[parent] = None
                frontier.append(parent)
    order = TopologicalSorter({name: [p for p in parents.get(name, []) if p in kept] for name in kept}).static_order()
    return BeliefNetwork(
        tuple(Variable(name, tuple(p for p in parents.get(name, []) if p in kept), states) for name in order)
    )


def distribution(states: int, parameters: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Pr(level | parents' levels): `levels` is (…, parents); the result (…, states)."""
    count = levels.shape[-1]
    return _around(states, parameters, levels @ parameters[:count] + parameters[count])


def _around(states: int, parameters: torch.Tensor, middle: torch.Tensor) -> torch.Tensor:
    """The ordinal distribution around a middle: more likely the nearer, on the scale of the width."""
    own = torch.linspace(0.0, 1.0, states, dtype=torch.float64)
    # −(own − middle)² / 2w² without its part that is the same for all levels, which softmax would cancel.
    steep = torch.exp(-2 * parameters[-1])
    return torch.softmax(steep * (middle[..., None] * own - 0.5 * own**2), dim=-1)


class _Samples:
    """Forward samples of all that is above a query, for a batch of evidence."""

    def __init__(
        self,
        network: BeliefNetwork,
        parameters: Sequence[torch.Tensor],
        query: str,
        evidence: Mapping[str, torch.Tensor],
        samples: int,
        generator: torch.Generator | None,
    ) -> None:
        batch = len(next(iter(evidence.values()))) if evidence else 1
        self.states: dict[str, torch.Tensor] = {}
        self.levels: dict[str, torch.Tensor] = {}
        for name in network.above(query):
            variable = network.variables[network.index[name]]
            if name in evidence:
                drawn = evidence[name][:, None].expand(batch, samples)
            elif name == query:
                continue
            else:
                chance = distribution(
                    variable.states, parameters[network.index[name]], self.parents(variable, batch, samples)
                )
                cumulative = chance.cumsum(-1)
                uniform = torch.rand((batch, samples, 1), generator=generator, dtype=torch.float64)
                drawn = (uniform > cumulative[..., :-1]).sum(-1)
            self.states[name] = drawn
            self.levels[name] = drawn.double() / (variable.states - 1)
        self.size = (batch, samples)

    def parents(self, variable: Variable, batch: int, samples: int) -> torch.Tensor:
        """Levels of a variable's parents, (batch, samples, parents)."""
        if not variable.parents:
            return torch.zeros((batch, samples, 0), dtype=torch.float64)
        return torch.stack([self.levels[parent] for parent in variable.parents], dim=-1)


class _Sampled(torch.autograd.Function):
    """Pr(query | evidence) for each row of evidence, differentiable in every variable's parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        network: BeliefNetwork,
        query: str,
        evidence: Mapping[str, torch.Tensor],
        samples: int,
        generator: torch.Generator | None,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        drawn = _Samples(network, parameters, query, evidence, samples, generator)
        variable = network.variables[network.index[query]]
        chance = distribution(variable.states, parameters[network.index[query]], drawn.parents(variable, *drawn.size))
        ctx.save_for_backward(*parameters)
        ctx.context = (network, query, frozenset(evidence), drawn)
        return chance.mean(1)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        network, query, known, drawn = ctx.context
        parameters = [p.detach().requires_grad_(True) for p in ctx.saved_tensors]
        with torch.enable_grad():
            surrogate = _surrogate(network, query, known, drawn, parameters, outputs[0])
            found = torch.autograd.grad(surrogate, parameters, allow_unused=True)
        return (None, None, None, None, None, *found)


class _SampledByDepth(torch.autograd.Function):
    """The same for large networks."""

    @staticmethod
    def forward(
        ctx: Any,
        network: BeliefNetwork,
        query: str,
        evidence: Mapping[str, torch.Tensor],
        samples: int,
        generator: torch.Generator | None,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        ctx.drawn = Drawn(network, parameters, query, evidence, samples, generator)
        ctx.sizes = [len(p) for p in parameters]
        found: torch.Tensor = ctx.drawn.probability()[:, : network.variables[network.index[query]].states]
        return found.contiguous()

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, None, None, None, None, *ctx.drawn.gradient(outputs[0], ctx.sizes))


def _surrogate(
    network: BeliefNetwork,
    query: str,
    known: frozenset[str],
    drawn: _Samples,
    parameters: Sequence[torch.Tensor],
    outer: torch.Tensor,
) -> torch.Tensor:
    """A scalar whose gradient is the estimate; only local distributions in it depend on parameters."""
    batch, samples = drawn.size
    paths = network.paths(query)
    # For one-path variables: what each of its values would be worth, by sample; (batch, samples, states).
    worth = {query: outer[:, None, :].expand(batch, samples, outer.shape[-1])}
    total = torch.zeros((), dtype=torch.float64)
    value = baseline = torch.zeros(())
    for name in reversed(network.above(query)):
        if name in known:
            continue
        variable = network.variables[network.index[name]]
        theta = parameters[network.index[name]]
        levels = drawn.parents(variable, batch, samples)
        count = len(variable.parents)
        middle = levels @ theta[:count] + theta[count]
        chance = _around(variable.states, theta, middle)
        if name not in worth:
            score = torch.log(chance.gather(-1, drawn.states[name][..., None])[..., 0])
            total = total + ((value - baseline) * score).sum() / samples
            continue
        total = total + (worth[name] * chance).sum() / samples
        if name == query:
            value = (worth[name] * chance).sum(-1).detach()
            baseline = (value.sum(1, keepdim=True) - value) / max(samples - 1, 1)
        for position, parent in enumerate(variable.parents):
            if paths[parent] > 1 or parent in known:
                continue
            with torch.no_grad():
                tried = torch.linspace(0.0, 1.0, network.variables[network.index[parent]].states, dtype=torch.float64)
                others = middle - theta[position] * levels[..., position]
                outcome = _around(variable.states, theta, others[..., None] + theta[position] * tried)
                worth[parent] = (outcome @ worth[name][..., None])[..., 0]
    return total


def probability(
    network: BeliefNetwork,
    parameters: Sequence[torch.Tensor],
    query: str,
    evidence: Mapping[str, torch.Tensor],
    samples: int,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Pr(query = each level | evidence), estimated and differentiable; one row for each row of evidence (states).

    Evidence must stand on roots (counters do): drawing forward is conditioning only there.
    """
    for name in evidence:
        if name not in network.index:
            raise ValueError(f"evidence on {name}, which the network does not have")
        if network.variables[network.index[name]].parents:
            raise ValueError(f"evidence on {name}, which has parents; only roots can be observed when sampling forward")
    if query in evidence:
        raise ValueError(f"{query} is asked for and given")
    estimate = _SampledByDepth if len(network.above(query)) >= _LARGE else _Sampled
    result: torch.Tensor = estimate.apply(network, query, dict(evidence), samples, generator, *parameters)  # type: ignore[no-untyped-call]
    return result
