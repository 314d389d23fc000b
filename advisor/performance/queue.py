"""Schedules everything that runs and waits on the cluster's pools, and boils the result down to a snapshot.

List scheduling in priority order, with the holes that large jobs leave behind filled by short ones, as Slurm's
backfill would. Runs in the background at every poll, so that a decision only has to look up the outcome.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import inf

import msgspec

from advisor.cluster.gres import part_of
from advisor.cluster.types import ClusterState, Gres, Job, Partition
from advisor.performance import constraint, dependency
from advisor.performance.demand import Demand, Need, need_on
from advisor.performance.pools import build_pools
from advisor.performance.runtime import NO_LIMIT_S, History, at_size, past_of_family, remaining
from advisor.performance.snapshot import Pool, RunTimes, Snapshot, Timeline, Underway
from advisor.performance.track import Track
from advisor.performance.waits import place, start_on

# A running job is never expected to end sooner than this: Slurm would have told that it has.
SOON_S = 5.0
# Tiers that differ are kept apart up to this many; each one is a copy of every timeline.
MAX_TIERS = 8
# A waiting array that may start in several pools is shared out among them in so many parts.
MAX_PARTS = 16
# Of the jobs that a submission may wait for, so many of the newest and so many that others wait for are told.
MAX_UNDERWAY = 2048

_TOKEN = re.compile(r"(?:^|[\s,;])advisor=([A-Za-z0-9_-]{1,64})")
_ARRAY_LIMIT = re.compile(r"%([0-9]{1,9})\s*$")

# Reasons for which Slurm passes a pending job over however free the nodes are.
_PASSED_OVER = (
    "Account",
    "Assoc",
    "BadConstraints",
    "BeginTime",
    "BurstBuffer",
    "Cleaning",
    "Dependency",
    "Held",
    "Invalid",
    "JobHeld",
    "Licenses",
    "MaxRequeue",
    "Partition",
    "QOS",
    "ReqNodeNotAvail",
    "Reservation",
)


def build_snapshot(state: ClusterState, history: History, previous: Snapshot | None = None) -> Snapshot:
    """The snapshot of one poll. `previous` lets pools keep their indices."""
    now = state.taken_at
    pools, pool_of = build_pools(state, previous.pools if previous is not None else ())
    schedule = Schedule(state, pools, history)
    running = [job for job in state.jobs if job.running]
    waiting = [job for job in state.jobs if job.pending]
    schedule.occupy(running, pool_of)
    load = schedule.load
    tiers = _tiers(state.partitions)
    followers = followers_of(waiting, now)
    by_tier = in_line(waiting, schedule.tier, tiers, followers, now)
    gpu_lines: dict[int, list[Timeline]] = {pool.index: [] for pool in pools}
    cpu_lines: dict[int, list[Timeline]] = {pool.index: [] for pool in pools}
    for tier in tiers:
        touched = schedule.queue(by_tier[tier], followers)
        for index in cpu_lines:
            for lines, tracks in ((gpu_lines[index], schedule.gpus), (cpu_lines[index], schedule.cpus)):
                lines.append(lines[-1] if lines and index not in touched else tracks[index].freeze())
    pools_of: dict[str, list[int]] = {partition.name: [] for partition in state.partitions}
    for pool in sorted(pools, key=lambda pool: (pool.weight, pool.index)):
        for name in pool.partitions:
            if pool.nodes:
                pools_of[name].append(pool.index)
    return Snapshot(
        cluster=state.cluster,
        release=state.release,
        taken_at=now,
        partitions={p.name: msgspec.structs.replace(p, nodes=()) for p in state.partitions},
        pools=pools,
        gpu_timelines={pool.index: tuple(gpu_lines[pool.index]) for pool in pools if pool.gpus_per_node},
        cpu_timelines={index: tuple(lines) for index, lines in cpu_lines.items()},
        tiers=tiers,
        history={app: dict(runs) for app, runs in history.items()},
        queued=sum(job.tasks for job in waiting),
        running=len(running),
        tokens=frozenset(
            match[1] for job in state.jobs if job.admin_comment for match in _TOKEN.finditer(job.admin_comment)
        ),
        pools_of={name: tuple(indices) for name, indices in pools_of.items()},
        gpu_types_of=_gpu_types(pools),
        load=load,
        waiting=tuple(schedule.ahead),
        underway=_underway(state.jobs, schedule.ends, followers),
        newest_job=max((job.job_id for job in state.jobs), default=0),
    )


def in_line(
    waiting: Iterable[Job],
    tier_of: Mapping[str, int],
    tiers: tuple[int, ...],
    followers: Mapping[int, dependency.Dependency],
    now: float,
) -> dict[int, list[Job]]:
    """The pending jobs that wait for room, by priority tier, in the order in which Slurm looks at them.

    Followers come last, in the order of their submission: whom a job waits for was submitted before it.
    """
    by_tier: dict[int, list[Job]] = {tier: [] for tier in tiers}
    for job in waiting:
        if job.job_id in followers or ahead(job, now):
            own = max((tier_of.get(name, 1) for name in job.partitions), default=1)
            by_tier[next((tier for tier in tiers if own >= tier), tiers[-1])].append(job)
    for queue in by_tier.values():
        queue.sort(
            key=lambda job: (
                (1, 0, 0, job.job_id) if job.job_id in followers else (0, -job.priority, job.submit_time, job.job_id)
            )
        )
    return by_tier


class Schedule:
    """The tracks of every pool while the jobs of one poll are put on them."""

    def __init__(self, state: ClusterState, pools: tuple[Pool, ...], history: History) -> None:
        self.now = state.taken_at
        self.pools = pools
        self.history = history
        self.tier = {partition.name: partition.priority_tier for partition in state.partitions}
        self.whole = {partition.name for partition in state.partitions if partition.exclusive}
        self.max_time = {partition.name: partition.max_time for partition in state.partitions}
        self.of: dict[str, list[Pool]] = {}
        for pool in pools:
            for name in pool.partitions:
                if pool.nodes:
                    self.of.setdefault(name, []).append(pool)
        self.gpus: list[Track] = []
        self.cpus: list[Track] = []
        self.load: tuple[float, ...] = ()
        self.ahead = [0] * len(pools)
        # Queues are full of jobs that ask for the same: where they fit is worked out once.
        self._fits: dict[tuple[object, ...], list[tuple[Pool, Need]]] = {}
        # When each job is expected to end, by its id and that of its array.
        self.ends: dict[int, float] = {}
        # Where each pending job was put, with what it takes there and for how long.
        self.placed: dict[int, tuple[int, Need, float]] = {}

    def occupy(self, running: Iterable[Job], pool_of: Mapping[str, int]) -> None:
        """Puts the running jobs on fresh tracks, each until its expected end."""
        gpu_ends: list[list[tuple[float, int]]] = [[] for _ in self.pools]
        cpu_ends: list[list[tuple[float, int]]] = [[] for _ in self.pools]
        for job in running:
            if not job.nodes:
                continue
            share: dict[int, int] = {}
            for name in job.nodes:
                index = pool_of.get(name)
                if index is not None:
                    share[index] = share.get(index, 0) + 1
            gpus, shards = _gpus(job.gres), _shards(job.gres)
            for index, nodes in share.items():
                pool = self.pools[index]
                part = nodes / len(job.nodes)
                if job.exclusive or any(name in self.whole for name in job.partitions):
                    cpu_units, gpu_units = nodes * pool.cpus_per_node, nodes * pool.shards_per_node
                else:
                    memory = job.memory_mb * pool.cpus_per_node / pool.memory_per_node if pool.memory_per_node else 0
                    cpu_units = min(round(max(job.cpus, memory) * part), nodes * pool.cpus_per_node)
                    # Either of them takes from the same GPUs, and Slurm never gives one GPU to both kinds of jobs.
                    gpu_units = round((gpus * pool.shards_per_gpu + shards) * part) if pool.gpus_per_node else 0
                end = self._expected_end(job, _processor(job, pool))
                self._ends(job, end)
                cpu_ends[index].append((end, max(cpu_units, 1)))
                if gpu_units:
                    gpu_ends[index].append((end, gpu_units))
        load = []
        for pool, gpu_end, cpu_end in zip(self.pools, gpu_ends, cpu_ends, strict=True):
            capacity = (pool.nodes * pool.shards_per_node, pool.nodes * pool.cpus_per_node)
            self.gpus.append(Track.occupied(capacity[0], gpu_end, self.now))
            self.cpus.append(Track.occupied(capacity[1], cpu_end, self.now))
            used = sum(units for _, units in (gpu_end if capacity[0] else cpu_end))
            load.append(round(min(used / (capacity[0] or capacity[1] or 1), 1.0), 4))
        self.load = tuple(load)

    def queue(self, jobs: Iterable[Job], followers: Mapping[int, dependency.Dependency] | None = None) -> set[int]:
        """Places pending jobs in this order, each in the pool where it starts first; the pools touched.

        `followers` start when what they wait for has ended; those whose leaders are not known are passed over.
        """
        touched: set[int] = set()
        for job in jobs:
            now = self.now
            behind = (followers or {}).get(job.job_id)
            if behind is not None:
                now = max(now, behind.over_at(lambda leader: self.ends.get(leader, inf)))
                if now == inf:
                    continue
            fits = self._where(job)
            whole = [(pool, need) for pool, need in fits if need.nodes <= pool.nodes]
            touched |= self._put(job, whole, now) if whole else self._span(job, fits)
        return touched

    def _put(self, job: Job, fits: list[tuple[Pool, Need]], now: float) -> set[int]:
        """A job where it starts first; of an array that may go to several pools, each part of its tasks."""
        touched: set[int] = set()
        together, waves = _array(job)
        left = together
        part = together if len(fits) == 1 else -(-together // MAX_PARTS)
        while left > 0:
            start, pool, need, run_s = self._first(job, fits, now)
            if start == inf:
                break
            tasks = min(part, left)
            end = place(self.gpus[pool.index], self.cpus[pool.index], need, run_s * waves, now, tasks)
            self._ends(job, end)
            self.placed.setdefault(job.job_id, (pool.index, need, run_s * waves))
            self.ahead[pool.index] += -(-job.tasks * tasks // together)
            touched.add(pool.index)
            left -= tasks
        return touched

    def _first(self, job: Job, fits: list[tuple[Pool, Need]], now: float) -> tuple[float, Pool, Need, float]:
        """When a job, or one task of it, can start first, where, with what and for how long."""
        best: tuple[float, Pool, Need, float] | None = None
        for pool, need in fits:
            run_s = self._expected_run(job, _processor(job, pool))
            start = start_on(self.gpus[pool.index], self.cpus[pool.index], need, run_s, now)
            if best is None or start < best[0]:
                best = (start, pool, need, run_s)
                if start <= now:
                    break
        assert best is not None
        return best

    def _ends(self, job: Job, end: float) -> None:
        for number in {job.job_id, job.array_job_id or job.job_id}:
            self.ends[number] = max(end, self.ends.get(number, 0.0))

    def _span(self, job: Job, fits: list[tuple[Pool, Need]]) -> set[int]:
        """A job larger than any one pool: its nodes are taken from several, largest first."""
        if sum(pool.nodes for pool, _ in fits) < job.node_count:
            return set()
        touched: set[int] = set()
        left = job.node_count
        for pool, need in sorted(fits, key=lambda fit: -fit[0].nodes):
            nodes = min(left, pool.nodes)
            part = need._replace(
                nodes=nodes,
                cpus=-(-need.cpus * nodes // need.nodes),
                gpus=-(-need.gpus * nodes // need.nodes),
            )
            run_s = self._expected_run(job, _processor(job, pool))
            place(self.gpus[pool.index], self.cpus[pool.index], part, run_s, self.now)
            touched.add(pool.index)
            left -= nodes
            if left <= 0:
                break
        return touched

    def _where(self, job: Job) -> list[tuple[Pool, Need]]:
        key = (
            job.partitions,
            job.node_count,
            job.cpus,
            job.memory_mb,
            job.gres,
            job.features,
            job.exclusive,
        )
        found = self._fits.get(key)
        if found is None:
            found = self._fits[key] = []
            demand = _demand(job)
            seen: set[int] = set()
            for name in job.partitions:
                for pool in self.of.get(name, ()):
                    if pool.index in seen:
                        continue
                    need = need_on(demand, pool, whole_nodes=name in self.whole)
                    if need is not None:
                        seen.add(pool.index)
                        found.append((pool, need))
        return found

    def _limit(self, job: Job) -> float:
        if job.time_limit is not None:
            return job.time_limit * 60.0
        limits = [self.max_time.get(name) for name in job.partitions]
        known = [limit for limit in limits if limit is not None]
        return max(known) * 60.0 if known else NO_LIMIT_S

    def _past(self, job: Job, processor: str) -> RunTimes | None:
        runs = self.history.get(f"{job.name}@{job.user}") or self.history.get(job.name)
        past = (runs or past_of_family(job.name, self.history)).get(processor)
        if past is None or not (past.count > 0 or past.modelled):
            return None
        mean_log, sd_log = at_size(past, job.cpus if processor == "cpu" else _gpus(job.gres))
        return past if mean_log == past.mean_log else msgspec.structs.replace(past, mean_log=mean_log, sd_log=sd_log)

    def _expected_run(self, job: Job, processor: str) -> float:
        limit = self._limit(job)
        past = self._past(job, processor)
        return max(min(limit, remaining(past, 0.0)) if past is not None else limit, 1.0)

    def _expected_end(self, job: Job, processor: str) -> float:
        elapsed = max(self.now - job.start_time, 0.0) if job.start_time is not None else 0.0
        left = self._limit(job) - elapsed
        past = self._past(job, processor)
        if past is not None:
            left = min(left, remaining(past, elapsed))
        return self.now + max(left, SOON_S)


def _gpus(gres: tuple[Gres, ...]) -> int:
    return sum(g.count for g in gres if g.name == "gpu")


def _shards(gres: tuple[Gres, ...]) -> int:
    return sum(g.count for g in gres if g.name == "shard")


def _processor(job: Job, pool: Pool) -> str:
    if _gpus(job.gres):
        return pool.processor
    return part_of(pool.processor) if _shards(job.gres) else "cpu"


def _demand(job: Job) -> Demand:
    nodes = max(job.node_count, 1)
    types = {g.type for g in job.gres if g.name == "gpu" and g.type is not None}
    return Demand(
        nodes=nodes,
        cpus=max(job.cpus, 1),
        memory_per_node_mb=-(-job.memory_mb // nodes),
        gpus=_gpus(job.gres),
        gpu_type=types.pop() if len(types) == 1 else None,
        gres=tuple(Gres(g.name, -(-g.count // nodes), g.type) for g in job.gres if g.name != "gpu"),
        # Somebody else's job with an expression we cannot read still waits somewhere.
        constraint=constraint.parse(job.features) or constraint.ANYTHING,
        exclusive=job.exclusive,
    )


def _array(job: Job) -> tuple[int, int]:
    """How many tasks to place at once, and how many times: `%2` leaves two at a time, one after the other."""
    tasks = max(job.tasks, 1)
    limit = _ARRAY_LIMIT.search(job.array_task or "")
    if limit is None or not 0 < int(limit[1]) < tasks:
        return tasks, 1
    together = int(limit[1])
    return together, -(-tasks // together)


def followers_of(waiting: Iterable[Job], now: float) -> dict[int, dependency.Dependency]:
    """Pending jobs that wait for others to end and for nothing else."""
    found: dict[int, dependency.Dependency] = {}
    for job in waiting:
        if job.dependency and job.reason == "Dependency" and job.eligible_time <= now:
            behind = dependency.parse(job.dependency)
            if behind is not None and behind.jobs:
                found[job.job_id] = behind
    return found


def _underway(
    jobs: Iterable[Job], ends: Mapping[int, float], followers: Mapping[int, dependency.Dependency]
) -> dict[int, Underway]:
    tokens: dict[int, str] = {}
    for job in jobs:
        if job.admin_comment and (match := _TOKEN.search(job.admin_comment)):
            tokens[job.array_job_id or job.job_id] = match[1]
    leaders = [leader for behind in followers.values() for leader in behind.jobs if leader in ends]
    told = dict.fromkeys(leaders[-MAX_UNDERWAY:])
    told.update(dict.fromkeys(sorted(ends)[-MAX_UNDERWAY:]))
    return {number: Underway(round(ends[number], 1), tokens.get(number, "")) for number in told}


def ahead(job: Job, now: float) -> bool:
    """Whether Slurm would start this pending job as soon as there is room for it."""
    if job.eligible_time > now:
        return False
    return not job.reason.startswith(_PASSED_OVER)


def _gpu_types(pools: Iterable[Pool]) -> dict[str, tuple[str | None, ...]]:
    """The GPU types of each partition; None stands for GPUs without a type."""
    found: dict[str, set[str | None]] = {}
    for pool in pools:
        kinds = {gres.type for gres in pool.gres_per_node if gres.name == "gpu" and gres.count}
        for name in pool.partitions:
            found.setdefault(name, set()).update(kinds)
    return {name: tuple(sorted(kinds, key=lambda kind: kind or "")) for name, kinds in found.items()}


def _tiers(partitions: Iterable[Partition]) -> tuple[int, ...]:
    distinct = sorted({partition.priority_tier for partition in partitions} or {1}, reverse=True)
    if len(distinct) <= MAX_TIERS:
        return tuple(distinct)
    size = -(-len(distinct) // MAX_TIERS)
    return tuple(distinct[min(i + size, len(distinct)) - 1] for i in range(0, len(distinct), size))
