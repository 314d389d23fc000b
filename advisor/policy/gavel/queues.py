"""Policies that give whole GPUs in order: first come first served (agnostic, aware, sharing), and AlloX.

AlloX matches jobs to (GPU, position from the end of its queue) at least total completion time; what heads a queue
runs, and stays where it is until it ends.
"""

from __future__ import annotations

import random

import numpy as np
from scipy.optimize import linear_sum_assignment

from advisor.policy.gavel.offer import Floats, Offer

# Two jobs share a GPU when they get at least this much of it together, each counted against running alone.
WORTH_SHARING = 1.5


class Fifo:
    """Whole GPUs in order of arrival; who has one keeps it. Aware: every time anew, each on the fastest type left."""

    def __init__(self, aware: bool = False, shared: bool = False, seed: int = 0) -> None:
        self.aware = aware
        self.shared = shared
        self._rng = random.Random(seed)
        self._held: dict[int, int] = {}  # job → type

    def shares(self, offer: Offer) -> Floats:
        """1 where a job (or pair) has its GPUs."""
        row_of = {int(job): i for i, job in enumerate(offer.jobs)}
        free = offer.counts.copy()
        if self.aware:
            self._held = {}
        queue = [int(job) for job in offer.jobs if int(job) not in self._held]
        for job in sorted(self._held):
            kind = self._held[job]
            if job in row_of:
                free[kind] -= offer.gpus[row_of[job]]
                continue
            # The first in line takes over from a job that has ended.
            if queue and offer.gpus[row_of[queue[0]]] <= free[kind] and offer.speed[row_of[queue[0]], kind] > 0:
                heir = queue.pop(0)
                self._held[heir] = kind
                free[kind] -= offer.gpus[row_of[heir]]
            del self._held[job]
        open_types = [kind for kind in range(len(offer.types)) if free[kind] > 0]
        while queue and open_types:
            job = queue.pop(0)
            row = row_of[job]
            fitting = [kind for kind in open_types if free[kind] >= offer.gpus[row]]
            if not fitting:
                break
            if self.aware:
                kind = max(fitting, key=lambda k: offer.speed[row, k])
            else:
                kind = fitting[self._rng.randrange(len(fitting))]
            if offer.speed[row, kind] > 0:
                self._held[job] = kind
                free[kind] -= offer.gpus[row]
                if free[kind] == 0:
                    open_types.remove(kind)
        shares = np.zeros((offer.rows, len(offer.types)))
        for job, kind in self._held.items():
            shares[row_of[job], kind] = 1.0
        if self.shared:
            self._pack(offer, queue, row_of, shares)
        return shares

    def _pack(self, offer: Offer, queue: list[int], row_of: dict[int, int], shares: Floats) -> None:
        """Lets those still in line join a job that runs alone, while that is worth it."""
        pair_row = {(int(a), int(b)): len(offer.jobs) + i for i, (a, b) in enumerate(offer.pairs)}
        alone = {row_of[job]: kind for job, kind in self._held.items()}
        for job in queue:
            row = row_of[job]
            best, partner = WORTH_SHARING, -1
            for other, kind in alone.items():
                key = (min(row, other), max(row, other))
                if offer.gpus[row] != offer.gpus[other] or key not in pair_row:
                    continue
                both = offer.pair_speed[pair_row[key] - len(offer.jobs), kind]
                gain = sum(both[i] / offer.speed[key[i], kind] for i in (0, 1) if both[i] > 0)
                if gain > best:
                    best, partner = gain, other
            if partner < 0:
                break  # nobody jumps the line
            kind = alone.pop(partner)
            shares[partner, kind] = 0.0
            shares[pair_row[min(row, partner), max(row, partner)], kind] = 1.0


class AlloX:
    """Least total completion time by matching; running jobs stay. One-GPU jobs only."""

    shared = False
    aware = True

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def shares(self, offer: Offer) -> Floats:
        """1 where a job runs."""
        if offer.gpus.max(initial=1.0) > 1:
            raise ValueError("allox places jobs of one GPU only; this workload has larger ones")
        present = {int(job) for job in offer.jobs}
        self._held = {job: kind for job, kind in self._held.items() if job in present}
        free = offer.counts.astype(np.int64)
        for kind in self._held.values():
            free[kind] -= 1
        workers = np.repeat(np.arange(len(offer.types)), free)
        waiting = np.asarray([i for i, job in enumerate(offer.jobs) if int(job) not in self._held], dtype=np.int64)
        n, m = len(workers), len(waiting)
        if n and m:
            waiting = waiting[np.argsort(-offer.elapsed[waiting], kind="stable")]
            speed = np.maximum(offer.speed[waiting][:, workers], 1e-10)
            base = offer.steps_left[waiting][:, None] / speed
            cost = (np.arange(1, m + 1)[None, :, None] * base[:, None, :]).reshape(m, m * n)
            rows, columns = linear_sum_assignment(cost + offer.elapsed[waiting][:, None])
            # The last position from the end is the head of the queue.
            head: dict[int, tuple[int, int]] = {}
            for row, column in zip(rows, columns, strict=True):
                worker, position = int(column % n), int(column // n)
                if worker not in head or position > head[worker][0]:
                    head[worker] = (position, int(row))
            for worker, (_, row) in head.items():
                self._held[int(offer.jobs[waiting[row]])] = int(workers[worker])
        row_of = {int(job): i for i, job in enumerate(offer.jobs)}
        shares = np.zeros((offer.rows, len(offer.types)))
        for job, kind in self._held.items():
            shares[row_of[job], kind] = 1.0
        return shares
