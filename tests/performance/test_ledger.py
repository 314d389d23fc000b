import msgspec

from advisor.performance.demand import Need
from advisor.performance.queue import build_snapshot
from advisor.performance.waits import SETTLED_S, Ledger, expected_wait
from tests.performance.clusters import NOW, one_pool, pending

GPU = Need(1, 1, 1, 1, 0)


def poll(*jobs, at=NOW):
    return msgspec.structs.replace(build_snapshot(one_pool(gpus=2, jobs=list(jobs)), {}), taken_at=at)


def wait(view):
    return expected_wait(view, 0, 1, GPU, 36_000, NOW)


def test_bookings_fill_the_pool_they_are_on_and_leave_the_snapshot_as_it_was():
    snapshot = poll()
    before = msgspec.msgpack.encode(snapshot)
    ledger = Ledger(snapshot)
    assert wait(ledger.over(snapshot)) == 0
    ledger.book("a", 0, GPU, 600, NOW)
    assert wait(ledger.over(snapshot)) == 0
    ledger.book("b", 0, GPU, 900, NOW)
    assert wait(ledger.over(snapshot)) == 600
    assert msgspec.msgpack.encode(snapshot) == before
    assert wait(snapshot) == 0


def test_the_next_poll_takes_over_the_jobs_that_it_shows():
    snapshot = poll()
    ledger = Ledger(snapshot)
    for token in ("a", "b", "c"):
        ledger.book(token, 0, GPU, 600, NOW)
    shown = poll(pending(minutes=10, gpus=1, admin_comment="advisor=a"), at=NOW + 1)
    view = ledger.over(shown)
    assert len(ledger) == 2  # b and c were too late for this poll
    assert wait(view) == 600


def test_a_booking_whose_job_never_appears_is_dropped_in_the_end():
    snapshot = poll()
    ledger = Ledger(snapshot)
    ledger.book("refused", 0, GPU, 600, NOW)
    ledger.over(poll(at=NOW + SETTLED_S - 1))
    assert len(ledger) == 1
    ledger.over(poll(at=NOW + SETTLED_S + 1))
    assert len(ledger) == 0


def test_new_history_on_the_same_poll_keeps_the_bookings():
    snapshot = poll()
    ledger = Ledger(snapshot)
    for token in ("a", "b"):
        ledger.book(token, 0, GPU, 600, NOW)
    again = msgspec.structs.replace(snapshot, history={"app": {}})
    view = ledger.over(again)
    assert wait(view) == 600
    assert view.history == {"app": {}}


def test_bookings_of_a_low_tier_do_not_delay_a_high_one():
    from advisor.cluster.types import Partition

    partitions = (Partition("main", ("n",), priority_tier=1), Partition("urgent", ("n",), priority_tier=10))
    snapshot = build_snapshot(one_pool(gpus=1, jobs=[], partitions=partitions), {})
    ledger = Ledger(snapshot)
    ledger.book("low", 0, GPU, 600, NOW, priority_tier=1)
    assert expected_wait(ledger.over(snapshot), 0, 10, GPU, 60, NOW) == 0
    assert expected_wait(ledger.over(snapshot), 0, 1, GPU, 60, NOW) == 600
    ledger.book("high", 0, GPU, 300, NOW, priority_tier=10)
    assert expected_wait(ledger.over(snapshot), 0, 10, GPU, 60, NOW) == 300
    assert expected_wait(ledger.over(snapshot), 0, 1, GPU, 60, NOW) == 900


def test_bookings_end_when_pools_are_no_longer_the_same():
    ledger = Ledger(poll())
    ledger.book("a", 0, GPU, 600, NOW)
    ledger.over(build_snapshot(one_pool(gpus=4, jobs=[]), {}))
    assert len(ledger) == 0


def test_what_is_booked_on_a_branch_is_not_on_the_ledger_until_it_is_booked_there():
    snapshot = poll()
    ledger, plain = Ledger(snapshot), Ledger(snapshot)
    for each in (ledger, plain):
        each.book("a", 0, GPU, 600, NOW)
    branch = ledger.branch(snapshot)
    for token, run_s in (("b", 900), ("c", 1200), ("d", 300)):
        branch.book(token, 0, GPU, run_s, NOW)
    assert wait(ledger.over(snapshot)) == 0 and wait(branch.over(snapshot)) > 600
    # As foreseen, then something that was not, then what was foreseen without that.
    for token, run_s in (("b", 900), ("x", 50), ("c", 1200)):
        for each in (ledger, plain):
            each.book(token, 0, GPU, run_s, NOW)
        assert msgspec.msgpack.encode(ledger.view) == msgspec.msgpack.encode(plain.view)
    assert len(ledger) == 4
