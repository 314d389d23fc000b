"""What the daemon counts: decisions, faults, and how long answers took.

Everything here is bounded: latencies go to a fixed histogram (within 7 % of the true value), and reasons
beyond a limit are counted together, so that a daemon that runs for a year holds what it held at first.
"""

from __future__ import annotations

import msgspec

_MOST_REASONS = 64
_SUB = 4  # 2**4 buckets for each doubling
_BUCKETS = 28 << _SUB  # up to 2**31 µs


class LatencyFigures(msgspec.Struct, frozen=True):
    """How long answers took in the daemon, in microseconds."""

    count: int = 0
    p50_us: float = 0.0
    p99_us: float = 0.0
    max_us: float = 0.0


class Latencies:
    """A histogram whose buckets grow with the value, as in HDR histograms."""

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self._count = 0
        self._max = 0

    def add(self, microseconds: int) -> None:
        """Counts one answer."""
        value = max(0, microseconds)
        shift = max(0, value.bit_length() - _SUB - 1)
        self._buckets[min(_BUCKETS - 1, (shift << _SUB) + (value >> shift))] += 1
        self._count += 1
        if value > self._max:
            self._max = value

    def figures(self) -> LatencyFigures:
        """Median, 99th percentile and maximum so far."""
        if not self._count:
            return LatencyFigures()
        return LatencyFigures(self._count, self._quantile(0.50), self._quantile(0.99), float(self._max))

    def _quantile(self, share: float) -> float:
        rank = share * (self._count - 1)
        seen = 0
        for index, count in enumerate(self._buckets):
            seen += count
            if seen > rank:
                return min(_middle(index), float(self._max))
        return float(self._max)


def _middle(index: int) -> float:
    """The middle of what a bucket holds."""
    shift = max(0, (index >> _SUB) - 1)
    low = (index - (shift << _SUB)) << shift
    return low + ((1 << shift) - 1) / 2


class Counters:
    """Counts since the daemon started."""

    def __init__(self) -> None:
        self.submissions = 0
        self.dry_runs = 0
        self.prepared = 0
        self.unknown_notes = 0
        self.eligible = 0
        self.rewritten = 0
        self.kept = 0
        self.holdout = 0
        self.refused_peers = 0
        self.bad_requests = 0
        self.other_versions = 0
        self.errors = 0
        self.evicted = 0
        self.reasons: dict[str, int] = {}
        self.latency = Latencies()

    def reason(self, text: str) -> None:
        """Counts why a job was left alone or changed."""
        if text not in self.reasons and len(self.reasons) >= _MOST_REASONS:
            text = "other"
        self.reasons[text] = self.reasons.get(text, 0) + 1
