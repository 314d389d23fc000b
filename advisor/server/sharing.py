"""Keeps what is known of jobs that share nodes, and tells with every snapshot what a job would meet in each pool.

`learn` reads the log in the collector's bookkeeping thread: past runs beside one another, and what agents measured.
`slowdowns` is called with every poll and only looks at what was learned. Without shared nodes in the log and without
agents there is nothing to tell, and decisions are what they were.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from advisor.cluster.hostlist import HostlistError, expand_hostlist
from advisor.cluster.types import ClusterState, Job, Node
from advisor.performance.model.names import family
from advisor.performance.pools import build_pools
from advisor.performance.slowdowns import Slowdowns, encoded, encoded_spreads
from advisor.performance.snapshot import Snapshot
from advisor.settings import Contention, Settings
from advisor.store import sharing as store
from advisor.store.database import Database
from advisor.store.outcomes import token_in

if TYPE_CHECKING:
    from advisor.contention.outlook import Demands, Outlook
    from advisor.contention.shared_runs import SharedRuns
    from advisor.contention.summaries import NodeClass

log = logging.getLogger(__name__)

RUNS = 10_000  # the last so many runs tell how apps get along now
APPS = 400  # that ran last have a row of their own; the others share one
JOBS = 2_000  # measured jobs that are looked at
MEASURED_DAYS = 30.0
LOOK_S = 10.0  # at least this long between two looks at what agents measured, and more where they take long
REFIT_S = 60.0  # at least this long between two fits, and more where they take long
TOKENS = 20_000  # that are remembered with their app

Beliefs = tuple[dict[str, tuple[float, float]], ...]


@dataclass
class Learned:
    """What the log says; replaced whole, never changed."""

    outlook: Outlook
    apps: tuple[str, ...]
    usual: dict[str, dict[str, float]]
    uses: Mapping[tuple[int, str], Demands] = field(default_factory=dict)  # job id, node → what it uses there


class Sharing:
    """What jobs do to each other on this cluster."""

    def __init__(self) -> None:
        self._learned: Learned | None = None
        self._nodes: dict[str, Node] = {}
        self._running: tuple[Job, ...] = ()
        self._apps: dict[str, str] = {}  # token → app
        self._asked_for: frozenset[str] = frozenset()  # tokens that were not in the log
        self._latest: tuple[str, ...] = ()  # apps, those that ran last first
        self._without_numpy = False
        self._next = 0.0
        self._refit_at = 0.0
        self._seen_until = -1.0
        self._runs: tuple[SharedRuns, dict[str, dict[str, float]]] | None = None

    def outlook(self, state: ClusterState, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the slowdowns that are expected; without them where they cannot be worked out."""
        try:
            slowdowns, beliefs = self.slowdowns(state, snapshot)
        except Exception:  # waits and run times alone are better than no advice
            log.exception("slowdowns could not be worked out; decisions go on without them")
            return snapshot
        return msgspec.structs.replace(snapshot, slowdowns=slowdowns, beliefs=beliefs)

    def slowdowns(self, state: ClusterState, snapshot: Snapshot) -> tuple[Slowdowns | None, Beliefs]:
        """Expected slowdowns in the snapshot's pools, and what is believed of these; None where nothing is known."""
        self._nodes = {node.name: node for node in state.nodes}
        self._running = tuple(job for job in state.jobs if job.running and job.nodes)
        learned = self._learned
        if learned is None:
            return None, ()
        from advisor.contention.outlook import Pool
        from advisor.server.neighbourhood import belief_of, most_present, place_of, with_room

        outlook = learned.outlook
        pools, pool_of = build_pools(state, snapshot.pools)
        whole = {partition.name for partition in state.partitions if partition.exclusive}
        members: list[list[Node]] = [[] for _ in pools]
        for node in state.nodes:
            index = pool_of.get(node.name)
            if index is not None:
                members[index].append(node)
        shared_by = [
            [] if all(name in whole for name in pool.partitions) else with_room(nodes)
            for pool, nodes in zip(pools, members, strict=True)
        ]
        here = self._neighbours({node.name for shared in shared_by for node in shared})
        met, beside, beliefs = [], [], []
        for pool, shared in zip(pools, shared_by, strict=True):
            places = [place_of(node.name, here.get(node.name, ()), learned.uses, outlook.demands) for node in shared]
            met.append(Pool(pool.processor, places))
            beside.append(most_present(places))
            beliefs.append(belief_of(places, outlook.pressure.resources))
        slow, spread = outlook.table(learned.apps, met)
        codes, spreads = [encoded(row) for row in slow], [encoded_spreads(row) for row in spread]
        told = Slowdowns(
            by_app=dict(zip(learned.apps, codes, strict=False)),
            others=codes[-1],
            spread_by_app=dict(zip(learned.apps, spreads, strict=False)),
            spread_of_others=spreads[-1],
            usual=learned.usual,
            beside=tuple(beside),
        )
        return told, tuple(beliefs) if any(beliefs) else ()

    def learn(self, db: Database, settings: Settings) -> None:
        """Brings what is known up to date with the log, when that is due; raises `StoreError`."""
        if not settings.contention.slowdown:
            self._learned = None
            return
        if self._without_numpy or not self._nodes:
            return
        self._resolve(db)
        started = time.monotonic()
        if started < self._next:
            return
        try:
            self._learn(db, settings.contention)
        except ImportError as error:
            self._without_numpy = True
            log.warning("how jobs slow each other down is not learned: %s (pip install 'slurm-advisor[sim]')", error)
        finally:
            self._next = time.monotonic() + max(LOOK_S, 50 * (time.monotonic() - started))

    def _learn(self, db: Database, settings: Contention) -> None:
        self._asked_for = frozenset()
        measured = store.job_uses(db, time.time() - MEASURED_DAYS * 86400, JOBS)
        uses = self._uses(measured, settings) if measured else {}
        demands = self._demands(db, uses)
        runs = self._shared_runs(db, demands)
        if runs is None and not demands:
            self._learned = None
            return
        from advisor.contention.outlook import Outlook

        model, usual = runs if runs is not None else (None, {})
        known = dict.fromkeys(self._latest if model is not None else ())
        known.update(dict.fromkeys(demands))
        self._learned = Learned(Outlook(model, demands), tuple(list(known)[:APPS]), usual, uses)

    def _shared_runs(
        self, db: Database, demands: Mapping[str, Demands]
    ) -> tuple[SharedRuns, dict[str, dict[str, float]]] | None:
        """The model of past runs, fitted again when the log has grown."""
        from advisor.store.learning import ended_until

        until = ended_until(db)
        if until == self._seen_until or time.monotonic() < self._refit_at:
            return self._runs
        started = time.monotonic()
        self._runs = self._fitted(db, demands)
        self._seen_until = until
        self._refit_at = time.monotonic() + max(REFIT_S, 30 * (time.monotonic() - started))
        return self._runs

    def _fitted(
        self, db: Database, demands: Mapping[str, Demands]
    ) -> tuple[SharedRuns, dict[str, dict[str, float]]] | None:
        from advisor.contention.exposure import Run, exposures
        from advisor.contention.outlook import Outlook
        from advisor.contention.shared_runs import SharedRuns
        from advisor.server.neighbourhood import share_of_node, usual_slowdowns

        runs: list[Run] = []
        for record in store.node_records(db, RUNS):
            try:
                nodes = expand_hostlist(record.nodes)
            except HostlistError:
                continue
            if record.app and nodes:
                share = share_of_node(self._nodes.get(nodes[0]), record.cpus / len(nodes), record.gpus / len(nodes))
                size = max(record.gpus or record.cpus, 1).bit_length()
                done = record.state == "COMPLETED"
                runs.append(
                    Run(record.app, family(record.app)[0], record.processor, nodes, record.start, record.end, done,
                        size, share)
                )  # fmt: skip
        now = time.time()
        for job in self._running:
            app = self._app(job)
            if app and job.start_time is not None and job.start_time < now:
                share = self._share(job, job.nodes[0])
                runs.append(Run(app, family(app)[0], "", job.nodes, job.start_time, now, False, 0, share))
        self._latest = tuple(dict.fromkeys(run.app for run in reversed(runs)))
        around = exposures(runs)
        prior = Outlook(None, demands)
        shares: dict[str, list[float]] = {}
        for run in runs:
            shares.setdefault(run.app, []).append(run.share)
        share_of = {app: sum(each) / len(each) for app, each in shares.items()}
        expected = (
            [prior.expected(run.app, beside, share_of) for run, beside in zip(runs, around, strict=True)]
            if demands
            else None
        )
        model = SharedRuns.fitted(runs, around, expected)
        if model is None:
            return None
        log.info("slowdowns learned from %d runs (%d situations)", len(runs), len(model.situations))
        return model, usual_slowdowns(model, runs, around, expected)

    def _uses(self, measured: list[store.JobUse], settings: Contention) -> dict[tuple[int, str], Demands]:
        """What each measured job uses of its node, by inference over what the agent counted."""
        import numpy as np

        from advisor.contention.outlook import Demands
        from advisor.contention.slowdown import PRIOR
        from advisor.contention.summaries import Rate, uses
        from advisor.contention.vendor import PerfError
        from advisor.server.neighbourhood import class_of

        classes: dict[NodeClass, list[store.JobUse]] = {}
        for use in measured:
            node = self._nodes.get(use.node)
            if node is not None:
                classes.setdefault(class_of(node, settings), []).append(use)
        found: dict[tuple[int, str], Demands] = {}
        for kind, jobs in classes.items():
            rates = [
                {name: Rate(m.n, m.mean, m.m2, m.enabled_s, m.running_s) for name, m in job.metrics.items()}
                for job in jobs
            ]
            try:
                told = uses(kind, rates)
            except PerfError as error:
                log.warning("contention.cpus names %s, but its relations cannot be read: %s", kind.cpu, error)
                told = uses(replace(kind, cpu=""), rates)
            columns = [told.resources.index(resource) for resource in PRIOR]
            for row, job in enumerate(jobs):
                mean, sd = np.asarray(told.mean[row, columns]), np.asarray(told.sd[row, columns])
                if np.isfinite(mean).any():
                    found[job.job_id, job.node] = Demands(mean, sd)
        return found

    def _demands(self, db: Database, uses: Mapping[tuple[int, str], Demands]) -> dict[str, Demands]:
        """What jobs of each app use of a node when they run: the mean over those measured."""
        if not uses:
            return {}
        from advisor.server.neighbourhood import mean_demand

        apps = store.apps_of_jobs(db, (job_id for job_id, _ in uses))
        apps.update({job.job_id: self._app(job) for job in self._running})
        by_app: dict[str, list[Demands]] = {}
        for (job_id, _), use in uses.items():
            if apps.get(job_id):
                by_app.setdefault(apps[job_id], []).append(use)
        return {app: mean_demand(each) for app, each in by_app.items()}

    def _resolve(self, db: Database) -> None:
        """Learns the apps of running jobs whose annotation named one."""
        tokens = {token for job in self._running if (token := token_in(job.admin_comment)) is not None}
        if len(self._apps) > TOKENS:
            self._apps = {token: app for token, app in self._apps.items() if token in tokens}
        new = tokens - self._apps.keys()
        # A decision may reach the log a little later, or never: it is not asked for again at once.
        if new - self._asked_for:
            self._apps.update(store.apps_of_tokens(db, new))
            self._asked_for = frozenset(new - self._apps.keys()) if len(new) < TOKENS else frozenset()

    def _app(self, job: Job) -> str:
        token = token_in(job.admin_comment)
        return self._apps.get(token, job.name) if token is not None else job.name

    def _share(self, job: Job, node: str) -> float:
        gpus = sum(gres.count for gres in job.gres if gres.name == "gpu")
        count = len(job.nodes)
        from advisor.server.neighbourhood import share_of_node

        return 1.0 if job.exclusive else share_of_node(self._nodes.get(node), job.cpus / count, gpus / count)

    def _neighbours(self, nodes: set[str]) -> dict[str, list[tuple[int, str, float]]]:
        """Of these nodes: name → (job id, app, share of the node) of those who are on it."""
        found: dict[str, list[tuple[int, str, float]]] = {}
        for job in self._running:
            for node in job.nodes:
                if node in nodes:
                    found.setdefault(node, []).append((job.job_id, self._app(job), self._share(job, node)))
        return found
