"""What a run that starts without knowledge of neighbours learns of them."""

import pytest

from advisor.sim.cluster import parse_cluster
from advisor.sim.neighbours import AppTable
from advisor.sim.planned import run_planned
from advisor.sim.sharing import PRIOR_SPEED, LearnedNeighbours, Watched, thinned
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


def test_a_pair_that_meets_in_the_run_tells_at_once_about_those_that_have_not_met():
    learner = LearnedNeighbours()
    apps = [f"app{letter}" for letter in "abcdefgh"]
    learner.note_all({(a, b, "v100"): 0.9 for a in apps for b in apps})
    new, loud = job(1, "appb"), job(2, "loud")
    before = learner.pair(new, loud, "v100")
    for app in ("appa", "appc", "appd"):
        learner.note((app, "loud", "v100"), 0.2)
    assert learner.pair(new, loud, "v100") < before - 0.2


def test_a_doubtful_pair_is_taken_to_be_slower_than_one_that_is_all_but_known():
    sure, careful = LearnedNeighbours(), LearnedNeighbours(doubt=1.0)
    for learner in (sure, careful):
        for app in ("a", "b", "c", "d"):
            learner.note((app, "loud", "v100"), 0.3)
            learner.note((app, "quiet", "v100"), 0.95)
            learner.note(("quiet", app, "v100"), 0.9)
    known, strange = (job(1, "quiet"), job(2, "quiet")), (job(3, "new"), job(4, "other"))
    lost = [sure.pair(*pair, "v100") - careful.pair(*pair, "v100") for pair in (known, strange)]
    assert 0.0 < lost[0] < lost[1]
    assert careful.pair(job(5, "a"), job(6, "loud"), "v100") == 0.3, "what was seen is not doubted"


def test_of_many_pairs_those_that_are_learned_from_have_both_sides():
    met = [(f"a{i:02}", f"b{j:02}", "v100") for i in range(20) for j in range(20)]
    seen = [side for a, b, kind in met for side in ((a, b, kind), (b, a, kind))]
    some = thinned(seen, 200)
    assert len(some) == 200
    assert {(b, a, kind) for a, b, kind in some} == set(some)
    assert thinned(seen, 800) == seen


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
