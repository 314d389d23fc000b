"""Plans the pending jobs of a simulated cluster with the daemon's own rule (`advisor.policy.replan`).

It sees what a site would see: who waits, who runs since when, what it expects of run times and of neighbours. It
sets each pending job's place, the order of the queue, and which GPU a job may join as a guest.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec
import numpy as np

from advisor.performance.runtime import remaining
from advisor.performance.snapshot import RunTimes
from advisor.policy.replan import Plan, Sharing, Waiting, plan_pools, plan_sharing
from advisor.sim.floor import Floor
from advisor.sim.neighbours import Contention
from advisor.sim.state import CPUS, GPUS, Flags, Floats, Ints
from advisor.sim.workflows import Followers

# More units than this in one place are planned in groups.
_MOST_UNITS = 256
# Nobody tells how long a node stays down; an overdue job is expected to last this part of its run so far.
_DOWN_S = 3600.0
_OVERDUE = 0.05
# Two times that differ by less are one.
_SAME_TIME_S = 1e-3
# The largest of all ends is a harder goal than their mean.
_SPAN_EFFORT = 8
# Chosen on made-up traces like Gavel's B: who comes later finds a GPU sooner where only good pairs have met. The
# makespan takes every pair that gains.
_LEAST_GAIN = 1.35
_LEAST_GAIN_SPAN = 1.05


class Planning(msgspec.Struct, frozen=True):
    """How the advisor uses its levers."""

    round_s: float = 30.0  # pending jobs are looked at again this often
    longest_wait_s: float = 48 * 3600.0  # who has waited so long goes first in its place, in the queue's order
    most_jobs: int = 500  # pending jobs that are planned; the rest of the queue waits behind them
    steps_new: int = 1500  # steps of the search for each job that is new in the plan
    steps_kept: int = 100  # and for each that was planned before
    most_steps: int = 2_000_000
    least_gain: float | None = None  # two jobs share a GPU where their speeds add up to this; None: by the objective
    requeue_gain: float = 0.3  # a job is requeued where that saves this part of its remaining time …
    requeue_least_s: float = 600.0  # … and at least this much
    restart_s: float = 60.0  # what a requeued job loses at its next start
    workflows: bool = True  # whether it is known who waits for whom
    checkpoint_s: float = 0.0  # a requeued job resumes from its last checkpoint, this far apart; 0: from nothing


class Planner:
    """Keeps the last plan and makes the next one from it."""

    def __init__(
        self,
        floor: Floor,
        levers: Collection[str],
        objective: str,
        expected: Floats,
        believed: Contention | None,
        planning: Planning,
        seed: int,
    ) -> None:
        self.floor, self.levers, self.objective = floor, frozenset(levers), objective
        self.expected, self.believed, self.planning = expected, believed, planning
        self.spread: Floats | None = None  # of the logarithms of `expected`; None: they are sure
        self.seed, self.plans = seed, 0
        usual = _LEAST_GAIN_SPAN if objective == "makespan" else _LEAST_GAIN
        self.least_gain = usual if planning.least_gain is None else planning.least_gain
        engine = floor.engine
        self.specs, self.places = engine.workload.jobs, engine.cluster.places
        n = len(self.specs)
        self.place: Ints = np.full(n, -1, dtype=np.int64)
        self.gpu: Ints = np.full(n, -1, dtype=np.int64)
        self.seats: dict[int, Ints] = {}  # the GPUs that a job of several waits for, where the plan names them
        self.start: Floats = np.full(n, np.inf)  # planned, as simulated time
        self.due: dict[int, float] = {}  # since when a job's turn has come
        self.launch_s = engine.scheduler.launch_s
        self.submit = floor.jobs.submit
        self.weight = np.asarray([job.weight for job in self.specs])
        self.app_of: dict[str, int] = {}
        self.shareable: Flags = np.asarray(
            [job.share and job.gpus == 1 and job.nodes == 1 and not job.exclusive for job in self.specs]
        )
        self.units, self.width = self._widths()
        self._pairs: dict[tuple[int, str, str], float] = {}
        self.followers = Followers(engine)
        pool_of_node = np.full(len(engine.cluster.nodes), -1, dtype=np.int64)
        for p in range(len(self.places) - 1, -1, -1):
            pool_of_node[list(self.places[p].nodes)] = p
        self.gpu_pool = pool_of_node[floor.gpu_node]
        self.place_gpus = [np.flatnonzero(self.gpu_pool == p) for p in range(len(self.places))]

    def _widths(self) -> tuple[list[int], Ints]:
        """How many units each place has, and how many each job takes there by what it needs most of."""
        machine, jobs = self.floor.machine, self.floor.jobs
        units, width = [], np.ones((len(self.specs), len(self.places)), dtype=np.int64)
        for p, place in enumerate(self.places):
            size = machine.size[list(place.nodes)]
            total = size.sum(axis=0)
            count = int(min(total[GPUS] or total[CPUS], _MOST_UNITS))
            part = (jobs.nodes[:, None] * jobs.need / np.maximum(total, 1)).max(axis=1)
            part = np.where(jobs.exclusive, jobs.nodes / len(place.nodes), part)
            width[:, p] = np.clip(np.ceil(part * count - 1e-9), 1, count)
            units.append(count)
        return units, width

    # What is expected of what runs.

    def left(self, job: int, now: float) -> float:
        """Expected seconds of work left of a running job, as if alone."""
        floor = self.floor
        done = floor.work_done(job, now)
        place = floor.state.place[job]
        whole = self.expected[job, place] + floor.around
        if self.spread is not None and not floor.kept[job] and not floor.restart[job]:
            return left_of(float(whole), float(self.spread[job, place]), done)
        left = float(whole * (1.0 - floor.kept[job]) + floor.restart[job] - done)
        return left if left > 0 else max(_OVERDUE * done, 1.0)

    def _ready(self, now: float) -> list[Floats]:
        """When the units of each place come free."""
        floor = self.floor
        ready: list[list[float]] = [[] for _ in self.places]
        for job, nodes in floor.running.items():
            seconds = self.left(job, now) / floor.speed[job]
            for p, place in enumerate(self.places):
                if nodes[0] in place.nodes and not (floor.jobs.need[job, GPUS] == 0 and floor.gpus_of[job]):
                    ready[p] += [seconds] * int(self.width[job, p])
        for p, place in enumerate(self.places):
            gone = sum(1 for node in place.nodes if node in floor.down)
            ready[p] += [_DOWN_S] * (self.units[p] * gone // len(place.nodes))
        return [np.asarray((times + [0.0] * count)[:count]) for times, count in zip(ready, self.units, strict=True)]

    # The plan.

    def plan(self, now: float, full: bool) -> None:
        """Plans anew: with `full` everyone may move, else only jobs that are new get a place."""
        pending = self.floor.pending()[: self.planning.most_jobs]
        if not len(pending):
            return
        self.plans += 1
        self.forget_pairs()  # what is believed of neighbours may have changed
        if self.planning.workflows and self.followers:
            counted = self.followers.weights(pending, now, self.expected, self.place, self.start)
            for job, urgency in counted.items():
                self.weight[job] = self.specs[job].weight * urgency
        new = int((self.place[pending] < 0).sum())
        steps = self.planning.steps_kept * len(pending) + self.planning.steps_new * new
        if self.objective == "makespan":
            steps *= _SPAN_EFFORT
        steps = min(steps, self.planning.most_steps) if full else 0
        if "share" in self.levers and self.believed is not None:
            sharing = pending[[self.specs[j].gpus > 0 for j in pending]]
            others = pending[[self.specs[j].gpus == 0 for j in pending]]
            if len(sharing):
                self._keep(sharing, self._share(sharing, now, steps), now)
            pending = others
        if len(pending):
            waiting = self._waiting(pending, now, self.place)
            plan = plan_pools(waiting, self._ready(now), self.objective, "order" in self.levers, steps, self._seed())
            self._keep(pending, plan, now)
        self._arrange(now)

    def _seed(self) -> int:
        return (self.seed * 1_000_003 + self.plans) % (1 << 31)

    def _waiting(self, pending: Ints, now: float, before: Ints) -> Waiting:
        possible = np.isfinite(self.floor.jobs.run[pending])
        run = np.where(possible, self.expected[pending] * (1.0 - self.floor.kept[pending])[:, None], np.inf)
        run = np.where(possible, run + self.floor.around + self.floor.restart[pending][:, None], np.inf)
        age = now - self.submit[pending]
        return Waiting(
            run=np.ascontiguousarray(run),
            width=np.ascontiguousarray(self.width[pending]),
            age=age,
            weight=self.weight[pending],
            before=before[pending],
            position=self.start[pending] - now,
            fixed=age > self.planning.longest_wait_s,
        )

    def _share(self, pending: Ints, now: float, steps: int) -> Plan:
        floor = self.floor
        running = list(floor.running)
        number = {job: len(pending) + i for i, job in enumerate(running)}
        everyone = np.concatenate([pending, np.asarray(running, dtype=np.int64)])
        residents = np.full((len(floor.on_gpu), 2), -1, dtype=np.int64)
        ready = np.zeros(len(floor.on_gpu))
        left = np.zeros(len(everyone))
        for job in running:
            left[number[job]] = self.left(job, now)
        for gpu, jobs in enumerate(floor.on_gpu):
            if int(floor.gpu_node[gpu]) in floor.down:
                ready[gpu] = _DOWN_S
            elif jobs and len(floor.gpus_of[jobs[0]]) > 1:
                ready[gpu] = left[number[jobs[0]]] / floor.speed[jobs[0]]
            else:
                residents[gpu, : len(jobs)] = [number[job] for job in jobs]
        apps = sorted({self.specs[j].app for j in everyone})
        sample = {self.specs[j].app: int(j) for j in everyone}
        row = {app: i for i, app in enumerate(apps)}
        speed = np.asarray(
            [[[self._pair(p, sample[a], sample[b]) for b in apps] for a in apps] for p in range(len(self.places))]
        )
        wide = np.asarray([self.specs[j].gpus > 1 for j in pending])
        before = np.where(wide, self.place[pending], self.gpu[pending])
        waiting = self._waiting(pending, now, self.place)
        gpus = np.asarray([self.specs[j].gpus for j in pending], dtype=np.int64)
        sharing = Sharing(
            pool=self.gpu_pool,
            ready=ready,
            residents=residents,
            left=left,
            age=now - self.submit[everyone],
            weight=self.weight[everyone],
            app=np.asarray([row[self.specs[j].app] for j in everyone], dtype=np.int64),
            share=self.shareable[everyone],
            speed=speed,
            before=before,
            seats=self._seats(pending),
            least_gain=self.least_gain,
        )
        waiting = msgspec.structs.replace(waiting, width=np.repeat(gpus[:, None], len(self.places), axis=1))
        return plan_sharing(waiting, sharing, self.objective, "order" in self.levers, steps, self._seed())

    def _seats(self, pending: Ints) -> Ints:
        most = max((len(self.seats[job]) for job in pending.tolist() if job in self.seats), default=1)
        seats = np.full((len(pending), most), -1, dtype=np.int64)
        for i, job in enumerate(pending.tolist()):
            if job in self.seats:
                seats[i, : len(self.seats[job])] = self.seats[job]
        return seats

    def _pair(self, place: int, one: int, other: int) -> float:
        a, b = self.specs[one], self.specs[other]
        key = (place, a.app, b.app)
        if key not in self._pairs:
            assert self.believed is not None
            self._pairs[key] = self.believed.pair(a, b, self.places[place].processor)
        return self._pairs[key]

    def forget_pairs(self) -> None:
        """Asks about every pair anew."""
        self._pairs.clear()

    def _keep(self, pending: Ints, plan: Plan, now: float) -> None:
        options = self.floor.jobs.options
        for i, job in enumerate(pending):
            if plan.pool[i] >= 0:
                options[job] = -1
                options[job, 0] = plan.pool[i]
                if self.specs[job].time_limit is None:
                    # No limit is known: the scheduler's estimate is that for the place the job waits for.
                    self.floor.jobs.limit[job] = max(float(self.expected[job, plan.pool[i]]), 1.0) + self.launch_s
        self.place[pending] = plan.pool
        self.gpu[pending] = plan.gpu
        self.start[pending] = now + plan.start
        for i, job in enumerate(pending.tolist()):
            self.seats.pop(job, None)
            if plan.seats is not None and plan.seats[i, 0] >= 0:
                self.seats[job] = plan.seats[i][plan.seats[i] >= 0]

    def _arrange(self, now: float) -> None:
        """The queue in the plan's order, within each priority; who has waited too long goes first."""
        if "order" not in self.levers:
            return
        queue = self.floor.pending()
        late = now - self.submit[queue] > self.planning.longest_wait_s
        start = np.where(late, -np.inf, np.where(self.place[queue] >= 0, self.start[queue], np.inf))
        order = np.lexsort((queue, start, -self.floor.jobs.priority[queue]))
        self.floor.arrange(queue[order])

    # Between two plans.

    def guests(self) -> list[tuple[int, int]]:
        """(job, GPU): who may join whom now, the earliest in the plan for each GPU with one job and a seat left."""
        if "share" not in self.levers or self.believed is None:
            return []
        floor = self.floor
        first: dict[int, int] = {}
        for job in (int(j) for j in floor.pending()):
            gpu = int(self.gpu[job])
            if gpu >= 0 and (gpu not in first or self.start[job] < self.start[first[gpu]]):
                first[gpu] = job
        found = []
        for gpu, job in sorted(first.items()):
            if len(floor.on_gpu[gpu]) != 1 or not self.shareable[job]:
                continue
            host = floor.on_gpu[gpu][0]
            if not self.shareable[host]:
                continue
            place = int(self.gpu_pool[gpu])
            mine, theirs = self._pair(place, job, host), self._pair(place, host, job)
            if mine > 0 and theirs > 0 and mine + theirs >= self.least_gain:
                found.append((job, gpu))
        return found

    def waits(self, now: float) -> Flags:
        """Of the pending jobs, in the queue's order: whose turn has not come, so that the scheduler must not see them.

        Only a plan for the makespan lets GPUs idle on purpose, until enough of them are free for a wide job; backfill
        would give them away. A job whose turn has come and that does not start (the plan knows GPUs only, not CPUs or
        memory) opens the queue to all after a round: then the plan is not what can be done.
        """
        queue = self.floor.pending()
        if self.objective != "makespan" or "order" not in self.levers:
            return np.zeros(len(queue), dtype=np.bool_)
        early = self.start[queue] > now + _SAME_TIME_S
        early &= (self.place[queue] >= 0) & (now - self.submit[queue] <= self.planning.longest_wait_s)
        if "share" in self.levers and self.believed is not None:
            seen: set[int] = set()
            for i, job in enumerate(queue.tolist()):
                gpu = int(self.gpu[job])
                if gpu >= 0:
                    # Guests join; they do not start by themselves.
                    early[i] |= gpu in seen or (len(self.floor.on_gpu[gpu]) > 0 and bool(self.shareable[job]))
                    seen.add(gpu)
        self.due = {int(job): self.due.get(int(job), now) for job in queue[~early]}
        overdue = any(now - since > self.planning.round_s for since in self.due.values())
        return np.zeros(len(queue), dtype=np.bool_) if overdue or (not self.floor.running and early.all()) else early

    def seated(self, started: list[int]) -> None:
        """Slurm may have taken other GPUs of the place than the plan meant: their lists change hands."""
        for job in started:
            meant = self.seats.pop(job).tolist() if job in self.seats else [int(self.gpu[job])]
            seats = self.floor.gpus_of[job]
            if meant[0] < 0 or len(seats) != len(meant):
                continue
            for one, other in zip(sorted(set(meant) - set(seats)), sorted(set(seats) - set(meant)), strict=True):
                mine, theirs = self.gpu == one, self.gpu == other
                self.gpu[mine], self.gpu[theirs] = other, one
                for wide in self.seats.values():
                    here, there = wide == one, wide == other
                    wide[here], wide[there] = other, one


def left_of(mean_s: float, spread: float, done: float) -> float:
    """What is left of a run that has not ended after `done` seconds, as the daemon expects it."""
    spread = min(max(spread, 1e-3), 1.0)
    left = remaining(RunTimes(0, math.log(max(mean_s, 1.0)) - spread**2 / 2, spread, True), done)
    return left if left > 0 else max(_OVERDUE * done, 1.0)
