"""Gavel's policies for a site that cannot preempt: from shares of time to the type on which a job should start.

Jobs that are alike (same app, same size, same owner) are one class. A class is owed, on each type, its part of the work
by the policy's shares; the next job of the class goes to the type on which most is owed, counting those already there.
So shares that would be time slices with preemption become numbers of jobs without it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import msgspec
import numpy as np

from advisor.policy.gavel.offer import Floats, Offer


def work_on(offer: Offer, shares: Floats, aware: bool = True) -> Floats:
    """[job, type] the part of a job's work that its shares, alone and in pairs, would do on each type; rows sum to 1.

    A job without any share counts as if every type on which it can run had the same part of its time. Not `aware`:
    time is taken for work.
    """
    m = len(offer.jobs)
    if not aware:
        offer = msgspec.structs.replace(offer, speed=(offer.speed > 0).astype(np.float64))
    done = offer.speed * shares[:m]
    for i, (a, b) in enumerate(offer.pairs):
        done[a] += offer.pair_speed[i, :, 0] * shares[m + i]
        done[b] += offer.pair_speed[i, :, 1] * shares[m + i]
    nothing = done.sum(axis=1) <= 1e-9 * np.maximum(offer.speed.max(axis=1), 1e-30)
    done[nothing] = offer.speed[nothing]
    return np.asarray(done / np.maximum(done.sum(axis=1, keepdims=True), 1e-30))


class Deficits:
    """What is owed to each class on each type, in jobs; the ones already placed have been paid."""

    def __init__(self, types: int) -> None:
        self._owed: dict[Hashable, Floats] = {}
        self._types = types

    def owe(self, kind: Hashable, work: Floats) -> None:
        """One more job of the class, whose work should be done in these parts."""
        self._owed[kind] = self._owed.get(kind, np.zeros(self._types)) + work

    def pay(self, kind: Hashable, column: int) -> None:
        """One of its jobs is on this type."""
        self._owed.setdefault(kind, np.zeros(self._types))[column] -= 1.0

    def most_owed(self, kind: Hashable, able: Sequence[int]) -> int:
        """Of the types that can run it, the one on which the class is owed most."""
        owed = self._owed.get(kind, np.zeros(self._types))
        return max(able, key=lambda column: (owed[column], -column))


def place(
    offer: Offer,
    shares: Floats,
    classes: Sequence[Hashable],
    placed: Mapping[int, int],
    able: Callable[[int], Sequence[int]],
    aware: bool = True,
) -> dict[int, int]:
    """Type (column) of each job that is not `placed` yet, in the order of arrival; keys are the offer's job numbers."""
    work = work_on(offer, shares, aware)
    deficits = Deficits(len(offer.types))
    for i, job in enumerate(int(j) for j in offer.jobs):
        deficits.owe(classes[i], work[i])
        if job in placed:
            deficits.pay(classes[i], placed[job])
    found = {}
    for i, job in enumerate(int(j) for j in offer.jobs):
        if job in placed:
            continue
        column = deficits.most_owed(classes[i], able(job))
        deficits.pay(classes[i], column)
        found[job] = column
    return found
