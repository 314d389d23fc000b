"""The simulator with the parameters measured in a real run, and how far its schedule is from the real one."""

from __future__ import annotations

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
    backfill_interval_s: float  # between two looks of backfill
    backfill_at: float  # its first


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
    cycles, passes = np.asarray(ran.log.cycles), np.asarray(ran.log.passes)
    happened = np.asarray([time for record in ran.records for time in _known(record)[::2]])  # submissions and ends
    following = np.searchsorted(passes, happened)
    seen = following < len(passes)
    return Measured(
        launch_s=statistics.mean(launch),
        complete_s=statistics.mean(complete),
        cycle_latency_s=float((passes[following[seen]] - happened[seen]).mean()),
        cycle_s=_beat(passes, 1.0),
        cycle_at=float(passes[0]),
        backfill_interval_s=_beat(cycles, nominal_interval_s),
        backfill_at=float(cycles[0]) if len(cycles) else 0.0,
    )


def _beat(times: Floats, nominal: float) -> float:
    """The beat of something that comes about every `nominal` seconds, and sometimes skips a beat or comes twice."""
    gaps = np.diff(times)
    gaps = gaps[(gaps > 0.6 * nominal) & (gaps < 1.4 * nominal)]
    return float(np.median(gaps)) if len(gaps) else nominal


def slurm_parameters(config: str) -> dict[str, str]:
    """`SchedulerParameters` of `scontrol show config`, by name."""
    found = re.search(r"^SchedulerParameters\s*=\s*(.*)$", config, re.MULTILINE)
    words = found[1].strip().split(",") if found else []
    return dict(word.partition("=")[::2] for word in words if word != "(null)")


def slurm_scheduler(measured: Measured, parameters: dict[str, str], release: str) -> Scheduler:
    """A simulated slurmctld of a release, with these latencies and a site's SchedulerParameters."""
    return Scheduler(
        backfill="conservative",
        depth=int(parameters.get("bf_max_job_test", 500)),
        reservations=512,
        launch_s=measured.launch_s,
        complete_s=measured.complete_s,
        # slurmctld looks at what happened once a second, and not before batch_sched_delay is over.
        beat_s=measured.cycle_s,
        cycle_s=float(parameters.get("batch_sched_delay", 3)),
        latency_s=measured.cycle_at,
        backfill_interval_s=measured.backfill_interval_s,
        backfill_phase_s=measured.backfill_at,
        resolution_s=float(parameters.get("bf_resolution", 60)),
        resolution_up=tuple(map(int, release.split("."))) >= (24, 11),
        window_s=30.0,
        whole_nodes=True,
    )


def simulate(cluster: SimCluster, workload: Workload, ran: Ran, scheduler: Scheduler, replay: bool = False) -> Times:
    """The jobs as they reached slurmctld, simulated with the latencies of `scheduler`.

    In a replay jobs run exactly as long as they really did and the schedulers look when slurmctld's did, so that all
    that is left to differ are decisions.
    """
    submits = [_known(record)[0] for record in ran.records]
    lasted = [_known(record)[2] - _known(record)[1] for record in ran.records]
    # Reservations begin on whole minutes of the clock: the simulation starts at the same second of a minute.
    origin = min(submits) // 60 * 60
    order = sorted(range(len(submits)), key=lambda j: submits[j])
    jobs = tuple(
        msgspec.structs.replace(
            workload.jobs[j],
            submit=submits[j] - origin,
            run_time={ANY: lasted[j]} if replay else workload.jobs[j].run_time,
        )
        for j in order
    )
    beats = msgspec.structs.replace(
        scheduler,
        launch_s=0.0 if replay else scheduler.launch_s,
        latency_s=(scheduler.latency_s - origin) % scheduler.beat_s,
        backfill_phase_s=(scheduler.backfill_phase_s - origin) % (scheduler.backfill_interval_s or 1.0),
        passes=tuple(time - origin for time in ran.log.passes) if replay else (),
        backfills=tuple(time - origin for time in ran.log.cycles) if replay else (),
    )
    engine = Engine(cluster, Workload(workload.name, jobs), beats)
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
        makespan_ratio=_makespan(one) / _makespan(other),
        mean_wait_s=float(waits.mean()),
        mean_wait_other_s=float(waits_other.mean()),
        wait_error_s=float(np.abs(waits - waits_other).mean()),
        start_order_agreement=float(same.mean()) if len(same) else 1.0,
        placement=tuple(a == b for a, b in zip(one.nodes, other.nodes, strict=True)),
    )


def _makespan(times: Times) -> float:
    return max(times.end) - min(times.submit)


def _known(record: Record) -> tuple[float, float, float, float]:
    assert record.submit is not None
    assert record.start is not None
    assert record.end is not None
    return record.submit, record.start, record.end, record.freed or record.end
