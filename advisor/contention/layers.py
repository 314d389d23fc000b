"""The sampled gradient of large networks: variables of one depth are drawn, and differentiated, all at once.

The same estimate as `advisor.contention.gradient` makes variable by variable. There a network of 68 variables costs a
thousand small steps, most of whose time is their overhead; here it costs some forty for each depth, and derivatives are
written out instead of recorded. An ordinal distribution with logits t·(m·k − k²/2), level k, middle m, steepness
t = exp(−2·log width), has for any worth u of its levels

    ∂E[u]/∂m = t·Cov(u, k),        ∂E[u]/∂log width = −2·Cov(u, logit),

and the score of a drawn level the same with "drawn less mean" in place of the covariance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from advisor.contention.gradient import BeliefNetwork


@dataclass(frozen=True)
class _Layer:
    """Variables of one depth above a query, parents in lower depths only."""

    members: torch.Tensor  # columns among all that is above the query
    levels: torch.Tensor  # (members, states) evenly spaced; a member with fewer states than most repeats its last
    missing: torch.Tensor  # (members, states) 0, or −inf where a member has no such state
    parents: torch.Tensor  # columns that some member depends on
    scored: torch.Tensor  # members with several paths to the query
    valued: torch.Tensor  # members with one path (and the query itself)
    # Parents whose only path to the query goes through a member: which member, the parent's column, and its levels.
    through: torch.Tensor
    above: torch.Tensor
    tried: torch.Tensor


@dataclass(frozen=True)
class _Plan:
    """Everything above a query, by depth; the query is alone in the last."""

    names: tuple[str, ...]
    layers: tuple[_Layer, ...]
    states: int  # the most that a variable has
    # Where the parameters of all of the network's variables, one after the other, stand in the two matrices.
    edges: tuple[torch.Tensor, torch.Tensor]  # (variable, parent) of each weight
    weight_at: torch.Tensor
    members: torch.Tensor  # the variables that have parameters here
    rest_at: torch.Tensor  # of each, of its bias and log width


_FLOOR = -1e300


def _levels(states: int, most: int) -> torch.Tensor:
    """Evenly spaced from 0 to 1; the last one repeated up to the most that any variable has."""
    return torch.linspace(0.0, 1.0, states, dtype=torch.float64)[torch.arange(most).clamp(max=states - 1)]


def _whole(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.long)


@lru_cache(64)
def _plan(network: BeliefNetwork, query: str, known: frozenset[str]) -> _Plan:
    """How to go through a network; evidence is drawn as given and has no gradient."""
    names = network.above(query)
    column = {name: at for at, name in enumerate(names)}
    variables = [network.variables[network.index[name]] for name in names]
    most = max(variable.states for variable in variables)
    depth: dict[str, int] = {}
    for variable in variables:
        depth[variable.name] = max((depth[parent] + 1 for parent in variable.parents), default=0)
    paths = network.paths(query)
    layers = []
    for level in range(depth[query] + 1):
        inside = [v for v in variables if depth[v.name] == level and v.name not in known]
        if not inside:
            continue
        up = [
            (row, parent)
            for row, v in enumerate(inside)
            if paths[v.name] == 1
            for parent in v.parents
            if paths[parent] == 1 and parent not in known
        ]
        layers.append(
            _Layer(
                members=torch.tensor([column[v.name] for v in inside]),
                levels=torch.stack([_levels(v.states, most) for v in inside]),
                missing=torch.stack(
                    [torch.where(torch.arange(most) < v.states, 0.0, -torch.inf).double() for v in inside]
                ),
                parents=_whole(sorted({column[p] for v in inside for p in v.parents})),
                scored=_whole([row for row, v in enumerate(inside) if paths[v.name] > 1]),
                valued=_whole([row for row, v in enumerate(inside) if paths[v.name] == 1]),
                through=_whole([row for row, _ in up]),
                above=_whole([column[parent] for _, parent in up]),
                tried=torch.stack(
                    [_levels(network.variables[network.index[parent]].states, most) for _, parent in up]
                    or [torch.zeros(most, dtype=torch.float64)]
                ),
            )
        )
    users: list[int] = []
    used: list[int] = []
    weight_at: list[int] = []
    members: list[int] = []
    rest_at: list[tuple[int, int]] = []
    start = 0
    for variable in network.variables:
        count = len(variable.parents)
        if variable.name in column and variable.name not in known:
            users += [column[variable.name]] * count
            used += [column[parent] for parent in variable.parents]
            weight_at += range(start, start + count)
            members.append(column[variable.name])
            rest_at.append((start + count, start + count + 1))
        start += count + 2
    edges = _whole(users), _whole(used)
    return _Plan(names, tuple(layers), most, edges, _whole(weight_at), _whole(members), torch.tensor(rest_at))


class Drawn:
    """Forward samples of all above a query, and what the gradient needs of them.

    Samples of all rows of evidence stand side by side in the last axis, variables in the first: every step then runs
    along memory.
    """

    def __init__(
        self,
        network: BeliefNetwork,
        parameters: Sequence[torch.Tensor],
        query: str,
        evidence: Mapping[str, torch.Tensor],
        samples: int,
        generator: torch.Generator | None,
    ) -> None:
        self.plan = _plan(network, query, frozenset(evidence))
        self.samples = samples
        self.batch = len(next(iter(evidence.values()))) if evidence else 1
        count, drawn = len(self.plan.names), self.batch * samples
        flat = torch.cat([p.detach() for p in parameters])
        self.weights = torch.zeros((count, count), dtype=torch.float64)
        self.weights[self.plan.edges] = flat[self.plan.weight_at]
        self.rest = torch.zeros((count, 2), dtype=torch.float64)  # bias, log width
        self.rest[self.plan.members] = flat[self.plan.rest_at]
        self.level = torch.zeros((count, drawn), dtype=torch.float64)
        for name, states in evidence.items():
            if name in self.plan.names:
                most = network.variables[network.index[name]].states - 1
                self.level[self.plan.names.index(name)] = (states.double() / most).repeat_interleave(samples)
        self.chances: list[torch.Tensor] = []  # of each layer, (members, states, samples)
        self.logits: list[torch.Tensor] = []
        self.states: list[torch.Tensor] = []  # (members, samples)
        for layer in self.plan.layers:
            logit, chance = self._around(layer)
            self.logits.append(logit)
            self.chances.append(chance)
            if layer is self.plan.layers[-1]:
                break
            uniform = torch.rand((len(layer.members), drawn), generator=generator, dtype=torch.float64)
            state = torch.zeros(uniform.shape, dtype=torch.long)
            for reached in chance[:, :-1].cumsum(1).unbind(1):
                state += uniform > reached
            self.states.append(state)
            self.level[layer.members] = layer.levels.gather(1, state)

    def _around(self, layer: _Layer) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and chances of every level; one sample stands for all where nobody has parents."""
        bias, width = self.rest[layer.members].T[:, :, None]
        middle = bias
        if len(layer.parents):
            used = self.weights[layer.members][:, layer.parents]
            middle = torch.addmm(bias, used, self.level[layer.parents])
        own = layer.levels[:, :, None]
        steep = torch.exp(-2 * width)[:, None]
        logit = (steep * own) * middle[:, None] - (steep * 0.5 * own**2 - layer.missing[:, :, None])
        return logit, torch.softmax(logit, dim=1)

    def probability(self) -> torch.Tensor:
        """Of the query's levels, (rows of evidence, states)."""
        found = self.chances[-1][0].expand(-1, self.batch * self.samples)
        return found.reshape(len(found), self.batch, self.samples).mean(-1).T

    def gradient(self, outer: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, ...]:
        """Of the sum of `outer` × Pr(query), by each variable's parameters, which are so many."""
        count, drawn = self.level.shape
        by_weights = torch.zeros((count, count), dtype=torch.float64)
        by_rest = torch.zeros((count, 2), dtype=torch.float64)
        worth = torch.zeros((count, self.plan.states, drawn), dtype=torch.float64)
        last = int(self.plan.layers[-1].members[0])
        worth[last, : outer.shape[-1]] = outer.T.repeat_interleave(self.samples, 1)
        value = (worth[last] * self.chances[-1][0]).sum(0).reshape(self.batch, self.samples)
        others = (value.sum(1, keepdim=True) - value) / max(self.samples - 1, 1)
        ahead = (value - others).flatten()
        for at in reversed(range(len(self.plan.layers))):
            layer, chance = self.plan.layers[at], self.chances[at]
            logit = self.logits[at].clamp(min=_FLOOR)  # 0 × −inf is no number
            rootlike = not len(layer.parents)  # one chance for all samples: only sums over them matter
            slope = torch.zeros((len(layer.members), 1 if rootlike else drawn), dtype=torch.float64)
            by_width = torch.zeros(len(layer.members), dtype=torch.float64)
            own = layer.levels[:, :, None]
            if len(rows := layer.valued):
                likely, deserved = chance[rows], worth[layer.members[rows]]
                if rootlike:
                    deserved = deserved.sum(2, keepdim=True)
                part = likely * (deserved - (likely * deserved).sum(1, keepdim=True))
                slope[rows] = (part * own[rows]).sum(1)
                by_width[rows] = -2 * (part * logit[rows]).sum((1, 2))
            if len(rows := layer.scored):
                likely, shown = chance[rows], logit[rows]
                apart = self.level[layer.members[rows]] - (likely * own[rows]).sum(1)
                slope[rows] = (apart @ ahead)[:, None] if rootlike else apart * ahead
                drawn_logit = shown.expand(-1, -1, drawn).gather(1, self.states[at][rows, None])[:, 0]
                by_width[rows] = -2 * ((drawn_logit - (likely * shown).sum(1)) @ ahead)
            slope *= torch.exp(-2 * self.rest[layer.members, 1])[:, None]
            by_rest[layer.members, 0] = slope.sum(1)
            by_rest[layer.members, 1] = by_width
            if len(layer.parents):
                by_weights[layer.members[:, None], layer.parents] = slope @ self.level[layer.parents].T
            if len(layer.through):
                self._hand_up(layer, self.logits[at], worth)
        flat = torch.zeros(sum(sizes), dtype=torch.float64)
        flat[self.plan.weight_at] = by_weights[self.plan.edges]
        flat[self.plan.rest_at] = by_rest[self.plan.members]
        return torch.split_with_sizes(flat / self.samples, sizes)

    def _hand_up(self, layer: _Layer, logit: torch.Tensor, worth: torch.Tensor) -> None:
        """What each value of a parent would be worth, by sample, the member's other parents as they were drawn."""
        rows, above = layer.through, layer.above
        members = layer.members[rows]
        steep = torch.exp(-2 * self.rest[members, 1])
        pull = (self.weights[members, above] * steep)[:, None]
        own = layer.levels[rows][:, :, None]
        # Of the logits only the middle changes: by weight × (tried level − drawn level).
        without = logit[rows] - own * (pull * self.level[above])[:, None]
        deserved = worth[members]
        found = torch.empty((len(rows), worth.shape[1], worth.shape[2]), dtype=torch.float64)
        for at, tried in enumerate(layer.tried.T[:, :, None]):
            chance = torch.softmax(without + own * (pull * tried)[:, None], dim=1)
            found[:, at] = (chance * deserved).sum(1)
        worth[above] = found
