"""Workloads made of workflows, and what a plan makes of knowing who waits for whom."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from advisor.sim.cluster import from_counts
from advisor.sim.planned import Planning, run_planned
from advisor.sim.workload import SimJob, Workload
from advisor.training.evaluation import run_rule
from advisor.training.pipelines import draw_pipelines
from advisor.training.tasks import Mixture, draw_task

MIXTURE = Mixture(jobs=120, oracle=1.0, contended=0.0, load=(0.7, 0.7))


def test_jobs_wait_for_earlier_ones_of_their_own_workflow():
    drawn = draw_pipelines(5, MIXTURE)
    jobs = drawn.task.workload.jobs
    number = {job.id: j for j, job in enumerate(jobs)}
    assert [job.submit for job in jobs] == sorted(job.submit for job in jobs)
    waits = 0
    for j, job in enumerate(jobs):
        for other in job.depends:
            waits += 1
            assert number[other] < j
            assert drawn.workflow[number[other]] == drawn.workflow[j]
            assert drawn.task.after[number[other]] > 0
    assert waits > len(jobs) / 3
    assert len(np.unique(drawn.workflow)) < len(jobs) / 2


def test_the_jobs_are_those_of_the_task_they_are_dealt_from():
    plain, drawn = draw_task(5, msgspec.structs.replace(MIXTURE, workflows=0.0)), draw_pipelines(5, MIXTURE).task
    assert sorted(map(tuple, plain.expected)) == sorted(map(tuple, drawn.expected))
    for job, row in zip(drawn.workload.jobs, drawn.expected, strict=True):
        assert min(job.run_time.values()) == pytest.approx(row.min())
    spans = [task.workload.jobs[-1].submit - task.workload.jobs[0].submit for task in (plain, drawn)]
    assert spans[1] == pytest.approx(spans[0], rel=0.2)


def test_a_makespan_is_from_the_first_submission_to_the_last_end():
    drawn = draw_pipelines(5, MIXTURE)
    schedule = run_rule(drawn.task, "earliest-start")
    of = np.flatnonzero(np.bincount(drawn.workflow) > 1)[0]
    mine = np.flatnonzero(drawn.workflow == of)
    first = min(drawn.task.workload.jobs[j].submit for j in mine)
    assert drawn.makespans(schedule)[0] == pytest.approx(schedule.end[mine].max() - first)
    assert len(drawn.makespans(schedule)) + len(drawn.alone(schedule)) == len(np.unique(drawn.workflow))


def test_the_plan_leaves_the_fast_gpu_to_the_job_that_its_workflow_waits_for():
    seconds = {"v100": 100.0, "p100": 170.0}
    jobs = (
        SimJob("busy", 0.0, {"v100": 20.0}, gpus=1),
        SimJob("busy too", 0.0, {"p100": 20.0}, gpus=1),
        SimJob("first", 1.0, seconds, gpus=1),
        SimJob("aside", 1.0, {"v100": 100.0, "p100": 190.0}, gpus=1),
        SimJob("long", 1.0, {"v100": 900.0, "p100": 900.0}, gpus=1, depends=("first",)),
        SimJob("last", 1.0, seconds, gpus=1, depends=("aside", "long")),
    )
    cluster = from_counts({"v100": (1, 1), "p100": (1, 1)})

    def run(knows: bool) -> tuple[str, float]:
        schedule = run_planned(Workload("x", jobs), cluster, ("place",), planning=Planning(5.0, workflows=knows))
        return cluster.places[schedule.place[2]].processor, float(schedule.end[5])

    assert run(False)[0] == "p100"
    assert run(True)[0] == "v100"
    assert run(True)[1] < run(False)[1]
