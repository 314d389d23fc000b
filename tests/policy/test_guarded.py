"""The learned policy as the daemon runs it: corrected scores where it can, the arithmetic's where it cannot."""

import logging

import msgspec
import pytest

from advisor.performance import processors
from advisor.policy import guarded
from advisor.policy.arithmetic import EarliestFinish
from advisor.policy.guarded import FIRST_REST_S, RELIABLE, TOO_HOT, Guarded, learned
from advisor.policy.learned import Card, LearnedPolicy, write_model
from advisor.policy.learned.shapes import zero_weights
from advisor.policy.registry import make_policy
from advisor.settings import PolicySettings, Settings
from tests.policy import site


@pytest.fixture
def model(tmp_path):
    """A network that has learned nothing: it says what the arithmetic says."""
    write_model(tmp_path / "model", zero_weights(), Card("nothing-learned"))
    return tmp_path / "model"


def settings(model):
    return site.settings(policy=PolicySettings(name="learned", model=str(model)))


def advise(model, **request):
    return site.advise(site.submission(**request), site.snapshot(*site.BUSY), settings(model))


def test_a_network_that_has_learned_nothing_decides_as_the_arithmetic_does(model):
    ours, plain = advise(model), site.advise(site.submission(), site.snapshot(*site.BUSY))
    assert (ours.policy, ours.policy_version) == ("learned", "nothing-learned")
    assert ours.chosen == plain.chosen
    assert [p.score for p in ours.predictions] == pytest.approx([p.score for p in plain.predictions])


def test_without_a_model_the_arithmetic_decides_and_every_decision_says_so(tmp_path):
    decision = advise(tmp_path / "nowhere")
    assert (decision.policy, decision.action) == ("earliest-finish", "rewrite")
    assert "the learned policy did not decide" in decision.why
    assert "nowhere" in decision.why


@pytest.mark.parametrize("content", [b"", b"\xff" * 5000, b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_damaged_model_is_refused_with_a_reason(model, content):
    (model / "weights.safetensors").write_bytes(content)
    policy = make_policy(settings(model))
    assert isinstance(policy, Guarded)
    assert "weights.safetensors" in policy.refused
    assert advise(model).policy == "earliest-finish"


def test_a_model_of_another_format_is_refused(model):
    write_model(model, zero_weights(), Card("future", format=99))
    assert "99" in learned(settings(model)).refused


class Clock:
    """Time that passes only as the test says."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Slow(LearnedPolicy):
    """The network on a machine where each decision takes `took_s`, or fails."""

    took_s = 0.0
    fault = None

    def correct(self, *given):
        self.clock.now += self.took_s
        if self.fault is not None:
            raise self.fault
        return super().correct(*given)


@pytest.fixture
def slow():
    figures = processors.load()
    network = Slow(zero_weights(), figures)
    network.clock = Clock()
    policy = Guarded(network, EarliestFinish(figures), clock=network.clock)
    policy.budget_s = 0.003
    return policy, network, network.clock


def by(policy):
    config = Settings()
    planned = guarded_choice(config)
    scored = policy.score(planned.shape, planned.candidates, site.snapshot(*site.BUSY), site.NOW)
    assert all(p.score > 0 for p in scored.predictions)
    return scored.by[0] if scored.by else policy.name


def guarded_choice(config):
    from advisor.policy.plans import plan, read

    request = site.submission()
    return plan(request, read(request), site.snapshot(*site.BUSY), config, processors.load()).choice


def test_one_slow_decision_is_forgiven_several_in_a_row_are_not(slow):
    policy, network, clock = slow
    network.took_s = 0.01
    assert by(policy) == "learned"
    network.took_s = 0.001
    assert [by(policy) for _ in range(20)] == ["learned"] * 20
    network.took_s = 0.01
    assert [by(policy) for _ in range(int(TOO_HOT))] == ["learned"] * int(TOO_HOT)
    network.took_s = 0.001
    assert by(policy) == "earliest-finish"
    assert "budget_ms" in policy.resting
    assert policy.fallbacks == {"resting": 1}
    clock.now += FIRST_REST_S + 1
    assert by(policy) == "learned"
    assert not policy.resting


def test_each_rest_is_longer_until_it_has_been_reliable(slow):
    policy, network, clock = slow

    def rest():
        network.took_s = 0.01
        while by(policy) == "learned":
            pass
        network.took_s = 0.0
        began = clock.now
        while by(policy) != "learned":
            clock.now += 1
        return clock.now - began

    assert rest() == pytest.approx(FIRST_REST_S, abs=2)
    assert rest() == pytest.approx(2 * FIRST_REST_S, abs=2)
    for _ in range(RELIABLE):
        by(policy)
    assert rest() == pytest.approx(FIRST_REST_S, abs=2)


def test_a_network_that_fails_costs_no_decision_and_is_told_once(slow, caplog):
    policy, network, clock = slow
    network.fault = ZeroDivisionError("in the network")
    with caplog.at_level(logging.WARNING, logger=guarded.__name__):
        for _ in range(3):
            assert by(policy) == "earliest-finish"
            clock.now += 1.5 * FIRST_REST_S
    assert len(caplog.records) == 1
    assert "in the network" in policy.resting
    assert policy.fallbacks == {"failed": 2, "resting": 1}


def test_a_job_unlike_any_it_was_trained_for_is_left_to_the_arithmetic(model):
    figures = processors.load()
    weights = zero_weights()
    narrow = weights._replace(range_low=weights.range_low * 0 + 1e9, range_high=weights.range_high * 0 + 2e9)
    policy = Guarded(LearnedPolicy(narrow, figures), EarliestFinish(figures))
    assert by(policy) == "earliest-finish"
    assert policy.fallbacks == {"unlike job": 1}


def test_a_job_without_gpus_is_said_to_be_the_arithmetics(model):
    decision = advise(model, tres_per_node=None)
    assert decision.eligible
    assert decision.policy == "earliest-finish"
    assert "the learned policy did not decide: the job asks for no GPU" in decision.why


def test_what_is_unlike_training_is_named(tmp_path):
    weights = zero_weights()
    write_model(tmp_path, weights._replace(pool_low=weights.pool_low * 0 + 50.0), Card("of-faster-gpus"))
    decision = advise(tmp_path)
    assert decision.policy == "earliest-finish"
    assert "a pool's tflops is" in decision.why
    assert "in training it was 50 to 1e+09" in decision.why


def test_a_longer_wait_than_training_met_is_still_the_networks(tmp_path):
    weights = zero_weights()
    high = weights.range_high.copy()
    high[[0, 2, 5]] = 1e-6  # as if nobody ever had to wait in training
    write_model(tmp_path, weights._replace(range_high=high), Card("of-calm-sites"))
    assert advise(tmp_path).policy == "learned"


def test_the_daemon_imports_no_network_unless_it_is_asked_for():
    import subprocess
    import sys

    program = "import sys; import advisor.server.hotpath; assert not {'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_decision_by_the_fallback_survives_the_log(tmp_path):
    decision = advise(tmp_path / "nowhere")
    assert msgspec.json.decode(msgspec.json.encode(decision), type=type(decision)) == decision
