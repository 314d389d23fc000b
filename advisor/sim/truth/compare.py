"""The simulator with the parameters measured in a real run, and how far its schedules are from the real one."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.sim.cluster import SimCluster
from advisor.sim.engine import Engine, Schedule, Scheduler
from advisor.sim.heuristics import run_heuristic
from advisor.sim.state import Floats
from advisor.sim.truth.drive import Ran
from advisor.sim.truth.log import Record
from advisor.sim.workload import ANY, Workload


class Measured(msgspec.Struct, frozen=True):
    """What the simulator must know of a slurmctld and its nodes; all in seconds, all from a real run."""

    launch_s: float  # from the allocation to the first instruction, and from the last to the end that slurmctld notes
    complete_s: float  # from that end until the nodes are free
    cycle_latency_s: float  # from a submission or an end to the next look of the main scheduler, on average
    cycle_s: float  # between two looks of the main scheduler while something happens all the time
    cycle_at: float  # its first look, in seconds since the epoch
    backfill_interval_s: float  # between two looks of backfill that started nothing
    backfill_start_s: float  # and more for each job that it started
    backfill_at: float  # its first after the first submission
    launches: tuple[float, ...]  # launch_s of every job
    intervals: tuple[float, ...]  # every backfill_interval_s


class Agreement(msgspec.Struct, frozen=True):
    """How far one schedule is from the other."""

    makespan_ratio: float  # first over second
    mean_wait_s: float  # of the first
    mean_wait_other_s: float
    wait_error_s: float  # mean of the absolute differences
    start_order_agreement: float  # share of the pairs that waited at the same time and started in the same order
    placement: tuple[bool, ...]  # for each job: the same nodes


class Times(msgspec.Struct, frozen=True):
    """A schedule, real or simulated, in seconds from any one moment."""

    submit: tuple[float, ...]
    start: tuple[float, ...]
    end: tuple[float, ...]
    nodes: tuple[frozenset[str], ...]


def measure(ran: Ran, workload: Workload, nominal_interval_s: float) -> Measured:
    """The latencies of a real run. `nominal_interval_s`: bf_interval, used where backfill never looked twice."""
    launch, complete = [], []
    for record, job in zip(ran.records, workload.jobs, strict=True):
        _, start, end, freed = _known(record)
        launch.append(end - start - job.run_time[ANY])
        complete.append(freed - end)
    cycles, passes = ran.log.cycles, np.asarray(ran.log.passes)
    happened = np.asarray([time for record in ran.records for time in _known(record)[::2]])  # submissions and ends
    following = np.searchsorted(passes, happened)
    seen = following < len(passes)
    start_s, intervals = _backfill(ran, nominal_interval_s)
    return Measured(
        launch_s=statistics.mean(launch),
        complete_s=statistics.mean(complete),
        cycle_latency_s=float((passes[following[seen]] - happened[seen]).mean()),
        cycle_s=_beat(passes),
        cycle_at=float(passes[0]),
        backfill_interval_s=statistics.mean(intervals) if intervals else nominal_interval_s,
        backfill_start_s=start_s,
        backfill_at=next((cycle for cycle in cycles if cycle >= happened.min()), float(happened.min())),
        launches=tuple(launch),
        intervals=tuple(intervals),
    )


def _backfill(ran: Ran, nominal_s: float) -> tuple[float, list[float]]:
    """What a start adds to the time until backfill looks again, and every such time less what starts added."""
    cycles = np.asarray(ran.log.cycles)
    starts = np.sort([_known(record)[1] for record in ran.records if record.by_backfill])
    started = np.diff(np.searchsorted(starts, cycles))
    gaps = np.diff(cycles)
    # Where nothing had changed backfill looked again a second later; that is simulated, and no part of the interval.
    usual = abs(gaps - nominal_s) < 0.25 * nominal_s
    gaps, started = gaps[usual], started[usual]
    slope = float(np.polyfit(started, gaps, 1)[0]) if len(set(started.tolist())) > 1 else 0.0
    return max(slope, 0.0), [float(gap) for gap in gaps - max(slope, 0.0) * started]


def _beat(times: Floats) -> float:
    """The beat of something that comes every second or a little later, skips beats, and also comes in between."""
    last, beats = times[0], 0
    for time in times:
        passed = round(time - last)
        if passed >= 1 and abs(time - last - passed) < 0.15:
            last, beats = time, beats + passed
    return float(last - times[0]) / beats if beats else 1.0


def slurm_parameters(config: str) -> dict[str, str]:
    """`SchedulerParameters` of `scontrol show config`, by name."""
    found = re.search(r"^SchedulerParameters\s*=\s*(.*)$", config, re.MULTILINE)
    words = found[1].strip().split(",") if found else []
    return dict(word.partition("=")[::2] for word in words if word != "(null)")


def slurm_scheduler(measured: Measured, parameters: dict[str, str], release: str) -> Scheduler:
    """A simulated slurmctld of a release, with these latencies and a site's SchedulerParameters."""
    return Scheduler(
        backfill="slurm",
        depth=int(parameters.get("bf_max_job_test", 500)),
        reservations=512,
        launch_s=measured.launch_s,
        complete_s=measured.complete_s,
        # slurmctld looks at what happened once a second, and not before batch_sched_delay is over.
        beat_s=measured.cycle_s,
        cycle_s=float(parameters.get("batch_sched_delay", 3)),
        latency_s=measured.cycle_at,
        backfill_interval_s=measured.backfill_interval_s,
        backfill_start_s=measured.backfill_start_s,
        backfill_phase_s=measured.backfill_at,
        resolution_s=float(parameters.get("bf_resolution", 60)),
        since_24_11=tuple(map(int, release.split("."))) >= (24, 11),
        horizon_s=60.0 * float(parameters.get("bf_window", 1440)),
    )


def simulate(cluster: SimCluster, workload: Workload, ran: Ran, scheduler: Scheduler) -> Times:
    """The jobs as they reached slurmctld, simulated with the latencies of `scheduler`."""
    return _run(cluster, workload, ran, scheduler, [job.run_time[ANY] for job in workload.jobs])


def replay(cluster: SimCluster, workload: Workload, ran: Ran, scheduler: Scheduler) -> Times:
    """The same where all that is left to differ are decisions.

    Jobs hold their nodes exactly as long as they really did, and the schedulers look when slurmctld's did.
    """
    # From the look that started a job: in the log it starts some milliseconds later, when its turn has come.
    all_looks = np.sort(np.asarray((*ran.log.passes, *ran.log.cycles)))
    known = [_known(record) for record in ran.records]
    began = all_looks[np.searchsorted(all_looks, [start for _, start, _, _ in known], side="right") - 1]
    held = [freed - float(look) for (_, _, _, freed), look in zip(known, began, strict=True)]
    looks = msgspec.structs.replace(
        scheduler, launch_s=0.0, complete_s=0.0, passes=ran.log.passes, backfills=ran.log.cycles
    )
    return _run(cluster, workload, ran, looks, held)


def ensemble(
    cluster: SimCluster,
    workload: Workload,
    ran: Ran,
    scheduler: Scheduler,
    measured: Measured,
    *,
    phases: bool,
    runs: int = 31,
    seed: int = 0,
) -> list[Times]:
    """Simulations that differ as real runs do, the one that ends first first.

    How long each launch takes is drawn from what was measured, and so is what backfill takes on average; with `phases`
    also when each of the two schedulers looks first, which no one can know ahead. A job that ends a little sooner or
    later can start others a second earlier or later, and from there on another schedule may come of it.
    """
    draw = random.Random(seed)
    first = min(_known(record)[0] for record in ran.records)
    found: list[Times] = []
    for _ in range(runs):
        lasts = [job.run_time[ANY] + draw.choice(measured.launches) for job in workload.jobs]
        intervals = draw.choices(measured.intervals, k=len(measured.intervals)) or [measured.backfill_interval_s]
        drawn = msgspec.structs.replace(scheduler, launch_s=0.0, backfill_interval_s=statistics.mean(intervals))
        if phases:
            drawn = msgspec.structs.replace(
                drawn,
                latency_s=scheduler.latency_s + draw.uniform(0.0, scheduler.beat_s),
                backfill_phase_s=first + draw.uniform(0.0, drawn.backfill_interval_s),
            )
        found.append(_run(cluster, workload, ran, drawn, lasts))
    return sorted(found, key=makespan)


def _run(cluster: SimCluster, workload: Workload, ran: Ran, scheduler: Scheduler, run_times: Sequence[float]) -> Times:
    submits = [_known(record)[0] for record in ran.records]
    # Reservations begin on whole minutes of the clock: the simulation starts at the same second of a minute.
    origin = min(submits) // 60 * 60
    order = sorted(range(len(submits)), key=lambda j: submits[j])
    jobs = tuple(
        msgspec.structs.replace(workload.jobs[j], submit=submits[j] - origin, run_time={ANY: run_times[j]})
        for j in order
    )
    since = msgspec.structs.replace(
        scheduler,
        latency_s=(scheduler.latency_s - origin) % scheduler.beat_s,
        backfill_phase_s=scheduler.backfill_phase_s - origin,
        passes=tuple(time - origin for time in scheduler.passes),
        backfills=tuple(time - origin for time in scheduler.backfills),
    )
    engine = Engine(cluster, Workload(workload.name, jobs), since)
    return _simulated(engine, run_heuristic("slurm-default", engine), order)


def _simulated(engine: Engine, schedule: Schedule, order: Sequence[int]) -> Times:
    at = {j: k for k, j in enumerate(order)}
    ranks = [at[j] for j in range(len(order))]
    names = [node.name for node in engine.cluster.nodes]
    return Times(
        submit=tuple(engine.workload.jobs[k].submit for k in ranks),
        start=tuple(float(schedule.start[k]) for k in ranks),
        end=tuple(float(schedule.end[k]) for k in ranks),
        nodes=tuple(frozenset(names[n] for n in schedule.nodes_of(k)) for k in ranks),
    )


def real(ran: Ran) -> Times:
    """The real run in the same form."""
    known = [_known(record) for record in ran.records]
    return Times(
        submit=tuple(k[0] for k in known),
        start=tuple(k[1] for k in known),
        end=tuple(k[2] for k in known),
        nodes=tuple(frozenset(record.nodes) for record in ran.records),
    )


def agree(one: Times, other: Times) -> Agreement:
    """How far `one` is from `other`, job by job; both have the same jobs in the same order."""
    submit, start = np.asarray(other.submit), np.asarray(other.start)
    waits, waits_other = np.asarray(one.start) - np.asarray(one.submit), start - submit
    # Pairs that were pending together in `other`: only there was an order to decide.
    together = (submit[:, None] < start[None, :]) & (submit[None, :] < start[:, None])
    together &= (waits_other > 0.5)[:, None] & (waits_other > 0.5)[None, :]
    first, second = np.nonzero(np.triu(together, 1))
    mine = np.asarray(one.start)
    same = np.sign(start[first] - start[second]) * np.sign(mine[first] - mine[second]) >= 0
    return Agreement(
        makespan_ratio=makespan(one) / makespan(other),
        mean_wait_s=float(waits.mean()),
        mean_wait_other_s=float(waits_other.mean()),
        wait_error_s=float(np.abs(waits - waits_other).mean()),
        start_order_agreement=float(same.mean()) if len(same) else 1.0,
        placement=tuple(a == b for a, b in zip(one.nodes, other.nodes, strict=True)),
    )


def makespan(times: Times) -> float:
    """From the first submission to the last end."""
    return max(times.end) - min(times.submit)


def _known(record: Record) -> tuple[float, float, float, float]:
    assert record.submit is not None
    assert record.start is not None
    assert record.end is not None
    return record.submit, record.start, record.end, record.freed or record.end
