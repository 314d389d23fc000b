"""One connection to the daemon: bytes in, lines out, with bounded memory.

An `asyncio.BufferedProtocol`, not streams: the reply is on its way in the same turn of the event loop in which the
request arrived, and nothing large is allocated for it. slurmctld asks every few milliseconds at most, so each request
finds cold caches: the less is touched before the reply, the better. A peer that stops reading stops being read;
a line that does not end is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import cast

import msgspec

from advisor import protocol
from advisor.server.counters import Counters
from advisor.server.journal import Sparingly
from advisor.server.peers import Peer, peer_of

log = logging.getLogger(__name__)

# slurmctld holds one connection, commands come and go; each may hold one unfinished line.
MAX_CONNECTIONS = 64
# So many submissions that have come at once are taken together; the first of them waits while all are read.
MOST_TOGETHER = 16
# Between a reply and what is left to do for it. A busy machine runs whom the reply woke on the core that we are on:
# slurmctld would wait until we are done.
PAUSE_S = 0.001
_READ_BYTES = 64 * 1024
_NEWLINE = 10


class Answer(msgspec.Struct, frozen=True):
    """What to send back for one line (nothing: it was no question), and what to do once it is sent."""

    line: bytes
    after: Callable[[], None] | None = None
    close: bool = False
    quiet: bool = False  # nobody will wait for an answer on this connection: it is looked at now and then (`look`)


# A line, `time.perf_counter()` when it was complete, and whom it came from.
Answering = Callable[[bytes, float, "Connection"], Answer | Awaitable[Answer]]
# Several of them, found at once; an answer for each, in their order.
AnsweringTogether = Callable[[Sequence[tuple[bytes, float, "Connection"]]], Iterable[Answer | Awaitable[Answer]]]


def refusal(text: str) -> bytes:
    """An error reply; the hook leaves the job as it is."""
    return msgspec.json.encode(protocol.Reply(v=protocol.VERSION, error=text)) + b"\n"


class Connections:
    """All open connections, and what they share."""

    def __init__(self, answer: Answering, counters: Counters, together: AnsweringTogether | None = None) -> None:
        self.answer = answer
        self.counters = counters
        self.allowed: frozenset[int] = frozenset()
        self.open: set[Connection] = set()
        self._together = together
        self._busy = False  # answering several
        self.sparingly = Sparingly(log)
        # What is read is taken out of it at once, so all connections share it.
        self.arriving = memoryview(bytearray(_READ_BYTES))

    def new(self) -> Connection:
        """For `loop.create_unix_server`."""
        return Connection(self)

    def make_room(self) -> None:
        """At the limit the connection that was silent longest gives way: slurmctld must be able to return."""
        if len(self.open) < MAX_CONNECTIONS:
            return
        oldest = min(self.open, key=lambda connection: connection.used_at)
        self.counters.evicted += 1
        self.sparingly.say(
            logging.WARNING,
            "evicted",
            f"{MAX_CONNECTIONS} connections are open; closed the one that was silent longest",
        )
        oldest.abort()

    def took_others(self, first: Connection, line: bytes) -> bool:
        """Answers this line together with those that have come on other connections; false where there are none.

        Nobody is waited for: on each connection what is there is there. slurmctld has one that asks, so this is for
        several controllers, and costs nothing with one.
        """
        if self._together is None or self._busy or len(self.open) < 2:
            return False
        found = [(line, time.perf_counter(), first)]
        for other in self.open:
            if other is not first and (more := other.take_line()) is not None:
                found.append((more, time.perf_counter(), other))
                if len(found) == MOST_TOGETHER:
                    break
        if len(found) < 2:
            return False
        self._busy = True
        try:
            for (_, _, connection), answer in zip(found, self._together(found), strict=True):
                connection.respond(answer)
            for _, _, connection in found[1:]:
                connection.advance()
        finally:
            self._busy = False
        return True

    async def drain(self, grace_s: float) -> None:
        """Answers what has already arrived, then closes every connection once its reply is out."""
        await asyncio.sleep(grace_s)
        for connection in list(self.open):
            await connection.finish()


class Connection(asyncio.BufferedProtocol):
    """A peer, the line it is sending, and its replies."""

    def __init__(self, shared: Connections) -> None:
        self._shared = shared
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None  # for replies, past the transport
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer known to hold no newline
        self._held = False  # the peer does not read its replies
        self._slow: asyncio.Task[None] | None = None  # an answer that needs more than the hot path
        self.used_at = time.monotonic()
        self.lines = 0  # that were received
        self._quiet = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        peer = peer_of(self._socket)
        if peer.uid not in self._shared.allowed:
            self._refuse(peer)
            return
        self._shared.make_room()
        self._shared.open.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.arriving

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.used_at = time.monotonic()
        arrived = self._shared.arriving[:nbytes]
        if not self._buffer and arrived[-1] == _NEWLINE and not self._held and self._slow is None:
            line = bytes(arrived[:-1])
            if b"\n" not in line:  # one whole line, as slurmctld's hook sends it
                self._answer(line)
                return
        self._buffer += arrived
        self.advance()

    def eof_received(self) -> bool:
        return self._slow is not None  # a peer that only shut down its writing side still gets its reply

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._buffer.clear()
        self._shared.open.discard(self)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def pause_writing(self) -> None:
        self._held = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._held = False
        self.advance()
        self._read_on()

    def abort(self) -> None:
        """Closes at once."""
        self._shared.open.discard(self)
        if self._transport is not None:
            self._transport.abort()

    def say(self, line: bytes) -> bool:
        """Sends a line that nobody has asked for; false where the peer is gone or does not read."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._held or transport.get_write_buffer_size():
            return False
        self._write(line)
        return True

    def look(self) -> bool:
        """Takes in what has come on a quiet connection; false when it is closed."""
        if self._socket is None or self._transport is None:
            return False
        try:
            arrived = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            arrived = b""
        if not arrived:
            self._close()
            return False
        self.used_at = time.monotonic()
        self._buffer += arrived
        self.advance()
        return True

    def fileno(self) -> int:
        """Of the socket that is looked at; -1 when it is closed."""
        return self._socket.fileno() if self._socket is not None else -1

    def end_notes(self) -> None:
        """Lets nothing more come; whoever sends finds that out at once. What has come is found by `look`."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # closed by the peer
                self._socket.shutdown(socket.SHUT_RD)

    async def finish(self) -> None:
        """Closes once the answer under way is sent, and what was noted is read."""
        if self._quiet:
            self.look()
        if self._slow is not None:
            await asyncio.wait({self._slow}, timeout=2.0)
        if self._transport is not None:
            self._transport.close()

    def _refuse(self, peer: Peer) -> None:
        self._shared.counters.refused_peers += 1
        self._shared.sparingly.say(
            logging.WARNING,
            f"refused uid {peer.uid}" if self._shared.counters.refused_peers < 100 else "refused",
            f"refused a connection from uid {peer.uid} (pid {peer.pid}); "
            f"if it is slurmctld's user, add it to server.allowed_users",
        )
        assert self._transport is not None
        self._transport.write(
            refusal(f"uid {peer.uid} may not ask this daemon; an admin may add it to server.allowed_users")
        )
        self._transport.close()

    def take_line(self) -> bytes | None:
        """The next line, where the whole of it has come and the peer takes the answer; the loop need not tell."""
        if self._quiet or self._held or self._slow is not None or self._socket is None or self._transport is None:
            return None
        if self._transport.is_closing():
            return None
        try:
            arrived = self._socket.recv(_READ_BYTES)
        except OSError:  # nothing there; or its transport will find out what is wrong
            return None
        if not arrived:
            return None  # the peer has closed, which its transport is told as well
        self.used_at = time.monotonic()
        self._buffer += arrived
        line = self._next_line()
        if line is not None:
            self.lines += 1
        return line

    def advance(self) -> None:
        """Answers every complete line, as long as the peer takes the answers."""
        while (line := self._next_line()) is not None:
            self._answer(line)

    def _next_line(self) -> bytes | None:
        if self._transport is None or self._held or self._slow is not None:
            return None
        end = self._buffer.find(b"\n", self._searched)
        if (end if end >= 0 else len(self._buffer)) > protocol.MAX_LINE:
            self._too_long()
            return None
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = bytes(memoryview(self._buffer)[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def _answer(self, line: bytes) -> None:
        self.lines += 1
        if self._quiet or not self._shared.took_others(self, line):
            self.respond(self._shared.answer(line, time.perf_counter(), self))

    def respond(self, answer: Answer | Awaitable[Answer]) -> None:
        """Sends an answer, at once or when it is there."""
        if isinstance(answer, Answer):
            self._send(answer)
        elif self._transport is not None:
            self._transport.pause_reading()
            self._slow = asyncio.ensure_future(self._send_later(answer))

    async def _send_later(self, awaited: Awaitable[Answer]) -> None:
        answer = await awaited
        self._slow = None
        self._send(answer)
        self.advance()
        self._read_on()

    def _send(self, answer: Answer) -> None:
        if answer.line:
            self._write(answer.line)
        if answer.after is not None and not self._quiet:  # whoever looks there does it then
            asyncio.get_running_loop().call_later(PAUSE_S, answer.after)
        if answer.quiet and self._transport is not None:
            self._quiet = True
            self._transport.pause_reading()
        if answer.close:
            self._close()

    def _read_on(self) -> None:
        if self._transport is not None and not self._held and self._slow is None and not self._quiet:
            self._transport.resume_reading()

    def _write(self, line: bytes) -> None:
        """Hands the line to the kernel now: a transport may put it off until the end of the loop's turn."""
        transport = self._transport
        if transport is None:
            return
        if self._socket is not None and not transport.get_write_buffer_size():
            sent = 0
            with contextlib.suppress(OSError):  # full, or the peer is gone: the transport knows what to do
                sent = self._socket.send(line)
            if sent == len(line):
                return
            line = line[sent:]
        transport.write(line)

    def _too_long(self) -> None:
        self._shared.counters.bad_requests += 1
        if self._transport is not None:
            self._transport.write(refusal(f"a request is one line of at most {protocol.MAX_LINE} bytes"))
        self._close()

    def _close(self) -> None:
        self._buffer.clear()
        self._searched = 0
        if self._transport is not None:
            self._transport.close()
            self._transport = None
