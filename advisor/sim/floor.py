"""What runs where in a run whose ends move: progress of every job, who sits on which GPU, and when it will all end.

The books of nodes and reservations stay with the compiled core (`advisor.sim.engine.Engine`); this adds what it
does not know: GPUs one by one with their guests, speeds that change as neighbours come and go, jobs that
are taken off their nodes and come back. Work is conserved: a job has ended when its run time alone has been worked off.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from advisor.sim import pieces
from advisor.sim.engine import Engine
from advisor.sim.neighbours import Contention
from advisor.sim.state import CPUS, GPUS, HEAD, TAIL, Flags, Floats, Ints, Rules

MOST_ON_A_GPU = 2  # shards of one GPU, a job each


class Floor:
    """The running jobs of one engine."""

    def __init__(self, engine: Engine, rules: Rules, contention: Contention | None) -> None:
        self.engine, self.rules, self.contention = engine, rules, contention
        self.machine, self.jobs, self.state = engine.machine, engine.jobs, engine.state
        specs = engine.workload.jobs
        n = len(specs)
        extra = engine.scheduler.launch_s + engine.scheduler.complete_s
        self.around = extra
        # A wall-clock limit kills; where the trace has none, the scheduler's estimate must not.
        self.killed_after = np.asarray([math.inf if j.time_limit is None else j.time_limit + extra for j in specs])
        self.work = engine.true_run + extra  # [job, place] seconds alone
        self.done = np.zeros(n)  # seconds of work done since the last start, counted as alone
        self.kept: Floats = np.zeros(n)  # part of the work that a checkpoint saved
        self.restart: Floats = np.zeros(n)  # seconds that the next start costs on top
        self.speed = np.ones(n)
        self.since = np.zeros(n)
        self.held = np.zeros(n)  # unit seconds, a shared GPU counted in parts
        self.requeues: Ints = np.zeros(n, dtype=np.int64)
        self.timed_out = np.zeros(n, dtype=np.bool_)
        self.failed = np.zeros(n, dtype=np.bool_)
        self.running: dict[int, tuple[int, ...]] = {}  # job → nodes, in the order of starts
        self.on_node: list[list[int]] = [[] for _ in engine.cluster.nodes]
        counts = [node.gpus for node in engine.cluster.nodes]
        self.gpu_first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self.gpu_node = np.repeat(np.arange(len(counts)), counts)
        self.on_gpu: list[list[int]] = [[] for _ in self.gpu_node]
        self.gpus_of: dict[int, list[int]] = {}
        self.down: set[int] = set()
        self._need = engine.jobs.need[:, GPUS].copy()
        self._ends: list[tuple[float, int, int]] = []
        self._stamp = np.zeros(n, dtype=np.int64)

    # The queue.

    def pending(self) -> Ints:
        """Jobs that wait and may start, in the queue's order."""
        return self.state.queue[self.state.counters[HEAD] : self.state.counters[TAIL]].copy()

    def arrange(self, order: Ints) -> None:
        """Puts the queue into this order; it must be the same jobs."""
        self.state.queue[self.state.counters[HEAD] : self.state.counters[TAIL]] = order

    def schedule(self, now: float, held: Flags | None = None) -> list[int]:
        """Lets the scheduler pass; the jobs that have started. `held`: those of the queue that it does not see."""
        before = self.pending()
        hidden = int(held.sum()) if held is not None else 0
        if held is not None and hidden:
            self.arrange(np.concatenate([before[~held], before[held]]))
            self.state.counters[TAIL] -= hidden
        pieces.schedule_pass(self.machine, self.jobs, self.state, self.rules, now)
        self.state.counters[TAIL] += hidden
        started = [int(j) for j in before if not math.isnan(self.state.start[j])]
        touched: set[int] = set()
        for job in started:
            touched |= self._seat(job, now, None)
        self._retime(touched, now)
        return started

    def join(self, job: int, gpu: int, place: int, now: float) -> bool:
        """Starts a pending job as a guest on a GPU that another one holds; False: CPUs or memory do not allow it."""
        node = int(self.gpu_node[gpu])
        need = self.jobs.need[job]
        hosts = self.on_gpu[gpu]
        if not hosts or len(hosts) >= MOST_ON_A_GPU or node in self.down or self._capped(job):
            return False
        if (need[:GPUS] > self.state.free[node, :GPUS]).any():
            return False
        host = hosts[0]
        if self.jobs.exclusive[host] or self.jobs.exclusive[job]:
            return False
        # The GPU is held once: in the scheduler's books by the one of the two that may stay longer.
        host_until = self.state.start[host] + self.jobs.limit[host]
        if now + self.jobs.limit[job] > host_until:
            self._move_gpu(host, job, node)
        else:
            self.jobs.need[job, GPUS] = 0
        queue = self.pending()
        self.state.counters[TAIL] -= 1
        self.arrange(queue[queue != job])
        self.state.chosen[0] = node
        pieces.start_on(self.machine, self.jobs, self.state, job, place, now)
        self._retime(self._seat(job, now, gpu), now)
        return True

    def has_room(self, job: int, place: int) -> bool:
        """Whether enough nodes of the place have what the job needs now."""
        nodes = self.machine.place_nodes[self.machine.place_first[place] : self.machine.place_first[place + 1]]
        fits = (self.state.free[nodes] >= self.jobs.need[job]).all(axis=1)
        if self.jobs.exclusive[job]:
            fits &= (self.state.free[nodes] == self.machine.size[nodes]).all(axis=1)
        return int(fits.sum()) >= int(self.jobs.nodes[job])

    def _capped(self, job: int) -> bool:
        array = self.jobs.array[job]
        return bool(array >= 0 and 0 < self.jobs.array_limit[array] <= self.state.array_running[array])

    def _move_gpu(self, host: int, guest: int, node: int) -> None:
        """Writes the GPU that a running host holds over to the guest, which is about to start."""
        self._give_back(node, host)
        self.jobs.need[host, GPUS] = 0
        self.jobs.need[guest, GPUS] = 1

    def _give_back(self, node: int, job: int, sign: int = 1) -> None:
        count = sign * int(self.jobs.need[job, GPUS])
        self.state.free[node, GPUS] += count
        first, last = self.machine.node_first[node], self.machine.node_first[node + 1]
        for place in self.machine.node_places[first:last]:
            self.state.place_free[place, GPUS] += count

    # Starts and ends.

    def _seat(self, job: int, now: float, gpu: int | None) -> set[int]:
        first, last = self.jobs.slot_first[job], self.jobs.slot_first[job + 1]
        nodes = tuple(int(n) for n in self.state.slots[first:last])
        self.running[job] = nodes
        seats: list[int] = []
        for node in nodes:
            self.on_node[node].append(job)
            mine = range(int(self.gpu_first[node]), int(self.gpu_first[node + 1]))
            if gpu is None:
                seats += [g for g in mine if not self.on_gpu[g]][: int(self.jobs.need[job, GPUS])]
        if gpu is not None:
            seats.append(gpu)
        for g in seats:
            for other in self.on_gpu[g]:
                self._count(other, now)  # from now on it has the GPU for a part only
            self.on_gpu[g].append(job)
        self.gpus_of[job] = seats
        self.done[job] = 0.0
        self.speed[job] = 1.0
        self.since[job] = now
        self._set_end(job, now)
        return set(nodes)

    def seconds_left(self, job: int) -> float:
        """What is left of a running job's work, in seconds alone."""
        whole = float(self.work[job, self.state.place[job]])
        return max(0.0, float(whole * (1.0 - self.kept[job]) + self.restart[job] - self.done[job]))

    def _set_end(self, job: int, now: float) -> None:
        end = now + self.seconds_left(job) / self.speed[job]
        limit = self.state.start[job] + self.killed_after[job]
        self.timed_out[job] = end > limit + 1e-9
        self.state.end[job] = min(end, limit)
        self._stamp[job] += 1
        heapq.heappush(self._ends, (float(self.state.end[job]), job, int(self._stamp[job])))

    def next_end(self) -> float:
        """When the next job ends as things are."""
        while self._ends and self._ends[0][2] != self._stamp[self._ends[0][1]]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else math.inf

    def end_next(self) -> int:
        """Ends the job that ends next."""
        now, job, _ = heapq.heappop(self._ends)
        nodes = self._leave(job, now)
        pieces.finish(self.machine, self.jobs, self.state, job)
        self._hand_over(job, now)
        self._retime(nodes, now)
        return job

    def take_off(self, job: int, now: float, saved: float, restart_s: float) -> None:
        """Requeues a running job: it waits again, `saved` of its whole work kept, the next start costs more."""
        nodes = self._leave(job, now)
        pieces.take_off(self.machine, self.jobs, self.state, job)
        self._hand_over(job, now)
        self.state.start[job] = self.state.end[job] = math.nan
        self.state.place[job] = -1
        self.timed_out[job] = False
        self.kept[job], self.restart[job] = saved, restart_s
        self.requeues[job] += 1
        # The queue's array has room for each job once: what has left it at the front is reclaimed.
        waiting = self.pending()
        self.state.counters[HEAD], self.state.counters[TAIL] = 0, len(waiting)
        self.arrange(waiting)
        pieces.enqueue_again(self.jobs, self.state, job)
        self._retime(nodes, now)

    def fail(self, job: int, now: float) -> None:
        """Ends a running job because its node has gone."""
        self.state.end[job] = now
        self.failed[job] = True
        self.timed_out[job] = False
        nodes = self._leave(job, now)
        pieces.finish(self.machine, self.jobs, self.state, job)
        self._hand_over(job, now)
        self._retime(nodes, now)

    def work_done(self, job: int, now: float) -> float:
        """Seconds of work, counted as alone, since the job's last start."""
        return float(self.done[job] + (now - self.since[job]) * self.speed[job])

    def _leave(self, job: int, now: float) -> set[int]:
        self._count(job, now)
        self._stamp[job] += 1
        nodes = self.running.pop(job)
        for node in nodes:
            self.on_node[node].remove(job)
        return set(nodes)

    def _hand_over(self, job: int, now: float) -> None:
        """The GPUs of a job that has gone; one with a guest left is held by the guest from now on."""
        for gpu in self.gpus_of.pop(job):
            for other in self.on_gpu[gpu]:
                if other != job:
                    self._count(other, now)
            self.on_gpu[gpu].remove(job)
            for guest in self.on_gpu[gpu]:
                if self.jobs.need[guest, GPUS] == 0:
                    self.jobs.need[guest, GPUS] = 1
                    self._give_back(int(self.gpu_node[gpu]), guest, -1)
        self.jobs.need[job, GPUS] = self._need[job]

    # Speeds.

    def _count(self, job: int, now: float) -> None:
        """Writes down what has been worked until now."""
        elapsed = now - self.since[job]
        self.done[job] += elapsed * self.speed[job]
        self.since[job] = now
        seats = self.gpus_of[job]
        if self.engine.cluster.gpus:
            self.held[job] += elapsed * sum(1.0 / len(self.on_gpu[g]) for g in seats)
        else:
            self.held[job] += elapsed * float(self.jobs.nodes[job] * self.jobs.need[job, CPUS])

    def _retime(self, nodes: set[int], now: float) -> None:
        """Speeds and ends of everyone on these nodes, after somebody came or went."""
        if self.contention is None:
            return
        for job in sorted({j for node in nodes for j in self.on_node[node]}):
            speed = self._speed(job)
            if speed != self.speed[job]:
                self._count(job, now)
                self.speed[job] = speed
                self._set_end(job, now)

    def _speed(self, job: int) -> float:
        """A job on several nodes goes at the pace of the slowest."""
        specs = self.engine.workload.jobs
        processor = self.engine.cluster.places[self.state.place[job]].processor
        mates = {other for g in self.gpus_of[job] for other in self.on_gpu[g] if other != job}
        slowest = 1.0
        assert self.contention is not None
        for node in self.running[job]:
            others = [other for other in self.on_node[node] if other != job]
            on_gpu = [specs[o] for o in others if o in mates]
            slowest = min(slowest, self.contention.speed(specs[job], processor, on_gpu, [specs[o] for o in others]))
        return slowest

    # Nodes that go and come back.

    def take_down(self, node: int) -> list[int]:
        """Makes a node unusable; the jobs that were on it, still running in the books, for the caller to deal with."""
        self.down.add(node)
        return list(self.on_node[node])

    def close(self, node: int) -> None:
        """Takes everything an empty node has out of reach."""
        self._offer(node, -1)

    def bring_up(self, node: int) -> None:
        """The node is back."""
        self.down.discard(node)
        self._offer(node, 1)

    def _offer(self, node: int, sign: int) -> None:
        self.state.free[node] += sign * self.machine.size[node]
        first, last = self.machine.node_first[node], self.machine.node_first[node + 1]
        for place in self.machine.node_places[first:last]:
            self.state.place_free[place] += sign * self.machine.size[node]
