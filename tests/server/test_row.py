"""Answers to one kind prepared in a row: the same decisions as when each is asked for, however late notes are read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.server import ahead as module
from advisor.settings import Experiment, PolicySettings
from tests.server.test_ahead import FORGET, FakeHook, answers_in, play, turns

ROW = 64


@pytest.fixture(autouse=True)
def all_are_prepared(monkeypatch):
    """However slow the machine is."""
    monkeypatch.setattr(module, "ROUND_US", float("inf"))


class RowHook(FakeHook):
    """A hook that keeps rows, as the real one does; its notes are read when the daemon looks."""

    def __init__(self, hot, row=ROW):
        super().__init__(hot)
        self.row, self.kept, self.last, self.unread, self.writes = row, {}, (), [], 0
        hot._ahead._notes[self] = -1  # looked at, as a connection for notes is

    def fileno(self):
        return -1

    def say(self, lines):
        self.writes += 1
        for line in lines.splitlines():
            for told in answers_in(line):
                self.heard.append(told)
                if told == FORGET:
                    self.kept.clear()
                    continue
                if told["previous"] is None:
                    self.kept[told["prepared"]] = {}
                self.kept.setdefault(told["prepared"], {})[told["after"]] = told
        return self.there

    def look(self):
        unread, self.unread = self.unread, []
        for note in unread:
            self.hot.answer(b'{"v":1,"op":"used","number":%d,"place":%d}' % note, 0.0, self)
        return self.there

    def prepared(self, kind=1):
        told = self.kept.get(kind, {}).get(self.lines + self.notes)
        return told if told and (told["previous"] is None or told["previous"] in self.last) else None

    def ask(self, **fields):
        self.kept.clear()
        self.last = ()
        return super().ask(row=self.row, **fields)

    def use(self, told):
        self.notes += 1
        used = told["number"], told["place"]
        self.last = (used, (used[0], "last")) if told["last"] else (used,)
        self.unread.append(used)
        kept = self.kept.get(told["prepared"], {})
        self.kept = {told["prepared"]: kept}

    def submit(self, **fields):
        """Takes the answer that is there, or asks: what is to be set."""
        told = self.prepared(fields.get("kind", 1))
        if told is None:
            return self.ask(**fields).set
        self.use(told)
        return told.get("set", {})


def of_kind(n):
    return {"kind": 1 + n, "name": f"job{n}", "min_cpus": 1 + 2 * n}


def test_a_burst_takes_whole_rows_and_is_spread_as_if_every_job_were_asked_for():
    async def asked(site, hook):
        return [hook.ask().set for _ in range(60)]

    async def in_rows(site, hook):
        hook, places = RowHook(site.hot), []
        for n in range(60):
            places.append(hook.submit())
            if n < 8 or n % 4 == 0:  # the daemon looks now and then
                site.hot.settle()
                await turns(40)
        assert len(site.logged) == 60 - len(hook.unread) < 60
        site.hot.settle()
        assert site.counters.prepared == 59 and hook.writes < 40
        assert len({decision.token for decision in site.logged}) == 60 == len(site.hot.ledger)
        return places

    assert play(in_rows) == play(asked)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from([0, 0, 0, 1, 2]), st.integers(1, 9)),
        st.tuples(st.sampled_from(["look", "turn", "poll", "other"]), st.just(0), st.just(1)),
    ),
    min_size=5,
    max_size=30,
)


def story_of(steps, new_hook):
    async def story(site, hook):
        hook, places = new_hook(site.hot), []
        for what, kind, times in steps:
            if what == "submit":
                for _ in range(times):
                    places.append(hook.submit(**of_kind(kind)))
                    await turns(2 * times)
            elif what == "look":
                site.hot.settle()
                await turns(40)
            elif what == "turn":
                await turns(3)
            elif what == "poll":
                await site.poll()
            else:
                places.append(FakeHook(site.hot).ask(kind=0, name="other").set)
        site.hot.settle()
        return places, [decision.set for decision in site.logged], len({decision.token for decision in site.logged})

    return story


class AsksAlways(RowHook):
    def prepared(self, kind=1):
        return None


@pytest.mark.parametrize("policy", ["earliest-finish", "learned"])
@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_whatever_comes_in_between_decisions_are_those_of_asking_and_are_logged_in_order(policy, steps):
    sections = {"policy": PolicySettings(name=policy, budget_ms=1e6)}
    assert play(story_of(steps, RowHook), **sections) == play(story_of(steps, AsksAlways), **sections)


async def burst(site, hook, count):
    for _ in range(count):
        hook.submit()
        site.hot.settle()
        await turns(60)


def left_of(hook):
    """So many answers the hook has."""
    return sum(after >= hook.lines + hook.notes for after in hook.kept.get(1, ()))


def test_rows_are_not_longer_than_what_was_used_and_than_the_hook_keeps():
    async def story(site, hook):
        sizes = []
        for row in (ROW, 5):
            hook = RowHook(site.hot, row)
            for _ in range(100):
                await burst(site, hook, 1)
                sizes.append(left_of(hook))
        return sizes[:4], max(sizes[:100]), max(sizes[100:])

    assert play(story) == ([1, 1, 4, 3], ROW, 5)


def test_a_hook_that_keeps_one_answer_is_sent_one_at_a_time_as_ever():
    async def story(site, hook):
        hook = RowHook(site.hot, 1)
        await burst(site, hook, 10)
        assert all(told["previous"] is None and told["last"] for told in hook.heard)
        return left_of(hook)

    assert play(story) == 1


def test_what_follows_holds_only_after_the_one_before_it():
    async def story(site, hook):
        hook = RowHook(site.hot)
        await burst(site, hook, 12)
        left = [told for after, told in sorted(hook.kept[1].items()) if after >= hook.lines + hook.notes]
        places = [{(told["number"], told["place"]), (told["number"], told["last"] and "last")} for told in left]
        return places, [told["previous"] for told in left], hook.last

    places, previous, last = play(story)
    assert len(places) > 4 and all(before in used for before, used in zip(previous, [last, *places], strict=False))


def test_another_hooks_submission_takes_the_whole_row_back():
    async def story(site, hook):
        hook = RowHook(site.hot)
        await burst(site, hook, 8)
        before = {(told["number"], told["place"]) for told in hook.kept[1].values()}
        FakeHook(site.hot).ask(kind=0)
        assert FORGET in hook.heard
        await turns(60)
        return before, {(told["number"], told["place"]) for told in hook.kept[1].values()}

    before, after = play(story)
    assert len(after) > 4 and not before & after


def test_of_several_hooks_only_the_one_that_submitted_last_gets_a_row():
    async def story(site, hook):
        hooks = [RowHook(site.hot) for _ in range(2)]
        sizes = []
        for hook in (hooks[0], hooks[1], hooks[0]):
            await burst(site, hook, 10)
            await turns(60)
            sizes.append([left_of(hook) for hook in hooks])
        return sizes

    first, second, third = play(story)
    assert first[0] > 1 and second[1] > 1 and third[0] > 1
    assert first[1] == 0 and second[0] == third[1] == 1


def test_what_is_taken_back_cannot_be_noted_any_more_and_only_by_the_hook_that_had_it():
    async def story(site, hook):
        ended = []
        hooks = [RowHook(site.hot) for _ in range(2)]
        for number, hook in enumerate(hooks):
            hook.end_notes = lambda number=number: ended.append(number)
        await burst(site, hooks[0], 8)
        assert ended == []
        await burst(site, hooks[1], 1)
        after_another = list(ended)
        await burst(site, hooks[1], 3)
        await site.poll()
        return after_another, ended

    assert play(story) == ([0], [0, 1])


def test_notes_of_a_row_that_was_taken_back_meanwhile_are_logged_and_booked_in_their_order():
    async def story(site, hook):
        hook = RowHook(site.hot)
        await burst(site, hook, 8)
        hook.kept, kept = {}, hook.kept
        await site.poll()
        hook.kept = kept  # it has not heard of it
        tokens = []
        for _ in range(3):
            told = hook.prepared()
            tokens.append(told["token"])
            hook.use(told)
        site.hot.settle()
        return tokens, [decision.token for decision in site.logged][-3:], len(site.hot.ledger), site.counters

    tokens, logged, booked, counters = play(story)
    assert logged == tokens and booked == 11 and counters.unknown_notes == 0


def test_a_job_of_a_workflow_is_prepared_for_one_at_a_time():
    async def story(site, hook):
        hook = RowHook(site.hot)
        for _ in range(8):
            hook.submit(script_head="#!/bin/sh\n#ADVISOR workflow: night\n")
            site.hot.settle()
            await turns(60)
        return len(hook.kept[1])

    assert play(story) == 1


def test_a_row_is_worked_out_anew_before_it_is_too_old(clock):
    async def story(site, hook):
        hook = RowHook(site.hot)
        await burst(site, hook, 8)
        until = hook.prepared()["until"]
        clock.ahead_s = module.GOOD_S * 0.75
        await burst(site, hook, 1)
        return hook.prepared()["until"] - until, hook.prepared()["previous"]

    later_s, previous = play(story)
    assert later_s > module.GOOD_S / 2 and previous is None


def test_whoever_submits_seldom_gets_short_rows_and_after_a_burst_they_become_short(clock):
    async def story(site, hook):
        hook, sizes = RowHook(site.hot), []
        for _ in range(12):
            clock.ahead_s += module.RENEW_S / 2
            await burst(site, hook, 1)
        sizes.append(left_of(hook))
        await burst(site, hook, 60)
        sizes.append(max(left_of(hook), len(hook.kept[1])))
        for _ in range(12):
            clock.ahead_s += module.RENEW_S / 2
            await burst(site, hook, 1)
        return [*sizes, left_of(hook)]

    before, burst_of, after = play(story)
    assert before <= 4 and burst_of > 30 and after <= 8


def test_a_row_that_tells_users_much_comes_in_pieces_that_the_hook_reads(monkeypatch):
    monkeypatch.setattr(module, "MAX_SAID", 500)

    async def story(site, hook):
        hook = RowHook(site.hot)
        await burst(site, hook, 40)
        said = {}
        for told in hook.heard:
            if told != FORGET:
                said[told["number"]] = said.get(told["number"], 0) + len(told.get("message", ""))
        return site.counters.prepared, max(said.values())

    prepared, longest = play(story)
    assert prepared == 39 and 0 < longest < 1000


def test_the_control_group_is_drawn_for_each_of_a_row():
    async def story(site, hook):
        hook = RowHook(site.hot)
        for _ in range(40):
            await burst(site, hook, 10)
            await site.poll(tokens=frozenset(decision.token for decision in site.logged))
        return sum(decision.holdout for decision in site.logged), len(site.logged)

    held, count = play(story, experiment=Experiment(holdout=0.5))
    assert abs(held - count / 2) <= 4 * (count / 4) ** 0.5


def test_while_a_row_lasts_the_daemon_looks_more_seldom():
    async def story(site, hook):
        hook, watcher = RowHook(site.hot), site.hot._ahead._watcher
        paces = [watcher.pause_s]
        await burst(site, hook, 20)
        paces.append(watcher.pause_s)
        hook.submit(**of_kind(1))  # another one
        await turns(60)
        return [*paces, watcher.pause_s]

    often, seldom, again = play(story)
    assert seldom > 3 * often and again == often
