"""A job's dataflow graph as the network sees it: which kernels carry its time, and what bounds each of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from advisor.dfg.graph import Annotation
from advisor.performance.told import (
    CORE_FLOPS,
    EFFICIENCY,
    MEMORY_EFFICIENCY,
    MIDDLING_BYTES,
    MIDDLING_FLOPS,
    PASSES,
    UNTOLD_SENSITIVITY,
)
from advisor.policy.learned.shapes import FLOW_FEATURES, KERNEL_FEATURES, Floats, Ints

# FLOP per byte at which a middling GPU is bound by both alike.
BALANCE = MIDDLING_FLOPS / MIDDLING_BYTES

__all__ = [
    "CORE_FLOPS",
    "EFFICIENCY",
    "MEMORY_EFFICIENCY",
    "MIDDLING_BYTES",
    "MIDDLING_FLOPS",
    "NO_GRAPH",
    "PASSES",
    "UNTOLD_SENSITIVITY",
    "Graph",
    "graph_from",
    "graph_of",
    "processor_features",
]


class Graph(NamedTuple):
    """Kernels, and who hands what to whom."""

    kernels: Floats  # [kernel, features]
    sources: Ints
    targets: Ints
    flows: Floats  # [edge, features]
    sensitivity: float  # share of its time that memory bounds, hence others on the node may slow down


NO_GRAPH = Graph(
    np.zeros((0, len(KERNEL_FEATURES))),
    np.zeros(0, dtype=np.int64),
    np.zeros(0, dtype=np.int64),
    np.zeros((0, len(FLOW_FEATURES))),
    UNTOLD_SENSITIVITY,
)


def graph_from(work: Floats, memory: Floats, on_cpu: Floats, sources: Ints, targets: Ints, sizes: Floats) -> Graph:
    """From each kernel's FLOP, resident bytes and whether only a CPU runs it; bytes of each edge."""
    compute, traffic = work / MIDDLING_FLOPS, memory * PASSES / MIDDLING_BYTES
    seconds = np.where(on_cpu > 0, work / CORE_FLOPS, np.maximum(compute, traffic))
    if not seconds.sum() > 0:
        return NO_GRAPH
    share = seconds / seconds.sum()
    intensity = np.log(np.maximum(work, 1.0) / np.maximum(memory * PASSES, 1.0) / BALANCE) / 2.0
    bound = np.where(on_cpu > 0, 0.0, traffic / np.maximum(traffic + compute, 1e-12))
    kernels = np.stack([share, np.clip(intensity, -3.0, 3.0), 1.0 - on_cpu, on_cpu], axis=1)
    handed = np.log1p(sizes / np.maximum(memory[sources], 1.0)) if len(sources) else np.zeros(0)
    return Graph(kernels, sources, targets, np.minimum(handed, 3.0)[:, None], float((share * bound).sum()))


def graph_of(annotation: Annotation | None) -> Graph:
    """The graph of an annotation; `NO_GRAPH` where it tells of no work."""
    if annotation is None or not annotation.kernels:
        return NO_GRAPH
    index = {kernel.name: number for number, kernel in enumerate(annotation.kernels)}
    return graph_from(
        np.asarray([kernel.work for kernel in annotation.kernels], dtype=np.float64),
        np.asarray([float(kernel.memory) for kernel in annotation.kernels]),
        np.asarray([float(all(kind == "cpu" for kind in kernel.on)) for kernel in annotation.kernels]),
        np.asarray([index[edge.source] for edge in annotation.edges], dtype=np.int64),
        np.asarray([index[edge.target] for edge in annotation.edges], dtype=np.int64),
        np.asarray([float(edge.size) for edge in annotation.edges]),
    )


def processor_features(tflops: float, memory_gbs: float, memory_gb: float) -> tuple[float, float, float]:
    """Peak arithmetic, peak memory bandwidth and memory: logarithms around a v100's."""
    return (
        math.log(max(tflops, 1e-3) / 15.7),
        math.log(max(memory_gbs, 1e-3) / 900.0),
        math.log(max(memory_gb, 1.0) / 32.0),
    )
