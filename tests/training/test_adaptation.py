"""What a site's jobs teach of run times in the studies of adaptation, before and after they end."""

import numpy as np

from advisor.training.environment import world_of
from advisor.training.posterior import RunTimes
from advisor.training.prior import plain_prior
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


def _fields(mixture):
    return {name: getattr(mixture, name) for name in mixture.__struct_fields__}


def _between(mean):
    """How far jobs differ in which places suit them."""
    logs = np.log(mean)
    logs = logs - logs.mean(axis=1, keepdims=True)
    return float((logs - logs.mean(axis=0)).std())
