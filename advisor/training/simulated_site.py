"""A simulated site that keeps a log of the daemon's own decisions and of how jobs ended, for `advisor retrain` to read.

For the closed loop and for tests: what is learned there goes through the same tables, the same decision code and the
same versions as at a real site. Processors may arrive later: until then neither Slurm nor the advisor knows of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from advisor.cluster.types import ClusterState, Partition
from advisor.performance.snapshot import RunTimes, Snapshot
from advisor.policy.interface import Policy
from advisor.settings import Settings
from advisor.sim.cluster import SimCluster
from advisor.sim.daemon import DaemonChoice
from advisor.sim.embedded import EPOCH
from advisor.sim.engine import Engine
from advisor.sim.workload import SimJob, Workload
from advisor.store import decisions, outcomes
from advisor.store.database import Database
from advisor.store.decisions import DecisionRow
from advisor.store.outcomes import OutcomeRow
from advisor.training.decision_rows import decision_row

Corrections = dict[str, tuple[tuple[float, float, float], ...]]

# Jobs of this app hold nodes that have not arrived yet; they are no part of the site.
NOT_YET = "not-arrived"


def with_arrivals(workload: Workload, cluster: SimCluster, arrives: Mapping[str, float]) -> Workload:
    """The workload with jobs that hold the nodes of processors which arrive later, until then."""
    held = [
        SimJob(
            id=f"hold-{node.name}",
            submit=0.0,
            run_time={node.processor: arrives[node.processor]},
            app=NOT_YET,
            cpus=node.cpus,
            gpus=node.gpus,
            gpu_type=node.processor,
            priority=1e9,
        )
        for node in cluster.nodes
        if node.processor in arrives
    ]
    return Workload(workload.name, (*held, *workload.jobs))


class LoggingSite(DaemonChoice):
    """Decides as the daemon does, with the run times and corrections it was last given, and logs it."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        db: Database | None,
        arrives: Mapping[str, float] | None = None,
        seed: int = 0,
        policy: Policy | None = None,
        poll_s: float = 60.0,
        each_s: float = math.inf,
        on_time: Callable[[LoggingSite, float], None] | None = None,
        knows_all: bool = False,
    ) -> None:
        """`on_time` is called every `each_s` of simulated time; `knows_all`: each job's run times are known exactly."""
        super().__init__(engine, seed, settings, policy, poll_s, workflows=False)
        self.arrives = dict(arrives or {})
        self.knows_all = knows_all
        if not knows_all:
            self.history = {}
        self.corrections: Corrections = {}
        self.first_use: dict[str, int] = {}  # processor → decisions made since it arrived until one chose it
        self._since: dict[str, int] = {}
        self._db, self._rows = db, list[DecisionRow]()
        self._written: set[int] = set()
        self._each_s, self._next = each_s, each_s
        self._on_time = on_time
        self._everywhere = self.partitions

    def __call__(self, job: int, now: float) -> list[int]:
        """The places for the job, in the order to try."""
        while now >= self._next:
            if self._on_time is not None:
                self._on_time(self, self._next)
            self._next += self._each_s
        spec = self.engine.workload.jobs[job]
        if spec.app == NOT_YET:
            node = int(spec.id.startswith("hold-")) and next(
                i for i, each in enumerate(self.engine.cluster.nodes) if f"hold-{each.name}" == spec.id
            )
            return [p for p, place in enumerate(self.engine.cluster.places) if node in place.nodes]
        self.partitions = self._there(now)
        request, decision = self.decided(job, now)
        if self._db is not None:
            self._rows.append(decision_row(request, decision, 0.0, self.engine.cluster.name))
        chosen = decision.candidates[decision.chosen] if decision.action == "rewrite" else None
        self._count_new(now, chosen.gpu_type if chosen is not None else None)
        hidden = {kind for kind, when in self.arrives.items() if now < when}
        places = self.engine.cluster.places
        return [p for p in self.places_by(job, decision) if places[p].processor not in hidden]

    def polled(self, now: float) -> Snapshot:
        """With what past waits have taught."""
        return msgspec.structs.replace(super().polled(now), wait_corrections=self.corrections)

    def _count_new(self, now: float, gpu_type: str | None) -> None:
        for kind, when in self.arrives.items():
            if now >= when:
                self._since[kind] = self._since.get(kind, 0) + 1
                if gpu_type == kind:
                    self.first_use.setdefault(kind, self._since[kind])

    def _app(self, job: int) -> str:
        spec = self.engine.workload.jobs[job]
        # Each job is an app of its own where its run times are known one by one.
        return f"job-{spec.id}" if getattr(self, "knows_all", True) else spec.app

    def _there(self, now: float) -> tuple[Partition, ...]:
        hidden = {node.name for node in self.engine.cluster.nodes if now < self.arrives.get(node.processor, -math.inf)}
        if not hidden:
            return self._everywhere
        kept = (
            msgspec.structs.replace(p, nodes=tuple(n for n in p.nodes if n not in hidden)) for p in self._everywhere
        )
        return tuple(partition for partition in kept if partition.nodes)

    def state(self, now: float) -> ClusterState:
        """What a poll would tell: nodes that have not arrived are not there."""
        whole = super().state(now)
        hidden = {node.name for node in self.engine.cluster.nodes if now < self.arrives.get(node.processor, -math.inf)}
        return msgspec.structs.replace(
            whole,
            partitions=self._there(now),
            nodes=tuple(node for node in whole.nodes if node.name not in hidden),
            jobs=tuple(job for job in whole.jobs if job.name != NOT_YET and not job.name.startswith("job-hold-")),
        )

    def learn(self, history: dict[str, dict[str, RunTimes]], corrections: Corrections) -> None:
        """Decides by these from now on."""
        self.history, self.corrections = history, corrections
        self.snapshot = None

    def write(self, now: float) -> None:
        """Brings the log up to date: decisions so far, and every job that has ended by now."""
        if self._db is None:
            return
        decisions.insert_many(self._db, self._rows)
        self._rows.clear()
        s = self.engine.state
        ended = np.flatnonzero(np.isfinite(s.end) & (s.end <= now) & (s.place >= 0))
        new = [int(j) for j in ended if int(j) not in self._written]
        self._written.update(new)
        rows = [self._outcome(j) for j in new if self.engine.workload.jobs[j].app != NOT_YET]
        outcomes.store(self._db, rows, None, EPOCH + now)

    def _outcome(self, job: int) -> OutcomeRow:
        engine, s = self.engine, self.engine.state
        spec, place = engine.workload.jobs[job], engine.cluster.places[int(s.place[job])]
        first = engine.jobs.slot_first
        nodes = [engine.cluster.nodes[int(n)].name for n in s.slots[first[job] : first[job + 1]]]
        submit, start, end = (round(EPOCH + float(t)) for t in (spec.submit, s.start[job], s.end[job]))
        elapsed = max(end - start, 1)
        timed_out = bool(engine.true_run[job, int(s.place[job])] > engine.limit[job])
        return OutcomeRow(
            cluster=engine.cluster.name,
            db_index=str(job + 1),
            job=str(job + 1),
            job_id=job + 1,
            token=f"simulated-{job}",
            submit=submit,
            eligible=submit,
            start=start,
            end=start + elapsed,
            elapsed=elapsed,
            log_elapsed=math.log(elapsed),
            state="TIMEOUT" if timed_out else "COMPLETED",
            user=spec.user,
            account=spec.account,
            partition=place.partition,
            name=self._app(job),
            node_count=spec.nodes,
            nodes=",".join(nodes),
            cpus=spec.cpus,
            gpus=spec.gpus,
            gpu_type=place.processor if spec.gpus else None,
            processor=place.processor if spec.gpus else "cpu",
            time_limit=None if spec.time_limit is None else math.ceil(spec.time_limit / 60),
        )
