"""Gavel's policies (OSDI 2020) as optimisation problems: each answers with shares of time on each GPU type.

`make_allocation` finds one by the name that Gavel itself uses: a base name, `_perf` where it knows that types differ,
`_packed` where jobs may share a GPU as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.policy.gavel.offer import Allocation

NAMES = (
    "allox",
    "cost",
    "cost_perf",
    "cost_packed",
    "fifo",
    "fifo_perf",
    "fifo_packed",
    "finish_time_fairness",
    "finish_time_fairness_perf",
    "finish_time_fairness_packed",
    "max_min_fairness",
    "max_min_fairness_perf",
    "max_min_fairness_packed",
    "max_min_fairness_water_filling",
    "max_min_fairness_water_filling_perf",
    "max_min_fairness_water_filling_packed",
    "min_total_duration",
    "min_total_duration_perf",
    "min_total_duration_packed",
    "shortest_job_first",
    "shortest_job_first_perf",
    "shortest_job_first_packed",
)

# A site's names, and Gavel's: agnostic, and aware of what types can do.
_BASES = {
    "max-min-fairness": "max_min_fairness",
    "hierarchical-fairness": "max_min_fairness_water_filling",
    "finish-time-fairness": "finish_time_fairness",
    "makespan": "min_total_duration",
    "shortest-job-first": "shortest_job_first",
    "fifo": "fifo",
    "cost": "cost",
}
PLACED: dict[str, str] = {
    **{
        f"{name}{suffix}": gavel + ending
        for name, gavel in _BASES.items()
        for suffix, ending in (("", ""), ("-aware", "_perf"))
    },
    "allox": "allox",
}


def make_allocation(name: str, seed: int = 0) -> Allocation:
    """The allocation of that name; raises `ValueError` naming those there are."""
    if name not in NAMES:
        raise ValueError(f"there is no Gavel policy {name!r}; there are {', '.join(NAMES)}")
    from advisor.policy.gavel.fairness import FinishTime, MaxMin
    from advisor.policy.gavel.filling import WaterFilling
    from advisor.policy.gavel.makespan import Makespan
    from advisor.policy.gavel.queues import AlloX, Fifo
    from advisor.policy.gavel.rates import LeastCost, ShortestFirst

    shared = name.endswith("_packed")
    aware = shared or name.endswith("_perf")
    if name == "allox":
        return AlloX()
    if name.startswith("fifo"):
        return Fifo(aware, shared, seed)
    if name.startswith("finish"):
        return FinishTime(aware, shared)
    if name.startswith("shortest"):
        return ShortestFirst(aware, shared)
    if name.startswith("cost"):
        return LeastCost(aware, shared)
    if "water_filling" in name:
        return WaterFilling(aware, shared)
    if name.startswith("max_min"):
        return MaxMin(aware, shared)
    return Makespan(aware, shared)
