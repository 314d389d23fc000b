"""Answers prepared ahead: the same decisions as when asked, in the log once they are used, and never otherwise."""

import asyncio
import collections
import random
import signal
import time

import msgspec
import pytest

from advisor import protocol
from advisor.performance.queue import build_snapshot
from advisor.policy.guarded import Guarded
from advisor.policy.registry import make_policy
from advisor.server import ahead as module
from advisor.server.counters import Counters
from advisor.server.hotpath import HotPath
from advisor.server.succession import Succession
from advisor.settings import Experiment, Modes, PolicySettings, Settings
from tests.server.daemons import Hook, cluster, submission, wait_until

FORGET = {"v": 1, "prepared": 0}


@pytest.fixture(autouse=True)
def all_kinds_are_prepared(monkeypatch):
    """However slow the machine is."""
    monkeypatch.setattr(module, "ROUND_US", float("inf"))


def answers_in(line):
    """Each answer of a row by itself, as the hook takes it; or what else was told."""
    told = msgspec.json.decode(line)
    if told == FORGET:
        return [told]
    row = msgspec.json.decode(line, type=protocol.PreparedRow)
    assert len(row.answers) == 3 * row.count > 0
    found = []
    for place, (token, which, said) in enumerate(zip(*(iter(row.answers),) * 3, strict=True)):
        answer = {"prepared": row.prepared, "number": row.number, "place": place, "until": row.until}
        answer |= {"after": row.after + place, "token": token, "last": place == row.count - 1}
        # What the submission before must have used; None: whatever it was.
        answer["previous"] = (row.number, place - 1) if place else (row.follows, "last") if row.follows else None
        answer |= {"action": "rewrite", "set": row.sets[which - 1]} if which else {}
        answer |= {"message": row.says[said - 1]} if said else {}
        found.append(answer)
    return found


class FakeHook:
    """Both connections of a hook, in the daemon's own loop; it asks, or uses what was prepared, as the real one."""

    def __init__(self, hot):
        self.hot = hot
        self.lines = 0
        self.notes = 0
        self.heard = []
        self.there = True

    def say(self, line):
        self.heard += answers_in(line)
        return self.there

    def look(self):
        return self.there

    def end_notes(self):
        pass

    def ask(self, **fields):
        self.lines += 1
        self.heard.clear()
        answer = self.hot.answer(submission(**{"kind": 1, **fields}), 0.0, self)
        reply = msgspec.json.decode(answer.line, type=protocol.Reply)
        answer.after()
        return reply

    def prepared(self, kind=1):
        found = [told for told in self.heard if told["prepared"] in (kind, 0)]
        found = found[-1] if found and found[-1]["prepared"] else None
        return found if found and found["after"] == self.lines + self.notes else None

    def use(self, told):
        self.heard.clear()
        self.notes += 1
        note = b'{"v":1,"op":"used","number":%d,"place":%d}' % (told["number"], told["place"])
        answer = self.hot.answer(note, 0.0, self)
        assert answer.line == b""  # nobody waits for one
        if answer.after is not None:
            answer.after()


class Site:
    """A hot path in a loop of its own, with what it logged."""

    def __init__(self, **sections):
        self.settings = Settings(
            **{"modes": Modes(default="enforce"), "experiment": Experiment(holdout=0.0), **sections}
        )
        self.logged = []
        self.counters = Counters()
        self.hot = HotPath(self.settings, make_policy(self.settings), self.counters, self._log, lambda: None)
        self.succession = Succession(self.hot)

    def _log(self, request, decision, latency_us, cluster):
        self.logged.append(decision)

    async def poll(self, **changes):
        snapshot = msgspec.structs.replace(build_snapshot(cluster(), {}), **changes)
        self.succession.offer(snapshot)
        while self.hot.snapshot is not snapshot:
            await asyncio.sleep(0)
        await turns()


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


def play(story, **sections):
    async def whole():
        site = Site(**sections)
        await site.poll()
        return await story(site, FakeHook(site.hot))

    return asyncio.run(whole())


def test_a_burst_is_spread_over_partitions_as_if_every_job_were_asked_for():
    async def asked(site, hook):
        return [hook.ask().set.get("partition") for _ in range(40)]

    async def prepared(site, hook):
        places = [hook.ask().set.get("partition")]
        while len(places) < 40:
            await turns()
            told = hook.prepared()
            places.append(told.get("set", {}).get("partition"))
            hook.use(told)
        assert site.counters.prepared == 39 and site.counters.submissions == 40
        return places

    places = play(asked)
    assert play(prepared) == places
    assert len(set(places)) > 1  # the burst does not all go to one place


@pytest.mark.parametrize("policy", ["earliest-finish", "learned"])
def test_jobs_that_take_turns_each_find_an_answer_that_knows_all_before_it(policy):
    sections = {"policy": PolicySettings(name=policy, budget_ms=1e6)}
    kinds = [{"kind": 1 + n, "name": f"job{n}", "min_cpus": 1 + n} for n in range(5)]
    order = random.Random(7).choices(range(5), k=40)

    async def asked(site, hook):
        return [hook.ask(**kinds[n]).set for n in order]

    async def prepared(site, hook):
        places, found = [], 0
        for n in order:
            await turns()
            told = hook.prepared(1 + n)
            if told is None:
                places.append(hook.ask(**kinds[n]).set)
            else:
                places.append(told.get("set", {}))
                hook.use(told)
                found += 1
        assert found == 35  # all but the first of each
        return places

    assert play(prepared, **sections) == play(asked, **sections)


def test_the_latest_kind_is_answered_first_and_the_network_is_asked_about_the_others_in_one_go(monkeypatch):
    sizes = []

    async def story(site, hook):
        network = site.hot.policy._network
        correct = network.correct
        monkeypatch.setattr(network, "correct", lambda asked, *of: sizes.append(len(asked)) or correct(asked, *of))
        for n in range(6):
            hook.ask(kind=1 + n, name=f"job{n}", min_cpus=1 + n)
        sizes.clear()
        await turns()
        return [told["prepared"] for told in hook.heard]

    assert play(story, policy=PolicySettings(name="learned", budget_ms=1e6)) == [6, 5, 4, 3, 2, 1]
    assert sizes == [1, 5]


def test_while_one_script_is_submitted_again_and_again_others_wait_for_a_pause(monkeypatch):
    monkeypatch.setattr(module, "REST_S", 0.5)  # longer than the rest of the test takes on a slow machine

    async def story(site, hook):
        heard = []
        for n in range(3):
            hook.ask(kind=1 + n, name=f"job{n}")
        for _ in range(module.IN_A_ROW + 1):
            await turns()
            heard.append([told["prepared"] for told in hook.heard])
            hook.use(hook.prepared(3))
        for _ in range(3):  # nothing is prepared for them as long as more comes
            await turns()
            assert hook.prepared(1) is None
            hook.use(hook.prepared(3))
        while hook.prepared(1) is None:
            await asyncio.sleep(0.001)
        heard.append([told["prepared"] for told in hook.heard])
        hook.use(hook.prepared(1))
        await turns()
        heard.append([told["prepared"] for told in hook.heard])
        return heard

    assert play(story) == [[3, 2, 1], [3, 2, 1], [3], [3], [3, 2, 1], [1, 3, 2]]


def test_only_what_is_used_is_logged_counted_and_booked_each_with_its_own_token():
    async def story(site, hook):
        tokens = [hook.ask().token]
        for _ in range(10):
            await turns()
            told = hook.prepared()
            await site.poll()  # worked out anew: what was prepared before is forgotten
            assert hook.heard[1] == FORGET
            again = hook.prepared()
            assert again["token"] != told["token"]
            hook.use(again)
            tokens.append(again["token"])
        await turns()
        assert hook.prepared()["token"] not in tokens
        return tokens, [decision.token for decision in site.logged], site.counters, len(site.hot.ledger)

    tokens, logged, counters, booked = play(story)
    assert logged == tokens and len(set(tokens)) == 11
    assert (counters.submissions, counters.prepared, counters.eligible, booked) == (11, 10, 11, 11)
    assert counters.latency.figures().count == 11


@pytest.mark.parametrize("holdout", [0.0, 0.5])
def test_the_control_group_is_drawn_for_each_job_with_its_probability(holdout):
    async def story(site, hook):
        hook.ask()
        for _ in range(300):
            await turns(3)
            hook.use(hook.prepared())
            # As if Slurm had taken the job at once: the next one finds the same cluster.
            await site.poll(tokens=frozenset(decision.token for decision in site.logged))
        return site.logged

    decisions = play(story, experiment=Experiment(holdout=holdout))
    held = sum(decision.holdout for decision in decisions)
    assert abs(held - holdout * 301) <= 4 * (301 * holdout * (1 - holdout)) ** 0.5
    assert {decision.action for decision in decisions if decision.holdout} <= {"keep"}
    assert {decision.probabilities[decision.chosen] for decision in decisions} <= {1 - holdout, 1.0, holdout}


def test_a_hook_that_does_not_say_that_it_takes_them_hears_nothing_unasked():
    async def story(site, hook):
        hook.ask(kind=0)
        await turns()
        await site.poll()
        return hook.heard

    assert play(story) == []


def test_a_job_that_waits_for_others_is_not_prepared_for():
    async def story(site, hook):
        hook.ask(dependency="afterok:17")
        await turns()
        return hook.heard

    assert play(story) == []


def test_an_answer_used_while_a_new_snapshot_takes_over_is_booked_on_the_new_one():
    async def story(site, hook):
        hook.ask()
        await turns()
        told = hook.prepared()
        await site.poll()
        booked = len(site.hot.ledger)
        hook.use(told)  # it was on its way before the hook could hear that it does not hold any more
        return told["token"], [decision.token for decision in site.logged][-1], len(site.hot.ledger) - booked

    token, logged, booked = play(story)
    assert logged == token and booked == 1


def test_other_settings_take_back_what_was_prepared_under_the_old_ones():
    async def story(site, hook):
        hook.ask()
        await turns()
        assert hook.prepared()["action"] == "rewrite"
        settings = msgspec.structs.replace(site.settings, modes=Modes(default="shadow"))
        site.hot.configure(settings, make_policy(settings))
        assert hook.heard[-1] == FORGET  # at once
        await turns()
        return hook.prepared()

    told = play(story)
    assert "action" not in told and "set" not in told  # keep


def test_what_somebody_else_submits_takes_it_back_too():
    async def story(site, hook):
        hook.ask()
        await turns()
        before = hook.prepared()
        FakeHook(site.hot).ask(kind=0)
        assert hook.heard[-1] == FORGET
        await turns()
        return before, hook.prepared()

    before, after = play(story)
    assert before["number"] != after["number"]


def test_a_note_that_is_read_after_a_later_request_is_logged_once_all_the_same():
    """As when the connection for notes is taken late: the loop was busy."""

    async def story(site, hook):
        hook.ask()
        await turns()
        told = hook.prepared()
        hook.ask(kind=2, name="another")
        await turns()
        hook.use(told)
        hook.use(told)
        await turns()
        return site, told

    site, told = play(story)
    assert [decision.token for decision in site.logged].count(told["token"]) == 1
    assert len(site.logged) == 3
    assert site.counters.prepared == 1 and site.counters.unknown_notes == 1, "the second is one of nothing"


def test_a_note_of_something_never_prepared_is_counted_and_logs_nothing():
    async def story(site, hook):
        hook.ask()
        await turns()
        told = hook.prepared()
        hook.use({"number": told["number"] + 17, "place": 0})
        hook.hot.answer(b'{"v":1,"op":"used","number":"x","place":0}', 0.0, hook)
        return site

    site = play(story)
    assert site.counters.unknown_notes == 1 and site.counters.bad_requests == 1
    assert len(site.logged) == 1 and site.counters.prepared == 0


def test_memory_is_bounded_by_the_last_few_kinds_and_peers_that_are_gone_are_forgotten(clock):
    async def story(site, hook):
        for n in range(50):
            hook.ask(kind=1 + n, name=f"job{n}")
            await turns()
        kinds = [told["prepared"] for told in hook.heard]
        hook.there = False
        await site.poll()  # nobody is there to be told
        clock.ahead_s = 10.0
        while site.hot._ahead.looking is not None:
            await asyncio.sleep(0.01)
        return kinds, len(site.hot._ahead._audiences)

    kinds, audiences = play(story)
    assert kinds == list(range(50, 50 - module.MAX_KINDS, -1))  # the latest one first
    assert audiences == 0


def test_with_a_slow_policy_only_the_latest_kinds_are_prepared_for(monkeypatch):
    async def story(site, hook):
        for n in range(6):
            hook.ask(kind=1 + n, name=f"job{n}")
        monkeypatch.setattr(module, "ROUND_US", 0.0)
        await turns()
        return [told["prepared"] for told in hook.heard]

    assert play(story) == [6]


def test_an_idle_daemon_prepares_nothing_and_looks_for_nothing(clock):
    async def story(site, hook):
        hook.ask()
        await turns()
        assert hook.prepared() is not None
        clock.ahead_s = 10.0
        while site.hot._ahead.looking is not None:
            await asyncio.sleep(0.01)
        heard = len(hook.heard)
        await site.poll()
        return heard, len(hook.heard)

    heard, later = play(story)
    assert heard == later == 1


def test_what_was_not_submitted_for_a_minute_is_prepared_for_no_more(clock):
    async def story(site, hook):
        hook.ask()
        clock.ahead_s = 61.0
        hook.ask(kind=2, name="other")
        await turns()
        return [told["prepared"] for told in hook.heard]

    assert play(story) == [2]


def test_an_answer_left_to_the_arithmetic_counts_when_it_is_used():
    async def story(site, hook):
        site.hot.policy = policy = Guarded(None, make_policy(site.settings), "no such file")
        hook.ask()
        await turns()
        counts = [dict(policy.fallbacks)]
        hook.use(hook.prepared())
        counts.append(dict(policy.fallbacks))
        await turns()
        counts.append(dict(policy.fallbacks))
        return counts

    assert play(story) == [{"no model": 1}, {"no model": 2}, {"no model": 2}]


def test_a_policy_that_fails_while_preparing_costs_nobody_anything():
    class Fails:
        name, version = "fails", ""

        def __init__(self):
            self.calls = 0

        def predict(self, *of):
            self.calls += 1
            raise RuntimeError("no")

    async def story(site, hook):
        good = site.hot.policy
        hook.ask()
        site.hot.policy = bad = Fails()
        await turns()
        assert bad.calls == 1 and hook.heard == []
        site.hot.policy = good
        return hook.ask()

    assert play(story).action == "rewrite"


class RealHook(Hook):
    """A hook with its second connection, to a daemon in a process of its own."""

    def __init__(self, path):
        super().__init__(path)
        self._path, self._notes = path, None

    def __exit__(self, *exc):
        if self._notes is not None:
            self._notes.__exit__()
        super().__exit__(*exc)

    def read_told(self):
        line = self._file.readline()
        return answers_in(line)[0] if b'"prepared":' in line else msgspec.json.decode(line)

    def read(self):
        """The reply; what was told unasked before it is put aside."""
        self.unasked = []
        while "prepared" in (told := self.read_told()):
            self.unasked.append(told)
        return msgspec.convert(told, protocol.Reply)

    def note(self, number):
        if self._notes is None:
            self._notes = Hook(self._path)
            self._notes.send(b'{"v":1,"op":"notes"}')
        self._notes.send(b'{"v":1,"op":"used","number":%d,"place":0}' % number)


def prepared_next(hook, after):
    """The answer that holds after so many turns."""
    while True:
        told = hook.read_told()
        if told["prepared"] and told["after"] == after:
            return told


def test_a_real_daemon_finds_notes_without_being_woken_and_logs_what_was_used(make_daemon):
    daemon = make_daemon(slurm={"poll_s": 30}).start()
    with RealHook(daemon.socket) as hook:
        tokens = [hook.ask(submission(kind=1)).token]
        for n in range(20):
            told = prepared_next(hook, 1 + n)
            tokens.append(told["token"])
            hook.note(told["number"])
        unused = prepared_next(hook, 21)["token"]
        assert daemon.status().decisions.prepared == 20
        assert daemon.status().connections == 3  # these two, and the one that asks
        assert daemon.stop() == 0
    logged = [row[0] for row in daemon.query("select token from decisions order by decided_at")]
    assert collections.Counter(logged) == collections.Counter(tokens) and unused not in logged
    assert daemon.query("select count(*) from decisions where request like '%kind%'") == [(0,)]


def test_what_was_noted_when_the_daemon_is_stopped_is_in_the_log(make_daemon):
    daemon = make_daemon(slurm={"poll_s": 30}).start()
    with RealHook(daemon.socket) as hook:
        hook.ask(submission(kind=1))
        hook.note(prepared_next(hook, 1)["number"])  # the second connection, and its first note
        told = prepared_next(hook, 2)
        daemon.signal(signal.SIGSTOP)
        hook.note(told["number"])
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGCONT)
        assert daemon.process.wait(timeout=20) == 0
    assert daemon.query("select count(*) from decisions where token = ?", told["token"]) == [(1,)]


def test_after_somebody_elses_submission_nothing_prepared_before_it_can_be_noted(make_daemon):
    daemon = make_daemon(slurm={"poll_s": 30}).start()
    with RealHook(daemon.socket) as hook:
        hook.ask(submission(kind=1))
        for n in range(2):
            hook.note(prepared_next(hook, 1 + n)["number"])
        told = prepared_next(hook, 3)
        with Hook(daemon.socket) as other:
            other.ask(submission(name="other"))
        daemon.status()  # it has completed that
        with pytest.raises(ConnectionResetError):
            hook.note(told["number"])
    assert daemon.stop() == 0
    assert daemon.query("select count(*) from decisions") == [(4,)]


def test_a_reload_is_told_to_the_hook_before_the_next_job(make_daemon):
    daemon = make_daemon(slurm={"poll_s": 30}).start()
    with RealHook(daemon.socket) as hook:
        assert hook.ask(submission(kind=1)).action == "rewrite"
        assert prepared_next(hook, 1)["action"] == "rewrite"
        prepared_at = time.monotonic()
        daemon.configure(modes={"default": "shadow"})
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: daemon.status().mode == "shadow")
        assert hook.ask(submission(kind=1)).action == "keep"
        assert FORGET in hook.unasked or time.monotonic() - prepared_at > module.GOOD_S


def test_answers_say_until_when_they_are_good(make_daemon):
    daemon = make_daemon(slurm={"poll_s": 30}).start()
    with RealHook(daemon.socket) as hook:
        hook.ask(submission(kind=1))
        told = prepared_next(hook, 1)
    assert time.time() - 20 < told["until"] < time.time() + module.GOOD_S + 0.01  # it is rounded
