"""The demonstration without Slurm: the same workload and the advisor's own decisions on simulated nodes.

For machines on which nobody is root and no Docker engine is reachable. The nodes are those of the
mini-cluster; as there, the advised pass knows what the first pass showed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from advisor.demo.play import Ended, Pass, Submission
from advisor.demo.workload import DemoJob
from advisor.performance.snapshot import RunTimes
from advisor.policy.interface import Decision
from advisor.settings import PolicySettings
from advisor.sim.cluster import parse_cluster
from advisor.sim.embedded import ENFORCING, Run, compare
from advisor.sim.workload import SimJob

# One-GPU servers, as many as the mini-cluster has GPUs.
CLUSTER = "v100=2,p100=4,k80=4,cpu=24"

Shown = Callable[[Submission], None]


def play(jobs: list[DemoJob], shown: Shown) -> tuple[Pass, Pass]:
    """Both passes: as submitted, and decided by the daemon's code at each submission."""
    simulated: list[SimJob] = []
    submitted: dict[str, DemoJob] = {}
    at_s = 0.0
    for number, job in enumerate(jobs, 1):
        at_s += job.after_s
        simulated.append(
            SimJob(
                id=str(number),
                submit=at_s,
                app=job.app,
                user=job.user,
                gpus=0 if "cpu" in job.run_s else 1,
                time_limit=job.limit_s,
                run_time=dict(job.run_s),
                partitions=job.partitions,
            )
        )
        submitted[str(number)] = job

    made: list[Submission] = []

    def told(job: SimJob, decision: Decision) -> None:
        made.append(Submission(job.submit, submitted[job.id], job.id, decision.message or ""))
        shown(made[-1])

    settings = msgspec.structs.replace(ENFORCING, policy=PolicySettings(min_gain_s=1.0))
    cluster = parse_cluster(CLUSTER)
    first = compare(simulated, cluster, settings, poll_s=1.0).alone
    both = compare(simulated, cluster, settings, history=_learned(first), poll_s=1.0, on_decision=told)
    return _pass("as submitted", both.alone), _pass("advised", both.advised, tuple(made))


def _learned(run: Run) -> dict[str, dict[str, RunTimes]]:
    history: dict[str, dict[str, RunTimes]] = {}
    for row in run.rows:
        known = history.setdefault(row.job.app, {}).get(row.processor, RunTimes(0, 0.0, 0.0))
        # An app takes the same on a processor each time here, so the last run is the mean.
        history[row.job.app][row.processor] = RunTimes(known.count + 1, math.log(row.end - row.start), 0.0)
    return history


def _pass(name: str, run: Run, made: tuple[Submission, ...] = ()) -> Pass:
    ended = tuple(Ended(r.job.app, r.processor, r.start - r.submit, r.end - r.start) for r in run.rows)
    return Pass(name, ended, run.makespan_s, made)
