"""Lines over the socket: cut anywhere, never ending, too many at once, and peers that do not read."""

import asyncio
import contextlib
import itertools
import socket
import threading
import time

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor import protocol
from advisor.server import connection as module
from advisor.server.connection import Answer, Connections
from advisor.server.counters import Counters
from advisor.server.peers import allowed
from tests.server.daemons import wait_until


class Echo:
    """A server that answers each line with itself; lines that start with `slow` take a while."""

    def __init__(self, path):
        self.path = str(path)
        self.counters = Counters()
        self.batches = []
        self.connections = Connections(self.answer, self.counters, self.together)
        self.connections.allowed = allowed([]).uids
        self.done = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def answer(self, line, started, hearer):
        if line.startswith(b"slow"):
            return self._slowly(line)
        if line.startswith(b"big"):
            return Answer(line + b"x" * 100_000 + b"\n")
        return Answer(line + b"\n", after=lambda: self.done.append(line), close=line == b"bye")

    def together(self, lines):
        self.batches.append(len(lines))
        for line, started, hearer in lines:
            yield self.answer(line, started, hearer)

    @contextlib.contextmanager
    def busy(self):
        """Nothing is read until the block ends."""
        free, held = threading.Event(), threading.Event()
        self._loop.call_soon_threadsafe(lambda: (held.set(), free.wait(5)))
        held.wait()
        yield
        free.set()

    async def _slowly(self, line):
        await asyncio.sleep(0.02)
        return Answer(line + b"\n")

    def _serve(self):
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(self._loop.create_unix_server(self.connections.new, self.path))
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self.connections.drain(0.0))
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    def __enter__(self):
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exc):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def connect(self):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(5)
        client.connect(self.path)
        return client


@pytest.fixture
def echo(tmp_path):
    with Echo(tmp_path / "echo.sock") as server:
        yield server


def read_to_end(client):
    received = b""
    while chunk := client.recv(65536):
        received += chunk
    return received


def read_lines(client, count):
    received = b""
    while received.count(b"\n") < count:
        chunk = client.recv(65536)
        assert chunk, f"closed after {received!r}"
        received += chunk
    return received


@given(
    lines=st.lists(st.binary(max_size=200).map(lambda b: b.replace(b"\n", b"")), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 2500), max_size=10),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_is_answered_in_order_however_the_bytes_are_cut(echo, lines, cuts):
    lines = [line for line in lines if line != b"bye" and not line.startswith(b"big")] or [b"one"]
    whole = b"".join(line + b"\n" for line in lines)
    edges = [0, *sorted({cut for cut in cuts if cut < len(whole)}), len(whole)]
    with echo.connect() as client:
        for start, end in itertools.pairwise(edges):
            client.sendall(whole[start:end])
        assert read_lines(client, len(lines)) == whole


def test_slow_answers_keep_their_place_in_the_order(echo):
    with echo.connect() as client:
        client.sendall(b"a\nslow 1\nb\nslow 2\nc\n")
        assert read_lines(client, 5) == b"a\nslow 1\nb\nslow 2\nc\n"


def test_a_slow_answer_does_not_hold_up_another_peer(echo):
    with echo.connect() as slow, echo.connect() as quick:
        slow.sendall(b"slow 1\nslow 2\nslow 3\nslow 4\nslow 5\n")
        quick.sendall(b"quick\n")
        assert read_lines(quick, 1) == b"quick\n"
        slow.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            assert slow.recv(65536).count(b"\n") < 5
        slow.settimeout(5)
        read_lines(slow, 1)


def test_half_a_line_is_not_answered_and_its_other_half_completes_it(echo):
    with echo.connect() as client:
        client.sendall(b"first ha")
        with echo.connect() as other:
            other.sendall(b"other\n")
            assert read_lines(other, 1) == b"other\n"
        client.sendall(b"lf\n")
        assert read_lines(client, 1) == b"first half\n"


def test_a_peer_that_leaves_in_the_middle_of_a_line_harms_nobody(echo):
    for _ in range(20):
        with echo.connect() as client:
            client.sendall(b'{"v": 1, "na')
    with echo.connect() as client:
        client.sendall(b"still here\n")
        assert read_lines(client, 1) == b"still here\n"


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_line_that_is_too_long_is_refused_and_the_connection_closed(echo, ending):
    with echo.connect() as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may be closed before all is sent
            client.sendall(b"x" * (protocol.MAX_LINE + 1) + ending)
        reply = msgspec.json.decode(read_lines(client, 1), type=protocol.Reply)
        assert reply.action == "keep"
        assert str(protocol.MAX_LINE) in reply.error
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""
    assert echo.counters.bad_requests == 1


def test_a_line_of_exactly_the_limit_is_answered(echo):
    line = b"y" * protocol.MAX_LINE + b"\n"
    with echo.connect() as client:
        client.sendall(line)
        assert read_lines(client, 1) == line


def test_a_peer_that_does_not_read_is_no_longer_read(echo):
    with echo.connect() as client:
        client.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(20_000):
                client.sendall(b"big question\n")
                sent += 1
        assert sent < 20_000  # 20,000 answers would be two gigabytes
        with echo.connect() as other:
            other.sendall(b"other\n")
            assert read_lines(other, 1) == b"other\n"
        client.settimeout(10)
        assert read_lines(client, 50).startswith(b"big question")  # and goes on when it reads again


def test_what_follows_the_answer_runs_after_it(echo):
    with echo.connect() as client:
        client.sendall(b"one\ntwo\n")
        read_lines(client, 2)
        deadline = time.monotonic() + 5
        while len(echo.done) < 2 and time.monotonic() < deadline:
            time.sleep(0.005)
    assert echo.done == [b"one", b"two"]


def test_the_connection_silent_longest_gives_way_when_there_are_too_many(echo):
    clients = [echo.connect() for _ in range(module.MAX_CONNECTIONS)]
    try:
        for client in clients:  # the first is the one that spoke longest ago
            client.sendall(b"hello\n")
            read_lines(client, 1)
        with echo.connect() as newcomer:
            newcomer.sendall(b"me too\n")
            assert read_lines(newcomer, 1) == b"me too\n"
        with contextlib.suppress(ConnectionResetError):
            assert clients[0].recv(100) == b""
        clients[1].sendall(b"still\n")
        assert read_lines(clients[1], 1) == b"still\n"
        assert echo.counters.evicted == 1
    finally:
        for client in clients:
            client.close()


def test_a_peer_of_a_uid_that_is_not_allowed_gets_one_line_and_is_closed(echo):
    echo.connections.allowed = frozenset({4_000_000})
    with echo.connect() as client:
        reply = msgspec.json.decode(read_to_end(client), type=protocol.Reply)
    assert "server.allowed_users" in reply.error
    assert echo.counters.refused_peers == 1


def lines_of(client, count):
    with client.makefile("rb") as replies:
        return [replies.readline() for _ in range(count)]


def test_lines_that_are_there_at_once_are_answered_together_each_to_whom_it_came_from(tmp_path):
    with Echo(tmp_path / "sock") as echo, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(echo.connect()) for _ in range(5)]
        for client in clients:
            client.sendall(b"hello\n")
            assert lines_of(client, 1) == [b"hello\n"]
        with echo.busy():
            for number, client in enumerate(clients):
                client.sendall(b"%d\n" % number)
        for number, client in enumerate(clients):
            assert lines_of(client, 1) == [b"%d\n" % number]
        assert echo.batches == [5]
        wait_until(lambda: len(echo.done) == 10)  # what is to be done after a reply is done for each


def test_of_peers_that_come_together_each_is_served_as_if_it_were_alone(tmp_path):
    with Echo(tmp_path / "sock") as echo, contextlib.ExitStack() as stack:
        plain, half, several, slow, gone, bye, long = (stack.enter_context(echo.connect()) for _ in range(7))
        for client in (plain, half, several, slow, gone, bye, long):
            client.sendall(b"hello\n")
            assert lines_of(client, 1) == [b"hello\n"]
        with echo.busy():
            plain.sendall(b"a\n")
            half.sendall(b"first ")
            several.sendall(b"b\nslow c\nd\n")
            slow.sendall(b"slow e\nf\n")
            gone.sendall(b"g\n")
            gone.close()
            bye.sendall(b"bye\n")
            long.sendall(b"x" * 1000)
        half.sendall(b"half\n")
        assert lines_of(plain, 1) == [b"a\n"]
        assert lines_of(half, 1) == [b"first half\n"]
        assert lines_of(several, 3) == [b"b\n", b"slow c\n", b"d\n"]
        assert lines_of(slow, 2) == [b"slow e\n", b"f\n"]
        assert lines_of(bye, 2) == [b"bye\n", b""]
        long.sendall(b"y\n")
        assert lines_of(long, 1) == [b"x" * 1000 + b"y\n"]
        assert echo.batches and max(echo.batches) >= 3


def test_no_more_than_so_many_are_taken_together(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_TOGETHER", 3)
    with Echo(tmp_path / "sock") as echo, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(echo.connect()) for _ in range(7)]
        with echo.busy():
            for client in clients:
                client.sendall(b"x\n")
        for client in clients:
            assert lines_of(client, 1) == [b"x\n"]
        assert max(echo.batches) == 3
