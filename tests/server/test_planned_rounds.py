"""Several pending jobs planned together, and their turns exchanged; with the simulator's own rule."""

import time

import msgspec
import pytest
from click.testing import CliRunner

from advisor.cli import cli
from advisor.performance.processors import load
from advisor.performance.queue import build_snapshot
from advisor.policy.arithmetic import EarliestFinish
from advisor.policy.registry import make_policy
from advisor.policy.remembered import Remembered
from advisor.server import frames
from advisor.server.rounds.looking import look
from advisor.server.rounds.ordering import order_of
from advisor.server.rounds.planning import Planner, _plan
from advisor.settings import PolicySettings, Rounds
from tests.policy.site import runs
from tests.server.test_rounds import Site, busy

pytest.importorskip("numba")


class Ready(Planner):
    """With its machine code at hand."""

    def ready(self):
        return True


class Missing(Planner):
    """Where numba is not installed."""

    def __init__(self):
        super().__init__()
        self.missing = "numba is not installed"

    def ready(self):
        return False


class Counting(EarliestFinish):
    """A policy with an opinion of its own, and whom it was asked about."""

    def __init__(self):
        super().__init__(load())
        self.asked = []

    def expect(self, *of):
        return super().score(*of)

    def correct(self, asked, *of):
        self.asked += [shape.app for shape, _ in asked]
        return [scored for _, scored in asked]


def looked(site, planner, settings=None, policy=None):
    """What one look comes to, of the jobs that the thread would look at."""
    settings = settings or site.settings
    from advisor.server.rounds.thread import Rounds as Thread
    from advisor.store.database import Database

    thread = Thread(site.told.append)
    state = site.state()
    snapshot = build_snapshot(state, site.history)
    thread._follow(settings, snapshot)
    with Database(site.settings.paths.database) as db:
        jobs, _ = thread._open_jobs(db, settings, state, snapshot, time.time())
    return look(state, snapshot, jobs, policy or make_policy(settings), settings, time.time(), planner)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_the_fast_gpu_is_left_to_the_job_that_gains_more_from_it(site):
    site.history = {
        "even": {"v100": runs(990), "p100": runs(1000), "k80": runs(1000)},
        "picky": {"v100": runs(500), "p100": runs(4000), "k80": runs(4000)},
    }
    site.running = [busy("v1"), busy("p1"), busy("p2"), busy("k1", 30), busy("k2", 30)]
    for number, app in ((10, "even"), (11, "picky")):
        site.submit(number, name=app, partition="k80", tres_per_node="gres/gpu:2")
    site.free("v1", "p1")
    alone = {each.job_id: each.to_place for each in looked(site, None)}
    assert alone == {10: "v100/v100", 11: "v100/v100"}, "one by one, the first takes it"
    together = {each.job_id: each for each in looked(site, Ready())}
    assert {job: each.to_place for job, each in together.items()} == {10: "p100/p100", 11: "v100/v100"}
    assert "planned together" in together[10].why


def test_the_policy_is_asked_about_jobs_that_may_move_and_no_others(site):
    site.history = {
        "mover": {"v100": runs(500), "p100": runs(4000), "k80": runs(4000)},
        "stayer": {"v100": runs(9000), "p100": runs(9000), "k80": runs(1000)},
    }
    site.running = [busy("v1"), busy("p1"), busy("p2"), busy("k1", 30), busy("k2", 30)]
    for number, app in ((10, "stayer"), (11, "mover"), (12, "stayer")):
        site.submit(number, name=app, partition="k80", tres_per_node="gres/gpu:2")
    site.free("v1", "p1")
    planned, alone = Counting(), Counting()
    assert [each.job_id for each in looked(site, Ready(), policy=planned)] == [11]
    assert planned.asked == ["mover"]  # where the plan leaves a job nothing depends on the policy's opinion
    looked(site, None, policy=alone)
    assert alone.asked == ["stayer", "mover", "stayer"]


def test_rounds_know_what_the_daemon_has_seen_submitted(site):
    from advisor.server.rounds.thread import Rounds as Thread

    settings = msgspec.structs.replace(site.settings, policy=PolicySettings(name="learned"))
    snapshot = build_snapshot(site.state(), site.history)
    thread = Thread(site.told.append)
    remembered = Remembered(7, (100.0, 200.0, 4.6, 21.2, 30.0, 10.0, 5.0), ((0.5,) * len(snapshot.pools),) * 3)
    thread.submitted(remembered)
    thread._follow(settings, snapshot)
    assert thread._policy.remembered() == remembered


def test_the_fast_gpu_goes_to_the_job_that_its_workflow_waits_for(site):
    site.history = {
        "first": {"v100": runs(1000), "p100": runs(1700), "k80": runs(2000)},
        "aside": {"v100": runs(1000), "p100": runs(1900), "k80": runs(2000)},
        "long": {"v100": runs(9000), "p100": runs(9000), "k80": runs(9000)},
    }
    site.running = [busy("v1"), busy("p1"), busy("p2"), busy("k1", 30), busy("k2", 30)]
    for number, app in ((10, "first"), (11, "aside")):
        site.submit(number, name=app, partition="k80", tres_per_node="gres/gpu:2")
    site.free("v1", "p1")

    def places():
        return {each.job_id: each.to_place for each in looked(site, Ready())}

    assert places() == {10: "p100/p100", 11: "v100/v100"}, "by itself, the second gains more"
    # The long one waits for the first; the last one of the workflow for that and for the other.
    for number, name, behind in ((12, "long", "afterok:10"), (13, "first", "afterok:11:12")):
        follower = msgspec.structs.replace(
            site.pending[0], job_id=number, name=name, reason="Dependency", dependency=behind, admin_comment=""
        )
        site.pending.append(follower)
    assert places() == {10: "v100/v100", 11: "p100/p100"}


def test_without_the_planner_each_job_is_looked_at_by_itself(site):
    site.submit(10)
    site.submit(11)
    site.free("p1")
    assert [each.to_place for each in looked(site, Missing())] == ["p100/p100"] * 2


def queue_of_long_and_short(site, waited_s=10):
    site.history = {
        "long": {"v100": runs(10_000), "p100": runs(10_000), "k80": runs(10_000)},
        "short": {"v100": runs(600), "p100": runs(600), "k80": runs(600)},
    }
    site.running[0] = busy("v1", 15)
    site.submit(10, name="long", partition="v100", tres_per_node="gres/gpu:2", waited_s=waited_s)
    site.submit(11, name="short", partition="v100", tres_per_node="gres/gpu:2")


def test_the_lever_order_lets_a_short_job_go_first(tmp_path):
    site = Site(tmp_path, levers=("place", "order"))
    queue_of_long_and_short(site)
    off = msgspec.structs.replace(site.settings, levers=("place",))
    assert not looked(site, Ready(), off), "only where the site wants it"
    turns = looked(site, Ready())
    assert [(each.lever, each.job_id, each.to_place) for each in turns] == [
        ("order", 11, "+10 points"),
        ("order", 10, "-1 points"),
    ]
    assert "sooner" in turns[0].why and turns[0].gain_s > 9000 and turns[1].gain_s < 0


def test_a_job_that_has_waited_too_long_keeps_its_turn(tmp_path):
    site = Site(tmp_path, levers=("place", "order"))
    queue_of_long_and_short(site, waited_s=49 * 3600)
    assert not looked(site, Ready())


def test_turns_are_exchanged_by_nice_and_given_back_to_who_waited_too_long(tmp_path):
    site = Site(tmp_path, levers=("place", "order"))
    queue_of_long_and_short(site)
    site.rounds()
    site.thread._planner = Ready()
    site.rounds()
    assert (site.job(10)["Nice"], site.job(11)["Nice"]) == ("1", "-10")
    assert [(move.lever, move.outcome) for move in site.moves(10, 11)] == [("order", "ok")] * 2
    config = tmp_path / "advisor.yaml"
    config.write_text(f"paths: {{database: {tmp_path / 'advisor.db'}}}")
    said = CliRunner().invoke(cli, ["--config", str(config), "explain", "11"])
    assert "turn exchanged: +0 points → +10 points" in said.output
    # A poll shows the new priorities: nothing is left to be done.
    first, second = site.pending
    site.pending = [msgspec.structs.replace(first, priority=989), msgspec.structs.replace(second, priority=999)]
    site.rounds()
    assert len(site.moves(10, 11)) == 2
    # Two days later, in a daemon that knows it from the log alone.
    jobs = {"10": site.job(10), "11": site.job(11)}
    later = Site(tmp_path, levers=("place", "order"), rounds=Rounds(every_s=0.05, longest_wait_s=1.0))
    later.tell(jobs)
    later.pending, later.running, later.history = site.pending, site.running, site.history
    later.rounds()
    later.thread._planner = Ready()
    later.rounds()
    assert later.job(10)["Nice"] == "0"
    assert "rounds.longest_wait_s" in later.moves(10)[-1].why


def test_points_are_bounded_and_nobody_else_comes_later():
    turns = {1: (100, 0), 2: (5000, 0), 3: (90, 0), 4: (50, 1)}
    start = {1: 20.0, 2: 30.0, 3: 10.0, 4: 0.0}
    given = order_of(turns, start, 1000, frozenset())
    assert given == {1: 0, 2: -1000, 3: 1000, 4: 0}
    given = order_of(turns, start, 10_000, frozenset())
    after = {job: turns[job][0] + points for job, points in given.items()}
    assert sorted(after, key=lambda job: -after[job])[:3] == [3, 1, 2]
    assert sorted(after.values()) == sorted(priority for priority, _ in turns.values()), "priorities change hands"
    assert order_of(turns, start, 10_000, frozenset({2}))[2] >= 0


def test_the_learned_policy_decides_in_rounds_as_it_does_at_submission(tmp_path):
    pytest.importorskip("safetensors")
    site = Site(tmp_path, policy=PolicySettings(name="learned"))
    decision = site.submit(10)
    assert decision.policy == "learned"
    site.free("p1")
    site.rounds()
    assert [(move.to_place, move.outcome) for move in site.moves(10)] == [("p100/p100", "ok")]
    assert not site.said(frames.Failed)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("objective", ["avg_jct", "p99_jct", "makespan"])
def test_a_queue_in_which_nobody_waits_needs_no_plan(objective):
    """There was a warning of numpy's in the daemon's log for it."""
    planned = _plan([], None, 0.0, objective, True, 1000.0, 0)
    assert not planned.better and not planned.pool
