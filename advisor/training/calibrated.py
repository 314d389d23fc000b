"""The site itself as a simulation: its nodes and partitions, its jobs as they arrived, its apps' run times.

All from the log: a node has as many GPUs and CPUs as were ever in use at once; a job may go where its decision had
candidates for it (or where it went, where there was nothing to decide). How long a job would have run elsewhere follows
from how long it ran and from the run-time model; what the model does not know is drawn anew for every history, so that
a version cannot win by agreeing with itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.cluster.hostlist import expand_hostlist
from advisor.performance import processors as table
from advisor.performance.runtime import expected
from advisor.performance.snapshot import RunTimes
from advisor.settings import Processor, Settings
from advisor.sim.cluster import Place, SimCluster, SimNode
from advisor.sim.engine import Engine
from advisor.sim.state import Floats
from advisor.sim.workload import SimJob, Workload
from advisor.store.database import Database, explained
from advisor.store.experience import Place as Candidate
from advisor.training.gate import Simulated
from advisor.training.off_policy import mean_interval

History = Mapping[str, Mapping[str, RunTimes]]

# The last so many jobs are the site's workload: enough for a steady queue, few enough for many histories.
MOST_JOBS = 3000
HISTORIES = 8
_MEMORY_MB = 1 << 20  # memory hardly ever binds where the log cannot tell how much a node has
_places = msgspec.json.Decoder(list[Candidate])


class LoggedJob(NamedTuple):
    """A job of the log, as far as a simulation needs it."""

    job: SimJob
    processor: str  # where it ran
    seconds: float
    allowed: frozenset[tuple[str, str]]  # partition and processor where it may go; a processor "" is any


class Site(msgspec.Struct, frozen=True):
    """A cluster and its jobs, as the log shows them."""

    cluster: SimCluster
    jobs: tuple[LoggedJob, ...]

    @property
    def load(self) -> float:
        """GPU (or CPU) seconds in use over those there were, from the first submission to the last."""
        units = [job.job.gpus or 0 for job in self.jobs]
        total = self.cluster.gpus
        if not any(units) or not total:
            units, total = [job.job.cpus for job in self.jobs], self.cluster.cpus
        span_s = max((job.job.submit for job in self.jobs), default=0.0)
        busy = sum(u * job.seconds for u, job in zip(units, self.jobs, strict=True))
        return busy / (total * span_s) if span_s else 0.0


def read_site(db: Database, cluster: str, most: int = MOST_JOBS) -> Site | None:
    """The site of the last jobs of a cluster; None where too little is known of it. Raises `StoreError`."""
    with explained(db.path):
        rows = db.connection.execute(
            "SELECT o.job, o.submit, o.start, o.end, o.elapsed, o.partition, o.processor, o.nodes, o.node_count, "
            "o.gpus, o.cpus, o.time_limit, o.user, o.account, coalesce(d.app, o.name) AS app, d.eligible, d.candidates "
            "FROM outcomes AS o LEFT JOIN decisions AS d ON d.token = o.token "
            "WHERE o.cluster = ? AND o.start IS NOT NULL AND o.submit IS NOT NULL AND o.nodes IS NOT NULL "
            "AND o.elapsed > 0 AND o.processor NOT IN ('', 'gpu') AND o.partition IS NOT NULL "
            # The cluster that is made of them has whole GPUs only, and nodes of one kind in each place.
            "AND o.processor NOT LIKE '%/shard' AND o.processor NOT LIKE '%+%' "
            "AND o.state IN ('COMPLETED', 'TIMEOUT') ORDER BY o.submit DESC, o.db_index LIMIT ?",
            (cluster, most),
        ).fetchall()
    rows.reverse()
    if len(rows) < 2:
        return None
    made = _cluster(cluster, rows)
    # A job that used no GPU on a node that has some, for one, could run nowhere in it.
    places = {(place.partition, place.processor) for place in made.places}
    rows = [row for row in rows if (row["partition"], row["processor"]) in places]
    if len(rows) < 2:
        return None
    first = rows[0]["submit"]
    jobs = []
    for number, row in enumerate(rows):
        app = row["app"] or "unnamed"
        allowed = {(row["partition"], row["processor"])}
        if row["eligible"] and row["candidates"]:
            for candidate in _candidates(row["candidates"]):
                for partition in (candidate.partition or "").split(","):
                    allowed.add((partition, candidate.gpu_type or ("" if row["gpus"] else "cpu")))
        job = SimJob(
            id=str(number),
            submit=float(row["submit"] - first),
            run_time={row["processor"]: float(row["elapsed"])},
            app=app,
            user=row["user"] or "",
            account=row["account"] or "",
            nodes=row["node_count"] or 1,
            cpus=max(row["cpus"] or 1, row["node_count"] or 1),
            gpus=row["gpus"] or 0,
            time_limit=None if row["time_limit"] is None else row["time_limit"] * 60.0,
        )
        jobs.append(LoggedJob(job, row["processor"], float(row["elapsed"]), frozenset(allowed)))
    return Site(made, tuple(jobs))


def _candidates(text: str) -> list[Candidate]:
    try:
        return _places.decode(text)
    except msgspec.DecodeError:
        return []


def _cluster(name: str, rows: Sequence[Mapping[str, object]]) -> SimCluster:
    """Nodes by what ran on them, places by where partitions had jobs."""
    events: dict[str, list[tuple[int, int, int]]] = {}
    kinds: dict[str, Counter[str]] = {}
    partitions: dict[str, dict[str, None]] = {}
    for row in rows:
        nodes = expand_hostlist(str(row["nodes"]))
        count = max(len(nodes), 1)
        gpus, cpus = -(-int(row["gpus"] or 0) // count), -(-int(row["cpus"] or 1) // count)  # type: ignore[call-overload]
        for node in nodes:
            kinds.setdefault(node, Counter())[str(row["processor"])] += 1
            events.setdefault(node, []).extend(((int(row["start"]), gpus, cpus), (int(row["end"]), -gpus, -cpus)))  # type: ignore[call-overload]
            partitions.setdefault(str(row["partition"]), {})[node] = None
    order = sorted(events)
    index = {node: i for i, node in enumerate(order)}
    made = []
    for node in order:
        gpus, cpus = _most_at_once(events[node])
        kind = next((k for k, _ in kinds[node].most_common() if k != "cpu"), "cpu") if gpus else "cpu"
        made.append(SimNode(node, cpus, _MEMORY_MB, gpus, kind))
    places = []
    for partition, members in partitions.items():
        by_kind: dict[str, list[int]] = {}
        for node in members:
            by_kind.setdefault(made[index[node]].processor, []).append(index[node])
        places += [Place(partition, kind, tuple(sorted(nodes))) for kind, nodes in sorted(by_kind.items())]
    busiest = Counter(str(row["partition"]) for row in rows).most_common(1)[0][0]
    return SimCluster(name, tuple(made), tuple(places), busiest)


def _most_at_once(events: list[tuple[int, int, int]]) -> tuple[int, int]:
    gpus = cpus = most_gpus = most_cpus = 0
    for _, more_gpus, more_cpus in sorted(events):  # ends sort before starts of the same second
        gpus, cpus = gpus + more_gpus, cpus + more_cpus
        most_gpus, most_cpus = max(most_gpus, gpus), max(most_cpus, cpus)
    return most_gpus, max(most_cpus, 1)


class Beliefs:
    """Run times of the site's jobs on its processors, by a history."""

    def __init__(self, history: History, figures: Mapping[str, Processor]) -> None:
        self._history, self._figures = history, figures
        self._known: dict[tuple[object, ...], float] = {}

    def seconds(self, job: SimJob, processor: str) -> float:
        """The expected run time."""
        key = (job.app, job.user, processor, job.gpus, job.cpus, job.time_limit)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = expected(
                job.app, job.user, processor, job.time_limit, None, self._history, self._figures, gpus=job.gpus,
                cpus=job.cpus,
            ).seconds  # fmt: skip
        return found


def compare(
    site: Site, best: History, new: History, old: History, settings: Settings, seed: int, histories: int = HISTORIES
) -> Simulated:
    """Mean turnaround when the site is run by the new figures and by the old; `best`: what is known of the truth."""
    return summary(site, play_histories(site, best, new, old, settings, seed, range(histories)))


def play_histories(
    site: Site, best: History, new: History, old: History, settings: Settings, seed: int, numbers: Iterable[int]
) -> list[tuple[float, float]]:
    """Mean turnaround by the new figures and by the old in each of these worlds; a number is always the same world."""
    figures = table.load(settings.processors)
    truth = Beliefs(best, figures)
    beliefs = [Beliefs(new, figures), Beliefs(old, figures)]
    means: list[tuple[float, float]] = []
    for number in numbers:
        workload, options = one_history(site, best, truth, np.random.default_rng([seed, number]))
        means.append(
            (
                _mean_turnaround(site.cluster, workload, options, beliefs[0]),
                _mean_turnaround(site.cluster, workload, options, beliefs[1]),
            )
        )
    return means


def summary(site: Site, means: Sequence[tuple[float, float]]) -> Simulated:
    """What the worlds say together."""
    runs = np.array(means)
    gains = 1.0 - runs[:, 0] / runs[:, 1]
    return Simulated(
        len(means), len(site.jobs), float(runs[:, 0].mean()), float(runs[:, 1].mean()), mean_interval(gains)
    )


def one_history(
    site: Site, best: History, truth: Beliefs, rng: np.random.Generator
) -> tuple[Workload, list[list[tuple[int, str]]]]:
    """Jobs with their run times on every processor they may go to, in one possible world."""
    off: dict[tuple[str, str], float] = {}
    jobs, options = [], []
    for logged in site.jobs:
        job = logged.job
        allowed = [
            (p, place.processor)
            for p, place in enumerate(site.cluster.places)
            if {(place.partition, place.processor), (place.partition, "")} & logged.allowed
            and (job.gpus > 0) == (site.cluster.nodes[place.nodes[0]].gpus > 0 and place.processor != "cpu")
        ]
        here = truth.seconds(job, logged.processor) * math.exp(_off(off, best, job.app, logged.processor, rng))
        run_time = {logged.processor: logged.seconds}
        for _, processor in allowed:
            if processor != logged.processor:
                there = truth.seconds(job, processor) * math.exp(_off(off, best, job.app, processor, rng))
                run_time[processor] = min(max(logged.seconds * there / here, 1.0), 30 * 86_400.0)
        # A limit that cuts a slow run short would make the slow processor look quick.
        limit = max(job.time_limit or 0.0, 1.01 * max(run_time.values()))
        jobs.append(msgspec.structs.replace(job, run_time=run_time, time_limit=limit))
        options.append(allowed)
    return Workload("the site's log", tuple(jobs)), options


def _off(
    known: dict[tuple[str, str], float], best: History, app: str, processor: str, rng: np.random.Generator
) -> float:
    """How far the truth is from what is expected of an app on a processor, in this world."""
    key = (app, processor)
    if key not in known:
        past = best.get(app, {}).get(processor)
        known[key] = float(rng.normal(0.0, 1.0)) * (past.apart_log if past is not None else 0.5)
    return known[key]


def _mean_turnaround(
    cluster: SimCluster, workload: Workload, options: list[list[tuple[int, str]]], beliefs: Beliefs
) -> float:
    matrix: Floats = np.full((len(workload.jobs), len(cluster.places)), np.inf)
    for j, (job, allowed) in enumerate(zip(workload.jobs, options, strict=True)):
        for p, processor in allowed:
            matrix[j, p] = beliefs.seconds(job, processor)
    engine = Engine(cluster, workload, expected=matrix)
    ordered = []
    for j, allowed in enumerate(options):
        able = [p for p, _ in allowed if np.isfinite(engine.jobs.run[j, p])]
        ordered.append(sorted(able or engine.feasible(j), key=lambda p: matrix[j, p]))
    schedule = engine.run(ordered, "earliest-finish")
    return float(np.mean(schedule.end - engine.jobs.submit))
