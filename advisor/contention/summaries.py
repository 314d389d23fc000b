"""From what agents measured of jobs to what each job uses of its node's resources, with how sure that is.

An agent's summary has rates per second by metric (docs/telemetry.md). Here they become counts of a network: the
software one, which every node has, or that of the vendor's relations where a site counts the vendor's events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from advisor.contention.beliefs import Inference, Measurements
from advisor.contention.evaluate import Machine
from advisor.contention.expression import names
from advisor.contention.network import CAPACITIES, Network, build
from advisor.contention.vendor import Relations, read

Floats = NDArray[np.float64]

# Count of the network ← metrics of the agent, which add up.
SOURCES: Mapping[str, tuple[str, ...]] = {
    "cgroup@cpu_seconds@": ("cpu.user", "cpu.system"),
    "cgroup@memory_bytes@": ("memory",),
    "cgroup@io_bytes@": ("io.read", "io.write"),
    "nvml@sm_percent@": ("gpu.busy",),
}


@dataclass(frozen=True)
class Rate:
    """Summary of one metric, as in the log: samples, mean, sum of squared deviations, seconds enabled and running."""

    n: int
    mean: float
    m2: float = 0.0
    enabled_s: float | None = None
    running_s: float | None = None


@dataclass(frozen=True)
class NodeClass:
    """What nodes must have in common for one network and one set of capacities to hold for them."""

    cpus: int
    memory_bytes: float
    gpus: int = 0
    cpu: str = ""  # whose vendor relations hold; empty: only what software and generic events tell
    capacities: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Use:
    """Share of each resource of the node, in the order of `resources`; NaN: nothing that was measured tells."""

    resources: tuple[str, ...]
    mean: Floats  # jobs × resources
    sd: Floats


@lru_cache(maxsize=16)
def network_of(cpu: str) -> Network:
    """The network of a CPU's vendor relations, or the one without; raises `PerfError`."""
    return build(read(cpu) if cpu else Relations("any", {}))


def uses(kind: NodeClass, jobs: Sequence[Mapping[str, Rate]]) -> Use:
    """What each of these jobs uses of a node of this kind."""
    network = network_of(kind.cpu)
    constants = {
        **Machine().constants,
        **CAPACITIES,
        "num_cpus": float(max(kind.cpus, 1)),
        "num_cpus_online": float(max(kind.cpus, 1)),
        "memory_bytes": max(kind.memory_bytes, 1.0),
        **dict(kind.capacities),
    }
    machine = Machine(constants, cpuid=kind.cpu)
    by_name = {event.lower(): event for event in network.events}
    position = {event: index for index, event in enumerate(network.events)}
    table = np.zeros((len(jobs), len(network.events), 4))
    table[:, :, 0] = np.nan
    for row, metrics in enumerate(jobs):
        for event, figures in _counts(metrics, kind, by_name).items():
            if event in position:
                table[row, position[event]] = figures
    measured = Measurements(*(np.ascontiguousarray(table[:, :, column]) for column in range(4)))
    belief = Inference(network, machine)(measured)
    mean, sd = belief.mean.copy(), belief.sd.copy()
    seen = np.isfinite(table[:, :, 0])
    for column, resource in enumerate(network.resources):
        told = np.zeros(len(jobs), dtype=bool)
        for view in resource.views:
            leaves = [name for name in network.relations.ancestors(names(view.tree)) if name in position]
            leaves += [name for name in names(view.tree) if name in position and name not in leaves]
            told |= seen[:, [position[name] for name in leaves]].all(axis=1)
        mean[~told, column], sd[~told, column] = np.nan, np.nan
    return Use(belief.resources, mean, sd)


def _counts(
    metrics: Mapping[str, Rate], kind: NodeClass, by_name: Mapping[str, str]
) -> dict[str, tuple[float, float, float, float]]:
    """Event → (mean, sd, samples, share of the time running), for one second."""
    found = {"duration_time": (1.0, 0.0, 100.0, 1.0)}
    for event, parts in SOURCES.items():
        rates = [metrics[part] for part in parts if part in metrics]
        if len(rates) == len(parts):
            scale = 100.0 / max(kind.gpus, 1) if event.startswith("nvml@") else 1.0
            found[event] = _figures(rates, scale)
    for metric, rate in metrics.items():
        if metric.startswith("perf."):
            name = metric.removeprefix("perf.")
            found[by_name.get(name.lower(), f"perf@{name}@")] = _figures([rate], 1.0)
    return found


def _figures(rates: Sequence[Rate], scale: float) -> tuple[float, float, float, float]:
    variance = sum(rate.m2 / max(rate.n - 1, 1) for rate in rates)
    samples = min(rate.n for rate in rates)
    first = rates[0]
    running = first.running_s / first.enabled_s if first.enabled_s and first.running_s is not None else 1.0
    mean = scale * sum(rate.mean for rate in rates)
    return mean, scale * float(np.sqrt(variance)), float(samples), min(max(running, 1e-3), 1.0)
