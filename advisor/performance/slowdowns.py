"""How much slower jobs of each app are expected to run in each pool, because of who runs there already.

Worked out with every snapshot by `advisor.server.sharing`, so that a decision only looks a number up. Each app has one
byte for each pool, a step of one percent: five hundred apps in sixty pools are thirty kilobytes to hand over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

STEP = 1.01
MOST = STEP**255  # 12.6: beyond that nobody should share
_VALUES = tuple(STEP**code for code in range(256))


class Slowdowns(msgspec.Struct, frozen=True):
    """Expected slowdowns by app and pool, how sure they are, and who is there."""

    by_app: dict[str, bytes]  # app → a code for each pool
    others: bytes  # of apps of which nothing is known
    spread_by_app: dict[str, bytes]  # app → a percentage of the slowdown for each pool
    spread_of_others: bytes
    # App → processor → how much slower than alone its past runs were, which its expected run time contains.
    usual: dict[str, dict[str, float]] = {}
    beside: tuple[tuple[str, ...], ...] = ()  # of each pool: the apps with most of its shared nodes

    def codes(self, app: str) -> bytes:
        """What `value` takes, for one app in all pools."""
        return self.by_app.get(app, self.others)

    def spread(self, app: str, pool: int) -> float:
        """Standard deviation of the slowdown, as a share of it."""
        row = self.spread_by_app.get(app, self.spread_of_others)
        return row[pool] / 100.0 if pool < len(row) else 0.0

    def usually(self, app: str, processor: str) -> float:
        """How much slower than alone past runs of an app were on a processor."""
        runs = self.usual.get(app)
        return runs.get(processor, 1.0) if runs else 1.0


def value(codes: bytes, pool: int) -> float:
    """The slowdown in a pool; exactly 1 where nobody is in the way, or the pool is new."""
    return _VALUES[codes[pool]] if pool < len(codes) else 1.0


def encoded(slowdowns: Iterable[float]) -> bytes:
    """Slowdowns (1 or more) as codes; what is within half a percent of 1 is 1."""
    return bytes(min(max(round(math.log(max(each, 1.0)) / math.log(STEP)), 0), 255) for each in slowdowns)


def encoded_spreads(spreads: Iterable[float]) -> bytes:
    """Shares as whole percentages."""
    return bytes(min(max(round(100 * each), 0), 255) for each in spreads)
