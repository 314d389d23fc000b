"""The telemetry port: a process of its own that takes agents' batches, checks who sent them, and merges them.

Started by the daemon (`advisor.server.telemetry_child`) with the settings on standard input; it tells how it is in JSON
lines on standard output, and ends when its input closes. Merging thousands of counters here never holds the interpreter
that answers the hook. A batch is acknowledged only when it is in the database.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import Counter

import msgspec

from advisor.server import child_main, journal, peers
from advisor.server.status import TelemetryStatus
from advisor.server.telemetry_writer import Unstorable, Writer
from advisor.settings import Settings
from advisor.store import counters
from advisor.telemetry import munge, wire
from advisor.telemetry.agent import address

log = logging.getLogger("advisor.server.telemetry_port")  # also when it is run as a program

READ_S = 20.0  # for the whole of a frame
IDLE_S = 30.0  # between two frames of a connection
MOST_CONNECTIONS = 1000
# Credentials that wait to be checked; with more, agents would have given up before their turn, and come again for ever.
MOST_CHECKS = 64
NICE = 5


class Refusal(Exception):
    """A batch is not taken."""

    def __init__(self, code: wire.Code, reason: str, *, limit: int = 0) -> None:
        super().__init__(reason)
        self.answer = wire.Answer(code, reason, limit=limit)


class Port:
    """Takes batches on one address."""

    def __init__(self, settings: Settings, checker: munge.Munge, writer: Writer) -> None:
        self._limit = int(settings.telemetry.max_batch_mb * 2**20)
        self._checker = checker
        self._writer = writer
        allowed = peers.allowed(settings.telemetry.allowed_users)
        self._allowed = allowed.uids
        if allowed.unknown:
            log.warning("telemetry.allowed_users: this host does not know %s; give the uid", ", ".join(allowed.unknown))
        self._sparingly = journal.Sparingly(log)
        self._open = self._checks = 0
        self._batches = self._bytes = self._new = self._known = self._old = 0
        self._refused: Counter[str] = Counter()
        self._heard: dict[str, float] = {}  # node → when

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: frames, each answered, until the agent closes it or breaks the protocol."""
        peer = writer.get_extra_info("peername")
        where = str(peer[0]) if peer else "?"
        self._open += 1
        try:
            if self._open > MOST_CONNECTIONS:
                await self._answer(writer, self._refuse(where, Refusal("busy", "too many connections; come again")))
                return
            while True:
                answer, go_on = await self._one(reader, where)
                if answer is None:
                    return
                await self._answer(writer, answer)
                if not go_on:
                    return
        except (ConnectionError, TimeoutError):
            self._refuse(where, Refusal("malformed", "the connection broke while it was answered"))
        finally:
            self._open -= 1
            writer.close()

    @staticmethod
    async def _answer(writer: asyncio.StreamWriter, answer: wire.Answer) -> None:
        writer.write(wire.encode_answer(answer))
        async with asyncio.timeout(READ_S):
            await writer.drain()

    async def _one(self, reader: asyncio.StreamReader, where: str) -> tuple[wire.Answer | None, bool]:
        """The answer to the next frame, and whether the connection can go on; None when there is no next frame."""
        whole = False  # after a frame that was not read to its end, nothing can be made of what follows
        try:
            frame = await self._read(reader)
            if frame is None:
                return None, False
            whole = True
            credential, body = frame
            await self._admit(credential, body)
            batch = self._decode(body)
            merged = await self._writer.merge(batch)
            if isinstance(merged, Unstorable):
                raise Refusal("malformed", f"the tables refuse the batch: {merged.reason}")
            if isinstance(merged, str):
                raise Refusal("busy", merged)
        except Refusal as refusal:
            return self._refuse(where, refusal), whole
        except ConnectionError:
            return self._refuse(where, Refusal("malformed", "the connection broke in the middle of a batch")), False
        self._batches += 1
        self._bytes += len(body)
        self._new, self._known, self._old = self._new + merged.new, self._known + merged.known, self._old + merged.old
        self._heard[batch.node] = time.monotonic()
        return wire.Answer("stored", "", merged.new, merged.known, merged.old), True

    async def _read(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
        try:
            async with asyncio.timeout(IDLE_S):
                head = await reader.readexactly(wire.HEADER.size)
        except TimeoutError:
            return None
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise Refusal("malformed", "the batch is truncated: it ends in its header") from None
            return None
        magic, credential_length, body_length = wire.HEADER.unpack(head)
        if magic != wire.MAGIC:
            raise Refusal("malformed", "that is no batch of an agent of this version")
        if credential_length == 0:
            raise Refusal("credential", "the batch carries no munge credential")
        if credential_length > wire.MOST_CREDENTIAL:
            raise Refusal("oversize", f"a credential of {credential_length} bytes; {wire.MOST_CREDENTIAL} are allowed")
        if body_length > self._limit:
            reason = f"a batch of {body_length} bytes; {self._limit} are allowed (telemetry.max_batch_mb)"
            raise Refusal("oversize", reason, limit=self._limit)
        try:
            async with asyncio.timeout(READ_S):
                credential = await reader.readexactly(credential_length)
                return credential, await reader.readexactly(body_length)
        except asyncio.IncompleteReadError:
            raise Refusal("malformed", "the batch is truncated: the connection ended before it did") from None
        except TimeoutError:
            raise Refusal("malformed", f"the batch did not arrive within {READ_S:g} s") from None

    async def _admit(self, credential: bytes, body: bytes) -> None:
        if self._checks >= MOST_CHECKS:
            raise Refusal("busy", "too many credentials wait to be checked (is munged slow?); come again")
        self._checks += 1
        try:
            # munged keeps a record of credentials, so that each is good for one batch and one time.
            found = await asyncio.to_thread(self._checker.decode, credential)
        except munge.MungeAway as error:
            raise Refusal("busy", f"credentials cannot be checked: {error}") from None
        except munge.MungeError as error:
            raise Refusal("credential", f"the munge credential is not valid: {error}") from None
        finally:
            self._checks -= 1
        if found.uid not in self._allowed:
            raise Refusal("credential", f"uid {found.uid} may not send batches (telemetry.allowed_users)")
        if found.payload != wire.sealed(body):
            raise Refusal("credential", "the munge credential was made for another batch")

    def _decode(self, body: bytes) -> counters.Batch:
        try:
            batch = counters.decode(wire.unpack(body, wire.MOST_EXPANSION * self._limit))
        except (wire.WireError, ValueError) as error:
            raise Refusal("malformed", str(error)) from None
        if batch.v != wire.VERSION:
            raise Refusal("malformed", f"the batch has version {batch.v}, this daemon takes {wire.VERSION}")
        return batch

    def _refuse(self, where: str, refusal: Refusal) -> wire.Answer:
        code = refusal.answer.code
        self._refused[code] += 1
        self._sparingly.say(logging.WARNING, code, f"a batch from {where} was refused ({code}): {refusal}")
        return refusal.answer

    def status(self, listening: str) -> TelemetryStatus:
        """How the port is."""
        since = time.monotonic() - 600
        self._heard = {node: at for node, at in self._heard.items() if at > since}
        return TelemetryStatus(
            listening=listening,
            pid=os.getpid(),
            nodes=len(self._heard),
            batches=self._batches,
            bytes=self._bytes,
            samples=self._new,
            duplicates=self._known,
            old=self._old,
            refused=dict(self._refused),
            error=self._writer.error,
        )


async def run(settings: Settings) -> int:
    """Serves until standard input closes."""
    telemetry = settings.telemetry
    assert telemetry.listen is not None
    host, port = address(telemetry.listen)
    writer = Writer(settings)
    taker = Port(settings, munge.open_munge(telemetry.munge_socket, unmunge=telemetry.unmunge), writer)
    try:
        server = await asyncio.start_server(taker.serve, host, port, limit=1 << 20, backlog=1024)
    except OSError as error:
        log.error("telemetry.listen: %s cannot be listened on: %s", telemetry.listen, error.strerror or error)
        return 1
    bound = server.sockets[0].getsockname()
    listening = f"{bound[0]}:{bound[1]}"
    log.info("batches of agents are taken on %s", listening)
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: gone.set() if not os.read(0, 4096) else None)
    told = b""
    while not gone.is_set():
        line = msgspec.json.encode(taker.status(listening))
        if line != told:
            print(line.decode(), flush=True)
            told = line
        try:
            await asyncio.wait_for(gone.wait(), 1.0)
        except TimeoutError:
            continue
    server.close()
    await asyncio.to_thread(writer.close)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The child's own main."""
    child_main.begin("advisor.server.telemetry_port", NICE, arguments)
    settings = child_main.settings_given()
    return 0 if settings is None else asyncio.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
