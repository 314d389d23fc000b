"""What a site's jobs teach of run times in the studies of adaptation, before and after they end."""

from xml.etree import ElementTree

import msgspec
import numpy as np

from advisor.policy.learned.network import PlacementNetwork
from advisor.settings import Explore
from advisor.sim.workload import Workload
from advisor.training import adaptation_study
from advisor.training.curves import draw_gains
from advisor.training.environment import Environment, world_of
from advisor.training.imagined import better, imagined_sites, imagined_task
from advisor.training.learning_runs import run_learning
from advisor.training.posterior import RunTimes, tell_truth
from advisor.training.prior import plain_prior
from advisor.training.sent_to_learn import Explorer
from advisor.training.tasks import Mixture, draw_task
from advisor.training.world import END, EXPECTED, START, new_state

SITE = Mixture(jobs=40, oracle=0.0, new_apps=1.0, workflows=0.0, contended=0.0, wide=0.0)


def test_a_job_that_runs_far_beyond_what_was_expected_is_expected_to_take_longer_before_it_ends():
    task = draw_task(5, SITE)
    world, runs = world_of(task), RunTimes(task, plain_prior())
    runs.tell(world)
    before = world.pair[:, :, EXPECTED].copy()
    state = new_state(world)
    state.place[0] = 0
    state.times[0, START], state.times[0, END] = 0.0, 1e9
    now = 5.0 * before[0, 0]
    runs.learn_from(world, state, now)
    after = world.pair[:, :, EXPECTED]
    alike, others = task.app == task.app[0], task.app != task.app[0]
    assert (after[alike, 0] > 1.5 * before[alike, 0]).all()
    assert np.allclose(after[others], before[others])
    # One that has only begun says nothing.
    runs.learn_from(world, state, 0.01 * before[0, 0])
    assert np.allclose(world.pair[:, :, EXPECTED], before)


def test_once_it_has_ended_its_run_time_counts_and_no_longer_its_waiting():
    task = draw_task(5, SITE)
    world, runs, other = world_of(task), RunTimes(task, plain_prior()), RunTimes(task, plain_prior())
    runs.tell(world)
    took = 4.0 * float(world.pair[0, 0, EXPECTED])
    state = new_state(world)
    state.place[0] = 0
    state.times[0, START], state.times[0, END] = 0.0, took
    runs.learn_from(world, state, 0.9 * took)
    runs.learn_from(world, state, took)
    other.observe(np.array([0]), np.array([0]), np.array([took]))
    assert np.allclose(runs.expected()[0], other.expected()[0])


def test_apps_that_differ_more_do_so_between_places_and_annotations_that_are_off_are_off_everywhere():
    plain, varied = draw_task(6, SITE), draw_task(6, Mixture(**{**_fields(SITE), "taste": 0.6}))
    assert plain.told.shape == varied.told.shape
    assert _between(varied.mean) > 1.5 * _between(plain.mean)
    off = draw_task(6, Mixture(**{**_fields(SITE), "told_off": 0.7, "apps": (1, 1)}))
    same = draw_task(6, Mixture(**{**_fields(SITE), "apps": (1, 1)}))
    ratio = off.told / same.told
    assert np.allclose(ratio, ratio[0, 0]) and abs(np.log(ratio[0, 0])) > 0.01


def test_apps_whose_runs_are_alike_are_known_sooner():
    task = draw_task(5, SITE)
    prior = msgspec.structs.replace(plain_prior(), noise=(0.1, 0.6))
    jobs, here = np.arange(4), np.zeros(4, dtype=np.int64)
    task = msgspec.structs.replace(task, app=np.zeros_like(task.app))
    spreads = []
    for seconds in (np.array([1.0, 1.1, 0.9, 1.0]), np.array([1.0, 2.5, 0.4, 1.0])):
        runs = RunTimes(task, prior)
        runs.observe(jobs, here, 3.0 * seconds * task.told[jobs, here])
        spreads.append(runs.expected()[1][0, 0])
    assert spreads[0] < 0.2 and spreads[1] > 0.5


def test_while_jobs_end_run_times_become_known_with_and_without_rounds_unless_learning_has_stopped():
    task = draw_task(7, SITE)
    env = Environment(task, PlacementNetwork(0).export())
    before = _error(RunTimes(task, plain_prior()), task)
    for rounds in (True, False):
        runs, still = RunTimes(task, plain_prior()), RunTimes(task, plain_prior())
        schedule = run_learning(env, runs, rounds=rounds)
        assert np.isfinite(schedule.end).all()
        assert _error(runs, task) < 0.7 * before
        run_learning(env, still, until=-np.inf, rounds=rounds)
        assert _error(still, task) == before


def test_whoever_explores_sends_jobs_elsewhere_to_learn_and_no_round_moves_them_away_again(monkeypatch):
    task = draw_task(7, SITE)
    env = Environment(task, PlacementNetwork(0).export())
    sent = {}
    place = Explorer.place

    def noted(self, job, preferred, *more):
        found = place(self, job, preferred, *more)
        if found != preferred:
            sent[job] = found
        return found

    monkeypatch.setattr(Explorer, "place", noted)
    risked = Explore(max_regret=1.0, max_regret_s=1e9)
    schedule = run_learning(env, RunTimes(task, plain_prior()), explore=risked)
    assert np.isfinite(schedule.end).all()
    assert sent and sent == {job: int(schedule.place[job]) for job in sent}
    # Who may not learn, or only later, does not explore.
    sent.clear()
    for limits in ({"until": -np.inf}, {"explore_from": np.inf}):
        still, also = (run_learning(env, RunTimes(task, plain_prior()), explore=e, **limits) for e in (None, risked))
        assert not sent and np.array_equal(still.end, also.end)


def test_of_one_app_on_one_processor_one_job_at_a_time_is_sent_to_learn():
    task = draw_task(7, SITE)
    task = msgspec.structs.replace(task, app=np.zeros_like(task.app), workload=_same_app(task.workload))
    places = task.told.shape[1]
    explorer = Explorer(task, RunTimes(task, plain_prior()), Explore(max_regret=1.0, max_regret_s=1e9))
    wait, run = np.zeros(places), np.linspace(1.0, 1.2, places)
    sent = [explorer.place(job, 0, wait, run, run, 0.0) for job in range(len(task.app))]
    elsewhere = [task.cluster.places[p].processor for p in sent if p != 0]
    assert elsewhere and len(elsewhere) == len(set(elsewhere))


def test_after_a_shift_that_is_not_half_way_other_apps_come_at_the_same_site():
    half, early = draw_task(9, SITE, shift=True), draw_task(9, SITE, shift=True, shift_at=10)
    assert early.cluster == half.cluster
    count = len(half.graphs) // 2
    for task, at in ((half, 20), (early, 10)):
        assert (task.app[:at] < count).all() and (task.app[at:] >= count).all()


def test_after_a_long_shift_everyone_is_compared_on_the_same_jobs_and_the_curve_is_drawn(monkeypatch):
    monkeypatch.setattr(adaptation_study, "CURVE", (10, 30))
    monkeypatch.setattr(adaptation_study, "BEFORE", 10)
    monkeypatch.setattr(adaptation_study, "prior_of", lambda mixture: plain_prior())
    said = []
    (row,) = adaptation_study.long_shift(PlacementNetwork(0).export(), [9], SITE, said.append)
    assert set(row) == {"adapted", "exploring", "not adapted", "known"} and len(said) == 1
    assert all(len(times) == 30 and min(times) > 0 for times in row.values())
    assert row["adapted"] != row["not adapted"] != row["known"]
    drawn = ElementTree.fromstring(
        draw_gains({"adapted": [(10, 1.02), (30, 1.2)], "known": [(10, 1.2), (30, 1.3)]}, "jobs")
    )
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"jobs", "10", "30", "adapted", "known"} <= set(texts)


def test_what_has_been_told_stays_told_where_nothing_is_learned():
    task = draw_task(7, SITE)
    env = Environment(task, PlacementNetwork(0).export())
    tell_truth(task, env.world)
    told = env.world.pair[:, :, EXPECTED].copy()
    run_learning(env, None)
    assert np.array_equal(env.world.pair[:, :, EXPECTED], told)


def test_an_imagined_workload_has_the_logs_apps_and_processors_and_differs_by_what_is_not_known():
    log, weights = draw_task(8, SITE), PlacementNetwork(0).export()
    unsure, sure = RunTimes(log, plain_prior()), RunTimes(log, plain_prior())
    for place in range(log.told.shape[1]):
        jobs = np.repeat(np.flatnonzero(np.isfinite(log.expected[:, place])), 30)
        sure.observe(jobs, np.full(len(jobs), place), log.mean[jobs, place])
    usual = np.bincount(log.app).argmax()
    apart = {}
    for name, runs in (("unsure", unsure), ("sure", sure)):
        drawn = [imagined_task(log, runs, weights, 90, seed) for seed in range(6)]
        assert drawn[0].workload == imagined_task(log, runs, weights, 90, 0).workload
        for task in drawn:
            assert len(task.workload.jobs) == 90
            assert set(task.app) <= set(log.app)
            submits = [job.submit for job in task.workload.jobs]
            assert submits == sorted(submits)
            assert all(job.run_time.keys() <= log.workload.jobs[0].run_time.keys() for job in task.workload.jobs)
        apart[name] = np.std([np.log(task.mean / task.told)[task.app == usual].mean() for task in drawn])
    assert apart["sure"] < 0.2 * apart["unsure"]


def test_weights_are_kept_only_if_they_do_clearly_better_at_the_site_as_it_is_known():
    log, good = draw_task(9, SITE), PlacementNetwork(0).export()
    # Runs count for little, so that every job goes where it waits least.
    bad = good._replace(head_b3=np.array([1.5, -1.5]))
    trials = imagined_sites(log, RunTimes(log, plain_prior()), good, 2, 60, seed=1)
    average = [sum(env.set_weights(w) or env.play().avg_jct for env in trials) for w in (good, bad)]
    assert min(average) < 0.9 * max(average)
    best = (good, bad)[average.index(min(average))]
    assert better(good, bad, trials) is best and better(bad, good, trials) is best
    # One that does as well is not worth the change.
    assert better(good, good._replace(), trials) is good


def _error(runs, task):
    """How far off the logarithm of what is expected is, on average."""
    possible = np.isfinite(task.expected)
    return float(np.abs(np.log(runs.expected()[0] / task.mean))[possible].mean())


def _fields(mixture):
    return {name: getattr(mixture, name) for name in mixture.__struct_fields__}


def _same_app(workload):
    return Workload(workload.name, tuple(msgspec.structs.replace(job, app="app0") for job in workload.jobs))


def _between(mean):
    """How far jobs differ in which places suit them."""
    logs = np.log(mean)
    logs = logs - logs.mean(axis=1, keepdims=True)
    return float((logs - logs.mean(axis=0)).std())
