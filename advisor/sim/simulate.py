"""Runs a workload on a cluster under several policies and tells how each did: one row for each.

The library side of `advisor simulate`. JCT is the time from submission to end; the p99 is a figure of a job (no
interpolation) that 99 % of the jobs do not exceed; makespan counts from the first submission.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from advisor.sim.bound import Objective
from advisor.sim.cluster import SimCluster
from advisor.sim.engine import Engine, Schedule, Scheduler
from advisor.sim.heuristics import HEURISTICS, run_heuristic
from advisor.sim.history import History
from advisor.sim.knowledge import Knowledge, Learned, believe
from advisor.sim.state import Floats
from advisor.sim.traces.gavel import Throughputs, read_throughputs
from advisor.sim.workload import Workload

# Besides the rules: policies with a file of their own.
OTHERS: dict[str, str] = {
    "paragon": "speeds by collaborative filtering, then the fastest place that is free",
    "heft": "by upward rank over dependent jobs, each where it ends first; what waits is planned anew",
    "advisor": "the advisor's own planner with the levers that are on (--levers, --objective)",
    "oracle": "the best schedule found with everything known, future submissions included; with a lower bound",
    "daemon": "the daemon's own decision at each submission; daemon:NAME takes another of its policies",
}
# What the decision at submission and every round may change; see `advisor.sim.planned`.
DEFAULT_LEVERS: tuple[str, ...] = ("place",)


class Row(msgspec.Struct, frozen=True):
    """How one policy did."""

    policy: str
    avg_jct_h: float
    p99_jct_h: float
    makespan_h: float
    avg_wait_h: float
    utilisation: float  # share of GPU time (CPU time where there are no GPUs) in use until the last end
    jobs: int
    wall_s: float
    jobs_per_s: float


class OracleRow(Row, frozen=True):
    """The oracle's: with what was to be least, and the bound below which no schedule can be."""

    objective: str = ""
    bound_h: float = 0.0


class Outcome(msgspec.Struct, frozen=True):
    """A row with the schedule behind it; preemptive references have none."""

    row: Row
    schedule: Schedule | None


class Setting(msgspec.Struct, frozen=True):
    """What a run depends on besides workload, cluster and policy."""

    scheduler: Scheduler = Scheduler()
    throughputs: Throughputs | None = None
    knowledge: Knowledge = "oracle"
    seed: int = 0
    levers: tuple[str, ...] = DEFAULT_LEVERS
    objective: Objective = "avg_jct"
    history: History | None = None


class UnknownPolicyError(Exception):
    """There is no policy of that name; the text lists those there are."""


def policy_names() -> list[str]:
    """Every policy that `simulate` knows."""
    from advisor.policy.gavel import NAMES, PLACED
    from advisor.policy.registry import POLICIES

    daemons = (f"daemon:{name}" for name in POLICIES)
    return [*HEURISTICS, *OTHERS, *PLACED, *daemons, *(f"gavel:{name}" for name in NAMES)]


def simulate(
    workload: Workload,
    cluster: SimCluster,
    policies: Sequence[str],
    scheduler: Scheduler | None = None,
    throughputs: Path | Throughputs | None = None,
    knowledge: Knowledge = "oracle",
    seed: int = 0,
    on_done: Callable[[Row], None] | None = None,
    levers: Sequence[str] = DEFAULT_LEVERS,
    objective: Objective = "avg_jct",
    history: History | None = None,
) -> list[Outcome]:
    """One outcome for each policy, in their order.

    `throughputs`: needed by `gavel:…` policies, and by `advisor` for the lever `share`. `levers`: of `advisor`.
    `objective`: what `advisor` and `oracle` make least. `history`: earlier jobs, for `knowledge` "learned".
    """
    known = policy_names()
    for name in policies:
        if name not in known:
            raise UnknownPolicyError(f"there is no policy {name!r}; there are {', '.join(known)}")
    table = read_throughputs(throughputs) if isinstance(throughputs, Path) else throughputs
    setting = Setting(scheduler or Scheduler(), table, knowledge, seed, tuple(levers), objective, history)
    outcomes = []
    for name in policies:
        outcome = (_preemptive if name.startswith("gavel:") else _placed)(name, workload, cluster, setting)
        outcomes.append(outcome)
        if on_done is not None:
            on_done(outcome.row)
    return outcomes


def _placed(name: str, workload: Workload, cluster: SimCluster, setting: Setting) -> Outcome:
    began = time.perf_counter()
    engine = Engine(cluster, workload, setting.scheduler)
    bound = None
    if name == "oracle":
        from advisor.sim.oracle import find_best

        found = find_best(engine, setting.objective, setting.seed)
        schedule, bound = found.schedule, found.bound_s
    else:
        schedule = _schedule(name, engine, setting)
    wall = time.perf_counter() - began
    submit = engine.jobs.submit
    units, total = _units(cluster)
    busy = float(((schedule.end - schedule.start) * _asked(workload, units)).sum())
    shown = f"advisor[{','.join(setting.levers)}]" if name == "advisor" else name
    row = _row(shown, submit, schedule.end, schedule.start - submit, busy, total, wall)
    if schedule.held is not None:
        span = row.makespan_h * 3600
        row = msgspec.structs.replace(
            row, utilisation=round(float(schedule.held.sum()) / (total * span), 4) if span else 0.0
        )
    if bound is not None:
        row = OracleRow(**msgspec.structs.asdict(row), objective=setting.objective, bound_h=round(bound / 3600, 4))
    return Outcome(row, schedule)


def _schedule(name: str, engine: Engine, setting: Setting) -> Schedule:
    if name == "advisor":
        return _levers(engine, setting)
    if name == "paragon":
        from advisor.sim.stepwise import run_paragon

        return run_paragon(engine, setting.knowledge, setting.seed)
    beliefs = believe(engine, setting.knowledge, setting.history)
    if name == "heft":
        from advisor.sim.stepping import run_stepwise
        from advisor.sim.stepwise import Heft

        return run_stepwise(engine, Heft(engine, beliefs))
    if name.split(":")[0] == "daemon":
        from advisor.policy.registry import make_policy
        from advisor.settings import Settings
        from advisor.sim.daemon import run_daemon

        chosen = name.partition(":")[2]
        return run_daemon(engine, setting.seed, policy=make_policy(Settings(), chosen) if chosen else None)
    if name not in HEURISTICS:
        from advisor.sim.shares import run_shares

        return run_shares(name, engine, beliefs, setting.seed)
    if isinstance(beliefs, Learned):
        from advisor.sim.stepwise import run_learning

        return run_learning(name, engine, beliefs, setting.seed)
    return run_heuristic(name, engine, setting.seed)


def _levers(engine: Engine, setting: Setting) -> Schedule:
    from advisor.sim.neighbours import PairTable
    from advisor.sim.planned import Ended, run_planned
    from advisor.sim.sharing import DOUBT_SPAN, LearnedNeighbours, Watched

    beliefs = believe(engine, setting.knowledge, setting.history)

    def learn(ended: Ended) -> None:
        if isinstance(beliefs, Learned):
            beliefs.take(ended.job, engine.cluster.places[ended.place].processor, ended.work_s)
            beliefs.expect()

    pairs = PairTable(setting.throughputs) if setting.throughputs is not None else None
    doubt = DOUBT_SPAN if setting.objective == "makespan" else 0.0
    believed = LearnedNeighbours(doubt) if pairs is not None and setting.knowledge != "oracle" else None
    if believed is not None and setting.history is not None and setting.knowledge == "learned":
        believed.note_all(setting.history.pairs)
    return run_planned(
        engine.workload,
        engine.cluster,
        setting.levers,
        setting.objective,
        expected=None if setting.knowledge == "oracle" else engine.jobs.expected,
        contention=Watched(pairs, believed) if pairs is not None and believed is not None else pairs,
        believed=believed,
        seed=setting.seed,
        scheduler=setting.scheduler,
        on_end=learn,
        spread=beliefs.spread if isinstance(beliefs, Learned) else None,
    )


def _preemptive(name: str, workload: Workload, cluster: SimCluster, setting: Setting) -> Outcome:
    from advisor.policy.gavel import make_allocation
    from advisor.sim.rounds import Rounds

    table, seed = setting.throughputs, setting.seed
    if table is None:
        raise UnknownPolicyError(f"{name} needs the trace's table of throughputs: --throughputs FILE")
    began = time.perf_counter()
    short = name.removeprefix("gavel:")
    result = Rounds(workload, cluster, table, make_allocation(short, seed), short.startswith("fifo"), seed).run()
    wall = time.perf_counter() - began
    submit = np.asarray([job.submit for job in workload.jobs])
    # A preempted job has no one wait: it starts at once and stops often.
    row = _row(name, submit, result.end, np.full(len(submit), np.nan), result.busy_s, cluster.gpus, wall)
    return Outcome(row, None)


def _row(name: str, submit: Floats, end: Floats, wait: Floats, busy: float, units: int, wall: float) -> Row:
    jct = np.sort((end - submit)[np.isfinite(end)]) / 3600
    first, last = float(submit.min(initial=math.inf)), float(np.nanmax(end, initial=0.0))
    span = last - first
    return Row(
        policy=name,
        avg_jct_h=round(float(jct.mean()), 4) if len(jct) else 0.0,
        p99_jct_h=round(float(jct[math.ceil(0.99 * (len(jct) - 1))]), 4) if len(jct) else 0.0,
        makespan_h=round(span / 3600, 4) if len(jct) else 0.0,
        avg_wait_h=round(float(wait.mean()) / 3600, 4) if len(jct) and np.isfinite(wait).all() else math.nan,
        utilisation=round(busy / (units * span), 4) if span > 0 else 0.0,
        jobs=len(jct),
        wall_s=round(wall, 4),
        jobs_per_s=round(len(submit) / max(wall, 1e-9), 1),
    )


def _units(cluster: SimCluster) -> tuple[Literal["gpus", "cpus"], int]:
    return ("gpus", cluster.gpus) if cluster.gpus else ("cpus", cluster.cpus)


def _asked(workload: Workload, units: Literal["gpus", "cpus"]) -> Floats:
    return np.asarray([getattr(job, units) for job in workload.jobs], dtype=np.float64)
