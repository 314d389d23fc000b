"""What must hold between counters whatever the program does, and the correction of their errors that follows.

Hits and misses are all the requests, what leaves the caches arrives in memory, each micro-op came from somewhere: the
vendor's metrics and events count the same thing in several ways, each through counters of its own. Where each has
its own error, the laws correct them together: normal errors, laws linear around the present counts and held within a
tolerance, those that are badly broken loosened (Student).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from advisor.contention.beliefs import condition
from advisor.contention.evaluate import Machine, Slopes, Values, linearise
from advisor.contention.expression import Expression, names, parse
from advisor.contention.vendor import Relations

Floats = NDArray[np.float64]
_FREEDOM = 4.0  # of a law's error
_FEW = 10  # windows; fewer do not tell whether errors are larger than claimed
_LEAST_EXCESS, _MOST_EXCESS = 0.05, 4.0
_UNKNOWN = 1.0  # relative spread of a count that was not made
_TURNS = 3


@dataclass(frozen=True)
class Law:
    """Two expressions over the vendor's metrics and events that tell the same thing, within a relative tolerance."""

    left: str
    right: str
    tolerance: float = 0.003  # counts at retirement balance nearly exactly

    @cached_property
    def trees(self) -> tuple[Expression, Expression]:
        """Both sides, parsed."""
        return parse(self.left), parse(self.right)

    @property
    def names(self) -> tuple[str, ...]:
        """Metrics and events of both sides."""
        return tuple(dict.fromkeys(name for tree in self.trees for name in names(tree)))


LOADS = "MEM_LOAD_RETIRED."
AWAY = "MEM_LOAD_L3_MISS_RETIRED."
PORTS = " + ".join(f"UOPS_DISPATCHED_PORT.PORT_{port}" for port in range(8))

# Any of them that a CPU's table cannot compute does not hold there. Metrics come first: their definitions, which
# differ from CPU to CPU, are the vendor's own.
LAWS: tuple[Law, ...] = (
    Law("memory_bandwidth_total", "DRAM_BW_Use * 1000"),
    # What misses the last cache goes to some socket's memory; not all of it at the same moment.
    Law("memory_bandwidth_read", "llc_miss_local_memory_bandwidth_read + llc_miss_remote_memory_bandwidth_read", 0.02),
    Law(
        "memory_bandwidth_write", "llc_miss_local_memory_bandwidth_write + llc_miss_remote_memory_bandwidth_write", 0.02
    ),
    Law("io_bandwidth_disk_or_network_writes", "IO_Write_BW * 1000", 0.01),
    Law("io_bandwidth_disk_or_network_reads", "IO_Read_BW * 1000", 0.01),
    Law("MEM_INST_RETIRED.ANY", "MEM_INST_RETIRED.ALL_LOADS + MEM_INST_RETIRED.ALL_STORES"),
    Law("MEM_INST_RETIRED.ALL_LOADS", f"{LOADS}L1_HIT + {LOADS}L1_MISS + {LOADS}FB_HIT"),
    Law(f"{LOADS}L1_MISS", f"{LOADS}L2_HIT + {LOADS}L2_MISS"),
    Law(f"{LOADS}L2_MISS", f"{LOADS}L3_HIT + {LOADS}L3_MISS"),
    Law(f"{LOADS}L3_MISS", f"{AWAY}LOCAL_DRAM + {AWAY}REMOTE_DRAM + {AWAY}REMOTE_FWD + {AWAY}REMOTE_HITM"),
    Law("L2_RQSTS.ALL_DEMAND_DATA_RD", "L2_RQSTS.DEMAND_DATA_RD_HIT + L2_RQSTS.DEMAND_DATA_RD_MISS"),
    Law("BR_INST_RETIRED.COND", "BR_INST_RETIRED.COND_TAKEN + BR_INST_RETIRED.COND_NTAKEN"),
    Law("BR_INST_RETIRED.NEAR_CALL", "BR_INST_RETIRED.NEAR_RETURN", 0.01),
    Law("UOPS_ISSUED.ANY", "IDQ.DSB_UOPS + IDQ.MITE_UOPS + IDQ.MS_UOPS", 0.01),
    Law("UOPS_EXECUTED.THREAD", PORTS, 0.01),
)


class Corrector:
    """Corrects counts of many windows (or nodes) at once by the laws that one CPU's events allow."""

    def __init__(
        self, relations: Relations, events: Sequence[str], machine: Machine | None = None, laws: Sequence[Law] = LAWS
    ) -> None:
        self.events = tuple(events)
        self.machine = machine or Machine()
        self.relations = relations
        given = {*events, "duration_time"}

        def holds(law: Law) -> bool:
            leaves = [name for name in relations.ancestors(law.names) if name not in relations.metrics]
            leaves += [name for name in law.names if name not in relations.metrics and name not in relations.events]
            return all(name in given for name in leaves)

        self.laws = tuple(law for law in laws if holds(law))
        wanted = relations.ancestors(name for law in self.laws for name in law.names)
        self.metrics = tuple(name for name in wanted if name in relations.metrics)
        used = {*wanted, *(name for law in self.laws for name in law.names)} - {"duration_time"}
        self.bound = tuple(name for name in events if name in used)  # the events that some law is about

    def __call__(self, mean: Floats, sd: Floats, seconds: float) -> tuple[Floats, Floats]:
        """Corrected counts and their spreads; rows are windows of so many seconds, columns the events."""
        if not self.laws:
            return mean, sd
        columns = [self.events.index(event) for event in self.bound]
        known = np.isfinite(mean[:, columns]) & np.isfinite(sd[:, columns])
        # Not counted in a window: as in the others, give or take, and then whatever the laws say.
        sums, counts = np.where(known, mean[:, columns], 0.0).sum(axis=0), np.maximum(known.sum(axis=0), 1)
        unit = np.maximum(np.where(known, mean[:, columns], sums / counts), 1e-9)
        first = np.ones_like(unit)
        variance = np.where(known, np.maximum(sd[:, columns] / unit, 1e-4), _UNKNOWN) ** 2
        excess = self._excess(first, variance, unit, seconds) if len(mean) >= _FEW else np.ones(len(columns))
        variance = variance * np.maximum(excess, 1.0)
        state, left, loosened = first, variance, np.ones((len(mean), len(self.laws)))
        for turn in range(_TURNS):
            gap, slopes, size = self._look(state, unit, seconds)
            usable = np.isfinite(gap)
            slopes[~usable] = 0.0
            moved = np.einsum("nle,ne->nl", slopes, first - state)
            residual = np.where(usable, -gap - moved, 0.0)
            noise = np.where(usable, size**2 * loosened, 1.0)
            state, left = condition(first, variance, slopes, residual, noise)
            if turn + 1 < _TURNS:
                off = np.einsum("nle,ne->nl", slopes, state - first) - residual
                loosened = (_FREEDOM + off**2 / np.maximum(size, 1e-12) ** 2) / (_FREEDOM + 1)
        # What members of a law err together, each by the same share, no law can see, and none takes away.
        left = variance - (variance - left) * np.minimum(excess, 1.0)
        corrected, spread = mean.copy(), sd.copy()
        some = known.any(axis=0)
        corrected[:, columns] = np.where(some, np.maximum(state, 0.0) * unit, mean[:, columns])
        spread[:, columns] = np.where(some, np.sqrt(np.maximum(left, 1e-12)) * unit, sd[:, columns])
        return corrected, spread

    def _excess(self, first: Floats, variance: Floats, unit: Floats, seconds: float) -> Floats:
        """How large each event's own errors are against what was claimed, by how badly its laws are broken.

        More than 1 where errors are larger than claimed; less where those of a law's members go together (they took
        their turns together, or the same state of the node was misjudged), which leaves the law intact.
        """
        gap, slopes, size = self._look(first, unit, seconds)
        usable = np.isfinite(gap)
        slopes[~usable] = 0.0
        claimed = np.einsum("nle,ne->nl", slopes**2, variance) + size**2
        # The median of squares, which a few windows that went wrong do not move, over that of a normal's square.
        broken = np.median(np.where(usable, gap**2 / claimed, 0.0), axis=0) / 0.455
        member = (np.abs(slopes) > 0).any(axis=0)
        clipped = np.clip(broken, _LEAST_EXCESS, _MOST_EXCESS)[:, None]
        mean = (member * clipped).sum(axis=0) / np.maximum(member.sum(axis=0), 1)
        return np.asarray(np.where(member.any(axis=0), mean, 1.0))

    def _look(self, state: Floats, unit: Floats, seconds: float) -> tuple[Floats, Floats, Floats]:
        """How far each law is from holding, its slopes by the relative counts, and how far it may be."""
        counts = np.maximum(state, 1e-6) * unit
        column = {event: index for index, event in enumerate(self.bound)}
        values: dict[str, Values | float] = {event: counts[:, index] for event, index in column.items()}
        values["duration_time"] = seconds
        inner: dict[str, Slopes] = {"duration_time": {}}
        for metric in self.metrics:
            values[metric], inner[metric] = linearise(self.relations.metrics[metric].tree, values, self.machine, inner)
        gap, size = np.zeros((2, len(state), len(self.laws)))
        slopes = np.zeros((len(state), len(self.laws), len(self.bound)))
        for row, law in enumerate(self.laws):
            (left, by_left), (right, by_right) = (linearise(tree, values, self.machine, inner) for tree in law.trees)
            scale = np.maximum(np.abs(right), 1e-30)
            gap[:, row] = (left - right) / scale
            size[:, row] = law.tolerance
            for by, sign in ((by_left, 1.0), (by_right, -1.0)):
                for event, slope in by.items():
                    slopes[:, row, column[event]] += sign * slope * unit[:, column[event]] / scale
        return gap, slopes, size
