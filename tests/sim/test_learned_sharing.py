"""What a run that starts without knowledge of neighbours learns of them."""

import pytest

from advisor.sim.cluster import parse_cluster
from advisor.sim.neighbours import AppTable
from advisor.sim.planned import run_planned
from advisor.sim.sharing import PRIOR_SPEED, LearnedNeighbours, Watched
from advisor.sim.workload import SimJob, Workload

# App "loud" takes half of everyone's speed, "quiet" next to nothing.
TRUTH = AppTable({("loud", "loud"): 3.0, ("quiet", "loud"): 2.5, ("loud", "quiet"): 1.05, ("quiet", "quiet"): 1.05})


def job(number: int, app: str) -> SimJob:
    return SimJob(id=str(number), submit=0.0, app=app, gpus=1, run_time={"v100": 100.0}, share=True)


def test_a_pair_that_never_met_is_guessed_and_one_that_met_is_known():
    learner = LearnedNeighbours()
    truth = Watched(TRUTH, learner)
    quiet, loud = job(1, "quiet"), job(2, "loud")
    assert learner.pair(quiet, loud, "v100") == PRIOR_SPEED
    truth.speed(quiet, "v100", [loud], [loud])
    assert learner.pair(quiet, loud, "v100") == pytest.approx(1 / 2.5)
    assert learner.pair(loud, quiet, "v100") == PRIOR_SPEED, "the other way round was not seen"


def test_what_met_tells_about_those_that_did_not():
    learner = LearnedNeighbours()
    for app in ("a", "b", "c", "d"):
        learner.note((app, "loud", "v100"), 0.3)
        learner.note((app, "quiet", "v100"), 0.95)
    new = job(1, "new")
    assert learner.pair(new, job(2, "loud"), "v100") < learner.pair(new, job(3, "quiet"), "v100")


def test_a_run_that_learns_its_neighbours_ends_every_job_and_beats_ignorance():
    jobs = tuple(job(number, "loud" if number % 3 == 0 else "quiet") for number in range(24))
    workload, cluster = Workload("shared", jobs), parse_cluster("v100=3")
    learner = LearnedNeighbours()
    levers = ("place", "order", "share")
    learned = run_planned(workload, cluster, levers, contention=Watched(TRUTH, learner), believed=learner)
    alone = run_planned(workload, cluster, ("place", "order"))
    assert learner.seen
    assert (learned.end > learned.start).all()
    assert learned.end.mean() < alone.end.mean()


def test_two_that_do_not_fit_are_tried_once_and_both_end_soon():
    jobs = tuple(job(number, "gan" if number % 2 else "quiet") for number in range(12))

    class Full(AppTable):
        def pair(self, job, other, processor):
            return 0.0 if job.app == other.app == "gan" else super().pair(job, other, processor)

        def speed(self, job, processor, on_gpu, on_node):
            return 0.02 if any(job.app == other.app == "gan" for other in on_gpu) else 0.9

    learner = LearnedNeighbours()
    found = run_planned(
        Workload("full", jobs), parse_cluster("v100=2"), ("place", "order", "share"),
        contention=Watched(Full({}), learner), believed=learner,
    )  # fmt: skip
    assert (found.end - found.start).max() < 150.0
    assert learner.seen["gan", "gan", "v100"] == 0.0
