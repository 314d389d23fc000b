"""Clusters that are simulated side by side do what each does alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.sim.cluster import parse_cluster
from advisor.sim.engine import Engine, Scheduler
from advisor.sim.fleet import Fleet
from advisor.sim.workload import SimJob, Workload
from tests.sim.test_engine import clusters, workloads


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_fleet_decides_as_each_engine_does_alone(data):
    drawn = [data.draw(clusters()) for _ in range(data.draw(st.integers(1, 4)))]
    tasks = [(cluster, data.draw(workloads(cluster))) for cluster in drawn]
    fleet = Fleet([Engine(cluster, workload) for cluster, workload in tasks])
    while fleet.going:
        finish = fleet.wait + fleet.seconds
        fleet.step(np.argmin(np.where(np.isfinite(finish), finish, np.inf), axis=1))
    for (cluster, workload), together in zip(tasks, fleet.schedules(), strict=True):
        alone = Engine(cluster, workload).run(order="earliest-finish")
        assert together.to_bytes() == alone.to_bytes()


def test_a_fleet_refuses_a_place_that_cannot_run_the_job_and_mixed_schedulers():
    cluster = parse_cluster("v100=1,k80=1")
    workload = Workload("w", (SimJob("1", 0.0, {"k80": 1.0}, gpus=1),))
    fleet = Fleet([Engine(cluster, workload)])
    assert fleet.arriving.tolist() == [0]
    with pytest.raises(ValueError, match="cannot run it"):
        fleet.step(np.asarray([0]))
    assert fleet.step(np.asarray([1])) == 0
    assert fleet.schedules()[0].end.tolist() == [1.0]
    with pytest.raises(ValueError, match="same scheduler"):
        Fleet([Engine(cluster, workload), Engine(cluster, workload, Scheduler(backfill="none"))])
