"""Works out the answers to submissions that may come next: of several kinds in one go, or of one kind in a row.

Each is what would be answered if it came next, so none takes anything from another: the network is asked about all of
them at once. What is most of the work, waits and run times, is done for one at a time, so that whoever asks meanwhile
does not wait for all. Of a row, each answer is worked out as if those before it had been used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from advisor import protocol
from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import Ledger
from advisor.policy.decision import Case, Site, Verdict, consider_at
from advisor.policy.guarded import Guarded
from advisor.policy.interface import Policy
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
        self._ledger, self._site, self._failed, self._snapshot = ledger, site, failed, snapshot
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
        with _not_counted(self._site.policy):
            verdicts = self._together.all_at_once()
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

    def row(self, first: Prepared) -> Row | None:
        """What may follow an answer of this round, of the same kind; None where that cannot be foreseen."""
        if self._snapshot is None or first.verdict.mode == "off" or first.verdict.to_learn:
            return None
        case = Case(first.request, self._snapshot, self._site, time.time())
        if case.belongs:  # what else is submitted of its workflow bears on it
            return None
        return Row(first, self._site, self._snapshot, self._failed)


class Row:
    """Answers to one request that comes again and again, as long as nothing else happens."""

    def __init__(self, first: Prepared, site: Site, snapshot: Snapshot, failed: Callable[[Exception], None]) -> None:
        self.request = first.request
        self._site, self._snapshot, self._failed = site, snapshot, failed
        self._ledger = first.ledger
        self._branch = first.ledger.branch(snapshot)
        first.verdict.foresee(self._branch)
        # One could not be worked out, or is sent to learn what those after it are not to learn as well.
        self.over = False

    def next(self) -> Prepared | None:
        """The answer to the one that follows; None where it could not be worked out."""
        began = time.perf_counter()
        try:
            with _not_counted(self._site.policy):
                verdict = consider_at(self._site, self.request, self._snapshot, self._ledger, time.time(), self._branch)
            verdict.foresee(self._branch)
            self.over = verdict.to_learn
        except Exception as error:
            self.over = True
            self._failed(error)
            return None
        return Prepared(self.request, verdict, self._ledger, (time.perf_counter() - began) * 1e6)


@contextmanager
def _not_counted(policy: Policy) -> Iterator[None]:
    """What the policy leaves to another counts when it is used."""
    counted = dict(policy.fallbacks) if isinstance(policy, Guarded) else {}
    try:
        yield
    finally:
        if isinstance(policy, Guarded):
            policy.fallbacks.clear()
            policy.fallbacks.update(counted)
