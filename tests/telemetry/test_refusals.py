"""Whoever has no valid credential, and whatever is no sound batch, is refused with a reason, logged and counted."""

import logging
import os
import socket
import subprocess
import time
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.server import telemetry_port
from advisor.telemetry import wire
from tests.telemetry.ports import Munged

NOW = 1_800_000_000.0
SAMPLE = {"n": 0, "t": NOW, "b": 1.0, "dt": 10.0, "jobs": [{"job": 1, "m": {"cpu.user": 1.0}}], "node": {}}


def batch(**fields):
    given = {"v": 1, "node": "n1", "boot": "b", "run": "b.1", "now": NOW, "now_b": 1.0, "samples": [SAMPLE]}
    return wire.pack({**given, **fields})


@pytest.fixture
def port(make_port, caplog):
    caplog.set_level(logging.WARNING)
    return make_port(now=NOW)


def sealed(munged, body):
    return wire.frame(munged.munge().encode(wire.sealed(body)), body)


def refused(port, answer, code, says):
    assert answer.code == code
    assert says in answer.reason
    assert port.status().refused[code] >= 1
    if port.database.exists():
        assert port.rows("SELECT count(*) FROM job_nodes") == [(0,)]


def test_a_batch_with_a_valid_credential_is_stored(port, munged):
    answer = port.send(sealed(munged, batch()))
    assert (answer.code, answer.new) == ("stored", 1)
    assert port.status().refused == {}


def test_no_credential(port, caplog):
    refused(port, port.send(wire.frame(b"", batch())), "credential", "no munge credential")
    assert "127.0.0.1 was refused (credential)" in caplog.text


def test_a_credential_that_is_none(port):
    refused(port, port.send(wire.frame(b"MUNGE:nonsense:", batch())), "credential", "not valid")


def test_a_credential_of_another_cluster(port, tmp_path):
    stranger = Munged(tmp_path / "elsewhere")
    try:
        refused(port, port.send(sealed(stranger, batch())), "credential", "not valid")
    finally:
        stranger.stop()


def test_a_credential_made_for_another_batch(port, munged):
    body = batch()
    other = munged.munge().encode(wire.sealed(batch(node="n2")))
    refused(port, port.send(wire.frame(other, body)), "credential", "another batch")


def test_a_credential_that_was_used_before(port, munged):
    frame = sealed(munged, batch())
    assert port.send(frame).code == "stored"
    again = port.send(frame)
    assert again.code == "credential" and "eplayed" in again.reason
    assert port.rows("SELECT n FROM job_counters") == [(1,)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_valid_credential_of_a_user_who_is_not_allowed(port, munged):
    body = batch()
    # munge hands out credentials to any user of the host; nobody's must not count.
    made = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "munge", f"--socket={munged.socket}"],
        input=wire.sealed(body),
        capture_output=True,
        check=True,
    )
    refused(port, port.send(wire.frame(made.stdout.strip(), body)), "credential", "uid 65534 may not send")


def test_a_user_may_be_allowed_by_number(make_port, munged):
    port = make_port(now=NOW, allowed_users=[str(os.geteuid()), "nobody-of-that-name"])
    assert port.send(sealed(munged, batch())).code == "stored"


def test_an_oversize_batch_is_refused_before_it_is_read(port):
    head = wire.HEADER.pack(wire.MAGIC, 100, 5 << 20)
    answer = port.send(head)
    refused(port, answer, "oversize", "telemetry.max_batch_mb")
    assert answer.limit == 4 << 20


def test_an_oversize_credential(port):
    refused(port, port.send(wire.HEADER.pack(wire.MAGIC, 1 << 20, 10)), "oversize", "credential")


def test_a_batch_that_grows_without_end_when_unpacked(make_port, munged):
    port = make_port(now=NOW, max_batch_mb=0.1)
    bomb = zlib.compress(b" " * (50 << 20), 9)
    refused(port, port.send(sealed(munged, bomb)), "malformed", "decompressed")


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_a_truncated_batch(port, munged, share):
    frame = sealed(munged, batch())
    refused(port, port.send(frame[: max(3, int(len(frame) * share))], hang_up=True), "malformed", "truncated")


def test_a_batch_that_stops_in_the_middle(port, munged, monkeypatch):
    monkeypatch.setattr(telemetry_port, "READ_S", 0.3)
    frame = sealed(munged, batch())
    refused(port, port.send(frame[:-10]), "malformed", "did not arrive")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"not compressed", "decompressed"),
        (zlib.compress(b"{}")[:-4], "middle"),
        (zlib.compress(b"not json"), "cannot be read"),
        (batch(v=99), "version 99"),
        (batch(node=""), "node"),
        (batch(samples=[{**SAMPLE, "jobs": [{"job": -1, "m": {}}]}]), "job"),
    ],
)
def test_a_batch_that_cannot_be_read(port, munged, body, says):
    refused(port, port.send(sealed(munged, body)), "malformed", says)


def test_another_protocol(port):
    refused(port, port.send(b"GET / HTTP/1.1\r\nHost: ctl\r\n\r\n"), "malformed", "no batch")


def test_a_connection_may_carry_on_after_a_batch_that_was_refused(port, munged):
    with socket.create_connection(port.address, timeout=20) as connection:
        for body, code in ((zlib.compress(b"{"), "malformed"), (batch(), "stored")):
            connection.sendall(sealed(munged, body))
            (length,) = wire.LENGTH.unpack(connection.recv(4))
            assert wire.decode_answer(connection.recv(length)).code == code


def test_many_refusals_write_few_lines(port, caplog):
    for _ in range(30):
        port.send(wire.frame(b"", batch()))
    assert port.status().refused == {"credential": 30}
    assert caplog.text.count("was refused") == 1


def test_an_idle_connection_is_closed(port, monkeypatch):
    monkeypatch.setattr(telemetry_port, "IDLE_S", 0.2)
    with socket.create_connection(port.address, timeout=20) as connection:
        assert connection.recv(1) == b""
    assert port.status().refused == {}


def test_more_credentials_than_munged_can_check_in_time_are_told_to_come_again(port, munged, monkeypatch):
    monkeypatch.setattr(telemetry_port, "MOST_CHECKS", 0)
    refused(port, port.send(sealed(munged, batch())), "busy", "too many credentials wait")
    monkeypatch.setattr(telemetry_port, "MOST_CHECKS", 1)
    assert [port.send(sealed(munged, batch(run=f"b.{n}"))).code for n in range(3)] == ["stored"] * 3


def test_more_connections_than_are_allowed_are_told_to_come_again(port, munged, monkeypatch):
    monkeypatch.setattr(telemetry_port, "MOST_CONNECTIONS", 2)
    held = [socket.create_connection(port.address) for _ in range(2)]
    try:
        time.sleep(0.2)
        assert port.send(sealed(munged, batch())).code == "busy"
    finally:
        for connection in held:
            connection.close()
    deadline = time.monotonic() + 10
    while port.send(sealed(munged, batch(run="b.2"))).code != "stored":
        assert time.monotonic() < deadline


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_garbage_never_ends_the_port(port, munged, data):
    port.send(data, hang_up=True)
    port.send(wire.HEADER.pack(wire.MAGIC, 5, len(data)) + b"MUNGE" + data, hang_up=True)
    assert port.port._open <= 2


@given(st.binary(max_size=300))
def test_no_answer_confuses_an_agent(data):
    try:
        wire.decode_answer(data)
    except wire.WireError as error:
        assert str(error)
