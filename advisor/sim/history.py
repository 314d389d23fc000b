"""A site's log of earlier jobs: what the advisor has learned before a simulation begins.

The earlier jobs are another trace. Nobody advised them: each went wherever it could start first, so that the log
has most runs where the queue was shortest and not where they say most, as a real one. With `share`, two jobs may sit on
one GPU, whoever comes; what each kept of its speed is in the log as well, as node agents would tell it.
"""

from __future__ import annotations

import heapq
from collections import deque

import msgspec

from advisor.performance.model.observations import Observation, Refused, observe
from advisor.sim.cluster import SimCluster
from advisor.sim.engine import Engine
from advisor.sim.heuristics import run_heuristic
from advisor.sim.neighbours import LEAST_SPEED, Contention
from advisor.sim.workload import SimJob, Workload

Pair = tuple[str, str, str]  # app, other app, processor


class History(msgspec.Struct, frozen=True):
    """What a log says: runs (as if alone), and the part of its speed that an app kept beside another."""

    runs: tuple[Observation, ...] = ()
    pairs: dict[Pair, float] = {}


def run_of(job: SimJob, processor: str, seconds: float, limit: float | None = None) -> Observation | None:
    """One run as accounting and the job's annotation tell it."""
    cut = limit is not None and seconds >= limit
    try:
        return observe(
            app=job.app or job.id,
            user=job.user,
            processor=processor,
            state="TIMEOUT" if cut else "COMPLETED",
            elapsed_s=seconds,
            gpus=job.gpus,
            cpus=job.cpus,
            limit_s=job.time_limit,
            work=job.steps or None,
        )
    except Refused:
        return None


def played(workload: Workload, cluster: SimCluster, neighbours: Contention | None = None) -> History:
    """Runs the earlier jobs by earliest start, two on a GPU where `neighbours` tells what that costs."""
    if neighbours is not None and all(job.gpus for job in workload.jobs):
        return _seated(workload, cluster, neighbours)
    engine = Engine(cluster, workload)
    schedule = run_heuristic("earliest-start", engine)
    runs = []
    for j in sorted(range(len(workload.jobs)), key=lambda j: (float(schedule.end[j]), j)):
        place = cluster.places[int(schedule.place[j])]
        job = workload.jobs[j]
        runs.append(run_of(job, place.processor, float(schedule.end[j] - schedule.start[j]), job.time_limit))
    return History(tuple(run for run in runs if run is not None))


class _Gpu:
    """One GPU with two seats."""

    def __init__(self, processor: str) -> None:
        self.processor = processor
        self.seats: list[int] = []
        self.whole = False  # one job has all of it


class _Seats:
    """First come, first served over seats: an empty GPU before a shared one, the types in the cluster's order."""

    def __init__(self, workload: Workload, cluster: SimCluster, neighbours: Contention) -> None:
        self.jobs, self.neighbours = workload.jobs, neighbours
        self.gpus = [_Gpu(kind) for kind in cluster.processors for _ in range(cluster.units(kind))]
        self.on: dict[int, list[_Gpu]] = {}
        self.left: dict[int, float] = {}
        self.speed: dict[int, float] = {}
        self.since: dict[int, float] = {}
        self.pairs: dict[Pair, float] = {}
        self.ends: list[tuple[float, int, int]] = []  # when, job, which of its promises
        self.promise: dict[int, int] = {}

    def place(self, job: int, now: float) -> bool:
        """Seats a job, if there is room."""
        spec = self.jobs[job]
        empty: dict[str, list[_Gpu]] = {}
        for gpu in self.gpus:
            if not gpu.seats and spec.seconds_on(gpu.processor) is not None:
                empty.setdefault(gpu.processor, []).append(gpu)
        found = next((free[: spec.gpus] for free in empty.values() if len(free) >= spec.gpus), None)
        if found is None and spec.gpus == 1 and spec.share:
            found = next(([gpu] for gpu in self.gpus if self._may_join(spec, gpu)), None)
        if found is None:
            return False
        for gpu in found:
            gpu.seats.append(job)
            gpu.whole = spec.gpus > 1 or not spec.share
        self.on[job] = found
        self.left[job] = spec.seconds_on(found[0].processor) or 0.0
        self.since[job], self.speed[job] = now, 1.0
        self._settle(found[0], now)
        return True

    def _may_join(self, spec: SimJob, gpu: _Gpu) -> bool:
        if len(gpu.seats) != 1 or gpu.whole or spec.seconds_on(gpu.processor) is None:
            return False
        host = self.jobs[gpu.seats[0]]
        both = {(spec.app, host.app): 0.0, (host.app, spec.app): 0.0}
        for mine, other in ((spec, host), (host, spec)):
            both[mine.app, other.app] = self.neighbours.pair(mine, other, gpu.processor)
        for (mine_app, other_app), share in both.items():
            # Also where they do not fit into one memory: whoever came has failed at once, and goes elsewhere.
            self.pairs.setdefault((mine_app, other_app, gpu.processor), share if share > LEAST_SPEED else 0.0)
        return min(both.values()) > LEAST_SPEED

    def _settle(self, gpu: _Gpu, now: float) -> None:
        """Speeds after somebody has come or gone."""
        for job in gpu.seats:
            self.left[job] -= (now - self.since[job]) * self.speed[job]
            self.since[job] = now
            others = [self.jobs[other] for other in gpu.seats if other != job]
            self.speed[job] = self.neighbours.speed(self.jobs[job], gpu.processor, others, others)
            self.promise[job] = self.promise.get(job, 0) + 1
            heapq.heappush(self.ends, (now + max(self.left[job], 0.0) / self.speed[job], job, self.promise[job]))

    def end_next(self) -> tuple[float, int] | None:
        """Ends whoever ends first: when, and who."""
        while self.ends:
            now, job, number = heapq.heappop(self.ends)
            if job in self.on and number == self.promise[job]:
                for gpu in self.on.pop(job):
                    gpu.seats.remove(job)
                    gpu.whole = False
                    self._settle(gpu, now)
                return now, job
        return None

    def next_end(self) -> float:
        """When that will be."""
        while self.ends and not (self.ends[0][1] in self.on and self.ends[0][2] == self.promise[self.ends[0][1]]):
            heapq.heappop(self.ends)
        return self.ends[0][0] if self.ends else float("inf")


def _seated(workload: Workload, cluster: SimCluster, neighbours: Contention) -> History:
    seats = _Seats(workload, cluster, neighbours)
    waiting: deque[int] = deque()
    runs: list[Observation] = []
    coming = 0
    while coming < len(workload.jobs) or waiting or seats.on:
        submit = workload.jobs[coming].submit if coming < len(workload.jobs) else float("inf")
        if seats.next_end() <= submit:
            processor = {job: gpus[0].processor for job, gpus in seats.on.items()}
            ended = seats.end_next()
            if ended is None:
                break  # what waits fits nowhere
            now, job = ended
            run = run_of(workload.jobs[job], processor[job], workload.jobs[job].seconds_on(processor[job]) or 0.0)
            runs += [run] if run is not None else []
        elif submit < float("inf"):
            now = submit
            waiting.append(coming)
            coming += 1
        else:
            break
        while waiting and seats.place(waiting[0], now):
            waiting.popleft()
    return History(tuple(runs), seats.pairs)
