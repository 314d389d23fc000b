"""Answers worked out before they are asked for, so that slurmctld need not wait for them.

Users submit the same script again and again. Once a decision is made and booked, the answer to the *next* submission
of each of the last few kinds of requests is worked out and sent ahead to a hook that takes such answers. It finds it
there when such a job comes, notes that it uses it, and applies it; only then is it a decision: completed, booked,
counted and logged. Each has a token and a draw of its own. What is not used is forgotten, and nobody ever hears of it.

Where one kind is submitted again and again, several answers to it are worked out in a row, each with the ones before it
booked, and sent at once: the hook reads seldom, and so does the daemon, which completes several when it looks.

An answer holds for one submission only: it tells after how many requests and notes of that hook it was worked
out, so a hook that has sent another one since passes it over, and in a row also which answer must have been
used last. A new snapshot, other settings or a decision for
somebody else take it back; and it is good for `GOOD_S` at most.

Notes are looked for, not waited for: a process that slurmctld wakes up takes the core from it, or makes it send an
interrupt to another one. As long as an answer may be used, that is done every few milliseconds (`watcher`), and before
anything is decided.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from advisor import protocol
from advisor.server.audience import MAX_KINDS, PACE_S, Audience, Handed
from advisor.server.preparing import Prepared, Preparing
from advisor.server.watcher import LOOK_S, MOST_S, PAUSE_S, Watcher

# A request that did not come again for so long is prepared for no more.
KEEP_S = 60.0
GOOD_S = 10.0
RENEW_S = PACE_S  # after so long a row is worked out anew: the hook counts on that (RENEWED)
# So long may be spent on preparing after a decision. Whoever asks meanwhile waits for the one answer that is just being
# worked out, and where a policy takes long, only the latest kinds are prepared for.
ROUND_US = 5000.0
# After so many of one kind in a row the next one is mostly of that kind too: the others' turn comes when no submission
# has come for a while. Else up to eight answers would be worked out, and read by the hook, for each that is used.
IN_A_ROW, REST_S = 3, 0.05
# So many answers to it are there at most, and not more than were used; when a quarter of them is left, others follow.
MAX_ROW, REFILL = 64, 4
MAX_SAID = 16 * 1024  # characters that the user is told in so many answers; the hook reads no more than 64 KiB at once
# Nobody looks for notes any more this long after the last answer was good; found out that often.
OVER_S, ASK_OVER_S = 0.5, 0.25
# Answers that one hook may still use; more than its kinds, as new ones replace some that it may just be reading.
_MAX_WAITING = 4 * MAX_KINDS + 2 * MAX_ROW
_ROW = -1  # in place of a kind: what may follow the latest one

FORGET = msgspec.json.encode(protocol.Forget(v=protocol.VERSION)) + b"\n"


class Hearer(Protocol):
    """A connection, as far as it is spoken on, or looked at, unasked."""

    lines: int  # that it has sent, this one included

    def say(self, line: bytes) -> bool:
        """Hands over a line at once; false where the peer is gone or does not read."""
        ...

    def look(self) -> bool:
        """Takes in what has come, on a connection that is not waited for; false where the peer is gone."""
        ...

    def fileno(self) -> int:
        """Of that connection; -1 where it is closed."""
        ...

    def end_notes(self) -> None:
        """Lets nothing more come on that connection; what has come is still there to be looked at."""
        ...


class Ahead:
    """What is prepared, for all hooks that are connected. Belongs to the event loop."""

    def __init__(self, begin: Callable[[], Preparing], busy: Callable[[], bool], settle: Callable[[], None]) -> None:
        self._begin, self._busy = begin, busy  # busy: what was decided last is not on the ledger yet
        self._settle = settle  # reads the notes, and completes what they tell of
        self._audiences: dict[Hearer, Audience] = {}
        self._notes: dict[Hearer, int] = {}  # → the watched file descriptor
        self._notes_of: dict[Hearer, Hearer] = {}  # where each hook notes what it uses, once it has
        self._watcher = Watcher(settle)
        self._due: deque[tuple[Hearer, int]] = deque()
        self._under_way: Preparing | None = None
        self._for: list[tuple[Hearer, Audience]] = []  # what is under way
        self._first = True  # of this round; it is handed over by itself, and soon
        self._spent_us = 0.0
        self._number = random.getrandbits(48)  # what another daemon has prepared is never taken for one of ours
        self._turn: asyncio.Handle | None = None
        self._rest: asyncio.TimerHandle | None = None  # of the kinds, prepared for later
        self.looking: asyncio.TimerHandle | None = None  # None: nobody looks for notes
        self._look_until = 0.0
        self._encoder = msgspec.json.Encoder()

    def asked(self, hearer: Hearer, request: protocol.SubmitRequest) -> None:
        """A submission has come for which there was no answer; there may be one for the next."""
        audience = self._audiences.get(hearer)
        if audience is None:
            if not request.kind:
                return
            audience = self._audiences[hearer] = Audience()
        # Which job a dependency means may change while nobody submits anything.
        audience.heard(request if request.kind and not request.dependency else None)

    def notes_come(self, hearer: Hearer) -> None:
        """On this connection a hook will note what it uses."""
        self._notes[hearer] = hearer.fileno()
        self._watcher.watch(hearer.fileno())
        # What has come with this word is not there to be found any more.
        asyncio.get_running_loop().call_later(PAUSE_S, self._settle)

    def read_notes(self) -> None:
        """Takes in what hooks have noted."""
        for hearer in list(self._notes):
            if not hearer.look():
                number = self._notes.pop(hearer)
                if number not in self._notes.values():  # by now another connection's
                    self._watcher.forget(number)

    def used(self, number: int, place: int, notes: Hearer) -> tuple[Hearer, Prepared] | None:
        """Who has used which answer, noted there; None where it was never prepared, or has been forgotten."""
        for hearer, audience in self._audiences.items():
            found = audience.used((number, place))
            if found is not None:
                self._notes_of[hearer] = notes
                return hearer, found
        return None

    def outdated(self, but: Hearer | None = None) -> None:
        """What was prepared does not hold any more, except that one hook knows it by itself; others are told."""
        for hearer, audience in self._audiences.items():
            # Kept all the same: the hook may have used one just now.
            if hearer is not but:
                audience.row = None
                if audience.waiting:
                    # Who cannot note that he uses an answer does not use it, and looks at what he was told.
                    audience.gone = not hearer.say(FORGET)
                    if (notes := self._notes_of.pop(hearer, None)) is not None:
                        notes.end_notes()
        self.prepare()

    def prepare(self) -> None:
        """Works out answers from now on, a piece in a turn of the loop, as long as nothing else is to be done.

        The latest kind, which is the likeliest, is handed over as soon as it is there; the others together.
        """
        self._stop()
        self._first = True
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        now = time.monotonic()
        by_submission = sorted(self._audiences.items(), key=lambda item: item[1].heard_at, reverse=True)
        for number, (hearer, audience) in enumerate(by_submission):
            if audience.gone or now - audience.heard_at > GOOD_S:
                continue
            for kind, (_, seen_at) in list(audience.kinds.items()):
                if now - seen_at > KEEP_S:
                    del audience.kinds[kind]
            latest_first: list[int] = list(reversed(audience.kinds))
            if audience.in_a_row >= IN_A_ROW:
                if len(latest_first) > 1:
                    self._rest = self._rest or asyncio.get_running_loop().call_later(REST_S, self._prepare_the_rest)
                    del latest_first[1:]
                if number == 0:  # any submission of another hook takes rows back
                    self._go_on_with_row(audience, latest_first, now)
            self._due.extend((hearer, kind) for kind in latest_first)
        self._look_as_often_as_needed()
        self._go_on()

    def _go_on_with_row(self, audience: Audience, due: list[int], now: float) -> None:
        row = audience.row
        if row is not None and (not row.unused or now - row.unused[0][1] > RENEW_S):
            if row.unused:
                audience.pace //= 2  # more than were needed
            row = audience.row = None  # worked out anew, before it is too old
        if row is not None:
            due.clear()
        if row is None or row.ready or len(row) <= _row_size(audience) // REFILL:
            due.append(_ROW)

    def _prepare_the_rest(self) -> None:
        submissions = [audience.heard_at for audience in self._audiences.values()]
        self._rest = None
        self._settle()
        if submissions != [audience.heard_at for audience in self._audiences.values()]:
            return  # more has come, and was not looked for yet
        self._watcher.pause_s = LOOK_S
        for hearer, audience in self._audiences.items():
            if audience.in_a_row >= IN_A_ROW and not audience.gone:
                self._due.extend((hearer, kind) for kind in list(reversed(audience.kinds))[1:])
        self._go_on()

    def _go_on(self) -> None:
        self._spent_us = 0.0
        if self._due and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._turn = None
        if not self._due:
            return
        if self._busy():
            self._stop()
            return
        hearer, kind = self._due.popleft()
        audience = self._audiences.get(hearer)
        if audience is not None and kind == _ROW:
            self._hand_over_all()  # the first of it
            self._lengthen(hearer, audience)
        elif audience is not None and not audience.gone and kind in audience.kinds:
            if self._under_way is None:
                self._under_way = self._begin()
            before_us = self._under_way.took_us
            self._under_way.take(audience.kinds[kind][0])
            self._for.append((hearer, audience))
            self._spent_us += self._under_way.took_us - before_us
        if self._first or not self._due or self._spent_us >= ROUND_US:
            self._first = False
            self._hand_over_all()
        if self._due and self._spent_us < ROUND_US:
            self._turn = asyncio.get_running_loop().call_soon(self._next)

    def _stop(self) -> None:
        self._due.clear()
        self._under_way = None
        self._for.clear()

    def _hand_over_all(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        before_us = under_way.took_us
        for (hearer, audience), prepared in zip(self._for, under_way.answers(), strict=True):
            if prepared is None:
                continue
            number = self._hand_over(hearer, audience, [prepared], hearer.lines + audience.notes)
            request = prepared.request
            if audience.in_a_row >= IN_A_ROW and request.row > 1 and request.kind == next(reversed(audience.kinds)):
                row = under_way.row(prepared)
                audience.row = Handed(row, number, time.monotonic()) if row is not None else None
        self._spent_us += under_way.took_us - before_us
        self._for.clear()

    def _lengthen(self, hearer: Hearer, audience: Audience) -> None:
        """Works out one more of a row; what is there of it is handed over in one go."""
        row = audience.row
        if row is None or audience.gone:
            return
        missing = _row_size(audience) - len(row)
        if missing > 0 and self._goes_on(row):
            prepared = row.row.next()
            if prepared is not None:
                row.add(prepared, time.monotonic())
                self._spent_us += prepared.took_us
            if missing > 1 and self._goes_on(row):
                self._due.appendleft((hearer, _ROW))
                return
        if row.ready:
            age_s = time.monotonic() - row.ready_since
            after = hearer.lines + audience.notes + len(row.unused)
            row.handed(self._hand_over(hearer, audience, row.ready, after, row.last, age_s))
        self._look_as_often_as_needed()

    def _goes_on(self, row: Handed) -> bool:
        return not row.row.over and self._spent_us < ROUND_US and row.said < MAX_SAID

    def _look_as_often_as_needed(self) -> None:
        """What is noted of a row need not be known before much of it is used, however fast that is.

        But whoever submits something else waits until all that was noted is completed.
        """
        waiting = [audience for audience in self._audiences.values() if audience.waiting and not audience.gone]
        least = min((len(audience.row.unused) if audience.row else 0 for audience in waiting), default=0)
        self._watcher.pause_s = min(max(LOOK_S * least / 2, LOOK_S), MOST_S)

    def _hand_over(
        self,
        hearer: Hearer,
        audience: Audience,
        answers: list[Prepared],
        after: int,
        follows: int = 0,
        age_s: float = 0.0,
    ) -> int:
        """Sends answers ahead, each to be used after the one before; their number."""
        self._number += 1
        for place, prepared in enumerate(answers):
            while len(audience.waiting) >= _MAX_WAITING:
                del audience.waiting[next(iter(audience.waiting))]
            audience.waiting[self._number, place] = prepared
        until = time.time() + GOOD_S - age_s
        audience.gone = not hearer.say(
            self._encoder.encode(_in_a_row(answers, after, self._number, follows, until)) + b"\n"
        )
        self._look_until = time.monotonic() + GOOD_S + OVER_S
        if self.looking is None:
            self.looking = asyncio.get_running_loop().call_later(ASK_OVER_S, self._ask_whether_over)
            self._watcher.begin()
        return self._number

    def _ask_whether_over(self) -> None:
        self.looking = None
        self._settle()
        if time.monotonic() < self._look_until:
            self.looking = asyncio.get_running_loop().call_later(ASK_OVER_S, self._ask_whether_over)
            return
        self._watcher.end()
        for hearer, audience in list(self._audiences.items()):
            audience.waiting.clear()
            audience.passed.clear()
            audience.row = None
            if audience.gone:
                del self._audiences[hearer]
                self._notes_of.pop(hearer, None)


def _row_size(audience: Audience) -> int:
    """Not more than were used so far, nor than will be used before they are worked out anew."""
    request, _ = audience.kinds[next(reversed(audience.kinds))]
    return min(request.row, MAX_ROW, audience.in_a_row + 1, audience.pace + 1)


def _in_a_row(answers: list[Prepared], after: int, number: int, follows: int, until: float) -> protocol.PreparedRow:
    sets: list[dict[str, str]] = []
    says: dict[str, int] = {}
    told: list[str | int] = []
    for prepared in answers:
        reply = prepared.verdict.reply()
        if reply.set and reply.set not in sets:  # mostly one of the last few
            sets.append(reply.set)
        said = says.setdefault(reply.message, len(says) + 1) if reply.message else 0
        told += (reply.token or "", sets.index(reply.set) + 1 if reply.set else 0, said)
    return protocol.PreparedRow(
        v=protocol.VERSION,
        prepared=answers[0].request.kind,
        after=after,
        count=len(answers),
        number=number,
        follows=follows,
        until=round(until, 3),
        sets=sets,
        says=list(says),
        answers=told,
    )
