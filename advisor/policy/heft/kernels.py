"""How long a job's dataflow graph takes on one node: its kernels scheduled by HEFT on the node's CPU and GPUs.

The CPU's cores work on one kernel together, and so do the GPUs, as programs do; a kernel that may run on either goes
where it ends first, and what moves between CPU and GPU memory pays for the way.
"""

from __future__ import annotations

from collections.abc import Mapping

from advisor.dfg.graph import Annotation, Kernel
from advisor.performance.processors import lookup
from advisor.performance.runtime import TRANSFER_RATE
from advisor.performance.told import EFFICIENCY
from advisor.policy.heft.ranks import upward_ranks
from advisor.settings import Processor


def makespan(
    annotation: Annotation, processor: str, processors: Mapping[str, Processor], gpus: int = 1, cpus: int = 1
) -> float | None:
    """Seconds from the first kernel to the last; None where a kernel can run nowhere on such a node."""
    figures = lookup(processors, processor)
    rate = {"cpu": processors["cpu"].tflops * 1e12 * EFFICIENCY * max(cpus, 1)}
    if processor != "cpu" and figures is not None:
        rate["gpu"] = figures.tflops * 1e12 * EFFICIENCY * max(gpus, 1)
    room = figures.memory_gb * 2**30 * max(gpus, 1) if figures is not None and processor != "cpu" else 0.0
    cost = {
        kernel.name: {kind: kernel.work / rate[kind] for kind in rate if _may_run(kernel, kind, processor, room)}
        for kernel in annotation.kernels
    }
    if not cost or not all(cost.values()):
        return None
    followers: dict[str, list[str]] = {}
    into: dict[str, list[tuple[str, float]]] = {}
    moved: dict[tuple[str, str], float] = {}
    for edge in annotation.edges:
        seconds = edge.size / TRANSFER_RATE
        followers.setdefault(edge.source, []).append(edge.target)
        into.setdefault(edge.target, []).append((edge.source, seconds))
        # Before it is known who runs where, half of the ways are taken to be between CPU and GPU.
        moved[edge.source, edge.target] = seconds / 2 if len(rate) > 1 else 0.0
    mean = {name: sum(kinds.values()) / len(kinds) for name, kinds in cost.items()}
    ranks = upward_ranks(mean, followers, moved)
    written = {name: number for number, name in enumerate(cost)}
    free = dict.fromkeys(rate, 0.0)
    kind_of: dict[str, str] = {}
    end: dict[str, float] = {}
    # A kernel of no work has the rank of the one behind it: what feeds it must still come first.
    for name in _fed_first(sorted(cost, key=lambda name: (-ranks[name], written[name])), into):
        best: tuple[float, str] | None = None
        for kind, seconds in cost[name].items():
            ready = max(
                (end[source] + (way if kind_of[source] != kind else 0.0) for source, way in into.get(name, ())),
                default=0.0,
            )
            finish = max(ready, free[kind]) + seconds
            if best is None or finish < best[0]:
                best = (finish, kind)
        assert best is not None
        end[name], kind_of[name] = best
        free[best[1]] = best[0]
    return max(end.values())


def _may_run(kernel: Kernel, kind: str, processor: str, room: float) -> bool:
    if kind == "cpu":
        return "cpu" in kernel.on
    return ("gpu" in kernel.on or processor in kernel.on) and (not room or kernel.memory <= room)


def _fed_first(order: list[str], into: Mapping[str, list[tuple[str, float]]]) -> list[str]:
    """The same order, but nobody before those that feed it."""
    done: dict[str, None] = {}
    for first in order:
        stack = [first]
        while stack:
            name = stack[-1]
            waiting = [source for source, _ in into.get(name, ()) if source not in done]
            if waiting:
                stack += waiting
            else:
                done.setdefault(name)
                stack.pop()
    return list(done)
