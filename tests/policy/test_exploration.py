"""Exploration: bounded in what it risks, exact in what it logs, repeatable, and off unless a site asks for it."""

import math
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.dfg.graph import Annotation
from advisor.performance.snapshot import RunTimes
from advisor.policy.decision import decide
from advisor.policy.exploration import CASES, MOST_ARMS, Arm, best_of, draw_by, epsilon_greedy, explore, safe
from advisor.policy.interface import JobShape, Prediction
from advisor.policy.registry import make_policy
from advisor.settings import Explore, PolicySettings
from tests.policy import site


def unsure(seconds, apart, doubt=0.3, count=3):
    """What the run-time model says of an app that it hardly knows on this processor."""
    return RunTimes(count, math.log(seconds), 0.4, True, 0.0, 0.0, doubt, apart)


# v100 and p100 are alike in expectation, and little is known of either; k80 is known to be slow.
HISTORY = {"train": {"v100": unsure(1000, 0.3), "p100": unsure(1050, 0.3), "k80": unsure(6000, 0.05)}}


def shape(limit=None):
    return JobShape("train", "ada", "", 1, 1, 0, 1, 1, limit, 1, False, Annotation())


def decided(token, *, explorer=explore, holdout=0.0, mode="enforce", max_regret=0.2, **request):
    config = site.settings(mode, holdout, explore=Explore(max_regret=max_regret))
    return decide(
        site.submission(partition="v100,p100,k80", **request),
        site.snapshot(history=HISTORY),
        None,
        make_policy(config),
        config,
        random.Random(token),
        site.NOW,
        lambda: token,
        explorer=explorer,
    )


arms = st.lists(
    st.builds(
        Arm, st.floats(0, 1e5), st.floats(1, 1e5), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.0, 0.1, 0.5, 1])
    ),
    min_size=1,
    max_size=MOST_ARMS,
)


@given(arms)
def test_the_probabilities_of_any_places_sum_to_one(places):
    shares = best_of(places)
    assert math.fsum(shares) == 1.0
    assert all(share == 0 or share >= 1 / CASES for share in shares)


@pytest.mark.parametrize(
    "places",
    [
        [Arm(0, 1000, 0.0, 0.3), Arm(0, 1100, 0.0, 0.3)],
        [Arm(0, 1000, 0.8, 0.1), Arm(600, 500, 0.8, 0.4), Arm(0, 1500, 0.8, 0.5)],
        [Arm(0, 1000, 0.5, 0.02), Arm(0, 1400, 0.5, 0.6), Arm(50, 1200, 0.5, 0.4), Arm(900, 300, 0.5, 0.4)],
    ],
)
def test_a_place_is_chosen_as_often_as_it_would_turn_out_to_be_the_best(places):
    draw, won = random.Random(5), Counter()
    for _ in range(20_000):
        common = draw.gauss(0, 1)
        ends = [
            a.sure_s + a.run_s * math.exp(a.shared * common + a.own * draw.gauss(0, 1) - (a.shared**2 + a.own**2) / 2)
            for a in places
        ]
        won[ends.index(min(ends))] += 1
    for number, share in enumerate(best_of(places)):
        assert share == pytest.approx(won[number] / 20_000, abs=0.05)


def test_what_is_unknown_everywhere_alike_is_no_reason_to_try_another_place():
    assert best_of([Arm(0, 1000, 2.0, 0.0), Arm(0, 1100, 2.0, 0.0)]) == [1.0, 0.0]


def test_a_site_that_asked_for_nothing_never_explores():
    off = {decided(f"t{n}", max_regret=0.0).chosen for n in range(50)}
    assert len(off) == 1
    assert decided("t", max_regret=0.0).probabilities.count(1.0) == 1


def test_jobs_are_spread_over_the_places_that_might_be_best_with_the_logged_probabilities():
    decisions = [decided(f"token-{n}", holdout=0.1) for n in range(600)]
    first = decisions[0]
    assert math.fsum(first.probabilities) == pytest.approx(1.0)
    assert sum(share > 0.02 for share in first.probabilities) >= 2
    counted = Counter(decision.chosen for decision in decisions)
    for number, share in enumerate(first.probabilities):
        assert counted[number] / 600 == pytest.approx(share, abs=0.07)
    k80 = next(n for n, c in enumerate(first.candidates) if c.gpu_type == "k80")
    assert first.probabilities[k80] == 0.0
    explored = next(d for d in decisions if d.chosen != d.preferred and not d.holdout)
    assert "to learn how long it runs there" in explored.why


def test_the_same_token_makes_the_same_choice():
    assert decided("abc") == decided("abc")
    assert draw_by("abc", (0.2, 0.3, 0.5)) == draw_by("abc", (0.2, 0.3, 0.5))


def test_only_a_mode_that_changes_jobs_sends_them_to_learn():
    for mode in ("shadow", "advise"):
        decision = decided("x", mode=mode)
        assert decision.chosen == 0
        assert decision.probabilities[0] == 1.0


predictions = st.lists(
    st.builds(
        Prediction,
        st.just(0),
        st.floats(0, 1e4),
        st.floats(1, 1e4),
        score=st.floats(0, 2e4),
        pool=st.sampled_from([None, 0, 1]),
        processor=st.sampled_from(["a", "b", "c", "d"]),
        sd_log=st.floats(0, 1.5),
        doubt_log=st.floats(0, 1),
        apart_log=st.floats(0, 1),
    ),
    min_size=1,
    max_size=12,
).map(lambda them: [msgspec.structs.replace(each, candidate=n) for n, each in enumerate(them)])


@settings(max_examples=200)
@given(predictions, st.data(), st.floats(0, 1), st.floats(0, 5000), st.one_of(st.none(), st.floats(60, 2e4)))
def test_nothing_outside_the_safe_set_is_ever_chosen(them, data, share, seconds, limit):
    preferred = data.draw(st.integers(0, len(them) - 1))
    bounds = Explore(max_regret=share, max_regret_s=seconds)
    shares = explore(preferred, them, shape(limit), PolicySettings(), bounds)
    assert math.fsum(shares) == pytest.approx(1.0)
    allowed = safe(preferred, them, shape(limit), bounds)
    for number, chance in enumerate(shares):
        if chance > 0 and number != preferred:
            assert number in allowed
            assert them[number].score - them[preferred].score <= min(share * them[preferred].score, seconds)
            assert them[number].pool is not None
            assert limit is None or them[number].run_s <= limit


@given(st.text(), st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda shares: sum(shares) > 1e-6))
def test_a_draw_never_takes_what_has_no_chance(token, shares):
    assert shares[draw_by(token, shares)] > 0


def test_of_two_places_alike_the_one_with_doubtful_neighbours_is_worth_a_try():
    quiet = Prediction(0, 0.0, 1000.0, score=1000.0, pool=0, processor="v100", sd_log=0.1)
    other = Prediction(1, 0.0, 1000.0, score=1010.0, pool=1, processor="v100", sd_log=0.1)
    bounds = Explore(max_regret=0.5)
    assert explore(0, [quiet, other], shape(), PolicySettings(min_gain_s=0, min_gain=0), bounds) == (1.0, 0.0)
    beside = msgspec.structs.replace(other, slowdown=1.2, run_s=1010 / 1.2, slowdown_sd=0.4)
    shares = explore(0, [quiet, beside], shape(), PolicySettings(min_gain_s=0, min_gain=0), bounds)
    assert shares[1] > 0.2


def test_epsilon_greedy_takes_any_place_now_and_then():
    decision = decided("e", explorer=epsilon_greedy(0.3))
    assert all(share > 0 for share in decision.probabilities)
    assert math.fsum(decision.probabilities) == pytest.approx(1.0)


def test_the_model_says_how_much_of_its_doubt_is_about_one_processor_alone():
    from advisor.performance import processors
    from advisor.performance.model.model import RunTimeModel
    from advisor.performance.model.observations import Observation
    from advisor.performance.model.table import entries_of, table

    kinds = ("v100", "p100", "k80")
    log = [Observation(f"app-{a}-x", "u", "v100", 1, 6.0 + a * 0.2 + n * 0.1) for a in range(6) for n in range(4)]
    model = RunTimeModel.fitted(log, processors.load())
    before = table(model, kinds)["app-1-x"]
    assert before["k80"].apart_log > before["v100"].apart_log > 0
    for _ in range(8):
        model.update(Observation("app-1-x", "u", "k80", 1, 7.0))
    after = entries_of(model, "app-1-x", kinds)["app-1-x"]
    assert after["k80"].apart_log < 0.7 * before["k80"].apart_log
    # Both ways of making an entry agree.
    fresh = entries_of(RunTimeModel.fitted(log, processors.load()), "app-1-x", kinds)["app-1-x"]
    assert fresh["k80"].apart_log == pytest.approx(before["k80"].apart_log, rel=1e-6)
    assert fresh["k80"].doubt_log == pytest.approx(before["k80"].doubt_log, rel=1e-6)
