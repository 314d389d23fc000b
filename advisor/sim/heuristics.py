"""The placement policies that are a rule of one line, by the names that `advisor simulate --policy` takes.

Each gives every job the places it may start in, in the order in which they are tried; two of them (earliest finish,
shortest first) look at the cluster as it is at that moment, in the simulator's core.
"""

from __future__ import annotations

import random
from typing import Literal

import numpy as np

from advisor.sim.engine import Engine, Schedule

HEURISTICS: dict[str, str] = {
    "slurm-default": "as submitted: the partitions the user named, or the default one",
    "earliest-start": "all partitions that can run it, as sbatch -p a,b,c: wherever it can start first",
    "random": "one of the partitions that can run it, at random",
    "fastest": "the processor type on which it runs shortest, however long the queue",
    "earliest-finish": "where expected wait + expected run time is least at submission",
    "shortest-first": "whenever something is free, the job that runs shortest there (ignores the order of submission)",
}

Order = Literal["listed", "earliest-finish", "shortest-first"]


def run_heuristic(name: str, engine: Engine, seed: int = 0) -> Schedule:
    """Runs the engine's workload under the heuristic; raises `KeyError` where there is none of that name."""
    if name not in HEURISTICS:
        raise KeyError(name)
    if name == "earliest-finish":
        return engine.run([by_expected(engine, j) for j in range(len(engine.workload.jobs))], "earliest-finish")
    if name == "shortest-first":
        return engine.run(order="shortest-first")
    return engine.run(_options(name, engine, seed))


def _options(name: str, engine: Engine, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    found: list[list[int]] = []
    arrays: dict[str, list[int]] = {}
    for j, job in enumerate(engine.workload.jobs):
        if job.array is not None and job.array in arrays:
            found.append(arrays[job.array])  # one decision for an array, as in Slurm's hook
            continue
        feasible = engine.feasible(j)
        if name == "slurm-default":
            places = as_submitted(engine, j)
        elif name == "random":
            places = [draw.choice(feasible)]
        elif name == "fastest":
            places = [min(feasible, key=lambda p: engine.jobs.expected[j, p])]
        else:
            places = feasible
        found.append(places)
        if job.array is not None:
            arrays[job.array] = places
    return found


def as_submitted(engine: Engine, job: int) -> list[int]:
    """The places that the submission allows: its partitions (or the default one) and its GPU type.

    Where that can never run on this cluster (a trace of another site), all places that can.
    """
    spec = engine.workload.jobs[job]
    named = spec.partitions or (engine.cluster.default_partition,)
    feasible = engine.feasible(job)
    found = [
        p
        for name in named
        for p in feasible
        if engine.cluster.places[p].partition == name and spec.gpu_type in (None, engine.cluster.places[p].processor)
    ]
    return found or feasible


def by_expected(engine: Engine, job: int) -> list[int]:
    """All places that can run a job, the shortest run first: that one wins among equal finishes."""
    order = np.argsort(engine.jobs.expected[job], kind="stable")
    return [int(p) for p in order if np.isfinite(engine.jobs.run[job, p])]
