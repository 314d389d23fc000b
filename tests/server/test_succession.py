"""A new snapshot takes over between answers: nothing decided meanwhile is forgotten, nobody waits for it."""

import asyncio

import msgspec

from advisor import protocol
from advisor.performance.queue import build_snapshot
from advisor.policy.registry import make_policy
from advisor.server.counters import Counters
from advisor.server.hotpath import HotPath
from advisor.server.succession import SLICE, Succession
from advisor.settings import Experiment, Modes, Settings
from tests.server.daemons import cluster, submission


def hot_path():
    settings = Settings(modes=Modes(default="enforce"), experiment=Experiment(holdout=0.0))
    return HotPath(settings, make_policy(settings), Counters(), lambda *logged: None, lambda: None)


def ask(hot):
    answer = hot.answer(submission(), 0.0)
    answer.after()
    return msgspec.json.decode(answer.line, type=protocol.Reply)


def test_decisions_that_the_new_snapshot_does_not_show_stay_booked_on_it():
    async def story():
        hot = hot_path()
        succession = Succession(hot)
        succession.offer(build_snapshot(cluster(), {}))
        await asyncio.sleep(0)
        tokens = [ask(hot).token for _ in range(5 * SLICE)]
        before = len(hot.ledger)
        newer = build_snapshot(cluster(), {})
        succession.offer(newer)
        turns = 0
        while hot.snapshot is not newer:
            ask(hot)  # answered on the old snapshot, and carried over too
            turns += 1
            await asyncio.sleep(0)
        return before, turns, len(hot.ledger), len(set(tokens))

    before, turns, after, distinct = asyncio.run(story())
    assert before == distinct == 5 * SLICE
    assert 5 <= turns <= 10  # in slices, not in one go, and not for ever
    assert after == before + turns


def test_decisions_that_the_new_snapshot_shows_are_not_booked_twice():
    async def story():
        hot = hot_path()
        succession = Succession(hot)
        succession.offer(build_snapshot(cluster(), {}))
        await asyncio.sleep(0)
        tokens = [ask(hot).token for _ in range(10)]
        newer = msgspec.structs.replace(build_snapshot(cluster(), {}), tokens=frozenset(tokens[:4]))
        newest = msgspec.structs.replace(build_snapshot(cluster(), {}), tokens=frozenset(tokens[4:7]))
        succession.offer(newer)
        succession.offer(newest)  # before the one before it could serve
        while hot.snapshot is None or hot.snapshot.taken_at != newest.taken_at:
            await asyncio.sleep(0)
        return len(hot.ledger)

    assert asyncio.run(story()) == 3
