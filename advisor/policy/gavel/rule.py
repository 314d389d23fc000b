"""Gavel's policies in the daemon: a job goes to the type on which jobs of its app are owed most.

What is owed was worked out with the snapshot (`advisor.policy.gavel.site`). Types that are owed about as much count as
equal, and the job goes where it ends first among them, so that a burst between two polls spreads as the ledger fills.
"""

from __future__ import annotations

from advisor.performance.snapshot import Snapshot
from advisor.policy.gavel.site import EVERYBODY
from advisor.policy.interface import JobShape, Prediction

# Jobs by which two types may differ in what is owed and still count as equal.
ABOUT = 0.5


def most_owed(predictions: list[Prediction], shape: JobShape, snapshot: Snapshot, now: float) -> list[float]:
    """Expected finish, and behind all of those, the finishes on types that are owed less."""
    owed = snapshot.owed.get(shape.app) or snapshot.owed.get(EVERYBODY)
    if not owed:
        return [p.score for p in predictions]
    known = [owed[p.processor] for p in predictions if p.processor in owed]
    if not known:
        return [p.score for p in predictions]
    bar = max(known) - ABOUT
    latest = max(p.score for p in predictions)
    return [p.score if owed.get(p.processor, bar - 1.0) >= bar else p.score + latest for p in predictions]
