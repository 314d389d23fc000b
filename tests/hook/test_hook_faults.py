"""The daemon absent, hung, killed, slow or talking nonsense: every job passes unchanged, and advice comes back."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hook_ends import REWRITE, UNCHANGED, Behaviour, Daemon, Slurmctld, always, line

GOOD = line(REWRITE)


def without(reply: dict[str, Any], **changes: Any) -> bytes:
    return line({**reply, **changes})


NONSENSE = {
    "not JSON": b"garbage\n",
    "empty line": b"\n",
    "a number": b"42\n",
    "a list": b"[1]\n",
    "null": b"null\n",
    "an object of nothing": b"{}\n",
    "other version": without(REWRITE, v=2),
    "version as text": without(REWRITE, v="1"),
    "unknown action": without(REWRITE, action="reject"),
    "action of another type": without(REWRITE, action=1),
    "fields to set but keep": without(REWRITE, action="keep"),
    "rewrite of nothing": without(REWRITE, set={}),
    "set is text": without(REWRITE, set="partition"),
    "set is a list": without(REWRITE, set=["v100"]),
    "a field that may not change": without(REWRITE, set={"partition": "v100", "time_limit": "1"}),
    "a field that does not exist": without(REWRITE, set={"partition": "v100", "_job_desc": "1"}),
    "value is a number": without(REWRITE, set={"partition": 1}),
    "value is null": without(REWRITE, set={"partition": None}),
    "value is empty": without(REWRITE, set={"partition": "v100", "tres_per_node": ""}),
    "value with a control character": without(REWRITE, set={"tres_per_node": "gres/gpu:1\n"}),
    "value with NUL": without(REWRITE, set={"tres_per_node": "gres/gpu:1\x00"}),
    "value too long": without(REWRITE, set={"tres_per_node": "x" * 4097}),
    "a partition the user may not use": without(REWRITE, set={"partition": "secret"}),
    "one of two partitions the user may not use": without(REWRITE, set={"partition": "v100,secret"}),
    "an empty partition name": without(REWRITE, set={"partition": "v100,"}),
    "token is a number": without(REWRITE, token=7),
    "token with a space": without(REWRITE, token="a b"),
    "token with a comma": without(REWRITE, token="a,b"),
    "token too long": without(REWRITE, token="a" * 129),
    "message is a list": without(REWRITE, message=["moved"]),
    "not a number": b'{"v":NaN}\n',
    "deeply nested": b"[" * 10000 + b"]" * 10000 + b"\n",
    "deeply nested value": b'{"v":1,"set":' + b"[" * 100 + b"]" * 100 + b"}\n",
    "NUL bytes": b"\x00" * 50 + b"\n",
    "two replies": GOOD + GOOD,
    "a reply and an empty line": GOOD + b"\n",
    "a reply and a half": GOOD + b'{"v":',
    "oversize": b'{"v":1,"message":"' + b"x" * 70000 + b'"}\n',
}


@pytest.mark.parametrize("reply", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_leaves_the_job_alone_and_three_times_opens_the_breaker(
    daemon: Daemon, slurmctld: Slurmctld, reply: bytes
) -> None:
    daemon.behaviour = always(reply)
    outcome = slurmctld.submit(times=10)
    assert outcome.accepted
    assert outcome.fields == UNCHANGED and outcome.environment == {} and outcome.told == []
    assert len(daemon.requests) == 3
    assert len(outcome.logged) == 1 and outcome.logged[0].startswith("error: advisor: 3 failures in a row")


def half_a_line_then_close(peer: socket.socket, _: bytes) -> None:
    peer.sendall(GOOD[:20])
    peer.shutdown(socket.SHUT_RDWR)


def all_but_the_newline_then_close(peer: socket.socket, _: bytes) -> None:
    peer.sendall(GOOD[:-1])
    peer.shutdown(socket.SHUT_RDWR)


def close_at_once(peer: socket.socket, _: bytes) -> None:
    peer.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("behaviour", [half_a_line_then_close, all_but_the_newline_then_close, close_at_once])
def test_a_daemon_killed_in_the_middle_leaves_the_job_alone(
    daemon: Daemon, slurmctld: Slurmctld, behaviour: Behaviour
) -> None:
    daemon.behaviour = behaviour
    outcome = slurmctld.submit(times=10)
    assert outcome.accepted and outcome.fields == UNCHANGED
    assert len(daemon.requests) == 3
    assert len(outcome.logged) == 1


def test_an_absent_daemon_leaves_jobs_alone_with_one_line_in_the_log(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.stop()
    outcome = slurmctld.submit(times=50)
    assert outcome.accepted and outcome.fields == UNCHANGED
    assert len(outcome.logged) == 1 and str(daemon.path) in outcome.logged[0]


def test_a_socket_that_nobody_listens_on_leaves_jobs_alone(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.stop()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(daemon.path))
    dead.close()  # what a daemon killed with -9 leaves behind
    outcome = slurmctld.submit(times=50)
    assert outcome.accepted and outcome.fields == UNCHANGED and len(outcome.logged) == 1


def nothing(peer: socket.socket, _: bytes) -> None:
    """Hung: the request is read, no answer comes."""


def test_with_a_hung_daemon_fifty_submissions_cost_three_time_outs(
    daemon: Daemon, start_slurmctld: Callable[..., Slurmctld]
) -> None:
    daemon.behaviour = nothing
    slurmctld = start_slurmctld(timeout_ms=20, breaker_seconds=3600)
    logged: list[str] = []
    for _ in range(50):
        outcome = slurmctld.submit()
        assert outcome.accepted and outcome.fields == UNCHANGED
        logged += outcome.logged
    assert len(daemon.connections) <= 3  # each exchange was tried on a connection of its own
    assert len(logged) == 1 and logged[0].endswith("timeout")


def test_a_daemon_that_never_accepts_is_a_hung_one(daemon: Daemon, start_slurmctld: Callable[..., Slurmctld]) -> None:
    daemon.stop()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(daemon.path))
        listener.listen(0)
        slurmctld = start_slurmctld(timeout_ms=20, breaker_seconds=3600)
        outcome = slurmctld.submit(times=50)
    assert outcome.accepted and outcome.fields == UNCHANGED and len(outcome.logged) == 1


def test_a_daemon_that_does_not_read_a_large_request_is_a_hung_one(
    daemon: Daemon, start_slurmctld: Callable[..., Slurmctld]
) -> None:
    daemon.stop()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(daemon.path))
        listener.listen(8)
        slurmctld = start_slurmctld(timeout_ms=20, breaker_seconds=3600)
        text = '"' * 65536
        before = {**UNCHANGED, "comment": text, "extra": text, "script": "#" + text}
        outcome = slurmctld.submit(before, {"ADVISOR_DFG": text}, times=10)
    assert outcome.accepted and outcome.fields == before and len(outcome.logged) == 1


def test_bytes_that_dribble_in_do_not_stretch_the_time_out(
    daemon: Daemon, start_slurmctld: Callable[..., Slurmctld]
) -> None:
    gone = threading.Event()
    sent: list[int] = []

    def dribble(peer: socket.socket, _: bytes) -> None:
        try:
            for n in range(len(GOOD)):  # in all far longer than the time-out
                peer.sendall(GOOD[n : n + 1])
                sent.append(n)
                time.sleep(0.01)
        except OSError:
            gone.set()

    daemon.behaviour = dribble
    slurmctld = start_slurmctld(timeout_ms=100)
    outcome = slurmctld.submit()
    assert outcome.accepted and outcome.fields == UNCHANGED
    assert gone.wait(30), "the hook read to the end of a reply that came too slowly"
    assert len(sent) < len(GOOD)


def test_a_reply_in_pieces_within_the_time_out_is_understood(daemon: Daemon, slurmctld: Slurmctld) -> None:
    def in_pieces(peer: socket.socket, _: bytes) -> None:
        for start in range(0, len(GOOD), 40):
            peer.sendall(GOOD[start : start + 40])
            time.sleep(0.002)

    daemon.behaviour = in_pieces
    assert slurmctld.submit().fields["partition"] == "v100"


def test_one_connection_serves_many_submissions(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.behaviour = always(GOOD)
    assert slurmctld.submit(times=200).fields["partition"] == "v100"
    assert len(daemon.requests) == 200 and len(daemon.connections) == 1


def test_after_a_restart_of_the_daemon_the_next_job_is_advised(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.behaviour = always(GOOD)
    for _ in range(5):
        assert slurmctld.submit().fields["partition"] == "v100"
        daemon.stop()
        daemon.start()
    outcome = slurmctld.submit()
    assert outcome.fields["partition"] == "v100" and outcome.logged == []


def test_a_daemon_that_closes_on_being_asked_again_is_asked_on_a_new_connection(
    daemon: Daemon, slurmctld: Slurmctld
) -> None:
    """The kept connection looks open and closes under the request, as when the daemon stops just then."""
    served: list[socket.socket] = []

    def one_each(peer: socket.socket, request: bytes) -> None:
        if peer in served:
            close_at_once(peer, request)
        else:
            served.append(peer)
            peer.sendall(GOOD)

    daemon.behaviour = one_each
    for _ in range(6):
        outcome = slurmctld.submit()
        assert outcome.fields["partition"] == "v100" and outcome.logged == []
    assert len(served) == 6


def test_a_late_reply_is_never_taken_for_the_next_jobs(
    daemon: Daemon, start_slurmctld: Callable[..., Slurmctld]
) -> None:
    slurmctld = start_slurmctld(timeout_ms=50)
    daemon.behaviour = nothing
    assert slurmctld.submit().fields == UNCHANGED
    late = daemon.connections[0]
    with pytest.raises(OSError):  # nobody is left to read it
        for _ in range(100):
            late.sendall(GOOD)
            time.sleep(0.01)
    slurmctld.configure(timeout_ms=5000)
    daemon.behaviour = always(line({"v": 1, "token": "second"}))
    assert slurmctld.submit().fields == {**UNCHANGED, "admin_comment": "advisor=second"}


def test_an_unasked_line_is_never_taken_for_the_next_jobs(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.behaviour = always(line({"v": 1, "token": "first"}))
    slurmctld.submit()
    daemon.connections[0].sendall(GOOD)
    daemon.behaviour = always(line({"v": 1, "token": "second"}))
    outcome = slurmctld.submit()
    assert outcome.fields == {**UNCHANGED, "admin_comment": "advisor=second"}
    assert outcome.logged == []


def test_advice_comes_back_when_the_daemon_does(daemon: Daemon, start_slurmctld: Callable[..., Slurmctld]) -> None:
    slurmctld = start_slurmctld(breaker_seconds=0.3)
    daemon.behaviour = always(b"garbage\n")
    assert len(slurmctld.submit(times=10).logged) == 1
    asked = len(daemon.requests)
    time.sleep(0.4)
    outcome = slurmctld.submit(times=10)  # tried once, in vain, and not told again
    assert outcome.fields == UNCHANGED and outcome.logged == []
    assert len(daemon.requests) == asked + 1
    daemon.behaviour = always(GOOD)
    time.sleep(0.4)
    outcome = slurmctld.submit()
    assert outcome.fields["partition"] == "v100"
    assert outcome.logged == ["info: advisor: the daemon answers again"]
    assert slurmctld.submit(times=5).logged == []
    daemon.behaviour = always(b"garbage\n")  # and it takes three again to open it
    assert len(slurmctld.submit(times=2).logged) == 0
    assert len(slurmctld.submit().logged) == 1


def test_failures_that_are_not_in_a_row_do_not_open_the_breaker(daemon: Daemon, slurmctld: Slurmctld) -> None:
    replies = iter([b"x\n", b"x\n", GOOD] * 10)
    daemon.behaviour = lambda peer, _: peer.sendall(next(replies))
    assert slurmctld.submit(times=30).logged == []
    assert len(daemon.requests) == 30
