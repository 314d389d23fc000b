"""Tasks to learn from: a cluster, a workload, and what a policy may know of both, all drawn at random.

A task has its own processors (peak figures near those of real ones, so that names never matter), partitions of one or
of several kinds, apps with dataflow graphs from which their true run times follow, apps that nobody has seen before,
jobs that wait for others, and nodes whose contention shows only in noisy counters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from advisor.performance.processors import load
from advisor.policy.learned.graphs import (
    CORE_FLOPS,
    EFFICIENCY,
    MEMORY_EFFICIENCY,
    MIDDLING_BYTES,
    MIDDLING_FLOPS,
    NO_GRAPH,
    PASSES,
    Graph,
    graph_from,
    processor_features,
)
from advisor.policy.learned.shapes import COUNTERS, LEVELS, Floats, Ints
from advisor.sim.cluster import Place, SimCluster, SimNode
from advisor.sim.workload import SimJob, Workload

# Processors whose figures (with jitter) tasks of training are drawn from; the others are for evaluation.
HELD_OUT = frozenset({"p40", "rtx4090", "a40", "a30", "h200", "mi210", "l4"})


class Mixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where tasks are drawn from; ranges are uniform."""

    jobs: int = 320
    types: tuple[int, int] = (2, 5)  # kinds of processor
    nodes: tuple[int, int] = (2, 8)  # of each kind
    gpus: tuple[int, ...] = (1, 1, 2, 4)  # on a node
    apps: tuple[int, int] = (4, 12)
    load: tuple[float, float] = (0.4, 1.05)  # of what the cluster can carry at best
    mixed: float = 0.4  # share of tasks with partitions of several kinds, and kinds in several partitions
    contended: float = 0.5  # share of tasks with contention
    oracle: float = 0.3  # share of tasks whose run times are known
    new_apps: float = 0.25  # share of apps without history, where run times are not known
    annotated: float = 0.6  # share of apps whose users tell their dataflow graph
    workflows: float = 0.2  # share of tasks in which some jobs wait for others
    wide: float = 0.2  # share of jobs that want more than one GPU, where nodes have more
    held_out: bool = False  # processors never met in training
    taste: float = 0.15  # how far an app is from what its graph says of each kind, as a spread of logarithms
    told_off: float = 0.0  # how far an app's annotation or limit is off everywhere, beside what tasks always have
    generations: float = 1.0  # least ratio of the fastest kind's speed to the slowest's, by peak figures


class Task(msgspec.Struct, frozen=True):
    """One cluster, its workload, and what is known: rows are jobs, columns places."""

    cluster: SimCluster
    workload: Workload
    figures: Floats  # [place, 3]
    expected: Floats  # the arithmetic's run time, slowdown included
    spread: Floats
    slow: Floats  # the slowdown in `expected`
    counters: Ints  # [job, place, counter] levels
    sensitivity: Floats  # [job] as far as it is told
    after: Floats  # [job]
    new: Floats  # [job]
    app: Ints  # [job] index of its graph
    graphs: tuple[Graph, ...]
    load: float
    pressure: Floats  # [job, place] the truth behind the counters
    told: Floats  # [job, place] run time by the annotation or the limit alone, without slowdown
    mean: Floats  # [job, place] the true median run time of its app on input of its size, without slowdown


class _Site(msgspec.Struct, frozen=True):
    """The part of a task that stays when its workload shifts."""

    tflops: Floats
    bandwidth: Floats
    memory: Floats
    nodes: tuple[int, ...]
    gpus: tuple[int, ...]
    contended: bool
    known: bool
    mixed: bool


class _App(msgspec.Struct, frozen=True):
    graph: Graph
    seconds: Floats  # [type] mean run time
    guess: Floats  # [type] what its annotation tells
    sensitivity: float
    bias: Floats  # [type] error of what history says, of the logarithm
    spread: float  # of the logarithm of one run against the next
    new: bool
    weight: float


def draw_task(
    seed: int, mixture: Mixture | None = None, episode: int = 0, shift: bool = False, shift_at: int | None = None
) -> Task:
    """The task of this seed; the same seed, mixture and episode give the same task.

    Another `episode` is another workload of the same site: its cluster and its apps stay. With `shift`, the mix of apps
    changes abruptly with job `shift_at`, half-way where none is named: other apps come, the first ones leave.
    """
    mixture = mixture or Mixture()
    draw = np.random.default_rng([seed, 77 if mixture.held_out else 0])
    site = _draw_site(draw, mixture)
    count = int(draw.integers(mixture.apps[0], mixture.apps[1] + 1))
    load = float(draw.uniform(*mixture.load))
    turns = [[_draw_app(draw, site, mixture) for _ in range(count)] for _ in range(2 if shift else 1)]
    chance = np.random.default_rng([seed, 78 if mixture.held_out else 1, episode])
    return _fill(chance, site, turns, mixture, load, (mixture.jobs + 1) // 2 if shift_at is None else shift_at)


def _draw_site(draw: np.random.Generator, mixture: Mixture) -> _Site:
    table = [
        (p.tflops, p.memory_gbs, p.memory_gb)
        for name, p in load().items()
        if name != "cpu" and (name in HELD_OUT) == mixture.held_out
    ]
    kinds = int(draw.integers(mixture.types[0], mixture.types[1] + 1))
    while True:
        picked = draw.choice(len(table), size=kinds, replace=False)
        speeds = [math.sqrt(table[i][0] * table[i][1]) for i in picked]
        if max(speeds) >= mixture.generations * min(speeds):
            break
    jitter = np.exp(draw.normal(0.0, 0.1, size=(kinds, 3)))
    figures = np.asarray([table[i] for i in picked]) * jitter
    return _Site(
        tflops=figures[:, 0],
        bandwidth=figures[:, 1],
        memory=figures[:, 2],
        nodes=tuple(int(n) for n in draw.integers(mixture.nodes[0], mixture.nodes[1] + 1, size=kinds)),
        gpus=tuple(int(g) for g in draw.choice(mixture.gpus, size=kinds)),
        contended=bool(draw.random() < mixture.contended),
        known=bool(draw.random() < mixture.oracle),
        mixed=bool(draw.random() < mixture.mixed),
    )


def _draw_app(draw: np.random.Generator, site: _Site, mixture: Mixture) -> _App:
    kernels = int(draw.integers(1, 5))
    # Seconds on a middling GPU (10 TFLOP/s, 500 GB/s), by arithmetic and by memory traffic.
    total = math.exp(draw.normal(7.5, 0.9))
    parts = draw.dirichlet(np.full(kernels, 1.5)) * total
    lean = draw.normal(0.0, 1.2) + draw.normal(0.0, 0.5, size=kernels)
    compute = parts / np.maximum(1.0, np.exp(lean))
    traffic = parts / np.maximum(1.0, np.exp(-lean))
    work = compute * MIDDLING_FLOPS
    resident = traffic * MIDDLING_BYTES / PASSES
    # A part that only the CPU can do takes the same time beside every GPU.
    on_cpu = draw.random(kernels) < 0.15
    work = np.where(on_cpu, 0.5 * parts * CORE_FLOPS, work)
    seconds, told = np.zeros((2, len(site.tflops)))
    for k in range(kernels):
        if on_cpu[k]:
            seconds += 0.5 * parts[k]
            told += 0.5 * parts[k]
            continue
        by_work = work[k] / (site.tflops * 1e12 * EFFICIENCY)
        by_memory = resident[k] * PASSES / (site.bandwidth * 1e9 * MEMORY_EFFICIENCY)
        # Neither hides the other wholly.
        seconds += (by_work**4 + by_memory**4) ** 0.25
        told += by_work
    seconds = seconds * np.exp(draw.normal(0.0, mixture.taste, size=len(seconds)))  # each app has its own
    chain = np.arange(kernels - 1, dtype=np.int64)
    graph = graph_from(
        work, resident, on_cpu.astype(np.float64), chain, chain + 1, draw.random(kernels - 1) * resident[:-1]
    )
    sensitivity = graph.sensitivity
    if draw.random() >= mixture.annotated:
        # Nothing is told: the arithmetic goes by the time limit, a little less on what should be faster.
        graph = NO_GRAPH
        peak = np.sqrt(site.tflops * site.bandwidth)
        told = 3.0 * seconds.max() * (0.8 + 0.2 * np.sqrt(peak.min() / peak))
    if mixture.told_off:
        told = told * math.exp(mixture.told_off * draw.normal())
    return _App(
        graph=graph,
        seconds=seconds,
        guess=np.maximum(told, 1.0),
        sensitivity=sensitivity,
        bias=np.zeros(len(seconds)) if site.known else draw.normal(0.0, 0.1, size=len(seconds)),
        spread=0.0 if site.known else float(draw.uniform(0.1, 0.6)),
        new=bool(not site.known and draw.random() < mixture.new_apps),
        weight=float(draw.gamma(1.0)),
    )


def true_slowdown(pressure: npt.NDArray[np.float64], sensitivity: Floats) -> Floats:
    """How much longer a job takes under this pressure: nothing up to a knee, then in proportion."""
    return np.asarray(1.0 + 2.5 * sensitivity * np.maximum(pressure - 0.3, 0.0))


def prior_slowdown(seen: Floats, sensitivity: Floats) -> Floats:
    """What the arithmetic takes the slowdown to be, from the plain mean of the counters: as `PRIOR` of the pressure
    model has it for memory bandwidth (knee 0.6, cost 1.5), softened."""
    felt = sensitivity / (sensitivity + 0.1)
    return np.asarray(1.0 + 1.5 * felt * 0.08 * np.log1p(np.exp((seen + 0.3 * sensitivity - 0.6) / 0.08)))


def _cluster(site: _Site) -> SimCluster:
    """A partition for each kind of processor, or one partition over two kinds, and some kinds in two partitions."""
    nodes: list[SimNode] = []
    places: list[Place] = []
    for kind, (count, gpus) in enumerate(zip(site.nodes, site.gpus, strict=True)):
        first = len(nodes)
        nodes += [SimNode(f"n{kind}-{i}", 64, 1 << 20, gpus, f"t{kind}") for i in range(count)]
        partition = f"t{kind}" if not site.mixed or kind > 1 else "mixed"
        members = tuple(range(first, len(nodes)))
        if site.mixed and kind == len(site.nodes) - 1 and count >= 4:
            places.append(Place(f"{partition}-short", f"t{kind}", members[: count // 2]))
            members = members[count // 2 :]
        places.append(Place(partition, f"t{kind}", members))
    return SimCluster("drawn", tuple(nodes), tuple(places), places[0].partition)


def _fill(
    draw: np.random.Generator,
    site: _Site,
    turns: Sequence[Sequence[_App]],
    mixture: Mixture,
    load: float,
    turn_at: int,
) -> Task:
    """Jobs, their truth, and what is known of them."""
    cluster = _cluster(site)
    kind_of = np.asarray([int(place.processor[1:]) for place in cluster.places])
    n, kinds = mixture.jobs, len(site.tflops)
    apps = [app for turn in turns for app in turn]
    app = np.empty(n, dtype=np.int64)
    first = 0
    parts = np.split(np.arange(n), [turn_at]) if len(turns) > 1 else [np.arange(n)]
    for part, turn in zip(parts, turns, strict=True):
        weights = np.asarray([a.weight for a in turn]) + 0.05
        app[part] = first + draw.choice(len(turn), size=len(part), p=weights / weights.sum())
        first += len(turn)
    size = np.exp(draw.normal(0.0, 0.5, size=n))  # of the job's input, known to everybody
    most = max(site.gpus)
    asked = np.ones(n, dtype=np.int64)
    if most > 1:
        asked = np.where(draw.random(n) < mixture.wide, draw.integers(2, most + 1, size=n), 1)
    mean = np.asarray([apps[a].seconds for a in app]) * size[:, None]
    luck = np.exp(np.asarray([apps[a].spread for a in app]) * draw.normal(0.0, 1.0, size=n))
    alone = np.maximum(mean * luck[:, None], 10.0)
    sensitivity = np.asarray([apps[a].sensitivity for a in app])
    believed = np.asarray([apps[a].graph.sensitivity for a in app])
    rate = _capacity(mean, asked, app, np.asarray(site.nodes) * np.asarray(site.gpus), np.asarray(site.gpus))
    submit = _arrivals(draw, n, rate * load)
    pressure = (
        _pressure(draw, submit, kinds, float(mean.min(axis=1).mean())) if site.contended else np.zeros((n, kinds))
    )
    seen = _counters(draw, pressure) if site.contended else np.zeros((n, kinds, COUNTERS))
    true = alone * true_slowdown(pressure, sensitivity[:, None])
    held = asked[:, None] <= np.asarray(site.gpus)[None, :]
    after, depends = _followers(draw, n, submit, mean, mixture)
    jobs = tuple(
        SimJob(
            id=str(j),
            submit=float(submit[j]),
            run_time={f"t{k}": float(true[j, k]) for k in range(kinds) if held[j, k]},
            app=f"app{app[j]}",
            gpus=int(asked[j]),
            time_limit=float(math.ceil(3.0 * true[j].max() / 900.0) * 900.0),
            depends=tuple(str(d) for d in depends[j]),
        )
        for j in range(n)
    )
    bias = np.asarray([apps[a].bias for a in app])
    new = np.asarray([float(apps[a].new) for a in app])
    spread = np.asarray([apps[a].spread for a in app])
    told = np.asarray([apps[a].guess for a in app]) * size[:, None]
    known = np.where(new[:, None] > 0, told, mean * np.exp(bias + spread[:, None] ** 2 / 2))
    if site.known:
        known = alone
    slow = prior_slowdown(seen.mean(axis=2), believed[:, None]) if site.contended else np.ones((n, kinds))
    levels = np.clip(np.rint(seen * (LEVELS - 1)), 0, LEVELS - 1).astype(np.int64)
    columns = np.where(held[:, kind_of], known[:, kind_of] * slow[:, kind_of], np.inf)
    return Task(
        cluster=cluster,
        workload=Workload("drawn", jobs),
        figures=np.asarray(list(map(processor_features, site.tflops, site.bandwidth, site.memory)))[kind_of],
        expected=columns,
        spread=np.repeat(np.where(new > 0, 1.0, spread)[:, None], len(kind_of), axis=1),
        slow=slow[:, kind_of],
        counters=levels[:, kind_of],
        sensitivity=believed,
        after=after,
        new=new,
        app=app,
        graphs=tuple(a.graph for a in apps),
        load=load,
        pressure=pressure[:, kind_of],
        told=told[:, kind_of],
        mean=mean[:, kind_of],
    )


def _capacity(mean: Floats, asked: Ints, app: Ints, units: Floats, per_node: Ints) -> float:
    """Jobs per second that the cluster could carry for ever: a linear program over apps and kinds of processor."""
    from scipy.optimize import linprog

    groups = sorted({(int(a), int(g)) for a, g in zip(app, asked, strict=True)})
    kinds = mean.shape[1]
    share = np.empty(len(groups))
    cost = np.empty((len(groups), kinds))
    for i, (a, g) in enumerate(groups):
        rows = (app == a) & (asked == g)
        share[i] = rows.mean()
        cost[i] = np.where(per_node >= g, mean[rows].mean(axis=0) * g, np.inf)
    finite = np.isfinite(cost)
    count = len(groups) * kinds + 1
    most = np.zeros((kinds, count))
    for k in range(kinds):
        most[k, k : count - 1 : kinds] = np.where(finite[:, k], cost[:, k], 0.0)
    same = np.zeros((len(groups), count))
    for i in range(len(groups)):
        same[i, i * kinds : (i + 1) * kinds] = 1.0
        same[i, -1] = -share[i]
    goal = np.zeros(count)
    goal[-1] = -1.0
    bounds = [(0.0, None if finite.flat[i] else 0.0) for i in range(count - 1)] + [(0.0, None)]
    found = linprog(goal, A_ub=most, b_ub=units, A_eq=same, b_eq=np.zeros(len(groups)), bounds=bounds)
    return float(found.x[-1])


def _arrivals(draw: np.random.Generator, n: int, rate: float) -> Floats:
    """Bursty, with slow waves of the rate, as by day and night."""
    shape = float(draw.uniform(0.4, 1.0))
    gaps = draw.gamma(shape, 1.0 / shape, size=n)
    wave = 1.0 + float(draw.uniform(0.0, 0.6)) * np.sin(np.arange(n) * 2 * math.pi / draw.uniform(60, 240))
    gaps = gaps / wave
    return np.asarray(np.cumsum(gaps) / gaps.mean() / rate).round(3)


def _pressure(draw: np.random.Generator, submit: Floats, kinds: int, run_s: float) -> Floats:
    """What other tenants do to each kind of node: levels that hold for some run times, then change."""
    found = np.empty((len(submit), kinds))
    for k in range(kinds):
        time, level = 0.0, float(draw.beta(0.7, 1.0))
        for j, at in enumerate(submit):
            while at > time:
                time += draw.exponential(6.0 * run_s)
                level = float(draw.beta(0.7, 1.0))
            found[j, k] = level
    return found


def _counters(draw: np.random.Generator, pressure: Floats) -> Floats:
    """Three counters of one pressure: a fair one, a biased one of short range, a multiplexed one with large error."""
    fair = pressure + draw.normal(0.0, 0.12, size=pressure.shape)
    biased = 0.25 + 0.4 * pressure + draw.normal(0.0, 0.1, size=pressure.shape)
    scaled = pressure * np.exp(draw.normal(0.0, 0.8, size=pressure.shape))
    return np.clip(np.stack([fair, biased, scaled], axis=2), 0.0, 1.0)


def _followers(
    draw: np.random.Generator, n: int, submit: Floats, mean: Floats, mixture: Mixture
) -> tuple[Floats, list[list[int]]]:
    """Who waits for whom, and how long the longest chain behind each job is expected to take at best."""
    depends: list[list[int]] = [[] for _ in range(n)]
    after = np.zeros(n)
    if draw.random() < mixture.workflows:
        for j in range(1, n):
            if draw.random() < 0.35:
                depends[j] = sorted({int(draw.integers(max(0, j - 6), j)) for _ in range(int(draw.integers(1, 3)))})
        best = mean.min(axis=1)
        for j in range(n - 1, -1, -1):
            for d in depends[j]:
                after[d] = max(after[d], after[j] + best[j])
    return after, depends
