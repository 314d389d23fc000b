"""From counters with errors to beliefs about utilisation, for all nodes at once.

Each counter's true value is Student-t around its sample mean; each view of a resource is a relation between counters
that holds within a tolerance. Relations that share counters or resources correct each other. The posterior
is found by iterated linearisation (Gauss-Newton) with Student-t reweighting, batched over nodes; with linear views
and Gaussian errors it is the exact one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr  # type: ignore[import-untyped,unused-ignore]

from advisor.contention.evaluate import Machine, Slopes, Values, linearise
from advisor.contention.expression import names
from advisor.contention.network import CAPACITIES, Network

Floats = NDArray[np.float64]

# Clocks are read without error; taking them as given also takes the network apart into small independent parts.
EXACT = ("duration_time", "msr@tsc@")

# A counter that was not measured may be anything: this many times its usual value, up or down.
_UNKNOWN = 10.0
_VIEW_FREEDOM = 4.0  # degrees of freedom of a view's error: capacities are sometimes simply wrong
_LEAST_ERROR = 1e-3  # relative; nothing is exact
_BATCH = 64
_FLOOR = 0.01  # utilisation below which a relative tolerance no longer shrinks


@dataclass(frozen=True)
class Measurements:
    """Counters of many nodes (rows) between two decisions; columns follow the network's events.

    NaN as a mean: not measured. `running` is the share of the time in which a multiplexed event had a counter.
    """

    mean: Floats
    sd: Floats  # sample standard deviation of the samples
    samples: Floats  # how many; 1 or fewer say nothing of the spread
    running: Floats


@dataclass(frozen=True)
class Beliefs:
    """Mean and standard deviation of each utilisation (nodes × resources), and of the corrected counters."""

    resources: tuple[str, ...]
    mean: Floats
    sd: Floats
    events: tuple[str, ...]
    counts: Floats
    counts_sd: Floats | None  # only with `correct_counters`


@dataclass(frozen=True)
class Error:
    """Location, scale and degrees of freedom of each counter's Student-t, relative to `unit`."""

    unit: Floats
    scale: Floats
    freedom: Floats
    known: NDArray[np.bool_]


def counter_error(measured: Measurements) -> Error:
    """v ~ mean + (sd/√(N·running))·Student(N−1); scaling up a multiplexed count widens it."""
    known = np.isfinite(measured.mean) & (measured.samples >= 1) & (measured.running > 0)
    mean = np.where(known, measured.mean, np.nan)
    usual = np.ones(mean.shape[1])
    for column in range(mean.shape[1]):
        seen = mean[known[:, column], column]
        if len(seen):
            usual[column] = max(float(np.median(np.abs(seen))), 1e-9)
    unit = np.where(known, np.maximum(np.abs(mean), 1e-6 * usual), usual)
    several = measured.samples >= 2
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = measured.sd / np.sqrt(np.maximum(measured.samples * measured.running, 1e-9))
    # One sample has no spread of its own: half its value is a fair guess of nothing.
    scale = np.where(several, spread / unit, 0.5)
    scale = np.where(known, np.maximum(np.nan_to_num(scale, nan=0.5), _LEAST_ERROR), _UNKNOWN)
    freedom = np.where(known & several, np.maximum(measured.samples - 1, 1.0), 1e6)
    return Error(unit, scale, freedom, known)


class _Part:
    """Resources that share counters with each other and with no other resource: inferred by themselves."""

    def __init__(self, network: Network, resources: list[int]) -> None:
        self.network = network
        self.resources = resources
        self.views = [(i, view) for i, index in enumerate(resources) for view in network.resources[index].views]
        used = set(network.relations.ancestors(n for _, view in self.views for n in names(view.tree)))
        used |= {n for _, view in self.views for n in names(view.tree)}
        self.metrics = [metric for metric in network.metrics if metric in used]
        self.exact = [event for event in EXACT if event in used]
        self.events = [event for event in network.events if event in used and event not in EXACT]

    def infer(
        self, measured: Measurements, error: Error, machine: Machine, iterations: int, counters: bool
    ) -> tuple[Floats, Floats, Floats | None]:
        """Posterior of (relative counters, utilisations); spread of utilisations; of counters where wanted."""
        position = {event: index for index, event in enumerate(self.network.events)}
        columns = [position[event] for event in self.events]
        unit, scale, freedom = (table[:, columns] for table in (error.unit, error.scale, error.freedom))
        known = error.known[:, columns]
        fixed = {event: measured.mean[:, position[event]] for event in self.exact}
        nodes, width = unit.shape
        resources = [self.network.resources[index] for index in self.resources]
        first = np.where(known, np.nan_to_num(measured.mean[:, columns]) / unit, 1.0)
        prior = np.concatenate([first, np.tile([r.prior_mean for r in resources], (nodes, 1))], axis=1)
        # A Student-t enters as a normal of its scale whose weight is renewed in each round.
        base = np.concatenate([scale**2, np.tile([r.prior_sd**2 for r in resources], (nodes, 1))], axis=1)
        variance, state, left = base, prior, base
        loosened = np.ones((nodes, len(self.views)))
        # A counter that no node has measured has no usual value either: views that need it show nothing.
        nowhere = np.concatenate([~known.any(axis=0), np.zeros(len(resources), dtype=bool)])
        for turn in range(iterations if self.views else 0):
            value, slopes, tolerance = self._look(np.where(nowhere, np.nan, state), unit, fixed, machine)
            usable = np.isfinite(value)
            if not usable.all():
                slopes[~usable] = 0.0
            # Residual of view − utilisation = 0, linear around the present state, from the prior.
            moved = np.einsum("nve,ne->nv", slopes, prior - state) if turn else 0.0
            residual = np.where(usable, -value - moved, 0.0)
            noise = np.where(usable, tolerance**2 * loosened, 1.0)
            last = turn + 1 == iterations
            # Spreads are needed once, at the end; of counters only where someone asks for them.
            needed = slice(0 if last and counters else width, None if last else width)
            state, left = condition(prior, variance, slopes, residual, noise, needed)
            if not last:
                off = (state[:, :width] - first) / scale
                weight = (freedom + 1) / (freedom + off**2)
                variance = np.concatenate([base[:, :width] / weight, base[:, width:]], axis=1)
                shift = np.einsum("nve,ne->nv", slopes, state - prior) - residual
                loosened = (_VIEW_FREEDOM + shift**2 / tolerance**2) / (_VIEW_FREEDOM + 1)
        spread = np.sqrt(np.maximum(left, 1e-12))
        return state, spread[:, -len(resources) :], spread[:, :width] if counters else None

    def _look(
        self, state: Floats, unit: Floats, fixed: Mapping[str, Floats], machine: Machine
    ) -> tuple[Floats, Floats, Floats]:
        """Each view's value − utilisation, its slopes by the state, and its tolerance."""
        nodes, width = unit.shape
        counts = np.maximum(state[:, :width], 1e-6) * unit
        column = {event: index for index, event in enumerate(self.events)}
        values: dict[str, Values | float] = {event: counts[:, index] for event, index in column.items()}
        values.update(fixed)
        inner: dict[str, Slopes] = {event: {} for event in fixed}
        for metric in self.metrics:
            tree = self.network.relations.metrics[metric].tree
            values[metric], inner[metric] = linearise(tree, values, machine, inner)
        value = np.zeros((nodes, len(self.views)))
        # Written a column at a time, so nodes are innermost here and outermost for those who read it.
        written = np.zeros((len(self.views), state.shape[1], nodes))
        tolerance = np.zeros((nodes, len(self.views)))
        for row, (resource, view) in enumerate(self.views):
            seen, by = linearise(view.tree, values, machine, inner)
            value[:, row] = seen - state[:, width + resource]
            tolerance[:, row] = view.tolerance * np.maximum(np.abs(np.nan_to_num(seen)), _FLOOR)
            for event, slope in by.items():
                written[row, column[event]] = slope * unit[:, column[event]]
                value[:, row] += 0.0 * written[row, column[event]]  # a slope that is no number spoils the view
            written[row, width + resource] = -1.0
        return value, written.transpose(2, 0, 1), tolerance


@dataclass
class Inference:
    """Computes beliefs for nodes that share one network and one kind of machine."""

    network: Network
    machine: Machine = field(default_factory=Machine)
    iterations: int = 2
    correct_counters: bool = False  # also work out the spread of each corrected counter

    def __post_init__(self) -> None:
        constants = {**CAPACITIES, **self.machine.constants}
        self.machine = Machine(constants, self.machine.sources, self.machine.events, self.machine.cpuid)
        self.parts = [_Part(self.network, resources) for resources in _apart(self.network)]

    def __call__(self, measured: Measurements) -> Beliefs:
        """Beliefs for each node; `measured` has one column for each of the network's events."""
        nodes, width = measured.mean.shape
        if width != len(self.network.events):
            raise ValueError(f"{width} columns of measurements for {len(self.network.events)} events")
        error = counter_error(measured)
        counts = np.where(error.known, measured.mean, np.nan)
        counts_sd = np.where(error.known, error.scale * error.unit, np.inf)
        use, use_sd = np.zeros((2, nodes, len(self.network.resources)))
        for part in self.parts:
            state, spread, counter_spread = part.infer(
                measured, error, self.machine, self.iterations, self.correct_counters
            )
            columns = [self.network.events.index(event) for event in part.events]
            counts[:, columns] = state[:, : len(columns)] * error.unit[:, columns]
            if counter_spread is not None:
                counts_sd[:, columns] = counter_spread * error.unit[:, columns]
            use[:, part.resources] = state[:, len(columns) :]
            use_sd[:, part.resources] = spread
        mean, sd = truncated(use, use_sd)
        return Beliefs(
            tuple(resource.name for resource in self.network.resources),
            mean,
            sd,
            self.network.events,
            counts,
            counts_sd if self.correct_counters else None,
        )


def _apart(network: Network) -> list[list[int]]:
    """The resources in sets that no uncertain counter connects; beliefs of different sets are independent."""
    sets: list[tuple[set[str], list[int]]] = []
    for index, resource in enumerate(network.resources):
        wanted = [name for view in resource.views for name in names(view.tree)]
        events = {name for name in (*network.relations.ancestors(wanted), *wanted) if name not in EXACT}
        members = [index]
        for touching in [s for s in sets if s[0] & events]:
            sets.remove(touching)
            events |= touching[0]
            members += touching[1]
        sets.append((events, sorted(members)))
    return [members for _, members in sets]


def condition(
    mean: Floats,
    variance: Floats,
    slopes: Floats,
    residual: Floats,
    noise: Floats,
    columns: slice | None = None,
) -> tuple[Floats, Floats]:
    """Posterior mean and marginal variance of independent normals, given slopes·(x − mean) = residual ± √noise.

    Variances are worked out for `columns` only (all of them unless told): each costs one more right-hand side.
    """
    chosen = columns or slice(None)
    updated, left = np.empty_like(mean), variance[:, chosen].copy()
    views = np.arange(slopes.shape[1])
    # A few nodes at a time, so that a batch stays in the processor's cache.
    for start in range(0, len(mean), _BATCH):
        rows = slice(start, start + _BATCH)
        local = np.ascontiguousarray(slopes[rows])
        spread = local * variance[rows, None, :]
        inner = spread @ local.transpose(0, 2, 1)
        inner[:, views, views] += noise[rows]
        wanted = spread[:, :, chosen]
        solved = np.linalg.solve(inner, np.concatenate([residual[rows, :, None], wanted], axis=2))
        updated[rows] = mean[rows] + (solved[:, None, :, 0] @ spread)[:, 0]
        left[rows] -= (solved[:, :, 1:] * wanted).sum(axis=1)
    return updated, left


def truncated(mean: Floats, sd: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of a normal that is known to lie in [0, 1]."""
    low, high = (0.0 - mean) / sd, (1.0 - mean) / sd
    mass = np.maximum(ndtr(high) - ndtr(low), 1e-12)
    dense_low, dense_high = (np.exp(-0.5 * edge**2) / np.sqrt(2 * np.pi) for edge in (low, high))
    shift = (dense_low - dense_high) / mass
    inside = mean + sd * shift
    ratio = 1 + (low * dense_low - high * dense_high) / mass - shift**2
    # Far outside the interval the formulas lose their digits; there the belief sits at the edge.
    far = (mean < -4 * sd) | (mean > 1 + 4 * sd)
    inside = np.where(far, np.clip(mean, 0.0, 1.0), np.clip(inside, 0.0, 1.0))
    return inside, np.where(far, sd * 0.25, sd * np.sqrt(np.clip(ratio, 1e-4, 1.0)))


def from_mapping(network: Network, node: Mapping[str, tuple[float, float, float, float]]) -> Measurements:
    """One node's measurements from event → (mean, sd, samples, running); events it lacks are unmeasured."""
    rows = [node.get(event, (np.nan, 0.0, 0.0, 0.0)) for event in network.events]
    table = np.asarray(rows, dtype=np.float64).reshape(len(rows), 4)
    return Measurements(*(table[None, :, column] for column in range(4)))
