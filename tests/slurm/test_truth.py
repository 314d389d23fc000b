"""The simulator against a real Slurm: the same submissions, the same starts. scripts/bench/truth has the figures."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from advisor.cluster.commands_source import CommandsSource
from advisor.sim.cluster import from_state
from advisor.sim.truth.compare import (
    Agreement,
    agree,
    ensemble,
    measure,
    real,
    replay,
    slurm_parameters,
    slurm_scheduler,
)
from advisor.sim.truth.drive import drive
from advisor.sim.truth.workload import make_workload
from tests.slurm.site import Cluster

WORKLOAD = make_workload(60, seed=7, run_s=(2, 3, 4, 6), gap=0.05)


@pytest.fixture
def without_the_hook(cluster: Cluster) -> Iterator[Cluster]:
    """Slurm as it is by itself, whatever hook and daemon an earlier test left running."""
    disable = cluster.etc_folder / "disable"
    disable.touch()
    yield cluster
    disable.unlink()


def true_enough(result: Agreement) -> bool:
    """Wide enough for a busy machine, on which Slurm does not do exactly the same twice either."""
    return (
        abs(result.makespan_ratio - 1) < 0.1
        and result.wait_error_s < 0.25 * result.mean_wait_other_s
        and result.start_order_agreement > 0.88
    )


@pytest.mark.timeout(600)  # compiles the simulator where no other test has
def test_the_simulator_starts_jobs_when_and_where_slurm_does(without_the_hook: Cluster) -> None:
    site = without_the_hook
    if site.release == "26.05":
        pytest.skip("slurmctld 26.05 logs neither what backfill starts nor when nodes come free")
    cluster = from_state(CommandsSource(["docker", "exec", site.container]).read())
    parameters = slurm_parameters(site.ok("scontrol", "show", "config"))
    ran = drive(site, WORKLOAD)
    measured = measure(ran, WORKLOAD, float(parameters["bf_interval"]))
    scheduler = slurm_scheduler(measured, parameters, site.release)
    replayed = agree(replay(cluster, WORKLOAD, ran, scheduler), real(ran))
    assert true_enough(replayed), (measured, replayed)
    drawn = ensemble(cluster, WORKLOAD, ran, scheduler, measured, phases=False)
    simulated = agree(drawn[len(drawn) // 2], real(ran))
    assert abs(simulated.makespan_ratio - 1) < 0.15, (measured, simulated)
    assert any(record.by_backfill for record in ran.records), "backfill had something to do"
    wrong = msgspec.structs.replace(scheduler, backfill="none", backfill_interval_s=0.0)
    assert not true_enough(agree(replay(cluster, WORKLOAD, ran, wrong), real(ran))), "it would show"
