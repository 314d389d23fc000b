"""Jobs that wait for each other, or carry one workflow's name, are placed with each other in mind."""

import itertools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.performance.snapshot import Underway
from advisor.performance.waits import Ledger
from advisor.policy.decision import decide
from advisor.policy.registry import make_policy
from advisor.policy.workflow import MAX_OF_USER, MAX_TASKS, MAX_WORKFLOWS, OVER_S, Workflows
from advisor.policy.workflow_graph import Graph, Task
from advisor.policy.workflow_placing import yielding
from advisor.policy.workflow_urgency import LEAST, urgencies
from tests.policy import site
from tests.policy.site import NOW, runs

SIMILAR = {
    "train": dict.fromkeys(("v100", "p100", "k80"), runs(3000)),
    "prepare": dict.fromkeys(("v100", "p100", "k80"), runs(900)),
    "fast": {"v100": runs(600), "p100": runs(2400), "k80": runs(6000)},
    "mild": {"v100": runs(2000), "p100": runs(2600), "k80": runs(4000)},
}


class Controller:
    """Submissions one after the other to one cluster, as the daemon sees them."""

    def __init__(self, snapshot, workflows=True):
        self.snapshot = snapshot
        self.ledger = Ledger(snapshot)
        self.workflows = Workflows() if workflows else None
        self.config = site.settings()
        self.policy = make_policy(self.config)
        self.numbers = itertools.count(1)

    def submit(self, now=NOW, **fields):
        return decide(
            site.submission(**fields), self.snapshot, self.ledger, self.policy, self.config, random.Random(0), now,
            lambda: f"token{next(self.numbers)}", workflows=self.workflows,
        )  # fmt: skip

    def poll(self, **tokens):
        """A poll that shows these jobs (`job12="token3"`), each to end an hour from now."""
        underway = {int(name[3:]): Underway(NOW + 3600, token) for name, token in tokens.items()}
        self.snapshot = msgspec.structs.replace(
            self.snapshot, underway=underway, newest_job=max(underway), tokens=frozenset(tokens.values())
        )
        self.ledger.rebase(self.snapshot)
        self.workflows.seen(self.snapshot)


def named(name):
    return {"script_head": f"#ADVISOR workflow: {name}\n"}


def place(decision):
    return decision.predictions[decision.chosen].processor


def busy(**more):
    """The v100s are busy for one more hour."""
    return site.snapshot(site.running("v1", 2, "v100", hours=1, cpus=4), **more)


def test_a_job_that_can_only_start_later_goes_where_it_will_be_best_off_then():
    leader = site.running("c1", 0, None, hours=2, cpus=4)
    snapshot = site.snapshot(leader, site.running("v1", 2, "v100", hours=1, cpus=4), history=SIMILAR)
    alone = Controller(snapshot).submit(name="fast")
    assert place(alone) == "p100"  # the v100s are not free yet
    behind = Controller(snapshot).submit(name="fast", dependency=f"afterok:{leader.job_id}")
    assert place(behind) == "v100"  # by the time it may start, they are
    assert behind.predictions[behind.chosen].wait_s == pytest.approx(7200)
    assert "expected to end in ~2 h" in behind.why
    # What is learned from waits counts from when a job could start.
    assert behind.predictions[behind.chosen].queue_wait_s == pytest.approx(0)


def test_without_the_graph_a_follower_is_placed_as_if_it_could_start_now_and_that_is_said():
    decision = Controller(busy(history=SIMILAR), workflows=False).submit(name="fast", dependency="afterok:5")
    assert place(decision) == "p100"
    assert "is not known" in decision.why


def test_a_job_submitted_a_moment_after_its_leader_is_matched_with_it_by_order():
    controller = Controller(site.snapshot(history=SIMILAR))
    first = controller.submit()
    behind = controller.submit(dependency="afterok:4711")
    assert behind.predictions[behind.chosen].wait_s == pytest.approx(first.predictions[first.chosen].run_s, rel=0.01)
    # And one behind both, once both ids have been named.
    last = controller.submit(dependency="afterok:4711:4712")
    assert last.predictions[last.chosen].wait_s == pytest.approx(
        behind.predictions[behind.chosen].wait_s + behind.predictions[behind.chosen].run_s, rel=0.01
    )


def test_a_poll_tells_which_job_a_decision_became_and_later_ones_are_counted_from_there():
    controller = Controller(site.snapshot(history=SIMILAR))
    ours = [controller.submit(name=name) for name in ("train", "fast", "train", "fast")]
    controller.poll(job101=ours[1].token)
    # 102 was decided after 101, though nobody has seen it yet: it is the third submission.
    behind = controller.submit(dependency="afterok:102")
    third = ours[2].predictions[ours[2].chosen]
    assert behind.predictions[behind.chosen].wait_s == pytest.approx(third.wait_s + third.run_s, rel=0.01)
    shown = controller.submit(dependency="afterok:101")
    assert shown.predictions[shown.chosen].wait_s == pytest.approx(3600, rel=0.01)


def test_a_leader_that_has_ended_holds_nobody_up():
    controller = Controller(site.snapshot(history=SIMILAR))
    controller.submit()
    controller.poll(job101="token1")
    decision = controller.submit(dependency="afterok:17")
    assert decision.predictions[decision.chosen].wait_s == 0
    assert "not known" not in decision.why


def test_a_follower_is_booked_for_the_time_at_which_it_can_start():
    leader = site.running("c1", 0, None, hours=2, cpus=4)
    controller = Controller(site.snapshot(leader, history=SIMILAR))
    for _ in range(2):
        assert place(controller.submit(name="fast", dependency=f"afterok:{leader.job_id}")) == "v100"
    # Until then the two v100s are free for a job that is done by then.
    between = controller.submit(name="fast")
    assert place(between) == "v100"
    assert between.predictions[between.chosen].wait_s == 0


def test_a_task_with_time_to_spare_leaves_the_fast_gpus_to_the_others():
    slow = {"long": {"v100": runs(20_000), "p100": runs(40_000), "k80": runs(90_000)}}
    controller = Controller(site.snapshot(history={**SIMILAR, **slow}))
    # The first time nobody knows what will come after each task: there is no time to spare.
    then, workflows = NOW - 500_000, controller.workflows
    for name, seconds in (("long", 20_000), ("mild", 2000), ("fast", 600)):
        belonging = workflows.belonging("ada", None, "nightly", name, controller.snapshot, then)
        assert not belonging.spare_s and not belonging.others_end
        workflows.add(name, "ada", name, belonging, then, then + seconds, then + seconds, seconds)
    # A long task of the workflow is under way: whatever comes beside it has time until then.
    long = controller.submit(name="long", time_limit=1440, **named("nightly"))
    assert place(long) == "v100"
    beside = controller.submit(name="mild", **named("nightly"))
    assert place(beside) == "k80"
    assert "workflow nightly has" in beside.why
    # One that gains far more from the fast GPU than others would takes least from them there.
    controller.ledger = Ledger(controller.snapshot)
    gaining = controller.submit(name="fast", op="advise", **named("nightly"))
    assert place(gaining) == "v100"
    others = controller.submit(name="mild", user="bob", **named("nightly"))
    assert place(others) == "v100"  # somebody else's workflow of that name


def test_what_was_behind_a_task_the_last_time_is_expected_again():
    controller = Controller(site.snapshot(history=SIMILAR))
    controller.submit(name="prepare", **named("nightly"))
    controller.submit(name="train", dependency="afterok:50", **named("nightly"))

    def belonging(at):
        return controller.workflows.belonging("ada", None, "nightly", "prepare", controller.snapshot, at)

    assert belonging(NOW + 100).tail_s == 0  # the run is not over: nothing is remembered yet
    again = belonging(NOW + 86_400 + OVER_S)
    assert again.tail_s == pytest.approx(3000, rel=0.1)
    assert again.others_end == 0  # a new run begins


def test_yielding_takes_the_cheapest_place_in_time_and_never_one_that_is_late_instead():
    assert yielding([100, 500, 900], [90, 30, 10], 600) == [600, 540, 900]


graphs = st.lists(st.lists(st.integers(-3, 30), max_size=4), max_size=30)


@given(graphs, st.lists(st.floats(0, 1e6), min_size=30, max_size=30))
def test_whatever_tasks_say_they_wait_for_the_tails_are_finite_and_follow_the_longest_chain(said, seconds):
    graph = Graph()
    for number, leaders in enumerate(said):
        # Also themselves, later ones and ones that do not exist.
        graph.add(Task(f"t{number}", number, "u", f"app{number % 3}", tuple(f"t{n}" for n in leaders), seconds[number]))
    tails = graph.tails()
    assert len(tails) == len(said)
    for number, leaders in enumerate(said):
        for leader in leaders:
            if 0 <= leader < number:
                assert tails[f"t{leader}"] >= tails[f"t{number}"] + seconds[number] - 1e-6
    assert all(0 <= tail <= sum(seconds) for tail in tails.values())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20), st.text(max_size=40)), max_size=60))
def test_hostile_names_are_only_text(them):
    workflows = Workflows()
    snapshot = site.snapshot()
    for number, (user, name, dependency) in enumerate(them):
        belonging = workflows.belonging(user, dependency, name, name, snapshot, NOW)
        assert belonging.ready_at >= NOW
        workflows.add(f"t{number}", user, name, belonging, NOW, NOW + 5, NOW + 5, 5.0)
    workflows.seen(snapshot)
    assert len(workflows) <= 2 * len(them)


def test_memory_is_bounded_whatever_is_submitted():
    workflows = Workflows()
    snapshot = site.snapshot()
    alone = workflows.belonging("ada", None, None, "app", snapshot, NOW)
    for number in range(3 * MAX_OF_USER):
        workflows.add(f"t{number}", "ada", "app", alone, NOW, NOW + 10)
    assert len(workflows) == MAX_OF_USER
    one = workflows.belonging("eve", None, "same", "app", snapshot, NOW)
    for number in range(2 * MAX_TASKS):
        workflows.add(f"s{number}", "eve", "app", one, NOW, NOW + 10)
    assert len(workflows) <= 2 * MAX_OF_USER + MAX_TASKS
    for number in range(2 * MAX_WORKFLOWS):
        many = workflows.belonging(f"u{number}", None, f"w{number}", "app", snapshot, NOW)
        workflows.add(f"m{number}", f"u{number}", "app", many, NOW, NOW + 10)
    assert len(workflows) <= 8192 + MAX_TASKS + MAX_WORKFLOWS


def test_kernels_that_can_run_on_several_processors_steer_the_choice():
    """An app that never ran: what its kernels need where decides."""
    gpu = "#ADVISOR kernels:\n#ADVISOR   train: {on: [gpu], work: 5.0e16}\n"
    decision = Controller(site.snapshot()).submit(name="new", script_head=gpu)
    assert place(decision) == "v100"
    assert {p.run_source for p in decision.predictions} == {"annotation"}
    # Bound to the CPU, a faster GPU gains nothing, and a longer wait for it costs.
    either = "#ADVISOR kernels:\n#ADVISOR   train: {on: [cpu, gpu], work: 5.0e14}\n"
    by_cpu = Controller(site.snapshot()).submit(name="new", script_head=either)
    assert len({round(p.run_s) for p in by_cpu.predictions}) == 1
    # Preferred on the GPU: the one with enough memory wins although it is slower than the one without.
    large = "#ADVISOR kernels:\n#ADVISOR   train: {on: [gpu, cpu], work: 5.0e15, memory: 20G}\n"
    by_memory = Controller(site.snapshot()).submit(name="new", script_head=large)
    runs_on = {p.processor: p.run_s for p in by_memory.predictions}
    assert runs_on["v100"] < runs_on["p100"]  # there the kernel falls back to the CPU
    assert place(by_memory) == "v100"


def test_a_job_that_holds_up_its_workflow_counts_as_one_of_its_own_does():
    # 1 → 3 → 4, and 2 → 4; 5 is nobody's.
    ends = {1: 100.0, 2: 110.0, 3: 1000.0, 4: 1100.0, 5: 50.0}
    found = urgencies(ends, {3: (1,), 4: (2, 3)}, [1, 2, 5], now=0.0)
    assert found[1] > 0.9
    assert found[2] == LEAST
    assert 5 not in found


def test_jobs_that_hold_up_the_end_together_share_the_weight():
    maps = dict.fromkeys(range(1, 10), 100.0)
    found = urgencies(maps | {10: 200.0}, {10: tuple(maps)}, list(maps), now=0.0)
    assert found == pytest.approx(dict.fromkeys(maps, 1 / 3))


def test_what_a_job_waits_for_may_have_ended_or_name_itself():
    ends = {2: 10.0, 3: 20.0}
    assert urgencies(ends, {2: (1,), 3: (3, 7)}, [2, 3], now=0.0) == {}
    assert urgencies({}, {2: (1,)}, [2], now=0.0) == {}
