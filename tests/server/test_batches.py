"""Submissions of several controllers that the daemon finds at once: answered as one after the other, in one go."""

import asyncio

import msgspec
import pytest

from advisor import protocol
from advisor.policy.together import Together
from advisor.settings import PolicySettings
from tests.server.daemons import submission
from tests.server.test_ahead import FakeHook, Site, play, turns

LEARNED = {"policy": PolicySettings(name="learned", budget_ms=1e6)}


def replies(answers):
    found = []
    for answer in answers:
        assert answer.line.endswith(b"\n")
        found.append(msgspec.json.decode(answer.line, type=protocol.Reply))
    return found


def mixed(count):
    """Jobs of several sizes, some of which have no place in common with others."""
    kinds = [{}, {"tres_per_node": None, "partition": "cpu"}, {"min_cpus": 4}, {"name": "other", "time_limit": 600}]
    return [submission(**kinds[number % 4]) for number in range(count)]


def places(decisions):
    return [(each.action, each.set, each.why, each.policy, [p.score for p in each.predictions]) for each in decisions]


@pytest.mark.parametrize("sections", [{}, LEARNED], ids=["arithmetic", "learned"])
def test_they_are_told_and_logged_what_they_would_have_been_one_after_the_other(sections, monkeypatch):
    monkeypatch.setattr("advisor.server.hotpath.time.time", lambda: 1_750_000_000.0)
    lines = mixed(12)

    async def one_by_one(site, hook):
        told = replies([site.hot.answer(line, 0.0, None) for line in lines])
        site.hot.settle()
        return [(each.action, each.set, each.message) for each in told], places(site.logged)

    async def at_once(site, hook):
        told = replies(site.hot.answer_together([(line, 0.0, None) for line in lines]))
        site.hot.settle()
        assert site.counters.submissions == 12
        return [(each.action, each.set, each.message) for each in told], places(site.logged)

    def told(story):
        async def whole():
            site = Site(**sections)
            await site.poll(taken_at=1_750_000_000.0)
            return await story(site, None)

        return asyncio.run(whole())

    assert told(at_once) == told(one_by_one)
    assert len({str(each[1]) for each in told(at_once)[0]}) > 1  # the burst spreads


def test_other_lines_among_them_are_answered_as_ever():
    async def story(site, hook):
        lines = [
            submission(),
            b'{"v":1,"op":"ping"}',
            b"garbage",
            submission(v=7),
            submission(),
            submission(op="advise"),
        ]
        found = list(site.hot.answer_together([(line, 0.0, None) for line in lines]))
        first, ping, garbage, other, second = replies(found[:5])
        assert first.token and second.token and first.token != second.token
        assert ping.error is None and ping.token is None
        assert "could not be read" in garbage.error and found[2].close
        assert "version 7" in other.error
        dry = msgspec.json.decode((await found[5]).line, type=protocol.Reply)
        assert dry.decision is not None and dry.token is None
        site.hot.settle()
        assert len(site.logged) == 2

    play(story)


def test_one_that_cannot_be_decided_keeps_its_job_and_harms_no_other(monkeypatch):
    async def story(site, hook):
        score = site.hot.policy.score
        monkeypatch.setattr(
            site.hot.policy, "score", lambda shape, *of: 1 / 0 if shape.app == "bad" else score(shape, *of)
        )
        lines = [submission(), submission(name="bad"), submission()]
        first, bad, last = replies(site.hot.answer_together([(line, 0.0, None) for line in lines]))
        assert (bad.action, bad.token) == ("keep", None)
        assert first.token and last.token
        assert site.counters.errors == 1

    play(story)


def test_what_another_hook_used_meanwhile_is_found_on_the_ledger_and_nothing_scored_before_it_counts(monkeypatch):
    forgotten = []
    monkeypatch.setattr(Together, "forget", lambda batch: forgotten.append(batch))

    async def story(site, hook):
        hook.ask()
        await turns()
        prepared = hook.prepared()
        answers = site.hot.answer_together([(submission(), 0.0, FakeHook(site.hot)) for _ in range(3)])
        next(answers)
        assert not forgotten
        hook.use(prepared)  # its note is read between two jobs of the batch
        next(answers)
        assert len(forgotten) == 1
        next(answers)
        assert len(forgotten) == 1
        site.hot.settle()
        assert (site.counters.prepared, len(site.hot.ledger)) == (1, 5)

    play(story)
