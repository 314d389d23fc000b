"""The dataflow graph of a job: kernels with work and memory, and the bytes that flow between them.

Only plain immutable types and arithmetic on them live here; `advisor.dfg.annotation` finds and
reads what a user wrote, and refuses a graph that is not one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


# No kernel or edge can be part of a reference cycle, so the collector need not look at thousands of them.
class Kernel(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One step of the computation and the kinds of processor it can run on."""

    name: str
    on: tuple[str, ...] = ("cpu",)  # "cpu", "gpu", or a GPU type; first is preferred
    work: float = 0.0  # floating-point operations
    memory: int = 0  # bytes it needs resident


class Edge(msgspec.Struct, frozen=True, gc=False):
    """Bytes that one kernel hands to the next."""

    source: str
    target: str
    size: int = 0  # bytes


class Annotation(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a user may tell the advisor about a job."""

    app: str | None = None
    kernels: tuple[Kernel, ...] = ()
    edges: tuple[Edge, ...] = ()
    share: bool = False
    requeue: bool = False
    workflow: str | None = None
    work: float = 0.0  # how much it does, in a unit of its own (steps, samples): compared with other runs of the app
    flexible: tuple[str, ...] = ()  # of "partition", "gpu_type"
    off: bool = False  # `#ADVISOR off`: leave this job alone
    source: str = ""  # where it was found: script, environment, extra, comment


def runs_on(kernel: Kernel, kind: str) -> bool:
    """Whether a kernel can run on `kind`: "cpu", "gpu" (of any type), or one GPU type such as "v100"."""
    if kind in kernel.on:
        return True
    if kind == "cpu":
        return False
    if kind == "gpu":  # a kernel that names only types still runs on a GPU
        return any(name != "cpu" for name in kernel.on)
    return "gpu" in kernel.on


def total_work(annotation: Annotation, kind: str) -> float:
    """Floating-point operations of all kernels that can run on `kind`."""
    return sum(kernel.work for kernel in annotation.kernels if runs_on(kernel, kind))


def preferred_work(annotation: Annotation, processor: str) -> tuple[float, float]:
    """How the work splits on a node with `processor`: (on its GPU, on its CPU).

    Each kernel goes to the first kind in its `on` that the node has; one that names only kinds the
    node lacks is counted on the CPU, which is the slower guess.
    """
    gpu = cpu = 0.0
    for kernel in annotation.kernels:
        kind = next((name for name in kernel.on if name == "cpu" or _offers(processor, name)), "cpu")
        if kind == "cpu":
            cpu += kernel.work
        else:
            gpu += kernel.work
    return gpu, cpu


def _offers(processor: str, kind: str) -> bool:
    return kind == processor or (kind == "gpu" and processor != "cpu")


def topological_order(kernels: Iterable[Kernel], edges: Iterable[Edge]) -> tuple[str, ...]:
    """The kernels' names, every one after those that feed it; raises `CycleError` where none exists.

    Among kernels that are ready at the same time, the order they were written in is kept. Every
    edge must join two of the kernels.
    """
    waiting_for = {kernel.name: 0 for kernel in kernels}
    feeds: dict[str, list[str]] = {name: [] for name in waiting_for}
    for edge in edges:
        feeds[edge.source].append(edge.target)
        waiting_for[edge.target] += 1
    order = [name for name, count in waiting_for.items() if not count]
    for name in order:  # grows while it is walked
        for target in feeds[name]:
            waiting_for[target] -= 1
            if not waiting_for[target]:
                order.append(target)
    if len(order) < len(waiting_for):
        raise CycleError(_one_cycle({name for name, count in waiting_for.items() if count}, feeds))
    return tuple(order)


class CycleError(ValueError):
    """The graph is not a dataflow graph: these kernels, in a ring, wait for each other."""

    def __init__(self, ring: tuple[str, ...]) -> None:
        super().__init__(" → ".join((*ring, ring[0])))
        self.ring = ring


def _one_cycle(stuck: set[str], feeds: dict[str, list[str]]) -> tuple[str, ...]:
    # Every stuck kernel is fed by another stuck one, so walking backwards must come round.
    fed_by = {target: source for source in sorted(stuck) for target in feeds[source] if target in stuck}
    seen: dict[str, int] = {}
    name = min(stuck)
    while name not in seen:
        seen[name] = len(seen)
        name = fed_by[name]
    ring = list(reversed(list(seen)[seen[name] :]))
    first = ring.index(min(ring))
    return (*ring[first:], *ring[:first])
