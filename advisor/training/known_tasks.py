"""A task from a cluster and a workload that exist: a trace, or a site's own log, instead of drawn ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from advisor.performance.processors import load, lookup
from advisor.policy.learned.graphs import NO_GRAPH, UNTOLD_SENSITIVITY, processor_features
from advisor.policy.learned.shapes import COUNTERS, Floats
from advisor.settings import Processor
from advisor.sim.cluster import SimCluster
from advisor.sim.engine import Engine
from advisor.sim.workload import Workload
from advisor.training.tasks import Task


def task_of(
    cluster: SimCluster,
    workload: Workload,
    processors: Mapping[str, Processor] | None = None,
    expected: Floats | None = None,
    spread: Floats | None = None,
) -> Task:
    """`expected[job, place]`: what is believed of run times, and `spread` of their logarithms; default: the truth.

    Nothing is told of dataflow graphs and contention.
    """
    table = load() if processors is None else processors
    truth = Engine(cluster, workload).true_run
    known = truth if expected is None else expected
    figures = np.zeros((len(cluster.places), 3))
    for p, place in enumerate(cluster.places):
        found = lookup(table, place.processor)
        if found is not None:
            figures[p] = processor_features(found.tflops, found.memory_gbs, found.memory_gb)
    jobs, shape = len(workload.jobs), truth.shape
    apps = {name: number for number, name in enumerate(dict.fromkeys(job.app for job in workload.jobs))}
    return Task(
        cluster=cluster,
        workload=workload,
        figures=figures,
        expected=known,
        spread=np.zeros(shape) if spread is None else spread,
        slow=np.ones(shape),
        counters=np.zeros((*shape, COUNTERS), dtype=np.int64),
        sensitivity=np.full(jobs, UNTOLD_SENSITIVITY),
        after=_after(workload, known),
        new=np.zeros(jobs),
        app=np.asarray([apps[job.app] for job in workload.jobs], dtype=np.int64),
        graphs=(NO_GRAPH,) * len(apps),
        load=0.0,
        pressure=np.zeros(shape),
        told=known,
        mean=truth,
    )


def _after(workload: Workload, expected: Floats) -> Floats:
    """Seconds of the longest chain of jobs that wait for each, each where it runs shortest."""
    number = {job.id: j for j, job in enumerate(workload.jobs)}
    best = expected.min(axis=1)
    after = np.zeros(len(best))
    behind: dict[int, list[int]] = {}
    for j, job in enumerate(workload.jobs):
        for other in job.depends:
            behind.setdefault(number[other], []).append(j)
    # Whoever waits is not always submitted later; as many turns as the longest chain has jobs settle it.
    for _ in range(len(best)):
        before = after.copy()
        for j, followers in behind.items():
            after[j] = max(after[k] + best[k] for k in followers)
        if (after == before).all():
            break
    return after
