"""Gavel's policies over the real queue: what each kind of job is owed on each GPU type, worked out once a poll.

Runs in the collector's process, beside the schedule of the queue ahead: a decision only looks up what its app is owed.
Live jobs are the problem's jobs, running ones on the type they are on; speeds are one over expected run times.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from advisor.cluster.types import ClusterState, Job
from advisor.performance.runtime import History, expected
from advisor.performance.snapshot import Snapshot
from advisor.policy.gavel import PLACED
from advisor.settings import Processor

if TYPE_CHECKING:
    from advisor.policy.gavel.offer import Floats, Offer

log = logging.getLogger(__name__)

# Live jobs that the problem is made of, first in line first; with more of them it would take longer than a second.
MOST_JOBS = 2000
# AlloX matches each with each.
MOST_MATCHED = 300
EVERYBODY = ""  # what an app is owed that has no job in the queue


def with_owed(
    name: str, state: ClusterState, snapshot: Snapshot, history: History, processors: Mapping[str, Processor]
) -> Snapshot:
    """The snapshot with what is owed under policy `name`; as it is where it owes nothing or cannot be solved."""
    if name not in PLACED:
        return snapshot
    if any(find_spec(module) is None for module in ("numpy", "scipy", "highspy")):
        log.warning("policy %s needs numpy, scipy and highspy (slurm-advisor[sim]): earliest-finish decides", name)
        return snapshot
    from advisor.policy.gavel.solver import Infeasible

    try:
        return msgspec.structs.replace(snapshot, owed=owed(name, state, snapshot, history, processors))
    except Infeasible as error:
        log.warning("policy %s could not be solved for this queue (%s): earliest-finish decides", name, error)
        return snapshot


def owed(
    name: str, state: ClusterState, snapshot: Snapshot, history: History, processors: Mapping[str, Processor]
) -> dict[str, dict[str, float]]:
    """App → GPU type → jobs of it that are owed there, the next one included."""
    import numpy as np

    from advisor.policy.gavel import make_allocation
    from advisor.policy.gavel.offer import Offer
    from advisor.policy.gavel.placement import work_on

    counts: dict[str, int] = {}
    for pool in snapshot.pools:
        if pool.gpus_per_node and pool.nodes:
            counts[pool.processor] = counts.get(pool.processor, 0) + pool.nodes * pool.gpus_per_node
    types = tuple(sorted(counts))
    live = [job for job in state.jobs if (job.running or job.pending) and _gpus(job)]
    live.sort(key=lambda job: (not job.running, -job.priority, job.submit_time, job.job_id))
    live = live[: MOST_MATCHED if name == "allox" else MOST_JOBS]
    if not live or not types:
        return {}
    on = _types_of_nodes(snapshot, state)
    speed = np.zeros((len(live), len(types)))
    left = np.ones(len(live))
    here: list[int | None] = []
    for i, job in enumerate(live):
        kind = on.get(job.nodes[0]) if job.running and job.nodes else None
        asked = {gres.type for gres in job.gres if gres.name == "gpu" and gres.type is not None}
        column = types.index(kind) if kind in types else None
        here.append(column)
        for k, name_of in enumerate(types):
            if (column is None and (not asked or name_of in asked)) or k == column:
                limit = None if job.time_limit is None else job.time_limit * 60.0
                told = expected(job.name, job.user, name_of, limit, None, history, processors, gpus=_gpus(job))
                speed[i, k] = 1.0 / max(told.seconds, 1.0)
        if column is not None and job.start_time is not None:
            left[i] = max(1.0 - (state.taken_at - job.start_time) * speed[i, column], 0.01)
    useful = np.flatnonzero(speed.max(axis=1) > 0)
    live, here = [live[i] for i in useful], [here[i] for i in useful]
    speed, left = speed[useful], left[useful]
    units = np.asarray([float(_gpus(job)) for job in live])
    if not len(live):
        return {}
    accounts = {account: i for i, account in enumerate(sorted({job.account for job in live}))}
    offer = Offer(
        jobs=np.arange(len(live)),
        types=types,
        counts=np.asarray([float(counts[kind]) for kind in types]),
        speed=speed,
        gpus=np.minimum(units, max(counts.values())),
        weight=np.ones(len(live)),
        steps_left=left,
        elapsed=np.asarray([max(state.taken_at - job.submit_time, 0.0) for job in live]),
        pairs=np.zeros((0, 2), dtype=np.int64),
        pair_speed=np.zeros((0, len(types), 2)),
        entity=np.asarray([accounts[job.account] for job in live]),
        deadline=np.asarray([np.inf if job.time_limit is None else job.time_limit * 60.0 for job in live]),
    )
    allocation = make_allocation(PLACED[name])
    work = _matched(offer) if name == "allox" else work_on(offer, allocation.shares(offer), allocation.aware)
    total: dict[str, Floats] = {}
    number: dict[str, int] = {}
    for i, job in enumerate(live):
        # One that waits in places of several types has not been paid on any of them.
        paid = np.zeros(len(types))
        column = here[i]
        if column is not None:
            paid[column] = 1.0
        elif np.count_nonzero(speed[i]) == 1:
            paid[int(np.argmax(speed[i]))] = 1.0
        total[job.name] = total.get(job.name, np.zeros(len(types))) + work[i] - paid
        number[job.name] = number.get(job.name, 0) + 1
    mean: dict[str, Floats] = {}
    for i, job in enumerate(live):
        mean[job.name] = mean.get(job.name, np.zeros(len(types))) + work[i] / number[job.name]
    found = {app: dict(zip(types, (total[app] + mean[app]).tolist(), strict=True)) for app in total}
    found[EVERYBODY] = dict(zip(types, work.mean(axis=0).tolist(), strict=True))
    return found


def _matched(offer: Offer) -> Floats:
    """AlloX's types as parts of work: all of it where the matching puts the job."""
    import numpy as np

    from advisor.policy.gavel.matching import match

    run = np.where(offer.speed > 0, offer.steps_left[:, None] / np.maximum(offer.speed, 1e-12), np.inf)
    unit_type = np.repeat(np.arange(len(offer.types)), offer.counts.astype(np.int64))
    unit, _, _ = match(run[:, unit_type])
    work = np.zeros_like(offer.speed)
    work[np.arange(len(run)), unit_type[unit]] = 1.0
    return work


def _gpus(job: Job) -> int:
    return sum(gres.count for gres in job.gres if gres.name == "gpu")


def _types_of_nodes(snapshot: Snapshot, state: ClusterState) -> dict[str, str]:
    found = {}
    for node in state.nodes:
        kinds = [gres.type or "gpu" for gres in node.gres if gres.name == "gpu" and gres.count]
        if kinds:
            found[node.name] = kinds[0]
    return found
