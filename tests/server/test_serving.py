"""A running daemon: what the hook gets for good and for bad requests, and what the log and `status` say."""

import contextlib
import os
import socket
import subprocess
import sys

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor import protocol
from advisor.server import client
from tests.server.daemons import ROOT, submission, wait_until


def test_a_job_that_left_the_type_open_is_sent_where_it_finishes_first(daemon):
    with daemon.hook() as hook:
        reply = hook.ask()
    assert reply.error is None
    assert reply.action == "rewrite"
    assert reply.set["partition"] == "new"
    assert reply.token
    assert reply.decision is None  # the whole decision is for dry runs
    wait_until(lambda: daemon.status().log.written == 1)
    ((token, action),) = daemon.query("select token, action from decisions")
    assert (token, action) == (reply.token, "rewrite")


def test_a_job_whose_partition_and_type_are_fixed_is_kept(daemon):
    with daemon.hook() as hook:
        reply = hook.ask(submission(partition="old", tres_per_node="gres/gpu:v100:1"))
    assert (reply.action, reply.set, reply.error) == ("keep", {}, None)
    counts = wait_until(lambda: daemon.status().decisions)
    assert counts.submissions == 1


def test_in_shadow_mode_the_job_is_untouched_and_the_decision_logged(make_daemon):
    daemon = make_daemon(modes={"default": "shadow"}).start()
    with daemon.hook() as hook:
        reply = hook.ask()
    assert (reply.action, reply.set, reply.message) == ("keep", {}, None)
    assert reply.token
    wait_until(lambda: daemon.query("select count(*) from decisions where token = ?", reply.token) == [(1,)])


def test_many_jobs_over_one_connection_do_not_all_go_to_one_place(daemon):
    with daemon.hook() as hook:
        replies = [hook.ask() for _ in range(40)]
    # Four free GPUs for one-hour jobs; the busy partition is free in two hours.
    places = [reply.set.get("partition", "old") for reply in replies]
    assert "new" in places
    assert "old" in places
    assert len({reply.token for reply in replies}) == 40


def test_a_dry_run_shows_the_decision_and_leaves_no_trace(daemon):
    request = msgspec.json.decode(submission(op="advise", partitions=[]), type=protocol.SubmitRequest)
    for _ in range(20):
        reply = client.submit(daemon.socket, request)
        assert reply.action == "rewrite"
        assert reply.set["partition"] == "new"  # the same each time: nothing was booked
    assert reply.token is None
    names = [candidate["name"] for candidate in reply.decision["candidates"]]
    assert "keep" in names and any(name.startswith("new") for name in names)
    status = daemon.status()
    assert status.decisions.dry_runs == 20
    assert status.decisions.submissions == 0
    assert daemon.query("select count(*) from decisions") == [(0,)]


def test_text_that_is_not_utf8_is_a_request_like_any_other(daemon):
    with daemon.hook() as hook:
        line = (
            submission(name="NAME", comment="COMMENT").replace(b"NAME", b"caf\xe9").replace(b"COMMENT", b"\xff\xfe\x80")
        )
        reply = hook.ask(line)
    assert reply.error is None
    assert reply.action == "rewrite"


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"v": 1',
        b"\x00\x01\x02\xff",
        b'{"op": "submit"}',
        b"[" * 100_000,
        b'{"v": 1, "unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"v": "one"}',
    ],
    ids=lambda line: repr(line[:20]),
)
def test_garbage_gets_an_error_and_the_connection_is_closed(daemon, line):
    with daemon.hook() as hook:
        reply = hook.ask(line)
        assert reply.action == "keep" and reply.set == {}
        assert "could not be read" in reply.error
        with pytest.raises(ConnectionResetError):
            hook.ask()
    with daemon.hook() as hook:
        assert hook.ask().error is None
    assert daemon.status().faults.bad_requests == 1


def test_a_field_of_the_wrong_type_is_named_and_the_connection_goes_on(daemon):
    with daemon.hook() as hook:
        reply = hook.ask(submission(time_limit="soon"))
        assert "time_limit" in reply.error
        assert hook.ask().error is None


def test_an_operation_that_does_not_exist_is_refused(daemon):
    with daemon.hook() as hook:
        assert "$.op" in hook.ask(b'{"v": 1, "op": "drop tables"}').error
        assert hook.ask().error is None
    assert daemon.status().faults.bad_requests == 1


@pytest.mark.parametrize("extra", [{}, {"time_limit": {"minutes": 60}}])
def test_another_protocol_version_is_told_both_versions(daemon, extra):
    with daemon.hook() as hook:
        reply = hook.ask(submission(v=7, **extra))
        assert reply.action == "keep"
        assert "version 7" in reply.error and f"daemon {protocol.VERSION}" in reply.error
        assert hook.ask().error is None
    assert daemon.status().faults.other_versions == 1


def test_a_line_that_never_ends_is_refused_and_others_are_served(daemon):
    with daemon.hook() as hook, daemon.hook() as other:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(2 * protocol.MAX_LINE // 65536):
                hook._socket.sendall(b"x" * 65536)
        assert str(protocol.MAX_LINE) in hook.read().error
        assert other.ask().action == "rewrite"


def test_half_a_line_holds_nobody_up(daemon):
    with daemon.hook() as half, daemon.hook() as other:
        half._socket.sendall(submission()[:50])
        assert other.ask().action == "rewrite"
        half._socket.sendall(submission()[50:] + b"\n")
        assert half.read().action == "rewrite"


wild_text = st.one_of(
    st.text(max_size=300),
    st.sampled_from(
        ["'; drop table decisions; --", "$(touch pwned)", "`id`", "../../etc/passwd", "\x00", "%s%n", "{0}"]
    ),
)


TEXTS = (
    *("user", "account", "qos", "name", "partition", "features", "prefer", "licenses", "array", "dependency"),
    *("tres_per_node", "tres_per_job", "tres_per_task", "cpus_per_tres", "mem_per_tres"),
    *("script_head", "comment", "extra"),
)
NUMBERS = (
    *("uid", "time_limit", "min_cpus", "num_tasks", "min_nodes", "max_nodes"),
    *("min_mem_per_node", "min_mem_per_cpu"),
)


@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(TEXTS, wild_text),
            **dict.fromkeys(NUMBERS, st.integers(-(2**63), 2**63)),
            "environment": st.dictionaries(wild_text, wild_text, max_size=4),
        },
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_users_write_the_daemon_answers_and_goes_on(daemon, fields):
    with daemon.hook() as hook:
        reply = hook.ask(submission(**fields))
    assert reply.action in ("keep", "rewrite")
    assert set(reply.set) <= set(protocol.SETTABLE)
    status = daemon.status()
    assert status.faults.errors == 0, daemon.said()[-3000:]
    assert not (daemon.folder / "pwned").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to be refused")
def test_a_process_of_another_user_is_refused_even_where_the_socket_lets_it_in(make_daemon):
    daemon = make_daemon(server={"allowed_users": ["root", "64030", "no-such-user"]}).start()
    daemon.socket.chmod(0o666)
    for folder in (daemon.folder, *daemon.folder.parents):  # the test's own folders are closed to others
        if folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    program = (
        "import os, sys; from advisor.server import client; os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2])); "
        "sys.stdout.buffer.write(client.ask_line(sys.argv[1], sys.stdin.buffer.read()))"
    )

    def ask_as(uid):
        done = subprocess.run(
            [sys.executable, "-c", program, str(daemon.socket), str(uid)],
            input=submission(),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=protocol.Reply)

    assert "uid 64999 may not ask" in ask_as(64999).error
    assert ask_as(64030).action == "rewrite"  # a number that this host knows no name for
    status = daemon.status()
    assert status.faults.refused_peers == 1
    assert status.decisions.submissions == 1
    assert "no-such-user" in daemon.said()


def test_without_a_daemon_the_commands_say_how_to_start_one(tmp_path):
    with pytest.raises(client.ClientError, match=r"no daemon at .*: start it with 'advisor serve'"):
        client.status(tmp_path / "advisor.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    with pytest.raises(client.ClientError, match="advisor serve"):
        client.ping(tmp_path / "dead.sock")


def test_a_daemon_that_hangs_does_not_hang_the_commands(tmp_path):
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(tmp_path / "hung.sock"))
        hung.listen()
        with pytest.raises(client.ClientError, match=r"did not answer within 0\.2 s"):
            client.status(tmp_path / "hung.sock", timeout_s=0.2)


def test_asking_for_status_imports_nothing_heavy():
    program = (
        "import sys; import advisor.server.client; "
        "print([m for m in ('torch', 'pgmpy', 'numpy', 'sqlite_utils', 'asyncio', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_status_is_well_and_readable_by_people(daemon):
    with daemon.hook() as hook:
        hook.ask()
    wait_until(lambda: daemon.status().log.written == 1)
    status = daemon.status()
    text = "\n".join(status.lines())
    assert status.snapshot.partitions == 3
    assert status.snapshot.source == "recorded"
    assert status.latency.count == 1 and status.latency.p50_us > 0
    assert status.mode == "enforce"
    assert "1 submissions, 1 eligible, 1 rewritten" in text
    assert "test (Slurm 24.11, recorded), 3 partitions" in text
