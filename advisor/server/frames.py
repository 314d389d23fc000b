"""What the daemon and its collector process tell each other: msgpack frames with a length before each.

The collector parses what Slurm prints and schedules the queue ahead; doing that in a process of its own
keeps the daemon's interpreter free to answer. Only finished snapshots cross this pipe.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from advisor.performance.snapshot import RunTimes, Snapshot
from advisor.performance.told import Told
from advisor.policy.remembered import Remembered
from advisor.settings import Settings

_LENGTH = struct.Struct(">I")
MAX_FRAME = 256 << 20


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    """Daemon → collector: the settings to work with from now on."""

    settings: Settings


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """Daemon → collector: every decision made before `at` has left the log's buffer."""

    at: float


class Submitted(msgspec.Struct, frozen=True, tag="submitted"):
    """Daemon → collector: what the learned policy has seen submitted, for the rounds' own."""

    remembered: Remembered


class Polled(msgspec.Struct, frozen=True, tag="polled"):
    """Collector → daemon: how things stand; without history, and with the tokens new since the last one."""

    snapshot: Snapshot
    source: str
    took_s: float


class History(msgspec.Struct, frozen=True, tag="history"):
    """Collector → daemon: past run times of some apps; `last` completes the set. And how waits and work are off."""

    apps: dict[str, dict[str, RunTimes]]
    last: bool
    waits: dict[str, tuple[tuple[float, float, float], ...]] = {}
    told: Told | None = None


class Collected(msgspec.Struct, frozen=True, tag="collected"):
    """Collector → daemon: outcomes were fetched from accounting."""

    at: float


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Collector → daemon: how many decisions never reached the log, in all."""

    count: int


class Rounded(msgspec.Struct, frozen=True, tag="rounded"):
    """Collector → daemon: one look at the pending jobs, and what came of it."""

    at: float
    took_s: float
    looked_at: int = 0  # pending jobs that might have moved
    outcomes: dict[str, dict[str, int]] = {}  # lever → outcome (see `advisor.store.moves`) → jobs


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Collector → daemon: something could not be done; it will be tried again."""

    what: str  # poll, history, collect, tokens, rounds
    error: str


class Recovered(msgspec.Struct, frozen=True, tag="recovered"):
    """Collector → daemon: what had failed works again."""

    what: str


ToCollector = Configure | Drained | Submitted
FromCollector = Polled | History | Collected | Lost | Rounded | Failed | Recovered

Message = TypeVar("Message")


class FrameError(Exception):
    """The other end does not speak this protocol."""


def encode(message: ToCollector | FromCollector) -> bytes:
    """One message as a frame."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames(Generic[Message]):
    """Cuts a stream of bytes into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """The messages that `chunk` completes."""
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes was announced; the most is {MAX_FRAME}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(memoryview(self._buffer)[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                yield self._decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise FrameError(f"a frame could not be read: {error}") from None


def from_collector() -> Frames[FromCollector]:
    """The daemon's end."""
    return Frames(msgspec.msgpack.Decoder(FromCollector))


def to_collector() -> Frames[ToCollector]:
    """The collector's end."""
    return Frames(msgspec.msgpack.Decoder(ToCollector))
