"""The daemon's own hot path as a policy of the simulator: every submission goes through `decide`.

Slower than the compiled heuristics (a snapshot is built for each submission), and exactly what would run at a site.
"""

from __future__ import annotations

import math
import random

import msgspec
import numpy as np

from advisor.cluster.types import ClusterState, Gres, Job, Node, Partition
from advisor.performance.processors import load
from advisor.performance.queue import build_snapshot
from advisor.performance.snapshot import RunTimes, Snapshot
from advisor.performance.waits import Ledger
from advisor.policy.decision import decide
from advisor.policy.gavel.site import with_owed
from advisor.policy.interface import Decision, Policy
from advisor.policy.registry import make_policy
from advisor.policy.workflow import Workflows
from advisor.protocol import PartitionLimits, SubmitRequest
from advisor.settings import Settings
from advisor.sim.embedded import ENFORCING, EPOCH, RELEASE, minutes, submission
from advisor.sim.engine import Engine, Schedule
from advisor.sim.heuristics import as_submitted
from advisor.sim.state import HEAD, RUNNING, TAIL

# So many past runs that their mean is taken at its word.
CERTAIN = 10**9


def run_daemon(
    engine: Engine,
    seed: int = 0,
    settings: Settings = ENFORCING,
    policy: Policy | None = None,
    poll_s: float = 0.0,
    workflows: bool = True,
) -> Schedule:
    """Runs the engine's workload with each job placed by the daemon's decision."""
    return engine.run_deciding(DaemonChoice(engine, seed, settings, policy, poll_s, workflows))


class DaemonChoice:
    """Asks `decide` at each submission. Run times are known as well as `engine.jobs.expected` says."""

    def __init__(
        self,
        engine: Engine,
        seed: int = 0,
        settings: Settings = ENFORCING,
        policy: Policy | None = None,
        poll_s: float = 0.0,
        workflows: bool = True,
    ) -> None:
        """`workflows`: whether it knows which jobs wait for each other, as the daemon does."""
        self.engine, self.settings, self.poll_s = engine, settings, poll_s
        self.policy = policy or make_policy(settings)
        self.figures = load(settings.processors)
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.workflows = Workflows() if workflows else None
        self._held: list[int] = []  # decided, and waiting for others to end
        self._number = {job.id: number for number, job in enumerate(engine.workload.jobs, 1)}
        self.snapshot: Snapshot | None = None
        self.decisions: list[Decision] = []
        self.partitions = self._partitions()
        self.history = {
            self._app(j): {
                place.processor: RunTimes(CERTAIN, math.log(max(engine.jobs.expected[j, p], 1.0)), 0.0)
                for p, place in enumerate(engine.cluster.places)
                if np.isfinite(engine.jobs.run[j, p])
            }
            for j in range(len(engine.workload.jobs))
        }
        self._arrays: dict[str, list[int]] = {}

    def __call__(self, job: int, now: float) -> list[int]:
        """The places for the job, in the order to try."""
        spec = self.engine.workload.jobs[job]
        if spec.array is not None and spec.array in self._arrays:
            return self._arrays[spec.array]
        _, decision = self.decided(job, now)
        places = self.places_by(job, decision)
        if spec.array is not None:
            self._arrays[spec.array] = places
        return places

    def decided(self, job: int, now: float) -> tuple[SubmitRequest, Decision]:
        """What the daemon is asked about the job, and what it decides."""
        spec, at = self.engine.workload.jobs[job], EPOCH + now
        if self.snapshot is None or at - self.snapshot.taken_at >= self.poll_s:
            self.snapshot = self.polled(now)
            self.ledger.rebase(self.snapshot)
            if self.workflows is not None:
                self.workflows.seen(self.snapshot)
        limits = [PartitionLimits(p.name, default=p.default, max_time=p.max_time) for p in self.partitions]
        leaders = ":".join(str(self._number[name]) for name in spec.depends)
        request = msgspec.structs.replace(
            submission(spec, limits), name=self._app(job), dependency=f"afterany:{leaders}" if leaders else None
        )
        decision = decide(
            request,
            self.snapshot,
            self.ledger,
            self.policy,
            self.settings,
            self.rng,
            at,
            lambda: f"simulated-{job}",
            workflows=self.workflows,
        )
        if leaders:
            self._held.append(job)
        self.decisions.append(decision)
        return request, decision

    def polled(self, now: float) -> Snapshot:
        """The snapshot of a poll at this time."""
        state = self.state(now)
        snapshot = build_snapshot(state, self.history, self.snapshot)
        return with_owed(self.policy.name, state, snapshot, self.history, self.figures)

    def places_by(self, job: int, decision: Decision) -> list[int]:
        """Where the job may start after the decision."""
        if decision.action != "rewrite":
            return as_submitted(self.engine, job)
        chosen = decision.candidates[decision.chosen]
        names = (chosen.partition or "").split(",")
        return [
            p
            for p in self.engine.feasible(job)
            if self.engine.cluster.places[p].partition in names
            and chosen.gpu_type in (None, self.engine.cluster.places[p].processor)
        ]

    def state(self, now: float) -> ClusterState:
        """What a poll of the simulated Slurm would tell."""
        s = self.engine.state
        running = [int(j) for j in s.running[: s.counters[RUNNING]]]
        pending = [int(j) for j in s.queue[s.counters[HEAD] : s.counters[TAIL]]]
        self._held = [j for j in self._held if int(s.waits_for[j]) > 0]
        return ClusterState(
            cluster=self.engine.cluster.name,
            release=RELEASE,
            taken_at=EPOCH + now,
            nodes=self._nodes(),
            partitions=self.partitions,
            jobs=tuple(self._record(j) for j in [*running, *pending, *self._held]),
        )

    def _app(self, job: int) -> str:
        """Each job is an app of its own, since its run times are known one by one."""
        return f"job-{self.engine.workload.jobs[job].id}"

    def _partitions(self) -> tuple[Partition, ...]:
        cluster = self.engine.cluster
        found = []
        for name in dict.fromkeys(place.partition for place in cluster.places):
            places = [place for place in cluster.places if place.partition == name]
            limits = [place.max_time_s for place in places if place.max_time_s is not None]
            found.append(
                Partition(
                    name=name,
                    nodes=tuple(cluster.nodes[n].name for place in places for n in place.nodes),
                    default=name == cluster.default_partition,
                    max_time=int(min(limits) // 60) if limits else None,
                )
            )
        return tuple(found)

    def _nodes(self) -> tuple[Node, ...]:
        free = self.engine.state.free
        found = []
        for i, node in enumerate(self.engine.cluster.nodes):
            cpus, memory, gpus = (int(units) for units in free[i])
            used = node.gpus - gpus
            idle = cpus == node.cpus and not used
            found.append(
                Node(
                    name=node.name,
                    states=("IDLE" if idle else "ALLOCATED" if cpus == 0 else "MIXED",),
                    cpus=node.cpus,
                    memory_mb=node.memory_mb,
                    gres=(Gres("gpu", node.gpus, node.processor),) if node.gpus else (),
                    cpus_allocated=node.cpus - cpus,
                    memory_allocated_mb=node.memory_mb - memory,
                    gres_allocated=(Gres("gpu", used, node.processor),) if used else (),
                )
            )
        return tuple(found)

    def _record(self, job: int) -> Job:
        engine = self.engine
        spec, s = engine.workload.jobs[job], engine.state
        started = int(s.place[job]) >= 0
        options = [int(p) for p in engine.jobs.options[job] if p >= 0]
        places = [engine.cluster.places[p] for p in ([int(s.place[job])] if started else options)]
        kinds = {place.processor for place in places}
        first = engine.jobs.slot_first
        nodes = s.slots[first[job] : first[job + 1]] if started else ()
        gpus = (Gres("gpu", spec.gpus, kinds.pop() if len(kinds) == 1 else None),) if spec.gpus else ()
        return Job(
            job_id=job + 1,
            states=("RUNNING",) if started else ("PENDING",),
            name=self._app(job),
            user=spec.user,
            account=spec.account,
            partitions=tuple(dict.fromkeys(place.partition for place in places)),
            reason="" if started else "Dependency" if s.waits_for[job] > 0 else "Priority",
            dependency=",".join(f"afterany:{self._number[name]}" for name in spec.depends),
            priority=int(spec.priority),
            submit_time=int(EPOCH + spec.submit),
            eligible_time=int(EPOCH + spec.submit),
            start_time=int(EPOCH + s.start[job]) if started else None,
            time_limit=minutes(float(engine.limit[job])),
            nodes=tuple(engine.cluster.nodes[int(n)].name for n in nodes),
            node_count=spec.nodes,
            cpus=spec.cpus,
            memory_mb=spec.memory_mb,
            gres=gpus,
            admin_comment=f"advisor=simulated-{job}",
        )
