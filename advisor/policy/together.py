"""Submissions that have come together: read and planned at once, and asked about in one go as far as that is exact.

Each must find those before it on the ledger, so what a job would meet is known only once the job before it is decided,
unless the two could take nothing from each other: no pool is open to both. Such jobs are scored together when the first
of them has its turn; a job that has a pool in common with an undecided one before it waits for that one. Decisions are
the same as one after the other, in every case.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import Ledger
from advisor.policy.candidates import Choice
from advisor.policy.decision import Case, Site, Verdict
from advisor.policy.interface import Scored, correct, expect
from advisor.protocol import SubmitRequest


class Together:
    """Several submissions at one instant, on one snapshot. `verdict` is asked for in their order."""

    def __init__(
        self,
        requests: Sequence[SubmitRequest],
        snapshot: Snapshot | None,
        ledger: Ledger | None,
        site: Site,
        now: float,
    ) -> None:
        self._snapshot, self._ledger, self._site, self._now = snapshot, ledger, site, now
        self._cases: list[Case | Exception] = []
        self._expected: dict[int, Scored] = {}  # not corrected yet
        self._scored: dict[int, Scored] = {}
        for request in requests:
            self.add(request)

    def add(self, request: SubmitRequest) -> None:
        """One more."""
        try:
            self._cases.append(Case(request, self._snapshot, self._site, self._now))
        except Exception as error:  # that one's own, told when it is its turn
            self._cases.append(error)

    def expect(self) -> None:
        """Works out what `all_at_once` needs of the one that was added last; so it need not be done all at once."""
        number, view = len(self._cases) - 1, self._view()
        case = self._cases[number]
        if isinstance(case, Case) and case.choice is not None and view is not None:
            try:
                case.belong()
                self._expected[number] = self._expect(case.choice, view)
            except Exception as error:
                self._cases[number] = error

    def verdict(self, number: int) -> Verdict:
        """What is decided; it must be completed before the next one is asked for."""
        case = self._cases[number]
        if isinstance(case, Exception):
            raise case
        view = self._view()
        if case.choice is None or view is None:
            return case.verdict(None, None, None)
        if number not in self._scored:
            case.belong()
            self._score(self._not_behind(number), view)
        return case.verdict(self._scored.pop(number), view, self._ledger)

    def forget(self) -> None:
        """Somebody else has taken something meanwhile: whatever was scored ahead is scored anew."""
        self._scored.clear()

    def all_at_once(self) -> list[Verdict | Exception]:
        """What would be decided for each if it came next, none of them taking anything."""
        view = self._view()
        left = []
        for number, case in enumerate(self._cases):
            if isinstance(case, Case) and case.choice is not None:
                left.append(number)
                if number not in self._expected:
                    case.belong()
        while left and view is not None:
            try:
                self._score(left, view)
            except Exception as error:
                self._cases[left[0]] = error
                del left[0]
            left = [number for number in left if number not in self._scored]
        found: list[Verdict | Exception] = []
        for number, case in enumerate(self._cases):
            try:
                if isinstance(case, Exception):
                    raise case
                found.append(case.verdict(self._scored.pop(number, None), view, self._ledger))
            except Exception as error:
                found.append(error)
        return found

    def _view(self) -> Snapshot | None:
        if self._snapshot is None or self._ledger is None:
            return self._snapshot
        return self._ledger.over(self._snapshot)

    def _expect(self, choice: Choice, view: Snapshot) -> Scored:
        return expect(self._site.policy, choice.shape, choice.candidates, view, self._now)

    def _not_behind(self, first: int) -> list[int]:
        """The first, and those after it that can take nothing from it nor from anyone between, and lose nothing."""
        found, taken = [], 0
        for number in range(first, len(self._cases)):
            case = self._cases[number]
            if isinstance(case, Exception) or case.choice is None:
                continue
            reach = case.choice.reach
            # What one before it is decided to be may also be what it waits for.
            if not reach & taken and number not in self._scored and (number == first or not case.belongs):
                found.append(number)
            taken |= reach
        return found

    def _score(self, numbers: Sequence[int], view: Snapshot) -> None:
        """Scores these; where one of them cannot be, the ones before it."""
        policy = self._site.policy
        asked = []
        for number in numbers:
            case = self._cases[number]
            if isinstance(case, Exception) or case.choice is None:
                break
            try:
                expected = self._expected.pop(number, None) or self._expect(case.choice, view)
                asked.append((case.choice.shape, expected))
            except Exception:
                if not asked:
                    raise
                break  # not lost: it is scored again, as the first, when it is its turn, and fails then
        self._scored.update(zip(numbers, correct(policy, asked, view, self._now), strict=False))
