"""Runs a workload with the advisor's levers: place with rounds, order, share, requeue; and with nodes that fail.

The scheduler's passes are the compiled core's own; between them the advisor plans with what it expects (`expected`,
`believed`), while true run times and true neighbours decide when jobs end. Without levers it is Slurm alone, start for
start what `Engine.run` gives. Same input, same seed: the same schedule, byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np

from advisor.policy.replan.problem import OBJECTIVES
from advisor.sim import core
from advisor.sim.cluster import SimCluster
from advisor.sim.engine import Engine, Schedule, Scheduler
from advisor.sim.floor import Floor
from advisor.sim.neighbours import Contention, PairTable
from advisor.sim.planner import Planner, Planning
from advisor.sim.state import ENDED, LISTED, NEXT_SUBMIT, NOW, PASSES, Floats
from advisor.sim.traces.gavel import Throughputs
from advisor.sim.workload import Workload

# Asked with the job that is submitted and the time; the first of its answers is the place.
Choice = Callable[[int, float], Sequence[int]]

LEVERS = ("place", "order", "share", "requeue")

__all__ = ["LEVERS", "OBJECTIVES", "Ended", "Outage", "Planning", "run_planned"]


class Outage(msgspec.Struct, frozen=True):
    """A node that goes down and comes back; its jobs are requeued (as Slurm does by default) or fail."""

    node: int
    start: float
    end: float
    requeue: bool = True


class Ended(msgspec.Struct, frozen=True):
    """A job that has ended, for callers that learn during the run."""

    job: int
    place: int
    now: float
    seconds: float  # from its start to its end
    work_s: float  # what that was worth alone: less where neighbours slowed it


def run_planned(
    workload: Workload,
    cluster: SimCluster,
    levers: Collection[str] = ("place",),
    objective: str = "avg_jct",
    expected: Floats | None = None,
    throughputs: Throughputs | None = None,
    believed: Contention | None = None,
    contention: Contention | None = None,
    seed: int = 0,
    scheduler: Scheduler | None = None,
    planning: Planning | None = None,
    outages: Sequence[Outage] = (),
    on_end: Callable[[Ended], None] | None = None,
    at_submission: Callable[[Engine], Choice] | None = None,
    spread: Floats | None = None,
) -> Schedule:
    """Runs to the end; see docs/simulator.md for what each lever does and what is assumed of the site.

    `at_submission`: a policy that says where each job waits until the next round; default: the plan itself.
    `spread`: of the logarithms of `expected`, which may change as it does; default: they are taken to be sure.
    """
    _check(levers, objective, outages, cluster)
    truth = contention or (PairTable(throughputs) if throughputs is not None else None)
    if "share" in levers and truth is None:
        raise ValueError("the lever share needs to know how jobs slow each other: give throughputs or contention")
    engine = Engine(cluster, workload, scheduler)
    run = _Run(engine, truth, levers, objective, expected, believed or truth, planning or Planning(), outages, seed)
    if run.planner is not None:
        run.planner.spread = spread
    if at_submission is not None:
        run.choose = at_submission(engine)
    return run.to_end(on_end)


def _check(levers: Collection[str], objective: str, outages: Sequence[Outage], cluster: SimCluster) -> None:
    unknown = sorted(set(levers) - set(LEVERS))
    if unknown:
        raise ValueError(f"there is no lever {unknown[0]!r}; there are {', '.join(LEVERS)}")
    if levers and "place" not in levers:
        raise ValueError(f"the lever {sorted(levers)[0]} builds on place: add it")
    if objective not in OBJECTIVES:
        raise ValueError(f"there is no objective {objective!r}; there are {', '.join(OBJECTIVES)}")
    for outage in outages:
        if not (0 <= outage.node < len(cluster.nodes)) or not (0 <= outage.start < outage.end):
            raise ValueError(f"{outage}: the node must exist and the outage end after its start")


class _Run:
    def __init__(
        self,
        engine: Engine,
        truth: Contention | None,
        levers: Collection[str],
        objective: str,
        expected: Floats | None,
        believed: Contention | None,
        planning: Planning,
        outages: Sequence[Outage],
        seed: int,
    ) -> None:
        self.engine = engine
        self.levers, self.planning = frozenset(levers), planning
        if engine.scheduler.backfill_interval_s > 0 or engine.scheduler.backfill == "slurm":
            raise ValueError(
                "runs with levers backfill at every pass, easy or conservative: not `slurm`, nor at an interval"
            )
        self.floor = Floor(engine, engine.rules(LISTED, callback=True), truth)
        self.expected = engine.true_run if expected is None else expected
        self.planner = (
            Planner(self.floor, levers, objective, self.expected, believed, planning, seed) if levers else None
        )
        self.choose: Choice | None = None
        # (time, 0: comes back before 1: goes down, node, outage)
        self.events = sorted(
            [(o.start, 1, i) for i, o in enumerate(outages)] + [(o.end, 0, i) for i, o in enumerate(outages)]
        )
        self.outages = outages
        self.gone = np.zeros(len(engine.cluster.nodes), dtype=np.int64)  # outages that a node is in
        self.next_event = 0
        self.dirty_since = math.inf  # something happened that no pass has seen
        self.changed = False  # something happened that no round has seen
        self.last_pass = -math.inf
        self.last_round = -math.inf
        self.tick = math.inf  # when the next round comes

    def to_end(self, on_end: Callable[[Ended], None] | None) -> Schedule:
        floor, state, jobs = self.floor, self.engine.state, self.engine.jobs
        n = len(jobs.submit)
        while True:
            arriving = int(state.counters[NEXT_SUBMIT])
            submit = float(jobs.submit[arriving]) if arriving < n else math.inf
            ending = floor.next_end()
            outage = self.events[self.next_event][0] if self.next_event < len(self.events) else math.inf
            time = min(submit, ending, outage)
            if (due := self._due()) < time:
                self._pass(due)
                continue
            if time == math.inf or (state.counters[ENDED] == n and time == outage):
                break
            now = max(time, float(state.clock[NOW]))
            state.clock[NOW] = now
            if ending == time:
                job = floor.end_next()
                if on_end is not None:
                    on_end(self._ended(job))
            elif outage == time:
                self._outage(now)
            else:
                if self.choose is not None and self.planner is not None:
                    place = self.choose(arriving, now)[0]
                    jobs.options[arriving] = -1
                    jobs.options[arriving, 0] = self.planner.place[arriving] = place
                core.submit(jobs, state, arriving)
            self.dirty_since = min(self.dirty_since, now)
            self.changed = True
        return self._schedule()

    def _due(self) -> float:
        """When the next pass comes: after an event, or with the next round."""
        scheduler, now = self.engine.scheduler, float(self.engine.state.clock[NOW])
        due = math.inf
        if self.dirty_since < math.inf:
            due = max(now, self.dirty_since + scheduler.latency_s, self.last_pass + scheduler.cycle_s)
        self.tick = math.inf
        if self.planner is not None and self.changed and self._anything_to_plan():
            # Rounds come on the beat of round_s, each beat once.
            beat = self.planning.round_s
            self.tick = max(now, math.ceil(now / beat) * beat) if beat > 0 else now
            if self.tick <= self.last_round:
                self.tick = self.last_round + beat if beat > 0 else math.inf
            due = min(due, self.tick)
        return due

    def _anything_to_plan(self) -> bool:
        return len(self.floor.pending()) > 0 or ("requeue" in self.levers and len(self.floor.running) > 0)

    def _pass(self, now: float) -> None:
        floor, planner = self.floor, self.planner
        self.engine.state.clock[NOW] = now
        self.last_pass = now
        self.dirty_since = math.inf
        pending = floor.pending()
        if not len(pending) and "requeue" not in self.levers:
            self.changed = False
            return
        if planner is not None:
            full = now >= self.tick
            if full or (planner.place[pending[: self.planning.most_jobs]] < 0).any():
                planner.plan(now, full)
            if full:
                self.last_round, self.changed = now, False
                if "requeue" in self.levers:
                    self._requeue(now)
            self._join(planner, now)
        started = floor.schedule(now, None if planner is None else planner.waits(now))
        if not started and not floor.running:
            started = floor.schedule(now)  # nobody runs whose end would bring somebody's turn
        if planner is not None:
            planner.seated(started)
            self._join(planner, now)  # those who have just started may be hosts

    def _join(self, planner: Planner, now: float) -> None:
        for job, gpu in planner.guests():
            if not self._fit(planner, job, gpu):
                planner.forget_pairs()
                self.changed = True
            elif self.floor.join(job, gpu, int(planner.gpu_pool[gpu]), now):
                self.changed = True

    def _fit(self, planner: Planner, job: int, gpu: int) -> bool:
        """Whether two fit into one memory; where not, the one that came fails at once and waits again.

        Only whoever does not know the pairs tries it, and knows it then.
        """
        truth, specs = self.floor.contention, self.engine.workload.jobs
        if truth is None or truth is planner.believed:
            return True
        both = specs[job], specs[self.floor.on_gpu[gpu][0]]
        processor = self.engine.cluster.places[int(planner.gpu_pool[gpu])].processor
        if all(truth.pair(one, other, processor) > 0 for one, other in (both, both[::-1])):
            return True
        for one, other in (both, both[::-1]):
            truth.speed(one, processor, [other], [other])  # is noted
        return False

    def _requeue(self, now: float) -> None:
        """Takes one running job off its nodes where a much better place is free and nobody waits for that."""
        assert self.planner is not None
        floor, specs = self.floor, self.engine.workload.jobs
        wanted = set(self.planner.place[floor.pending()].tolist())
        best, found = 0.0, (-1, -1, 0.0)
        for job in floor.running:
            if not specs[job].requeue or any(len(floor.on_gpu[g]) > 1 for g in floor.gpus_of[job]):
                continue
            here = int(floor.state.place[job])
            left = self.planner.left(job, now) / floor.speed[job]
            saved = self._saved(job, now, here)
            for place in np.flatnonzero(np.isfinite(floor.jobs.run[job])).tolist():
                there = float(self.expected[job, place]) * (1.0 - saved) + self.planning.restart_s
                gain = left - there
                if place == here or place in wanted or gain <= best:
                    continue
                if gain < max(self.planning.requeue_gain * left, self.planning.requeue_least_s):
                    continue
                if floor.has_room(job, place):
                    best, found = gain, (job, place, saved)
        job, to, saved = found
        if job >= 0:
            floor.take_off(job, now, saved, self.planning.restart_s)
            floor.jobs.options[job] = -1
            floor.jobs.options[job, 0] = to
            self.planner.place[job], self.planner.gpu[job], self.planner.start[job] = to, -1, now
            self.changed = True

    def _saved(self, job: int, now: float, place: int) -> float:
        """The part of the whole work that the last checkpoint holds."""
        if self.planning.checkpoint_s <= 0:
            return 0.0
        floor = self.floor
        whole = float(floor.work[job, place])
        worked = floor.kept[job] * whole + max(0.0, floor.work_done(job, now) - floor.restart[job])
        return float(min(1.0, math.floor(worked / self.planning.checkpoint_s) * self.planning.checkpoint_s / whole))

    def _outage(self, now: float) -> None:
        _, down, number = self.events[self.next_event]
        self.next_event += 1
        outage = self.outages[number]
        node = outage.node
        self.gone[node] += 1 if down else -1
        if not down:
            if self.gone[node] == 0:
                self.floor.bring_up(node)
            return
        if self.gone[node] > 1:
            return
        for job in self.floor.take_down(node):
            if outage.requeue:
                place = int(self.floor.state.place[job])
                self.floor.take_off(job, now, self._saved(job, now, place), self.planning.restart_s)
                self._open(job)
            else:
                self.floor.fail(job, now)
        self.floor.close(node)

    def _open(self, job: int) -> None:
        """A job that lost its node may go anywhere again."""
        if self.planner is not None:
            self.planner.place[job] = self.planner.gpu[job] = -1
        options = self.floor.jobs.options
        places = np.flatnonzero(np.isfinite(self.floor.jobs.run[job]))
        options[job] = -1
        options[job, : len(places)] = places

    def _ended(self, job: int) -> Ended:
        state, floor = self.engine.state, self.floor
        seconds = float(state.end[job] - state.start[job]) - floor.around
        return Ended(job, int(state.place[job]), float(state.end[job]), seconds, float(floor.done[job]) - floor.around)

    def _schedule(self) -> Schedule:
        engine, floor, state = self.engine, self.floor, self.engine.state
        if state.counters[ENDED] != len(engine.workload.jobs):
            stuck = np.flatnonzero(np.isnan(state.end))
            raise RuntimeError(
                f"{len(stuck)} jobs never ran, the first {engine.workload.jobs[stuck[0]].id!r}: "
                f"nothing that is left can run them"
            )
        return Schedule(
            start=state.start,
            end=np.where(floor.failed, state.end, state.end - engine.scheduler.complete_s),
            place=state.place,
            timed_out=floor.timed_out,
            nodes_first=engine.jobs.slot_first,
            nodes=state.slots,
            promised=state.promised,
            passes=int(state.counters[PASSES]),
            held=floor.held,
            requeues=floor.requeues,
            failed=floor.failed,
        )
