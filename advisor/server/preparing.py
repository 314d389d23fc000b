"""Works out the answers to submissions that may come next, for several kinds of them in one go.

Each is what would be answered if it came next, so none takes anything from another: the network is asked about all of
them at once. What is most of the work, waits and run times, is done for one at a time, so that whoever asks meanwhile
does not wait for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from advisor import protocol
from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import Ledger
from advisor.policy.decision import Site, Verdict
from advisor.policy.guarded import Guarded
from advisor.policy.together import Together


class Prepared(msgspec.Struct, frozen=True):
    """An answer to a submission that may come."""

    request: protocol.SubmitRequest
    verdict: Verdict
    ledger: Ledger  # on which it would be booked
    took_us: float


class Preparing:
    """One round of it, on one snapshot and ledger."""

    def __init__(
        self, site: Site, snapshot: Snapshot | None, ledger: Ledger, failed: Callable[[Exception], None]
    ) -> None:
        self._ledger, self._site, self._failed = ledger, site, failed
        self._requests: list[protocol.SubmitRequest] = []
        self._together = Together((), snapshot, ledger, site, time.time())
        self.took_us = 0.0

    def take(self, request: protocol.SubmitRequest) -> None:
        """One more kind."""
        began = time.perf_counter()
        self._requests.append(request)
        self._together.add(request)
        self._together.expect()
        self.took_us += (time.perf_counter() - began) * 1e6

    def answers(self) -> list[Prepared | None]:
        """One for each that was taken; None where it could not be worked out."""
        began = time.perf_counter()
        policy = self._site.policy
        counted = dict(policy.fallbacks) if isinstance(policy, Guarded) else {}
        verdicts = self._together.all_at_once()
        if isinstance(policy, Guarded):  # these count when they are used
            policy.fallbacks.clear()
            policy.fallbacks.update(counted)
        self.took_us += (time.perf_counter() - began) * 1e6
        each_us = self.took_us / max(len(verdicts), 1)
        found: list[Prepared | None] = []
        for request, verdict in zip(self._requests, verdicts, strict=True):
            if isinstance(verdict, Exception):
                self._failed(verdict)
                found.append(None)
            else:
                found.append(Prepared(request, verdict, self._ledger, each_us))
        return found
