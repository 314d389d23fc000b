"""What the learned policy remembers between submissions: who was submitted lately, and how the cluster has been.

Fed by the submissions themselves and by each new snapshot; the topology's embedding and the LSTM are worked out once a
snapshot, so a decision pays only for the small head. What came since the last snapshot counts from the next one on:
jobs that come together are seen alike, whichever is first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from advisor.performance.processors import lookup
from advisor.performance.snapshot import Pool, Snapshot
from advisor.policy.interface import Prediction
from advisor.policy.learned.forward import embed_topology, ground, remember
from advisor.policy.learned.graphs import processor_features
from advisor.policy.learned.shapes import (
    GLOBAL_FEATURES,
    HEAD_HIDDEN,
    LEVELS,
    NODE_OUT,
    POOL_FEATURES,
    TICKS,
    Floats,
    Ints,
    Weights,
)
from advisor.policy.remembered import Remembered
from advisor.settings import Processor

# What is told to another process of the submissions, beside their number and what is of each pool.
AVERAGES = ("run_s", "work", "log_run", "log_run_squared", "gap_slow", "gap_fast", "last_submit")
# Resources of a node whose use by others slows a job down.
CONTENDED = ("memory_bandwidth", "gpu_memory", "llc", "interconnect", "io")


def edges_between(
    partitions: Sequence[frozenset[str]], processors: Sequence[str], speed: Sequence[float] | Floats
) -> tuple[Ints, Ints, Floats]:
    """Edges between pools that share a partition or a kind of processor, with their features."""
    pairs: list[tuple[int, int]] = []
    rows: list[tuple[float, float, float]] = []
    for source in range(len(partitions)):
        for target in range(len(partitions)):
            together, alike = bool(partitions[source] & partitions[target]), processors[source] == processors[target]
            if source != target and (together or alike):
                pairs.append((source, target))
                rows.append((float(together), float(alike), float(speed[source] - speed[target])))
    ends = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return ends[:, 0].copy(), ends[:, 1].copy(), np.asarray(rows, dtype=np.float64).reshape(-1, 3)


def beyond(rows: Floats, low: Floats, high: Floats, names: Sequence[str], whose: str) -> str:
    """The first figure that is outside what training met, in words; empty where none is."""
    out = (rows < low) | (rows > high)
    if not out.any():
        return ""
    row, column = np.argwhere(out)[0]
    met = f"{low[column]:.2g} to {high[column]:.2g}"
    return f"{whose} {names[column]} is {rows[row, column]:.2g}, in training it was {met}"


class Seen(NamedTuple):
    """What the network made of one snapshot."""

    # [5, pool] units, free ones at the last poll, belief, its spread, and how much slower than at their best the jobs
    # that were submitted before would have run there.
    by_pool: Floats
    ground: Floats  # of the head's first layer
    usual_s: float  # how long those jobs run at their best; 0: there were none
    strange: str = ""  # what of it training has never met the like of


class Recollection:
    """Running averages over submissions, moments of the cluster, and what the network makes of them."""

    def __init__(self, weights: Weights, processors: Mapping[str, Processor]) -> None:
        self._weights, self._processors = weights, processors
        self.count = 0
        self.run_s = self.work = self.log_run = self.log_run_squared = 0.0
        self.gap_slow = self.gap_fast = self.last_submit = 0.0
        self.looked_at = -math.inf
        self._moments = np.zeros((TICKS, len(GLOBAL_FEATURES)))
        self._told: Remembered | None = None  # by whom submissions come to
        self._start(())
        self._seen = Seen(np.zeros((5, 0)), np.zeros((1, HEAD_HIDDEN)), 0.0)

    def _start(self, pools: tuple[Pool, ...]) -> None:
        """Pools that mean other nodes than before: what was learned of the old ones is forgotten."""
        self._pools = pools
        count = len(pools)
        self._units = np.asarray(
            [max(pool.nodes * (pool.gpus_per_node or pool.cpus_per_node), 1) for pool in pools], dtype=np.float64
        )
        self._figures = np.zeros((count, 3))
        for index, pool in enumerate(pools):
            found = lookup(self._processors, pool.processor)
            if found is not None:
                self._figures[index] = processor_features(found.tflops, found.memory_gbs, found.memory_gb)
        # Where there are GPUs, choices are between them; nodes without are another world.
        with_gpus = [index for index, pool in enumerate(pools) if pool.gpus_per_node]
        self._rows = np.asarray(with_gpus or range(count), dtype=np.int64)
        self._edges = edges_between(
            [frozenset(pools[index].partitions) for index in self._rows],
            [pools[index].processor for index in self._rows],
            self._figures[self._rows, 0],
        )
        self.slower, self.best_for, self.best_work = np.zeros((3, count))

    def look(self, snapshot: Snapshot) -> Seen:
        """What the network makes of a snapshot; one that was looked at already costs nothing.

        Everything new is put in place in one step at the end, so a decision on the snapshot before goes on undisturbed.
        """
        if snapshot.taken_at == self.looked_at and len(snapshot.pools) == len(self._pools):
            return self._seen
        if snapshot.pools is not self._pools and not _same(snapshot.pools, self._pools):
            self._start(snapshot.pools)
        self._take_over()
        belief, spread = self._beliefs(snapshot)
        pools = self._features(snapshot, belief, spread)
        w = self._weights
        moments = np.concatenate((self._moments[1:], self._moment(snapshot, pools)[None]))
        rows = pools[self._rows]
        strange = beyond(rows, w.pool_low, w.pool_high, POOL_FEATURES, "a pool's") or beyond(
            moments[-1:], w.moment_low, w.moment_high, GLOBAL_FEATURES, "the cluster's"
        )
        embedded = embed_topology(w, rows, *self._edges, moments[-1])
        topology = np.zeros((len(pools) + 1, NODE_OUT))
        topology[self._rows], topology[-1] = embedded[:-1], embedded[-1]
        by_pool = np.stack((self._units, self._units * (1.0 - pools[:, 4]), belief, spread, self.slower))
        usual_s = max(self.run_s, 1e-9) if self.count else 0.0
        seen = Seen(by_pool, ground(w, topology, remember(w, moments)), usual_s, strange)
        self._moments, self._seen, self.looked_at = moments, seen, snapshot.taken_at
        return seen

    def remembered(self) -> Remembered:
        """What it knows of submissions, for another one that sees none."""
        figures = tuple(float(getattr(self, name)) for name in AVERAGES)
        by_pool = tuple(tuple(each.tolist()) for each in (self.slower, self.best_for, self.best_work))
        return Remembered(self.count, figures, by_pool)

    def recall(self, told: Remembered) -> None:
        """Knows, from the next snapshot on, what the other one does."""
        self._told = told

    def _take_over(self) -> None:
        told, self._told = self._told, None
        if told is None or any(len(each) != len(self._pools) for each in told.by_pool):
            return  # its pools are those of another snapshot: the next word of it may fit
        self.count = told.count
        for name, figure in zip(AVERAGES, told.figures, strict=True):
            setattr(self, name, figure)
        self.slower, self.best_for, self.best_work = np.array(told.by_pool)

    def _beliefs(self, snapshot: Snapshot) -> tuple[Floats, Floats]:
        """Contention of each pool; a pool of which no agent tells is taken to be calm."""
        calm = self._weights.belief[0]
        levels = np.linspace(0.0, 1.0, LEVELS)
        mean = float(calm @ levels)
        found = np.tile([mean, math.sqrt(max(float(calm @ levels**2) - mean**2, 0.0))], (len(snapshot.pools), 1))
        for index, told in enumerate(snapshot.beliefs[: len(found)]):
            seen = [told[name] for name in CONTENDED if name in told]
            if seen:
                found[index] = max(seen)
        return found[:, 0], found[:, 1]

    def _features(self, snapshot: Snapshot, belief: Floats, spread: Floats) -> Floats:
        count = len(snapshot.pools)
        usual = max(self.run_s, 1e-9) if self.count else 3600.0
        rate = 1.0 / self.gap_slow if self.gap_slow > 0 else 0.0
        waits = np.zeros(count)
        for index, pool in enumerate(snapshot.pools):
            lines = snapshot.gpu_timelines if pool.gpus_per_node else snapshot.cpu_timelines
            times = lines[index][-1].times if index in lines else ()
            waits[index] = max(times[0] - snapshot.taken_at, 0.0) if times else 0.0
        units = self._units
        pools = np.zeros((count, len(POOL_FEATURES)))
        pools[:, :3] = self._figures
        # A large pool is to the network as large as the largest it was trained on.
        pools[:, 3] = np.minimum(np.log(units / 8.0), self._weights.pool_high[3])
        pools[:, 4] = snapshot.load if len(snapshot.load) == count else 0.0
        # So is a longer wait or queue no more than the longest: it is out of the question either way.
        most = self._weights.pool_high
        pools[:, 5] = np.minimum(np.log1p(waits / usual), most[5])
        if len(snapshot.waiting) == count:
            pools[:, 6] = np.minimum(np.log1p(np.array(snapshot.waiting) / units), most[6])
        pools[:, 7] = self.slower
        pools[:, 8] = self.best_for
        pools[:, 9] = np.log1p(rate * self.best_work / units)
        w = self._weights
        # Agents may be surer than the counters of training ever were.
        pools[:, 10] = np.clip(belief, w.pool_low[10], w.pool_high[10])
        pools[:, 11] = np.clip(spread, w.pool_low[11], w.pool_high[11])
        return pools

    def _moment(self, snapshot: Snapshot, pools: Floats) -> Floats:
        pools, units = pools[self._rows], self._units[self._rows]
        total = max(float(units.sum()), 1.0)
        usual = max(self.run_s, 1e-9) if self.count else 3600.0
        rate = 1.0 / self.gap_slow if self.gap_slow > 0 else 0.0
        share = units / total
        since = snapshot.taken_at - self.looked_at
        most = self._weights.moment_high
        return np.asarray(
            [
                math.log1p(rate * self.work / total),
                float(pools[:, 4] @ share),
                min(math.log1p(float(np.expm1(pools[:, 5]) @ share)), float(most[2])),
                min(math.log1p(snapshot.queued / total), float(most[3])),
                math.log(self.gap_slow / self.gap_fast) if self.gap_fast > 0 else 0.0,
                math.log1p(since / usual) if self.count and math.isfinite(since) and since > 0 else 0.0,
                math.sqrt(max(self.log_run_squared - self.log_run**2, 0.0)),
                float(pools[:, 10].mean()) if len(pools) else 0.0,
            ]
        )

    def note(self, predictions: Sequence[Prediction], asked: int, now: float) -> None:
        """Folds a submission into the averages; the first few count as a plain mean."""
        runs: dict[int, float] = {}
        for prediction in predictions:
            if prediction.pool is not None:
                runs[prediction.pool] = prediction.run_s * prediction.slowdown
        if not runs or max(runs) >= len(self.slower):  # of a snapshot with other pools
            return
        where, best = min(runs.items(), key=lambda item: item[1])
        best = max(best, 1e-3)
        slow = 1.0 / min(self.count + 1, 64)
        if self.count:
            gap = max(now - self.last_submit, 1e-3)
            self.gap_slow += (gap - self.gap_slow) / min(self.count, 64)
            self.gap_fast += (gap - self.gap_fast) / min(self.count, 8)
        self.last_submit = now
        self.run_s += slow * (best - self.run_s)
        self.log_run += slow * (math.log(best) - self.log_run)
        self.log_run_squared += slow * (math.log(best) ** 2 - self.log_run_squared)
        self.work += slow * (best * asked - self.work)
        self.count += 1
        keep = 1.0 - slow
        self.best_for *= keep
        self.best_work *= keep
        self.best_for[where] += slow
        self.best_work[where] += slow * best * asked
        highest = math.log(20.0)
        self.slower += slow * (highest - self.slower)
        for pool, run_s in runs.items():
            self.slower[pool] += slow * (min(math.log(run_s / best), highest) - highest)


def _same(new: tuple[Pool, ...], old: tuple[Pool, ...]) -> bool:
    """Whether the indices stand for the same nodes; how many are usable just now may differ."""
    return len(new) == len(old) and all(
        a.partitions == b.partitions and a.processor == b.processor and a.gres_per_node == b.gres_per_node
        for a, b in zip(new, old, strict=True)
    )
