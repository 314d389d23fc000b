"""Gavel's mechanism as a reference: time goes in rounds, and every round the jobs may be dealt out anew.

The priority of a row (a job or a pair) on a type is its share by the policy over the share of time it really got there;
each type's GPUs are filled by priority. Moving costs nothing, which no Slurm site can have: these figures are what
a placement without preemption is measured against.
"""

from __future__ import annotations

import random

import msgspec
import numpy as np

from advisor.policy.gavel.offer import Allocation, Floats, Ints, Offer
from advisor.sim.cluster import SimCluster
from advisor.sim.traces.gavel import Throughputs
from advisor.sim.workload import Workload

ROUND_S = 360.0
RESET_S = 1920.0  # least time between two new allocations
GIVE_UP = 5  # rounds without a step after which a job is dropped


class RoundsResult(msgspec.Struct, frozen=True):
    """When each job ended, in the order of the workload (nan: given up), and how many rounds it took."""

    end: Floats
    busy_s: float  # GPU seconds in use
    makespan_s: float
    rounds: int


class _Row(msgspec.Struct):
    """A job, or two on one GPU, in the present set of rows."""

    jobs: tuple[int, ...]
    gpus: int
    speed: Floats  # [type, job of the row]


class Rounds:
    """One simulation."""

    def __init__(
        self,
        workload: Workload,
        cluster: SimCluster,
        table: Throughputs,
        allocation: Allocation,
        fifo: bool = False,
        seed: int = 0,
        round_s: float = ROUND_S,
    ) -> None:
        """`fifo`: rows without a share do not run at all."""
        self.jobs = workload.jobs
        self.types = tuple(sorted(cluster.processors))
        self.order = [self.types.index(kind) for kind in cluster.processors]
        self.counts = np.asarray([cluster.units(kind) for kind in self.types], dtype=np.int64)
        self.table = table
        self.allocation = allocation
        self.fifo = fifo
        self.round_s = round_s
        self.shuffler = random.Random(seed + 5)
        self.now = 0.0
        self.active: dict[int, float] = {}  # job → steps left
        self.failures: dict[int, int] = {}
        self.end = np.full(len(self.jobs), np.nan)
        self.rows: list[_Row] = []
        self.row_of: dict[tuple[int, ...], int] = {}
        n = len(self.types)
        self.got = np.zeros((0, n))  # seconds since the last reset
        self.deficit = np.zeros((0, n))
        self.share = np.zeros((0, n))
        self.known = np.zeros(0, dtype=np.bool_)  # rows that the last allocation spoke of
        self.given = np.zeros(n)  # seconds given on each type since the last reset
        self.last_reset = 0.0
        self.changed = False
        self.previous: dict[int, int] = {}

    def run(self) -> RoundsResult:
        """Runs all jobs to their end."""
        arriving, rounds, busy = 0, 0, 0.0
        self.now = self.jobs[0].submit if self.jobs else 0.0
        began, ended = 0.0, None
        running: list[tuple[int, int, list[int], float]] = []
        while True:
            if running:
                finish = max(entry[3] for entry in running)
                if ended is not None:
                    began = ended
                ended = self.now = finish
                for row, kind, steps, at in running:
                    busy += self.rows[row].gpus * (at - began)
                    self._credit(row, kind, steps, at, at - began)
                self._drop_ended()
            if arriving == len(self.jobs) and not self.active:
                break
            if not running and not self.active:
                self.now = max(self.now, self.jobs[arriving].submit)
            if arriving == len(self.jobs) and not running:
                self.last_reset = 0.0
            while arriving < len(self.jobs) and self.jobs[arriving].submit <= self.now:
                self._add(arriving)
                arriving += 1
            running = self._deal()
            rounds += 1
        return RoundsResult(self.end, float(busy), self.now, rounds)

    def _add(self, job: int) -> None:
        self.active[job] = self.jobs[job].steps
        self.failures[job] = 0
        self.changed = True
        fresh = [self._single(job)]
        if self.allocation.shared:
            gpus = self.jobs[job].gpus
            fresh += [
                self._pair(other, job)
                for other in sorted(self.active)
                if other != job and self.jobs[other].gpus == gpus
            ]
        for row in fresh:
            self.row_of[row.jobs] = len(self.rows)
            self.rows.append(row)
        n, count = len(self.types), len(fresh)
        got = np.zeros((count, n))
        got[0] = self.round_s / 2  # so that a new job is not owed everything
        self.got = np.concatenate([self.got, got])
        self.deficit = np.concatenate([self.deficit, np.zeros((count, n))])
        self.share = np.concatenate([self.share, np.zeros((count, n))])
        self.known = np.concatenate([self.known, np.zeros(count, dtype=np.bool_)])

    def _single(self, job: int) -> _Row:
        spec = self.jobs[job]
        key = (spec.app, spec.gpus)
        return _Row((job,), spec.gpus, np.asarray([[self.table.alone[kind].get(key, 0.0)] for kind in self.types]))

    def _pair(self, first: int, second: int) -> _Row:
        a, b = self.jobs[first], self.jobs[second]
        speeds = [
            self.table.beside[kind].get((a.app, a.gpus), {}).get((b.app, b.gpus), (0.0, 0.0)) for kind in self.types
        ]
        return _Row((first, second), a.gpus, np.asarray(speeds))

    def _drop_ended(self) -> None:
        if all(job in self.active for row in self.rows for job in row.jobs):
            return
        keep = [i for i, row in enumerate(self.rows) if all(job in self.active for job in row.jobs)]
        moved = {old: new for new, old in enumerate(keep)}
        self.rows = [self.rows[i] for i in keep]
        self.row_of = {row.jobs: i for i, row in enumerate(self.rows)}
        self.got, self.deficit = self.got[keep], self.deficit[keep]
        self.share, self.known = self.share[keep], self.known[keep]
        self.previous = {moved[row]: kind for row, kind in self.previous.items() if row in moved}
        self.changed = True

    def _credit(self, row: int, kind: int, steps: list[int], at: float, seconds: float) -> None:
        """Books what a row did in the round that ended."""
        spec = self.rows[row]
        live = [job in self.active for job in spec.jobs]
        # Each GPU of a job works off its part of the steps; a round in which one has none counts as failed.
        failed = any(alive and count // spec.gpus <= 0 for alive, count in zip(live, steps, strict=True))
        if failed:
            if len(spec.jobs) == 1:
                job = spec.jobs[0]
                self.failures[job] += 1
                if self.failures[job] >= GIVE_UP:
                    del self.active[job]
            self.changed = True
            return
        for job, count in zip(spec.jobs, steps, strict=True):
            if job not in self.active:
                continue
            self.failures[job] = 0
            self.active[job] -= count
            if self.active[job] <= 0:
                del self.active[job]
                self.end[job] = at
        if all(job in self.active for job in spec.jobs):
            self.got[row, kind] += seconds
            self.given[kind] += seconds

    def _deal(self) -> list[tuple[int, int, list[int], float]]:
        """Fills the GPUs for one round: (row, type, steps of each job, when it is done)."""
        if not self.rows:
            return []
        priority = self._priorities()
        types = list(self.order)
        if not self.allocation.aware:
            self.shuffler.shuffle(types)
        busy: set[int] = set()
        dealt: dict[int, int] = {}
        for kind in types:
            free = int(self.counts[kind])
            # Stable, so that rows of equal rank go in the order in which they came.
            ranks = np.lexsort((-self.share[:, kind], -self.deficit[:, kind], -priority[:, kind]))
            for i in (int(r) for r in ranks):
                row = self.rows[i]
                if free == 0:
                    break
                if any(job in busy for job in row.jobs) or row.speed[kind].min() <= 0 or row.gpus > free:
                    continue
                if self.fifo and priority[i, kind] <= 0:
                    continue
                free -= row.gpus
                busy.update(row.jobs)
                if self.known[i] or self.previous.get(i) == kind:
                    dealt[i] = kind
        self.previous = dealt
        found = []
        for i, kind in dealt.items():
            row = self.rows[i]
            steps = [
                int(min(int(speed * self.round_s), self.active[job]))
                for job, speed in zip(row.jobs, row.speed[kind], strict=True)
            ]
            done = max(self.now + count / speed for count, speed in zip(steps, row.speed[kind], strict=True))
            found.append((i, kind, steps, done))
        return found

    def _priorities(self) -> Floats:
        if self.changed and (self.now - self.last_reset >= RESET_S or self.last_reset == 0):
            self.deficit += self.share * (self.now - self.last_reset) - (self.got - self.round_s / 2)
            self.got[:] = self.round_s / 2
            self.given = self.got.sum(axis=0)
            self.last_reset = self.now
            self.share = self._allocate()
            self.known[:] = True
            self.changed = False
        speed = np.asarray([row.speed.min(axis=1) for row in self.rows])
        part = np.divide(self.got, self.given[None, :], out=np.zeros_like(self.got), where=self.given[None, :] > 0)
        ranked = np.divide(self.share, part, out=self.share * 1e9, where=part > 0)
        ranked[speed <= 0] = 0.0
        ranked[~self.known] = 0.0
        return ranked

    def _allocate(self) -> Floats:
        offer, rows = self._offer()
        shares = self.allocation.shares(offer)
        table = np.zeros_like(self.share)
        table[rows] = shares
        return table

    def _offer(self) -> tuple[Offer, Ints]:
        """The present jobs and pairs as the policy sees them, and which row of ours each of its rows is."""
        singles = [i for i, row in enumerate(self.rows) if len(row.jobs) == 1]
        doubles = [i for i, row in enumerate(self.rows) if len(row.jobs) == 2]
        jobs = [self.rows[i].jobs[0] for i in singles]
        place = {job: i for i, job in enumerate(jobs)}
        n = len(self.types)
        pairs = [[place[a], place[b]] for a, b in (self.rows[i].jobs for i in doubles)]
        return (
            Offer(
                jobs=np.asarray(jobs, dtype=np.int64),
                types=self.types,
                counts=self.counts.astype(np.float64),
                speed=np.asarray([self.rows[i].speed[:, 0] for i in singles]),
                gpus=np.asarray([self.rows[i].gpus for i in singles], dtype=np.float64),
                weight=np.asarray([self.jobs[j].weight for j in jobs]),
                steps_left=np.asarray([self.active[j] for j in jobs], dtype=np.float64),
                elapsed=np.asarray([self.now - self.jobs[j].submit for j in jobs]),
                pairs=np.asarray(pairs, dtype=np.int64).reshape(-1, 2),
                pair_speed=np.asarray([self.rows[i].speed for i in doubles]).reshape(-1, n, 2),
            ),
            np.asarray(singles + doubles, dtype=np.int64),
        )
