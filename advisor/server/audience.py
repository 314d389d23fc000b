"""What one hook asks for, and what was prepared for it."""

from __future__ import annotations

import time
from collections import OrderedDict, deque

from advisor import protocol
from advisor.server.preparing import Prepared, Row

# As many as the hook keeps.
MAX_KINDS = 8
# Answers that do not hold any more, and of which the hook may still say that it used them.
_MAX_PASSED = 64


class Handed:
    """A row of answers that the hook has, or will be sent next."""

    def __init__(self, row: Row, number: int, now: float) -> None:
        self.row = row
        self.last = number  # that was handed over
        self.unused: deque[tuple[int, float]] = deque([(number, now)])  # and when it was worked out
        self.ready: list[tuple[Prepared, float]] = []

    def __len__(self) -> int:
        return len(self.unused) + len(self.ready)


class Audience:
    """One hook, as the daemon knows it."""

    def __init__(self) -> None:
        self.kinds: OrderedDict[int, tuple[protocol.SubmitRequest, float]] = OrderedDict()  # the latest one last
        self.waiting: dict[int, Prepared] = {}
        self.row: Handed | None = None  # these are among those that wait
        # What waited before the last submission. A hook's first note comes on a connection that has to be taken first,
        # and may be read after a request that it sent later.
        self.passed: dict[int, Prepared] = {}
        self.in_a_row = 0  # submissions of the latest kind
        self.notes = 0
        self.heard_at = 0.0
        self.gone = False  # but what it has noted may still be read

    def heard(self, request: protocol.SubmitRequest | None, row: Handed | None = None) -> None:
        """A submission has come; whatever was prepared was worked out without it, but for a row that goes on."""
        holds = {}
        for number, _ in row.unused if row is not None else ():
            holds[number] = self.waiting.pop(number)
        self.passed.update(self.waiting)
        while len(self.passed) > _MAX_PASSED:
            del self.passed[next(iter(self.passed))]
        self.waiting, self.row = holds, row
        self.heard_at = time.monotonic()
        if request is None:
            self.in_a_row = 0
            return
        self.in_a_row = self.in_a_row + 1 if request.kind == next(reversed(self.kinds), None) else 1
        self.kinds[request.kind] = (request, self.heard_at)
        self.kinds.move_to_end(request.kind)
        if len(self.kinds) > MAX_KINDS:
            self.kinds.popitem(last=False)

    def used(self, number: int) -> Prepared | None:
        """The hook has used this answer; None where it is none of its own."""
        found = self.waiting.pop(number, None) or self.passed.pop(number, None)
        if found is None:
            return None
        self.notes += 1
        row = self.row
        if row is not None and row.unused and row.unused[0][0] == number:
            row.unused.popleft()
        else:
            row = None
        self.heard(found.request, row)
        return found
