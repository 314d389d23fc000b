"""Answers that the daemon prepared: the next job like the last one is advised without asking, and nothing that is wrong
with such an answer ever reaches a job."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hook_ends import PARTITIONS, REWRITE, UNCHANGED, Daemon, Slurmctld, line

from tests.server.daemons import Daemon as RealDaemon
from tests.server.daemons import wait_until

ASKED = {"v": 1, "token": "asked", "action": "rewrite", "set": {"partition": "a100"}}
AS_ASKED = {**UNCHANGED, "partition": "a100", "admin_comment": "advisor=asked"}
AS_PREPARED = {
    **UNCHANGED,
    "partition": "v100",
    "tres_per_node": "gres/gpu:v100:1",
    "admin_comment": "advisor=ahead",
}


LOOK_AGAIN_S = 0.06  # while answers are there, the hook looks for others every 50 ms


def compact(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


TAKEN_BACK = compact({"v": 1, "prepared": 0})


def prepared(kind: int = 1, after: int = 1, number: int = 7, good_s: float = 2.0, **changes: Any) -> bytes:
    """As the daemon sends it: what it is stands in front."""
    head = {"v": 1, "prepared": kind, "number": number, "after": after, "until": round(time.time() + good_s, 3)}
    return compact({**head, "token": "ahead", **{key: REWRITE[key] for key in ("action", "set")}, **changes})


class Preparing:
    """A daemon that answers what it is asked, and takes notes; what it sends unasked, a test says."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.asked: list[dict[str, Any]] = []
        self.used: list[int] = []
        self.reply = line(ASKED)
        self.hook: socket.socket | None = None  # the connection on which it was asked last
        daemon.behaviour = self._answer

    def _answer(self, peer: socket.socket, request: bytes) -> None:
        told = json.loads(request)
        if told["op"] == "used":
            self.used.append(told["number"])
        elif told["op"] == "submit":
            self.hook = peer
            self.asked.append(told)
            peer.sendall(self.reply)

    def say(self, text: bytes) -> None:
        assert self.hook is not None
        self.hook.sendall(text)

    def noted(self, *numbers: int) -> bool:
        """Whether these answers, in this order and no others, were used; notes come by themselves."""
        until = time.monotonic() + 10
        while len(self.used) < len(numbers) and time.monotonic() < until:
            time.sleep(0.005)
        return self.used == list(numbers)


@pytest.fixture
def preparing(daemon: Daemon) -> Preparing:
    return Preparing(daemon)


@pytest.fixture
def asked_once(preparing: Preparing, slurmctld: Slurmctld) -> Slurmctld:
    """A slurmctld that has asked for one job, which the daemon knows as kind 1."""
    assert slurmctld.submit().fields == AS_ASKED
    assert [request["kind"] for request in preparing.asked] == [1]
    return slurmctld


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


V100 = PARTITIONS["v100"]
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


def test_an_answer_with_its_fields_in_another_order_is_taken(preparing: Preparing, asked_once: Slurmctld) -> None:
    said = json.loads(prepared())
    preparing.say(compact({"v": 1, "prepared": 1, **{key: said[key] for key in reversed(said)}}))
    assert asked_once.submit().fields == AS_PREPARED
    assert preparing.noted(7)


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
    preparing.say(prepared(action="keep", set={}))
    assert asked_once.submit().fields == {**UNCHANGED, "admin_comment": "advisor=ahead"}
    preparing.say(prepared(action="keep", set={}, token=None, after=2, number=8))
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


TOLD: dict[str, Any] = {
    **dict.fromkeys(
        ("features", "partition", "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket"), "x"
    ),
    **dict.fromkeys(("name", "prefer", "licenses", "reservation", "req_nodes", "exc_nodes", "clusters"), "x"),
    **dict.fromkeys(("cpus_per_tres", "mem_per_tres", "dependency", "array_inx", "comment", "extra"), "x"),
    **dict.fromkeys(("time_limit", "time_min", "min_cpus", "num_tasks", "min_nodes", "max_nodes"), 3),
    **dict.fromkeys(("het_job_offset", "cpus_per_task", "ntasks_per_node", "ntasks_per_tres", "shared"), 3),
    **dict.fromkeys(("begin_time", "min_mem_per_node", "min_mem_per_cpu", "user_id"), 3),
    **dict.fromkeys(("account", "qos"), "x"),
    "script": "#!/bin/sh\n#ADVISOR app: x\n",
}


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
    "no number": lambda: prepared(number="7"),  # type: ignore[arg-type]
    "for another kind": lambda: prepared(kind=2),
    "taken back": lambda: prepared() + compact({"v": 1, "prepared": 0}),
    "refused": lambda: prepared(error="no"),
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
    "not JSON": b'{"v":1,"prepared":1,garbage}\n',
    "cut short": prepared()[:60] + b"\n",
    "half a line": prepared()[:60],
    "a line and a half": prepared() + prepared()[:60],
    "another version": prepared().replace(b'{"v":1', b'{"v":2'),
    "not of this protocol": b"hello\n",
    "a reply that nobody asked for": line(REWRITE),
    "unknown action": prepared(action="reject"),
    "fields to set but keep": prepared(action="keep"),
    "a field that may not change": prepared(set={"time_limit": "1"}),
    "a partition the user may not use": prepared(set={"partition": "secret"}),
    "token with a space": prepared(token="a b"),
    "a token that is too long": prepared(token="a" * 129),
    "a second token": prepared().replace(b'"action"', b'"token":"b","action"'),
    "a second number": prepared().replace(b'"action"', b'"number":8,"action"'),
    "message is a list": prepared(message=["x"]),
    "deeply nested": b'{"v":1,"prepared":1,"set":' + b"[" * 5000 + b"]" * 5000 + b"}\n",
    "without end": b'{"v":1,"prepared":1,"message":"' + b"x" * 70000,
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
    preparing.reply = line(ASKED) + prepared(action="reject")
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
    outcome = asked_once.submit()
    assert outcome.accepted and outcome.fields == UNCHANGED
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


def row(count: int, after: int = 1, number: int = 100, follows: int = 0, **changes: Any) -> bytes:
    """So many answers to one kind, each to be used after the one before."""
    lines = []
    for n in range(count):
        said = json.loads(prepared(after=after + n, number=number + n, token=f"t{number + n}", **changes))
        head = {key: said.pop(key) for key in ("v", "prepared", "number", "after", "until")}
        lines.append(compact({**head, "follows": follows if n == 0 else number + n - 1, **said}))
    return b"".join(lines)


def test_a_request_says_how_many_answers_in_a_row_are_kept(preparing: Preparing, asked_once: Slurmctld) -> None:
    assert preparing.asked[0]["row"] == 16


def test_a_row_is_taken_one_by_one_and_goes_on_where_more_of_it_comes(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.say(row(16))
    tokens = []
    for n in range(60):
        if n and n % 8 == 0:  # half of it is used
            preparing.say(row(8, after=9 + n, number=108 + n, follows=107 + n))
        outcome = asked_once.submit()
        assert outcome.fields["partition"] == "v100"
        tokens.append(outcome.fields["admin_comment"])
    assert tokens == [f"advisor=t{100 + n}" for n in range(60)]
    assert preparing.noted(*range(100, 160)) and len(preparing.asked) == 1


def test_a_row_that_was_taken_back_is_not_taken_any_further(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(8))
    for n in range(3):
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{100 + n}"
    preparing.say(TAKEN_BACK)
    time.sleep(LOOK_AGAIN_S)
    assert asked_once.submit().fields == AS_ASKED
    assert asked_once.submit().fields == AS_ASKED  # nor after that
    assert preparing.noted(100, 101, 102) and len(preparing.asked) == 3


@pytest.mark.parametrize(
    "unasked", [TAKEN_BACK, line(REWRITE), b"x", b"\n"], ids=["taken back", "late", "half", "empty"]
)
def test_another_job_in_the_middle_of_a_row_gets_its_own_answer_whatever_came_just_before(
    preparing: Preparing, asked_once: Slurmctld, unasked: bytes
) -> None:
    preparing.say(row(8))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    preparing.say(unasked)
    other = {**UNCHANGED, "name": "other"}
    assert asked_once.submit(other).fields == {**AS_ASKED, "name": "other"}
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(100)


def test_a_row_of_which_the_daemon_may_no_longer_be_told_is_not_taken(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.say(row(8))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    assert preparing.noted(100)
    preparing.daemon.stop()
    assert asked_once.submit().fields == UNCHANGED
    preparing.daemon.start()
    assert asked_once.submit().fields == AS_ASKED


def test_another_job_ends_a_row(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(8) + prepared(kind=2, after=2, number=50))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    assert asked_once.submit({**UNCHANGED, "name": "other"}).fields["admin_comment"] == "advisor=asked"
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(100) and len(preparing.asked) == 3


def test_a_row_for_each_of_two_kinds_ends_with_the_first_use_of_the_other(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    other = {**UNCHANGED, "name": "other"}
    asked_once.submit(other)
    preparing.say(row(4, after=2) + row(4, after=2, number=200, kind=2))
    assert asked_once.submit(other).fields["admin_comment"] == "advisor=t200"
    assert asked_once.submit().fields == AS_ASKED
    assert asked_once.submit(other).fields["admin_comment"] == "advisor=asked"
    assert preparing.noted(200)


def test_what_follows_an_answer_that_was_not_used_is_not_taken(preparing: Preparing, asked_once: Slurmctld) -> None:
    """As when the daemon works a row out anew while the first of the old one is being used."""
    preparing.say(row(4))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    preparing.say(row(4, number=200))
    time.sleep(LOOK_AGAIN_S)
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(100)


def test_a_new_row_takes_the_place_of_the_old_one(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(8) + row(2, number=200))
    for n in range(2):
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{200 + n}"
    assert asked_once.submit().fields == AS_ASKED  # the old row's third was worked out after others
    assert preparing.noted(200, 201)


def test_a_row_of_a_daemon_that_was_restarted_is_not_taken(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(8))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    assert preparing.noted(100)  # read by now: what it has not read yet is lost where it hangs up
    preparing.daemon.hang_up()
    assert asked_once.submit().fields == AS_ASKED
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.used == [100]


def test_an_answer_in_a_row_that_may_not_be_applied_ends_it(preparing: Preparing, asked_once: Slurmctld) -> None:
    bad = row(1, after=2, number=101, follows=100, set={"partition": "secret"})
    preparing.say(row(1) + bad + row(1, after=3, number=102, follows=101))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    assert asked_once.submit().fields == AS_ASKED
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(100)


def test_an_old_answer_in_a_row_is_passed_over(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(1) + row(3, after=2, number=101, follows=100, good_s=-0.1))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(100)
