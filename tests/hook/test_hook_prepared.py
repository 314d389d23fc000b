"""Answers that the daemon prepared: the next job like the last one is advised without asking, and nothing that is wrong
with such an answer ever reaches a job."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hook_ends import PARTITIONS, REWRITE, UNCHANGED, Slurmctld, line
from prepared_answers import AS_ASKED, AS_PREPARED, ASKED, TOLD, V100, Preparing, compact, handed, prepared

from tests.server.daemons import Daemon as RealDaemon
from tests.server.daemons import wait_until


def test_the_next_job_like_it_takes_the_prepared_answer_and_nobody_is_asked(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.say(prepared(message="moved to v100"))
    outcome = asked_once.submit()
    assert outcome.fields == AS_PREPARED and outcome.environment == {"ADVISOR_TOKEN": "ahead"}
    assert outcome.told == ["moved to v100"] and outcome.logged == []
    assert preparing.noted(7) and len(preparing.asked) == 1


def test_a_burst_takes_one_answer_after_the_other_each_with_its_own_token(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    for n in range(20):
        preparing.say(prepared(after=1 + n, number=100 + n, token=f"t{n}"))
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{n}"
    assert preparing.noted(*range(100, 120))
    assert len(preparing.asked) == 1 and len(preparing.daemon.connections) == 2  # one to ask, one for notes


def test_a_burst_of_answers_of_which_many_are_new_takes_each_as_it_is(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    """More of them than the hook keeps of what it has looked at, some of them twice."""
    for n in range(300):
        preparing.say(prepared(after=1 + n, number=100 + n, token=f"t{n}", message=f"about {n % 200} min sooner"))
        outcome = asked_once.submit()
        assert outcome.fields == AS_PREPARED | {"admin_comment": f"advisor=t{n}"}
        assert outcome.told == [f"about {n % 200} min sooner"]
    assert len(preparing.asked) == 1


CHANGES: dict[str, dict[str, Any]] = {
    "a limit": {"partitions": {**PARTITIONS, "v100": {**V100, "max_time": 60}}},
    "a limit that was none": {"partitions": {**PARTITIONS, "v100": {**V100, "max_mem_per_node": 1000}}},
    "who may use it": {"partitions": {**PARTITIONS, "v100": {**V100, "allow_accounts": "physics"}}},
    "a partition taken out of service": {"partitions": {**PARTITIONS, "a100": {**PARTITIONS["a100"], "state_up": 1}}},
    "the user's account": {"fields": {**UNCHANGED, "default_account": "physics"}},
    "the user's QOS": {"fields": {**UNCHANGED, "default_qos": "high"}},
}


@pytest.mark.parametrize("change", [{}, *CHANGES.values()], ids=["nothing", *CHANGES])
def test_what_an_administrator_changed_is_told_within_a_second(
    preparing: Preparing, asked_once: Slurmctld, change: dict[str, Any]
) -> None:
    """All that was told of the cluster is read again then; nobody is asked where it reads as before."""
    time.sleep(1.01)
    preparing.say(prepared())
    fields = change.get("fields", UNCHANGED)
    outcome = asked_once.submit(fields, partitions=change.get("partitions", PARTITIONS))
    asked = dict(preparing.asked[-1])
    if not change:
        assert outcome.fields == AS_PREPARED and len(preparing.asked) == 1
        return
    assert outcome.fields == {**fields, **AS_ASKED} and len(preparing.asked) == 2 and asked["kind"] == 2
    if "partitions" in change:
        assert asked["partitions"] != preparing.asked[0]["partitions"]
    else:
        assert {"physics", "high"} & {asked.get("default_account"), asked.get("default_qos")}


MESSAGES = {
    "plain": "about 5 min sooner",
    "quotes": 'moved to "v100"',
    "a backslash": "C:\\new",
    "looks like an end": 'x","message":"y"}',
    "not ASCII": "früher fertig",
    "braces": "{v100}",
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
def test_an_answer_like_the_last_one_but_for_its_message_tells_its_own(
    preparing: Preparing, asked_once: Slurmctld, message: str
) -> None:
    for n, text in enumerate(("first", message, "last", message)):
        preparing.say(prepared(after=1 + n, number=100 + n, message=text))
        outcome = asked_once.submit()
        assert outcome.fields == AS_PREPARED and outcome.told == [text]
    preparing.say(prepared(after=5, number=104))
    assert asked_once.submit().told == []
    assert preparing.noted(*range(100, 105)) and len(preparing.asked) == 1


def test_an_answer_that_was_good_before_is_not_taken_with_another_list_of_partitions(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.say(prepared())
    assert asked_once.submit().fields == AS_PREPARED
    fewer = {name: limits for name, limits in PARTITIONS.items() if name != "v100"}
    preparing.reply = line({"v": 1, "action": "keep"})
    assert asked_once.submit(partitions=fewer).fields == UNCHANGED
    preparing.say(prepared(kind=2, after=3, number=8))
    assert asked_once.submit(partitions=fewer).fields == UNCHANGED
    assert preparing.noted(7)


def test_an_answer_is_used_once(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(prepared())
    assert asked_once.submit().fields == AS_PREPARED
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(7) and len(preparing.asked) == 2


def test_an_answer_that_comes_with_the_reply_is_for_the_next_job(preparing: Preparing, slurmctld: Slurmctld) -> None:
    preparing.reply = line(ASKED) + prepared()
    assert slurmctld.submit().fields == AS_ASKED
    assert slurmctld.submit().fields == AS_PREPARED
    assert preparing.noted(7)


def test_what_was_prepared_before_the_request_came_is_not_its_reply(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.reply = prepared(kind=2) + line(ASKED)
    assert asked_once.submit().fields == AS_ASKED
    assert len(preparing.daemon.connections) == 1


def test_a_long_reply_costs_no_more_than_its_length(preparing: Preparing, slurmctld: Slurmctld) -> None:
    """Looking for its end must not take time that grows with the square of its length."""
    preparing.reply = line({**ASKED, "message": "x" * 60000})
    for _ in range(20):
        assert slurmctld.submit().fields == AS_ASKED
    assert len(preparing.daemon.connections) == 1
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    slurmctld.end()
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - children
    # CPU time of Lua: 20 replies take milliseconds, or minutes.
    assert used < 10


def test_an_answer_that_changes_nothing_only_marks_the_job(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(prepared(set={}))
    assert asked_once.submit().fields == {**UNCHANGED, "admin_comment": "advisor=ahead"}
    preparing.say(prepared(set={}, token="", after=2, number=8))
    assert asked_once.submit().fields == UNCHANGED
    assert preparing.noted(7, 8)


OTHER_JOBS: dict[str, dict[str, Any]] = {
    "another name": {"name": "other"},
    "another owner": {"user_id": 1002},
    "another partition": {"partition": "v100"},
    "another time limit": {"time_limit": 5},
    "another script": {"script": "#!/bin/sh\n#ADVISOR app: other\n"},
    "another dependency": {"dependency": "afterok:17"},
    "memory for a CPU, not for a node": {"min_mem_per_cpu": 100},
}


@pytest.mark.parametrize("other", OTHER_JOBS.values(), ids=OTHER_JOBS.keys())
def test_another_job_never_gets_it(preparing: Preparing, asked_once: Slurmctld, other: dict[str, Any]) -> None:
    preparing.say(prepared())
    outcome = asked_once.submit({**UNCHANGED, **other})
    assert outcome.fields == {**AS_ASKED, **other, "partition": "a100"}
    assert [request["kind"] for request in preparing.asked] == [1, 2]
    assert asked_once.submit().fields == AS_ASKED  # and is outdated for the one that it was meant for
    assert preparing.used == []


def test_a_job_that_differs_from_the_last_one_in_any_field_that_is_told_is_another_job(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    for n, (field, value) in enumerate(TOLD.items()):
        asked_once.submit({**UNCHANGED, field: value})
        assert preparing.asked[-1]["kind"] == 2 + n, field
        asked_once.submit()
        assert preparing.asked[-1]["kind"] == 1, field


def test_other_partitions_or_another_environment_make_another_job(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(prepared())
    assert asked_once.submit(environment={"ADVISOR_APP": "other"}).fields == AS_ASKED
    preparing.say(prepared(after=2))
    fewer = {name: limits for name, limits in PARTITIONS.items() if name != "cpu"}
    assert asked_once.submit(partitions=fewer).fields == AS_ASKED
    preparing.say(prepared(after=3))
    srun = {key: value for key, value in UNCHANGED.items() if key != "script"}
    assert asked_once.submit(srun).fields == {key: value for key, value in AS_ASKED.items() if key != "script"}
    assert [request["kind"] for request in preparing.asked] == [1, 2, 3, 4] and preparing.used == []


def test_a_partition_that_the_user_lost_meanwhile_is_not_taken(preparing: Preparing, asked_once: Slurmctld) -> None:
    """The same kind never has another list of partitions; the check is the one every reply goes through."""
    preparing.say(prepared(set={"partition": "secret"}))
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.used == []


NOT_GOOD: dict[str, Callable[[], bytes]] = {
    "too old": lambda: prepared(good_s=-0.1),
    "good for longer than any may be": lambda: prepared(good_s=60),
    "worked out before the last submission": lambda: prepared(after=0),
    "worked out after one that was never made": lambda: prepared(after=2),
    "for another kind": lambda: prepared(kind=2),
    "taken back": lambda: prepared() + compact({"v": 1, "prepared": 0}),
}


@pytest.mark.parametrize("said", NOT_GOOD.values(), ids=NOT_GOOD.keys())
def test_an_answer_that_does_not_hold_is_passed_over_and_the_daemon_asked(
    preparing: Preparing, asked_once: Slurmctld, said: Callable[[], bytes]
) -> None:
    preparing.say(said())
    outcome = asked_once.submit()
    assert outcome.fields == AS_ASKED and outcome.logged == []
    assert preparing.used == [] and len(preparing.asked) == 2
    assert len(preparing.daemon.connections) == 1


NONSENSE: dict[str, bytes] = {
    "not JSON": prepared()[:-2] + b"garbage}\n",
    "no head": b'{"v":1,"prepared":1,garbage}\n',
    "cut short": prepared()[:100] + b"\n",
    "half a line": prepared()[:60],
    "a line and a half": prepared() + prepared()[:60],
    "another version": prepared().replace(b'{"v":1', b'{"v":2'),
    "not of this protocol": b"hello\n",
    "its head in another order": b'{"prepared":1,"v":1' + prepared()[len(b'{"v":1,"prepared":1') :],
    "a reply that nobody asked for": line(REWRITE),
    "no number": prepared(number="7"),  # type: ignore[arg-type]
    "a field that may not change": prepared(set={"time_limit": "1"}),
    "a value with a space": prepared(set={"tres_per_node": "a b"}),
    "a value that is a number": prepared(set={"partition": 1}),
    "fields in a list": prepared(set=["v100"]),
    "a partition the user may not use": prepared(set={"partition": "secret"}),
    "token with a space": prepared(token="a b"),
    "token is a number": prepared(token=7),
    "token is null": prepared(token=None),
    "a token that is too long": prepared(token="a" * 129),
    "message is a list": prepared(message=["x"]),
    "none": handed([]),
    "more than are kept": handed([{"token": "ahead"}] * 65),
    "fewer than it says": handed([{"token": "ahead"}], count=2),
    "no answers": handed([{"token": "ahead"}], answers=None),
    "answers in a text": handed([{"token": "ahead"}], answers="ahead"),
    "sets of something else": handed([{"token": "ahead"}], answers=["ahead", 1, 0]),
    "says of something else": handed([{"token": "ahead"}], answers=["ahead", 0, 1]),
    "sets that are no number": handed([{"token": "ahead"}], answers=["ahead", "x", 0]),
    "deeply nested": prepared()[:-2] + b',"x":' + b"[" * 5000 + b"]" * 5000 + b"}\n",
    "without end": prepared()[:-2] + b"x" * 70000,
    "NUL bytes": b"\x00" * 50 + b"\n",
}


@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE.keys())
def test_after_nonsense_the_daemon_is_asked_on_a_new_connection(
    preparing: Preparing, asked_once: Slurmctld, said: bytes
) -> None:
    preparing.say(said)
    outcome = asked_once.submit()
    assert outcome.fields == AS_ASKED and outcome.logged == []
    assert preparing.used == [] and len(preparing.asked) == 2
    assert len(preparing.daemon.connections) == 2


def test_a_daemon_that_always_prepares_nonsense_is_asked_for_every_job(
    preparing: Preparing, slurmctld: Slurmctld
) -> None:
    preparing.reply = line(ASKED) + prepared(set={"time_limit": "1"})
    for _ in range(10):
        outcome = slurmctld.submit()
        assert outcome.fields == AS_ASKED and outcome.logged == []
    assert len(preparing.asked) == 10


def test_a_field_that_cannot_be_set_leaves_the_job_as_it_was(preparing: Preparing, asked_once: Slurmctld) -> None:
    for n, field in enumerate(("partition", "tres_per_node", "admin_comment", "environment")):
        preparing.say(prepared(after=1 + n, number=n))
        outcome = asked_once.submit(refuses=field)
        assert outcome.accepted and outcome.fields == UNCHANGED and outcome.environment == {}
        assert preparing.noted(*range(n + 1))


def test_a_daemon_killed_after_preparing_leaves_jobs_alone(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(prepared())
    preparing.daemon.stop()
    outcome = asked_once.submit(times=10)
    assert outcome.accepted and outcome.fields == UNCHANGED
    assert len(outcome.logged) == 1


def test_a_daemon_restarted_after_preparing_is_asked(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(prepared())
    preparing.daemon.stop()
    preparing.daemon.start()
    outcome = asked_once.submit()
    assert outcome.fields == AS_ASKED and outcome.logged == []
    assert preparing.used == []


def test_what_cannot_be_noted_is_not_used(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(prepared())
    preparing.daemon.path.rename(preparing.daemon.path.with_suffix(".away"))  # no second connection can be made
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.used == []


def test_where_notes_are_not_taken_any_more_the_daemon_is_asked(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(prepared())
    assert asked_once.submit().fields == AS_PREPARED and preparing.noted(7)
    notes = next(peer for peer in preparing.daemon.connections if peer is not preparing.hook)
    notes.shutdown(socket.SHUT_RDWR)
    preparing.say(prepared(after=2, number=8))
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.used == [7]


def test_with_a_hung_daemon_one_answer_is_used_and_fifty_submissions_cost_three_time_outs(
    preparing: Preparing, start_slurmctld: Callable[..., Slurmctld]
) -> None:
    slurmctld = start_slurmctld(timeout_ms=500, breaker_seconds=3600)
    assert slurmctld.submit().fields == AS_ASKED
    preparing.say(prepared())
    preparing.daemon.behaviour = lambda peer, request: None
    assert slurmctld.submit().fields == AS_PREPARED
    logged: list[str] = []
    for _ in range(50):
        outcome = slurmctld.submit()
        assert outcome.accepted and outcome.fields == UNCHANGED
        logged += outcome.logged
    # The one that was asked and its notes, then each exchange on a connection of its own.
    assert len(preparing.daemon.connections) <= 4 and len(logged) == 1 and logged[0].endswith("timeout")


def test_the_disable_file_also_holds_for_prepared_answers(
    preparing: Preparing, asked_once: Slurmctld, tmp_path: Path
) -> None:
    preparing.say(prepared())
    (tmp_path / "disable").touch()
    assert asked_once.submit().fields == UNCHANGED
    (tmp_path / "disable").unlink()
    assert asked_once.submit().fields == AS_PREPARED  # still good
    assert preparing.noted(7)


def test_eight_jobs_that_take_turns_keep_their_kinds_and_each_finds_its_answer(
    preparing: Preparing, slurmctld: Slurmctld
) -> None:
    jobs = [{**UNCHANGED, "name": f"job{n}"} for n in range(8)]
    for job in jobs:
        slurmctld.submit(job)
    assert [request["kind"] for request in preparing.asked] == list(range(1, 9))
    for turn, n in enumerate([3, 0, 7, 3, 5]):
        preparing.say(b"".join(prepared(kind=1 + m, after=8 + turn, number=10 * turn + m) for m in range(8)))
        assert slurmctld.submit(jobs[n]).fields["admin_comment"] == "advisor=ahead"
    assert preparing.noted(3, 10, 27, 33, 45) and len(preparing.asked) == 8
    # The ninth takes the place of the one that was not submitted for longest.
    slurmctld.submit({**UNCHANGED, "name": "ninth"})
    slurmctld.submit(jobs[3])
    slurmctld.submit(jobs[1])
    assert [request["kind"] for request in preparing.asked[8:]] == [9, 4, 10]


def test_a_request_that_is_too_long_to_be_kept_asks_for_nothing_to_be_prepared(
    preparing: Preparing, slurmctld: Slurmctld
) -> None:
    fields = {**UNCHANGED, "comment": "x" * 65536}
    for _ in range(2):
        assert slurmctld.submit(fields).fields["partition"] == "a100"
    assert ["kind" in request for request in preparing.asked] == [False, False]
    assert preparing.asked[0] == preparing.asked[1]


def test_a_request_that_is_known_again_says_the_same_as_at_first(preparing: Preparing, slurmctld: Slurmctld) -> None:
    fields = {**UNCHANGED, "time_limit": 30, "account": "physics", "min_cpus": 4, "comment": "ü"}
    for _ in range(3):
        slurmctld.submit(fields, {"ADVISOR_APP": "x"})
    assert preparing.asked[0] == preparing.asked[1] == preparing.asked[2]
    assert preparing.asked[0]["time_limit"] == 30 and preparing.asked[0]["environment"] == {"ADVISOR_APP": "x"}


def test_lines_that_nobody_reads_do_not_pile_up(preparing: Preparing, asked_once: Slurmctld) -> None:
    """More than lua-socket's buffer holds: all of it is looked through before anything is asked."""
    with contextlib.suppress(BlockingIOError):
        preparing.say(b"".join(prepared(kind=2 + n % 6, message="x" * 400) for n in range(60)) + line(REWRITE))
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.used == [] and len(preparing.daemon.connections) == 2


def test_the_real_daemon_prepares_what_the_real_hook_uses_and_its_log_has_every_token(
    start_slurmctld: Callable[..., Slurmctld], tmp_path: Path
) -> None:
    daemon = RealDaemon(tmp_path, slurm={"poll_s": 30})
    job = {**UNCHANGED, "partition": "old,new", "time_limit": 60, "min_cpus": 1, "min_nodes": 1}
    partitions = {name: {"flag_default": 0, "state_up": 3, "max_time": 2880} for name in ("old", "new", "cpu")}
    tokens = []
    try:
        daemon.start()
        slurmctld = start_slurmctld(socket=str(daemon.socket))
        for count in range(12):
            outcome = slurmctld.submit(job, partitions=partitions)
            assert outcome.accepted and outcome.logged == []
            tokens.append(outcome.fields["admin_comment"].removeprefix("advisor="))
            wait_until(lambda count=count: daemon.status().decisions.submissions == count + 1)
            time.sleep(0.02)  # it prepares the next one
        assert daemon.status().decisions.prepared >= 6
        assert daemon.stop() == 0
    finally:
        daemon.close()
    assert sorted(tokens) == sorted(row[0] for row in daemon.query("select token from decisions"))
    assert len(set(tokens)) == 12
