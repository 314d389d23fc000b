"""Goes through the queue in Slurm's order and puts each job on the cluster's pools, so that the next finds it ahead."""

from __future__ import annotations

import msgspec

from advisor.cluster.types import ClusterState
from advisor.performance.pools import build_pools
from advisor.performance.queue import Schedule, followers_of, in_line
from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import place as put_on
from advisor.policy.candidates import Choice
from advisor.policy.interface import Prediction
from advisor.server.rounds.places import Movable


def expected_s(mine: Movable, prediction: Prediction) -> float:
    """How long the job, or all tasks of the array, take there."""
    shape = mine.choice.shape
    alone = prediction.run_s * prediction.slowdown
    return min(alone, shape.time_limit_s or alone) * -(-shape.tasks // shape.tasks_at_once)


class Walk:
    """The pools while the queue is put on them, job by job."""

    def __init__(self, state: ClusterState, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._now = state.taken_at
        _, self.pool_of = build_pools(state, snapshot.pools)
        self.schedule = Schedule(state, snapshot.pools, snapshot.history)
        self.schedule.occupy([job for job in state.jobs if job.running], self.pool_of)
        waiting = [job for job in state.jobs if job.pending]
        self.followers = followers_of(waiting, self._now)
        by_tier = in_line(waiting, self.schedule.tier, snapshot.tiers, self.followers, self._now)
        self.line = [job for tier in snapshot.tiers for job in by_tier[tier]]

    def view(self, choice: Choice) -> Snapshot:
        """What this job finds: of the pools it could go to, what those before it leave."""
        gpus, cpus = dict(self.snapshot.gpu_timelines), dict(self.snapshot.cpu_timelines)
        tiers = len(self.snapshot.tiers)
        for index in {index for each in choice.candidates for index in each.pools}:
            cpus[index] = (self.schedule.cpus[index].freeze(),) * tiers
            if index in gpus:
                gpus[index] = (self.schedule.gpus[index].freeze(),) * tiers
        return msgspec.structs.replace(self.snapshot, gpu_timelines=gpus, cpu_timelines=cpus)

    def put(self, mine: Movable, to: int, prediction: Prediction) -> None:
        """Puts the job where it is to wait."""
        there, pool = mine.choice.candidates[to], prediction.pool
        if pool is None:
            return
        tracks = self.schedule.gpus[pool], self.schedule.cpus[pool]
        need = there.needs[there.pools.index(pool)]
        if need.nodes <= self.snapshot.pools[pool].nodes:
            put_on(*tracks, need, expected_s(mine, prediction), self._now, mine.choice.shape.tasks_at_once)
