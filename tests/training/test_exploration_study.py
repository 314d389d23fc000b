"""The study that compares exploration by doubt with ε-greedy: repeatable, and its ratio means what it says."""

import numpy as np
import pytest

from advisor.policy.exploration import epsilon_greedy, explore
from advisor.training.exploration_study import WINDOW, Site, ratio, run

SMALL = Site(apps=(4, 4), known=8)


def test_the_same_seed_gives_the_same_regrets_and_another_seed_others():
    first = run(explore, 1, 12, SMALL)
    assert (first == run(explore, 1, 12, SMALL)).all()
    assert (first != run(explore, 2, 12, SMALL)).any()
    assert (first >= 0).all()


def test_choosing_at_random_costs_more_than_choosing_by_expectation():
    wild, greedy = (run(epsilon_greedy(share), 3, 40, SMALL).mean() for share in (1.0, 0.0))
    assert wild > 2 * greedy


def falling(jobs_to_floor, floor, jobs=1200, seeds=3):
    """A regret that falls from 1 to its floor."""
    curve = np.maximum(floor, 1.0 - (1.0 - floor) * np.arange(jobs) / jobs_to_floor)
    return np.tile(curve, (seeds, 1))


def test_who_falls_twice_as_fast_needs_half_the_jobs():
    cumulated, found, level = ratio(falling(300, 0.1), falling(600, 0.1))
    assert level == pytest.approx(0.1)
    assert found == pytest.approx((300 + WINDOW) / (600 + WINDOW), rel=0.05)
    assert cumulated == pytest.approx(0.5, rel=0.05)


def test_who_never_gets_there_is_not_credited():
    cumulated, found, _ = ratio(falling(600, 0.5), falling(600, 0.1))
    assert found > 2
    assert cumulated == 2.0


def test_the_same_curve_needs_the_same_jobs():
    same = falling(500, 0.2)
    assert ratio(same, same)[0] == 1.0
