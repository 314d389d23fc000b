"""The arithmetic policy: the place where the job is expected to finish first.

Expected wait (from the timelines) plus expected run time (history, annotation, or time limit) times expected slowdown
(by who shares the nodes). It needs no training, explains itself, and is the yardstick for every policy that does.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from advisor.cluster.gres import part_of
from advisor.dfg.graph import Annotation
from advisor.performance.arrays import Way, mean_wait, spread
from advisor.performance.demand import Need
from advisor.performance.processors import lookup, speed
from advisor.performance.runtime import Estimate, History, expected
from advisor.performance.slowdowns import value
from advisor.performance.snapshot import Pool, Snapshot
from advisor.performance.told import Told
from advisor.performance.wait_model import corrected
from advisor.performance.waits import expected_wait, spanning_wait
from advisor.policy.interface import Candidate, JobShape, Prediction, Scored, Share
from advisor.policy.words import duration, starts
from advisor.settings import Processor

# Where a candidate has no pool: nothing is known of it, and nothing should go there.
NOWHERE_S = 365 * 86_400.0
# Besides keep, so many of the best candidates get their reason in words.
EXPLAINED = 8
# Routes and estimates that are kept from one submission to the next.
_KEPT = 512

# A way into a pool: pool, tier, need, processor, and whether the job is larger than the pool.
_Way = tuple[int, int, Need, str, bool]


class _Routes(msgspec.Struct, frozen=True):
    """What the candidates of a job come down to in these pools, whatever waits there."""

    candidates: tuple[Candidate, ...]
    gpus: int
    gpu_type: str | None
    ways: tuple[tuple[_Way, ...], ...]  # of each candidate
    reference: str | None


class _Estimates(msgspec.Struct, frozen=True):
    """Run times of one job on each kind of processor that was asked about."""

    annotation: Annotation
    by_processor: dict[str, Estimate]


class EarliestFinish:
    """Scores a candidate by when the job would finish there: wait + run time × slowdown, in seconds."""

    name = "earliest-finish"
    version = "1"

    def __init__(self, processors: Mapping[str, Processor]) -> None:
        self._processors = processors
        # Good for one set of pools and one history. The keys hold ids of what the values hold on to.
        self._pools: tuple[Pool, ...] = ()
        self._routes: dict[int, _Routes] = {}
        self._history: History = {}
        self._told: Told | None = None
        self._estimates: dict[tuple[object, ...], _Estimates] = {}

    def predict(
        self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float
    ) -> list[Prediction]:
        """One prediction for each candidate: in each, Slurm starts the job in the pool that is free first."""
        return self.score(shape, candidates, snapshot, now).explained()

    def score(self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float) -> Scored:
        """As `predict`; the reasons wait until somebody asks for them."""
        routes = self._routes_of(shape, candidates, snapshot)
        estimates = self._estimates_of(shape, snapshot, routes.reference)
        waits: dict[tuple[int, int, str], float] = {}
        predictions: list[Prediction] = []
        # A job that has its nodes to itself is slowed down by nobody.
        shared = None if shape.exclusive else snapshot.slowdowns
        codes = shared.codes(shape.app) if shared is not None else b""
        for number, ways in enumerate(routes.ways):
            best_wait, best_pool, best_processor = NOWHERE_S, None, ""
            for index, tier, need, processor, spans in ways:
                key = (-1 - number, tier, processor) if spans else (index, tier, processor)
                wait = waits.get(key)
                if wait is None:
                    estimate = estimates.get(processor)
                    if estimate is None:
                        estimate = estimates[processor] = self._estimate(shape, processor, snapshot, routes.reference)
                    if spans:
                        looked_up = spanning_wait(snapshot, _parts(candidates[number], snapshot, index), now)
                    elif shape.tasks_at_once == 1:  # as `mean_wait` would, dozens of times for a decision
                        looked_up = expected_wait(snapshot, index, tier, need, estimate.seconds, now)
                    else:
                        way = Way(index, tier, need, estimate.seconds)
                        looked_up = mean_wait(snapshot, way, now, shape.tasks_at_once)
                    wait = waits[key] = NOWHERE_S if looked_up is None else looked_up
                if best_pool is None or wait < best_wait:
                    best_wait, best_pool, best_processor = wait, index, processor
            if best_pool is None:
                predictions.append(Prediction(number, NOWHERE_S, NOWHERE_S, score=2 * NOWHERE_S, reason="fits nowhere"))
                continue
            run_s = estimates[best_processor].seconds
            shares: tuple[Share, ...] = ()
            if shape.tasks_at_once > 1 and len(ways) > 1:
                over = _over_pools(shape.tasks_at_once, ways, estimates, snapshot, now)
                if over is not None:
                    best_wait, run_s, shares = over
                    most = max(shares, key=lambda share: share.tasks)
                    best_pool, best_processor = most.pool, most.processor
            estimate = estimates[best_processor]
            slowdown, slowdown_sd = 1.0, 0.0
            if shared is not None:
                slowdown = value(codes, best_pool)
                if slowdown > 1.0:
                    slowdown_sd = slowdown * shared.spread(shape.app, best_pool)
                if estimate.source == "history":
                    # What past runs suffered from their neighbours is in their mean; it must not count twice.
                    run_s /= shared.usually(shape.app, best_processor)
            queue_wait = None
            if snapshot.wait_corrections and best_wait < NOWHERE_S:
                queue_wait = best_wait
                best_wait = corrected(snapshot.wait_corrections, candidates[number].partition or "", best_wait)
            predictions.append(
                Prediction(
                    number,
                    best_wait,
                    run_s,
                    slowdown,
                    best_wait + run_s * slowdown,
                    best_pool,
                    best_processor,
                    estimate.source,
                    queue_wait_s=queue_wait,
                    slowdown_sd=slowdown_sd,
                    beside=shared.beside[best_pool] if shared is not None and slowdown > 1.0 else (),
                    sd_log=estimate.sd_log,
                    doubt_log=estimate.doubt_log,
                    apart_log=estimate.apart_log,
                    spread=shares,
                )
            )
        return Scored(predictions, lambda: _explained(predictions, estimates))

    def _routes_of(self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot) -> _Routes:
        if snapshot.pools is not self._pools:
            if snapshot.pools != self._pools:
                self._routes.clear()
            self._pools = snapshot.pools
        kind = shape.demand.gpu_type
        found = self._routes.get(id(candidates))
        if found is not None and found.gpus == shape.gpus and found.gpu_type == kind:
            return found
        ways = tuple(_ways(shape, candidate, snapshot) for candidate in candidates)
        if len(self._routes) >= _KEPT:
            self._routes.clear()
        found = _Routes(candidates, shape.gpus, kind, ways, self._slowest(shape, ways[0]))
        self._routes[id(candidates)] = found
        return found

    def _estimates_of(self, shape: JobShape, snapshot: Snapshot, reference: str | None) -> dict[str, Estimate]:
        if snapshot.history is not self._history or snapshot.told is not self._told:
            self._estimates.clear()
            self._history, self._told = snapshot.history, snapshot.told
        note = shape.annotation
        key = (shape.app, shape.user, id(note), shape.time_limit_s, shape.gpus, shape.cpus, reference)
        found = self._estimates.get(key)
        if found is None:
            if len(self._estimates) >= _KEPT:
                self._estimates.clear()
            found = self._estimates[key] = _Estimates(note, {})
        return found.by_processor

    def _estimate(self, shape: JobShape, processor: str, snapshot: Snapshot, reference: str | None) -> Estimate:
        return expected(
            shape.app,
            shape.user,
            processor,
            shape.time_limit_s,
            shape.annotation,
            snapshot.history,
            self._processors,
            gpus=shape.gpus,
            cpus=shape.cpus,
            reference=reference,
            told=snapshot.told,
        )

    def _slowest(self, shape: JobShape, kept: tuple[_Way, ...]) -> str | None:
        """The slowest processor on which Slurm itself might run the job; one that is not known counts as slowest."""
        if not shape.gpus:
            return None
        return min({processor for _, _, _, processor, _ in kept}, key=self._speed, default=None)

    def _speed(self, name: str) -> tuple[float, str]:
        figures = lookup(self._processors, name)
        return (speed(figures) if figures is not None else 0.0, name)


def _ways(shape: JobShape, candidate: Candidate, snapshot: Snapshot) -> tuple[_Way, ...]:
    return tuple(
        (index, tier, need, _processor(shape, candidate, snapshot, index), need.nodes > snapshot.pools[index].nodes)
        for index, need, tier in zip(candidate.pools, candidate.needs, candidate.tiers, strict=True)
    )


def _over_pools(
    tasks: int, ways: tuple[_Way, ...], estimates: Mapping[str, Estimate], snapshot: Snapshot, now: float
) -> tuple[float, float, tuple[Share, ...]] | None:
    """Mean wait and run time of an array's tasks, each started where it is free first, and how many go where.

    None where they all go to one pool, or are larger than one.
    """
    if any(spans for *_, spans in ways):
        return None
    found = spread(
        snapshot,
        [Way(pool, tier, need, estimates[processor].seconds) for pool, tier, need, processor, _ in ways],
        now,
        tasks,
    )
    if found is None:
        return None
    shares = tuple(
        Share(pool, processor, many, estimates[processor].seconds)
        for (pool, _, _, processor, _), many in zip(ways, found.tasks, strict=True)
        if many
    )
    if len(shares) < 2:
        return None
    run_s = sum(share.tasks * share.run_s for share in shares) / sum(share.tasks for share in shares)
    return found.wait_s, run_s, shares


def _parts(candidate: Candidate, snapshot: Snapshot, pool: int) -> list[tuple[int, int, Need]]:
    """The pools over which a job that is larger than `pool` would lie: all those with the same processor."""
    return [
        (index, tier, need)
        for index, tier, need in zip(candidate.pools, candidate.tiers, candidate.needs, strict=True)
        if snapshot.pools[index].processor == snapshot.pools[pool].processor
    ]


def _explained(predictions: list[Prediction], estimates: Mapping[str, Estimate]) -> list[Prediction]:
    """The same with reasons, but only for those somebody may ask about."""
    bar = sorted(prediction.score for prediction in predictions)[: EXPLAINED + 1][-1]
    return [
        msgspec.structs.replace(prediction, reason=_reason(prediction, estimates[prediction.processor]))
        if prediction.pool is not None and (not prediction.candidate or prediction.score <= bar)
        else prediction
        for prediction in predictions
    ]


def _reason(prediction: Prediction, estimate: Estimate) -> str:
    run = duration(prediction.run_s * prediction.slowdown)
    told = f"{starts(prediction.wait_s)}, runs ~{run} on {_kinds(prediction)} ({estimate.detail})"
    if prediction.slowdown > 1.0:
        neighbours = f" beside {', '.join(prediction.beside)}" if prediction.beside else " by what else runs there"
        told += f", slowed down {prediction.slowdown:.2f} times{neighbours}"
    return told


def _kinds(prediction: Prediction) -> str:
    """The processor, or the several on which the tasks of an array would run: "k80 (4 tasks) and v100 (2)"."""
    tasks: dict[str, int] = {}
    for share in prediction.spread:
        tasks[share.processor] = tasks.get(share.processor, 0) + share.tasks
    if len(tasks) < 2:
        return prediction.processor
    first, *others = sorted(tasks.items(), key=lambda item: -item[1])
    named = [f"{first[0]} ({first[1]} tasks)", *(f"{kind} ({many})" for kind, many in others)]
    return f"{', '.join(named[:-1])} and {named[-1]}"


def _processor(shape: JobShape, candidate: Candidate, snapshot: Snapshot, pool: int) -> str:
    if not shape.gpus:
        shards = any(gres.name == "shard" for gres in shape.demand.gres)
        return part_of(snapshot.pools[pool].processor) if shards else "cpu"
    kind = candidate.gpu_type or shape.demand.gpu_type or snapshot.pools[pool].processor
    return part_of(kind) if candidate.shared else kind
