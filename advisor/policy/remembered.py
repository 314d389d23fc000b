"""What the learned policy remembers of submissions, as it is told to another process that decides by the same network.

Rounds look at pending jobs in a process that sees no submission; the daemon's hot path sees them all.
"""

from __future__ import annotations

import msgspec


class Remembered(msgspec.Struct, frozen=True):
    """Running averages over submissions; see `advisor.policy.learned.memory`."""

    count: int
    figures: tuple[float, ...]  # by name, in the order of `advisor.policy.learned.memory.AVERAGES`
    by_pool: tuple[tuple[float, ...], ...]  # slower, best_for, best_work
