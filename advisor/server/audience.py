"""What one hook asks for, and what was prepared for it."""

from __future__ import annotations

import time
from collections import OrderedDict, deque

from advisor import protocol
from advisor.server.preparing import Prepared, Row

# As many as the hook keeps.
MAX_KINDS = 8
# Answers that do not hold any more, and of which the hook may still say that it used them.
_MAX_PASSED = 128
_MAX_HEARD = 64
PACE_S = 5.0

Named = tuple[int, int]  # an answer that was handed over: by the number of what it was handed over with, and its place


class Handed:
    """A row of answers that the hook has, or will be sent next."""

    def __init__(self, row: Row, number: int, now: float) -> None:
        self.row = row
        self.last = number  # under which some of it was handed over
        self.unused: deque[tuple[Named, float]] = deque([((number, 0), now)])  # and when it was worked out
        self.ready: list[Prepared] = []  # worked out, and not handed over yet
        self.ready_since = 0.0  # the first of them
        self.said = 0  # characters that they tell the user

    def __len__(self) -> int:
        return len(self.unused) + len(self.ready)

    def add(self, prepared: Prepared, now: float) -> None:
        """One more is ready."""
        if not self.ready:
            self.ready_since = now
        self.ready.append(prepared)
        self.said += len(prepared.verdict.message or "")

    def handed(self, number: int) -> None:
        """What was ready is with the hook, under this number."""
        self.last = number
        self.unused.extend(((number, place), self.ready_since) for place in range(len(self.ready)))
        self.ready, self.said = [], 0


class Audience:
    """One hook, as the daemon knows it."""

    def __init__(self) -> None:
        self.kinds: OrderedDict[int, tuple[protocol.SubmitRequest, float]] = OrderedDict()  # the latest one last
        self.waiting: dict[Named, Prepared] = {}
        self.row: Handed | None = None  # these are among those that wait
        # What waited before the last submission. A hook's first note comes on a connection that has to be taken first,
        # and may be read after a request that it sent later.
        self.passed: dict[Named, Prepared] = {}
        self.in_a_row = 0  # submissions of the latest kind
        self.pace = 0  # the most of them within `PACE_S` so far, less what was prepared in vain
        self._heard: deque[float] = deque(maxlen=_MAX_HEARD)  # when, of the last ones
        self.notes = 0
        self.heard_at = 0.0
        self.gone = False  # but what it has noted may still be read

    def heard(self, request: protocol.SubmitRequest | None, row: Handed | None = None) -> None:
        """A submission has come; whatever was prepared was worked out without it, but for a row that goes on."""
        self.row = row
        if row is None or len(row.unused) < len(self.waiting):
            holds = {}
            for name, _ in row.unused if row is not None else ():
                holds[name] = self.waiting.pop(name)
            self.passed.update(self.waiting)
            while len(self.passed) > _MAX_PASSED:
                del self.passed[next(iter(self.passed))]
            self.waiting = holds
        self.heard_at = time.monotonic()
        if request is None:
            self.in_a_row = 0
            return
        self._keep_pace(request.kind)
        self.kinds[request.kind] = (request, self.heard_at)
        self.kinds.move_to_end(request.kind)
        if len(self.kinds) > MAX_KINDS:
            self.kinds.popitem(last=False)

    def _keep_pace(self, kind: int) -> None:
        if kind != next(reversed(self.kinds), None):
            self.in_a_row = self.pace = 0
            self._heard.clear()
        self.in_a_row += 1
        self._heard.append(self.heard_at)
        self.pace = max(self.pace, sum(at >= self.heard_at - PACE_S for at in self._heard))

    def used(self, name: Named) -> Prepared | None:
        """The hook has used this answer; None where it is none of its own."""
        found = self.waiting.pop(name, None) or self.passed.pop(name, None)
        if found is None:
            return None
        self.notes += 1
        row = self.row
        if row is not None and row.unused and row.unused[0][0] == name:
            row.unused.popleft()
        else:
            row = None
        self.heard(found.request, row)
        return found
