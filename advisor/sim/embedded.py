"""A small Slurm inside the process: runs a workload as submitted, and again with the daemon's own decisions.

For machines on which no real Slurm can run (`scripts/demo` without root or Docker) and for tests of the whole
decision path. Plain Python, meant for some hundreds of jobs; every submission goes through the same
`build_snapshot`, `Ledger` and `decide` as in the daemon. `advisor.sim.engine` is the fast one.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from advisor.cluster.types import ClusterState, Gres, Job, Node, Partition
from advisor.performance.queue import build_snapshot
from advisor.performance.runtime import History
from advisor.performance.snapshot import RunTimes, Snapshot
from advisor.performance.waits import Ledger
from advisor.policy.decision import decide
from advisor.policy.interface import Decision, Policy
from advisor.policy.registry import make_policy
from advisor.protocol import VERSION, PartitionLimits, SubmitRequest
from advisor.settings import Experiment, Modes, Settings
from advisor.sim.cluster import SimCluster
from advisor.sim.workload import SimJob

RELEASE = (24, 11)
# Unix time at which the small Slurm is switched on, so that its records look like Slurm's.
EPOCH = 1_700_000_000.0

# What a demonstration wants to see: every decision applied, no control group.
ENFORCING = Settings(modes=Modes(default="enforce"), experiment=Experiment(holdout=0.0))


class Ran(msgspec.Struct, frozen=True):
    """How one job went. Times are seconds from the first submission."""

    job: SimJob
    job_id: int
    partition: str
    processor: str
    nodes: tuple[str, ...]
    submit: float
    start: float
    end: float
    timed_out: bool = False
    decision: Decision | None = None


class Run(msgspec.Struct, frozen=True):
    """How a whole workload went."""

    name: str
    rows: tuple[Ran, ...]

    @property
    def mean_wait_s(self) -> float:
        """Mean seconds from submission to start."""
        return sum(r.start - r.submit for r in self.rows) / max(1, len(self.rows))

    @property
    def mean_completion_s(self) -> float:
        """Mean seconds from submission to end."""
        return sum(r.end - r.submit for r in self.rows) / max(1, len(self.rows))

    @property
    def makespan_s(self) -> float:
        """Seconds from the first submission to the last end."""
        return max((r.end for r in self.rows), default=0.0) - min((r.submit for r in self.rows), default=0.0)


class Comparison(msgspec.Struct, frozen=True):
    """The same workload without and with the advisor."""

    alone: Run
    advised: Run


class _Live(msgspec.Struct):
    """A job inside the small Slurm."""

    job: SimJob
    job_id: int
    partitions: tuple[str, ...]
    gpu_type: str | None
    token: str = ""
    decision: Decision | None = None
    start: float = math.nan
    end: float = math.nan
    nodes: tuple[int, ...] = ()
    partition: str = ""
    timed_out: bool = False


Decided = Callable[[SimJob, Decision], None]


def compare(
    jobs: Sequence[SimJob],
    cluster: SimCluster,
    settings: Settings = ENFORCING,
    history: History | None = None,
    policy: Policy | None = None,
    poll_s: float = 15.0,
    seed: int = 0,
    on_decision: Decided | None = None,
) -> Comparison:
    """Runs the jobs as submitted, then with each submission decided by the daemon's code.

    `history` is what is known of past runs at the start; runs that end are added to it as they do. `poll_s`: how old
    the picture of the cluster may get, as `slurm.poll_s` in the daemon.
    """
    alone = EmbeddedSlurm(cluster, jobs).run("Slurm alone")
    advisor = _Advisor(settings, policy or make_policy(settings), dict(history or {}), poll_s, seed, on_decision)
    return Comparison(alone, EmbeddedSlurm(cluster, jobs, advisor).run("with the advisor"))


class EmbeddedSlurm:
    """First come, first served with EASY backfill over partitions and typed GPUs."""

    def __init__(self, cluster: SimCluster, jobs: Sequence[SimJob], advisor: _Advisor | None = None) -> None:
        self.cluster = cluster
        self.jobs = sorted(jobs, key=lambda job: job.submit)
        self.advisor = advisor
        self.now = 0.0
        self.free = [[n.cpus, n.memory_mb, n.gpus] for n in cluster.nodes]
        self.members = {
            name: [n for p in cluster.places if p.partition == name for n in p.nodes]
            for name in dict.fromkeys(p.partition for p in cluster.places)
        }
        self.queue: list[_Live] = []
        self.held: list[_Live] = []
        self.running: list[_Live] = []
        self.ended: set[str] = set()

    def run(self, name: str) -> Run:
        """Runs all jobs to their end."""
        done: list[_Live] = []
        ends: list[tuple[float, int, _Live]] = []
        arriving = 0
        while arriving < len(self.jobs) or ends:
            submit = self.jobs[arriving].submit if arriving < len(self.jobs) else math.inf
            if ends and ends[0][0] <= submit:
                self.now, _, live = heapq.heappop(ends)
                self._end(live)
                done.append(live)
            else:
                self.now = submit
                self._submit(self.jobs[arriving], arriving + 1)
                arriving += 1
            if ends and ends[0][0] <= self.now:
                continue  # all that ends at this moment is gone before anything starts
            for live in self._pass():
                heapq.heappush(ends, (live.end, live.job_id, live))
        if self.queue or self.held:
            stuck = (self.queue + self.held)[0].job
            raise ValueError(
                f"job {stuck.id!r} can never start: no node of {', '.join(self._named(stuck))} has what it asks for"
            )
        done.sort(key=lambda live: live.job_id)
        return Run(name, tuple(self._ran(live) for live in done))

    def state(self) -> ClusterState:
        """What a poll of this Slurm would tell."""
        return ClusterState(
            cluster=self.cluster.name,
            release=RELEASE,
            taken_at=EPOCH + self.now,
            nodes=tuple(self._node(i) for i in range(len(self.cluster.nodes))),
            partitions=tuple(self._partition(name) for name in self.members),
            jobs=tuple(self._record(live) for live in [*self.running, *self.queue, *self.held]),
        )

    def limits(self) -> list[PartitionLimits]:
        """The `part_list` that a user of this Slurm has."""
        return [
            PartitionLimits(p.name, default=p.default, max_time=p.max_time, priority_tier=1)
            for p in (self._partition(name) for name in self.members)
        ]

    def _named(self, job: SimJob) -> tuple[str, ...]:
        if job.partitions:
            return job.partitions
        default = self.cluster.default_partition
        return (default,) if default else tuple(self.members)[:1]

    def _submit(self, job: SimJob, job_id: int) -> None:
        live = _Live(job, job_id, self._named(job), job.gpu_type)
        if self.advisor is not None:
            self.advisor.decide(self, live)
        if all(other in self.ended for other in job.depends):
            self.queue.append(live)
            self.queue.sort(key=lambda other: (-other.job.priority, other.job_id))
        else:
            self.held.append(live)

    def _end(self, live: _Live) -> None:
        self.running.remove(live)
        self.ended.add(live.job.id)
        self._take(live, live.nodes, 1)
        if self.advisor is not None and not live.timed_out:
            kind = self.cluster.nodes[live.nodes[0]].processor if live.job.gpus else "cpu"
            self.advisor.learn(live.job, kind, live.end - live.start)
        ready = [other for other in self.held if all(name in self.ended for name in other.job.depends)]
        self.held = [other for other in self.held if other not in ready]
        self.queue = sorted(self.queue + ready, key=lambda other: (-other.job.priority, other.job_id))

    def _pass(self) -> list[_Live]:
        """Starts what can start; the first that cannot, of each partition, keeps its nodes reserved."""
        started: list[_Live] = []
        reserved: dict[str, tuple[float, frozenset[int]]] = {}
        for live in list(self.queue):
            if self._array_full(live):
                continue
            found = self._start(live, reserved)
            if found:
                started.append(live)
                continue
            for name in live.partitions:
                if name not in reserved:
                    reserved[name] = self._reservation(live, name)
        return started

    def _start(self, live: _Live, reserved: Mapping[str, tuple[float, frozenset[int]]]) -> bool:
        limit = self._limit(live)
        for name in live.partitions:
            nodes = [
                n
                for n in self.members[name]
                if self._fits(live, n, self.free[n])
                and all(self.now + limit <= time or n not in kept for time, kept in reserved.values())
            ][: live.job.nodes]
            if len(nodes) < live.job.nodes:
                continue
            seconds = max(self._seconds(live, n) for n in nodes)
            live.start, live.partition, live.nodes = self.now, name, tuple(nodes)
            live.timed_out = seconds > limit
            live.end = self.now + min(seconds, limit)
            self._take(live, live.nodes, -1)
            self.queue.remove(live)
            self.running.append(live)
            return True
        return False

    def _reservation(self, live: _Live, name: str) -> tuple[float, frozenset[int]]:
        """When, by the users' limits, the job can start in the partition, and on which nodes."""
        free = [list(units) for units in self.free]
        for other in sorted(self.running, key=lambda r: r.start + self._limit(r)):
            for n in other.nodes:
                for k, units in enumerate(_per_node(other.job)):
                    free[n][k] += units
            nodes = [n for n in self.members[name] if self._fits(live, n, free[n])]
            if len(nodes) >= live.job.nodes:
                # Nodes that are idle now are kept back last, so that short jobs can still use them.
                nodes.sort(key=lambda n: self._fits(live, n, self.free[n]))
                return other.start + self._limit(other), frozenset(nodes[: live.job.nodes])
        return math.inf, frozenset()

    def _array_full(self, live: _Live) -> bool:
        most = live.job.array_limit
        return bool(most) and sum(r.job.array == live.job.array for r in self.running) >= most

    def _fits(self, live: _Live, node: int, free: Sequence[int]) -> bool:
        kind = self.cluster.nodes[node].processor
        if live.job.gpus and live.gpu_type not in (None, kind):
            return False
        if live.job.seconds_on(kind if live.job.gpus else "cpu") is None:
            return False
        return all(units <= left for units, left in zip(_per_node(live.job), free, strict=True))

    def _seconds(self, live: _Live, node: int) -> float:
        kind = self.cluster.nodes[node].processor if live.job.gpus else "cpu"
        return live.job.seconds_on(kind) or 0.0

    def _limit(self, live: _Live) -> float:
        if live.job.time_limit is not None:
            return live.job.time_limit
        return max(live.job.run_time.values())

    def _take(self, live: _Live, nodes: Sequence[int], sign: int) -> None:
        for n in nodes:
            for k, units in enumerate(_per_node(live.job)):
                self.free[n][k] += sign * units

    def _ran(self, live: _Live) -> Ran:
        nodes = [self.cluster.nodes[n] for n in live.nodes]
        return Ran(
            job=live.job,
            job_id=live.job_id,
            partition=live.partition,
            processor=nodes[0].processor if live.job.gpus else "cpu",
            nodes=tuple(node.name for node in nodes),
            submit=live.job.submit,
            start=live.start,
            end=live.end,
            timed_out=live.timed_out,
            decision=live.decision,
        )

    def _node(self, i: int) -> Node:
        node, (cpus, memory, gpus) = self.cluster.nodes[i], self.free[i]
        used = (node.cpus - cpus, node.gpus - gpus)
        return Node(
            name=node.name,
            states=("IDLE" if used == (0, 0) else "ALLOCATED" if cpus == 0 else "MIXED",),
            cpus=node.cpus,
            memory_mb=node.memory_mb,
            gres=(Gres("gpu", node.gpus, node.processor),) if node.gpus else (),
            partitions=tuple(name for name, members in self.members.items() if i in members),
            cpus_allocated=used[0],
            memory_allocated_mb=node.memory_mb - memory,
            gres_allocated=(Gres("gpu", used[1], node.processor),) if used[1] else (),
        )

    def _partition(self, name: str) -> Partition:
        limits = [p.max_time_s for p in self.cluster.places if p.partition == name and p.max_time_s is not None]
        return Partition(
            name=name,
            nodes=tuple(self.cluster.nodes[n].name for n in self.members[name]),
            default=name == self.cluster.default_partition,
            max_time=int(min(limits) // 60) if limits else None,
        )

    def _record(self, live: _Live) -> Job:
        started = not math.isnan(live.start)
        kind = self.cluster.nodes[live.nodes[0]].processor if started else live.gpu_type
        return Job(
            job_id=live.job_id,
            states=("RUNNING",) if started else ("PENDING",),
            name=live.job.app,
            user=live.job.user,
            account=live.job.account,
            partitions=(live.partition,) if started else live.partitions,
            reason="" if started else "Dependency" if live in self.held else "Priority",
            priority=int(live.job.priority),
            submit_time=int(EPOCH + live.job.submit),
            eligible_time=int(EPOCH + live.job.submit),
            start_time=int(EPOCH + live.start) if started else None,
            time_limit=minutes(self._limit(live)),
            nodes=tuple(self.cluster.nodes[n].name for n in live.nodes),
            node_count=live.job.nodes,
            cpus=live.job.cpus,
            memory_mb=live.job.memory_mb,
            gres=(Gres("gpu", live.job.gpus, kind),) if live.job.gpus else (),
            admin_comment=f"advisor={live.token}" if live.token else "",
        )


class _Advisor:
    """The daemon's hot path around the small Slurm: snapshot at each poll, ledger, decision, what was learned."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        history: dict[str, Mapping[str, RunTimes]],
        poll_s: float,
        seed: int,
        on_decision: Decided | None,
    ) -> None:
        self.settings, self.policy, self.history, self.poll_s = settings, policy, history, poll_s
        self.rng = random.Random(seed)
        self.on_decision = on_decision
        self.ledger = Ledger()
        self.snapshot: Snapshot | None = None
        self.decisions = 0

    def decide(self, slurm: EmbeddedSlurm, live: _Live) -> None:
        """Asks for advice on one submission, and follows it."""
        now = EPOCH + slurm.now
        if self.snapshot is None or now - self.snapshot.taken_at >= self.poll_s:
            self.snapshot = build_snapshot(slurm.state(), self.history, self.snapshot)
            self.ledger.rebase(self.snapshot)
        request = submission(live.job, slurm.limits())
        decision = decide(request, self.snapshot, self.ledger, self.policy, self.settings, self.rng, now, self._token)
        live.token, live.decision = decision.token, decision
        if decision.action == "rewrite":
            if "partition" in decision.set:
                live.partitions = tuple(decision.set["partition"].split(","))
            chosen = decision.candidates[decision.chosen]
            live.gpu_type = chosen.gpu_type or live.gpu_type
        if self.on_decision is not None:
            self.on_decision(live.job, decision)

    def learn(self, job: SimJob, processor: str, seconds: float) -> None:
        """Adds one finished run to what is known of its app."""
        runs = dict(self.history.get(job.app, {}))
        past = runs.get(processor, RunTimes(0, 0.0, 0.0))
        value = math.log(max(seconds, 1.0))
        count = past.count + 1
        mean = past.mean_log + (value - past.mean_log) / count
        # Welford's update of the sum of squares, from and to a standard deviation.
        squares = past.sd_log**2 * max(past.count - 1, 0) + (value - past.mean_log) * (value - mean)
        runs[processor] = RunTimes(count, mean, math.sqrt(squares / (count - 1)) if count > 1 else 0.0)
        self.history[job.app] = runs

    def _token(self) -> str:
        self.decisions += 1
        return f"embedded-{self.decisions}"


def minutes(seconds: float) -> int:
    """Slurm's unit of limits, rounded up."""
    return max(1, math.ceil(seconds / 60))


def submission(job: SimJob, partitions: list[PartitionLimits]) -> SubmitRequest:
    """What the hook would send for the job."""
    per_node = -(-job.gpus // job.nodes)
    gres = f"gres/gpu:{job.gpu_type}:{per_node}" if job.gpu_type else f"gres/gpu:{per_node}"
    return SubmitRequest(
        v=VERSION,
        uid=1000,
        user=job.user or "user",
        account=job.account or None,
        name=job.app or None,
        partition=",".join(job.partitions) or None,
        tres_per_node=gres if job.gpus else None,
        time_limit=None if job.time_limit is None else minutes(job.time_limit),
        min_cpus=job.cpus,
        min_nodes=job.nodes,
        max_nodes=job.nodes,
        min_mem_per_node=-(-job.memory_mb // job.nodes) or None,
        script_head=job.script or None,
        partitions=partitions,
    )


def _per_node(job: SimJob) -> tuple[int, int, int]:
    return (-(-job.cpus // job.nodes), -(-job.memory_mb // job.nodes), -(-job.gpus // job.nodes))
