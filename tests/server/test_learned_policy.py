"""`policy.name: learned` in a real daemon: loads, falls back, says so, and reloads without dropping a decision."""

import signal

from advisor.policy.learned import Card, write_model
from advisor.policy.learned.shapes import zero_weights
from tests.server.daemons import submission, wait_until


def decided_by(daemon):
    return [row[0] for row in daemon.query("SELECT policy FROM decisions ORDER BY decided_at, rowid")]


def test_the_model_comes_and_goes_under_a_daemon_that_answers_all_the_while(make_daemon, tmp_path):
    model = tmp_path / "model"
    daemon = make_daemon(policy={"name": "learned", "model": str(model), "budget_ms": 1000.0}).start()
    asked = 0

    def ask(hook, times=1):
        nonlocal asked
        for _ in range(times):
            reply = hook.ask(submission())
            assert reply.error is None
            assert reply.token is not None
            asked += 1

    def reload_and_ask(hook):
        """SIGHUP, and questions until the daemon has taken it in."""
        before = daemon.status().reloaded_at
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: ask(hook) or daemon.status().reloaded_at != before)

    with daemon.hook() as hook:
        # There is no model yet.
        ask(hook, 3)
        status = daemon.status()
        assert status.policy == "learned"
        assert status.fallback.decisions == {"no model": 3}
        assert any("the arithmetic decides" in problem and str(model) in problem for problem in status.problems())
        assert any("decided by the arithmetic: 3 no model" in line for line in status.lines())

        write_model(model, zero_weights(), Card("first"))
        reload_and_ask(hook)
        assert daemon.status().policy_version == "first"
        assert not daemon.status().fallback.refused
        ask(hook, 5)

        # A damaged one does not take the place of one that works.
        (model / "weights.safetensors").write_bytes(b"\x00" * 100)
        reload_and_ask(hook)
        status = daemon.status()
        assert status.policy_version == "first"
        assert "weights.safetensors" in status.reload_error
        assert not status.fallback.decisions
        ask(hook, 5)

    wait_until(lambda: len(decided_by(daemon)) == asked)
    policies = decided_by(daemon)
    assert policies[:3] == ["earliest-finish"] * 3
    assert policies[-10:] == ["learned"] * 10
    # Once the network decides, it does so for every job.
    assert "earliest-finish" not in policies[policies.index("learned") :]
    why = daemon.query("SELECT why FROM decisions ORDER BY decided_at LIMIT 1")[0][0]
    assert "the learned policy did not decide" in why
    assert daemon.stop() == 0


def test_a_damaged_model_at_the_start_costs_the_network_and_nothing_else(make_daemon, tmp_path):
    write_model(tmp_path / "model", zero_weights(), Card("first"))
    (tmp_path / "model" / "card.yaml").write_text("{")
    daemon = make_daemon(policy={"name": "learned", "model": str(tmp_path / "model")}).start()
    with daemon.hook() as hook:
        assert hook.ask(submission()).action == "rewrite"
    assert "card.yaml" in daemon.status().fallback.refused
    assert daemon.status().reload_error is None
    assert not daemon.status().well()


def test_a_workflow_is_followed_from_one_submission_to_the_next(make_daemon):
    daemon = make_daemon().start()
    with daemon.hook() as hook:
        hook.ask(submission())
        hook.ask(submission(dependency="afterok:4711"))
    wait_until(lambda: len(daemon.query("SELECT 1 FROM decisions")) == 2)
    (why,) = daemon.query("SELECT why FROM decisions ORDER BY decided_at DESC LIMIT 1")[0]
    assert "the jobs it waits for are expected to end in" in why
