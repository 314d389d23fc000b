"""Brings what is in the spool to the daemon, oldest first, and waits longer each time the daemon does not answer."""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from advisor.telemetry import wire
from advisor.telemetry.munge import Munge, MungeError
from advisor.telemetry.spool import Segment, Spool

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 300.0
# A daemon that answers, if only to say that it is busy, is asked again sooner: at most so many usual pauses later.
BUSY_PAUSES = 3


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Clocks:
    """The node's clocks, as the daemon needs them to tell when a sample was made by its own."""

    wall: Callable[[], float] = time.time
    boot: Callable[[], float] = _boottime


class Courier:
    """Delivers for one node."""

    def __init__(
        self,
        spool: Spool,
        munge: Munge,
        address: tuple[str, int],
        node: str,
        boot: str,
        clocks: Clocks | None = None,
        cluster: str = "",
        timeout_s: float = 20.0,
    ) -> None:
        self._spool = spool
        self._munge = munge
        self._address = address
        self._node, self._cluster, self._boot = node, cluster, boot
        self._clocks = clocks or Clocks()
        self._timeout_s = timeout_s
        self._failures = 0
        self._busy = False  # at the last failure the daemon answered
        self._trouble = ""
        self.delivered = 0  # samples
        self.refused = 0  # samples the daemon will never take

    def pause_s(self, usual_s: float) -> float:
        """How long to wait before the next delivery; a thousand nodes must not all return in the same second."""
        longest = BUSY_PAUSES * usual_s if self._busy else LONGEST_PAUSE_S
        pause = usual_s if not self._failures else min(longest, usual_s * 2 ** min(self._failures, 10))
        return max(pause, usual_s) * random.uniform(0.8, 1.2)

    def deliver(self) -> bool:
        """Sends all that waits; false if some of it has to be tried again later."""
        segment = self._spool.oldest()
        if segment is None:
            return True
        try:
            with socket.create_connection(self._address, timeout=self._timeout_s) as connection:
                connection.settimeout(self._timeout_s)
                while segment is not None:
                    if not self._hand_over(connection, segment):
                        return False
                    segment = self._spool.oldest()
        except (OSError, wire.WireError, MungeError) as error:
            self._failed(str(error) or type(error).__name__)
            return False
        if self._trouble:
            log.info("the daemon takes batches again")
        self._failures, self._trouble = 0, ""
        return True

    def _failed(self, trouble: str, busy: bool = False) -> None:
        self._failures += 1
        self._busy = busy
        if trouble != self._trouble:
            log.warning("%s:%d: %s; samples wait in the spool", *self._address, trouble)
            self._trouble = trouble

    def _hand_over(self, connection: socket.socket, segment: Segment) -> bool:
        """Sends one segment; false if it stays in the spool."""
        answer = self._exchange(connection, segment)
        if answer.code == "oversize" and self._spool.halve(segment):
            raise wire.WireError(f"a batch was too large ({answer.reason}); it goes in two")
        if answer.code == "stored":
            self.delivered += len(segment.samples)
        elif answer.settled or answer.code == "oversize":
            self.refused += len(segment.samples)
            log.error("the daemon will not take %d samples: %s", len(segment.samples), answer.reason)
        else:
            self._failed(f"refused ({answer.code}): {answer.reason}", answer.code == "busy")
            # Others first: what is wrong may be wrong with this one alone, and order does not matter.
            self._spool.later(segment)
            return False
        self._spool.done(segment)
        return True

    def _exchange(self, connection: socket.socket, segment: Segment) -> wire.Answer:
        body = wire.pack(self._batch(segment))
        connection.sendall(wire.frame(self._munge.encode(wire.sealed(body)), body))
        (length,) = wire.LENGTH.unpack(_exactly(connection, wire.LENGTH.size))
        if length > wire.MOST_ANSWER:
            raise wire.WireError(f"an answer of {length} bytes was announced; is that a slurm-advisor daemon?")
        return wire.decode_answer(_exactly(connection, length))

    def _batch(self, segment: Segment) -> dict[str, Any]:
        return {
            "v": wire.VERSION,
            "node": self._node,
            "cluster": self._cluster,
            "boot": segment.boot,
            "run": segment.run,
            "now": self._clocks.wall(),
            # Seconds since boot age a sample exactly, however the clock was set meanwhile; not across a reboot.
            "now_b": self._clocks.boot() if segment.boot == self._boot else None,
            "samples": segment.samples,
        }


def _exactly(connection: socket.socket, count: int) -> bytes:
    chunks = []
    while count:
        chunk = connection.recv(min(count, 1 << 16))
        if not chunk:
            raise wire.WireError("the daemon closed the connection in the middle of its answer")
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)
