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
        for request in requests:
            try:
                self._cases.append(Case(request, snapshot, site, now))
            except Exception as error:  # that one's own, told when it is its turn
                self._cases.append(error)
        self._scored: dict[int, Scored] = {}

    def verdict(self, number: int) -> Verdict:
        """What is decided; it must be completed before the next one is asked for."""
        case = self._cases[number]
        if isinstance(case, Exception):
            raise case
        if case.choice is None or self._snapshot is None:
            return case.verdict(None, None, None)
        view = self._ledger.over(self._snapshot) if self._ledger is not None else self._snapshot
        if number not in self._scored:
            self._score(self._not_behind(number), view)
        return case.verdict(self._scored.pop(number), view, self._ledger)

    def forget(self) -> None:
        """Somebody else has taken something meanwhile: whatever was scored ahead is scored anew."""
        self._scored.clear()

    def all_at_once(self) -> list[Verdict | Exception]:
        """What would be decided for each if it came next, none of them taking anything."""
        view = self._snapshot
        if view is not None and self._ledger is not None:
            view = self._ledger.over(view)
        left = [number for number, case in enumerate(self._cases) if isinstance(case, Case) and case.choice is not None]
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

    def _not_behind(self, first: int) -> list[int]:
        """The first, and those after it that can take nothing from it nor from anyone between, and lose nothing."""
        found, taken = [], 0
        for number in range(first, len(self._cases)):
            case = self._cases[number]
            if isinstance(case, Exception) or case.choice is None:
                continue
            reach = case.choice.reach
            if not reach & taken and number not in self._scored:
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
            shape, candidates = case.choice.shape, case.choice.candidates
            try:
                asked.append((shape, expect(policy, shape, candidates, view, self._now)))
            except Exception:
                if not asked:
                    raise
                break  # its own error, when it is its turn
        self._scored.update(zip(numbers, correct(policy, asked, view, self._now), strict=False))
