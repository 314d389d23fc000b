"""What the learned policy's network looks at, and how large its layers are.

One place for the order of every feature and of every weight, since three programs must agree on them: the network
that is trained (torch), the one that answers in the daemon (numpy) and the one in training's compiled loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Of a pool: its processors by what they can do (never by name), its size, what runs and waits there, how recent jobs
# would do there, and what is believed of its contention.
POOL_FEATURES = (
    "tflops",
    "memory_bandwidth",
    "gpu_memory",
    "units",
    "load",
    "wait",
    "queue",
    "slower_than_best",
    "best_for",
    "offered",
    "belief",
    "belief_spread",
)
# Of two pools that share a partition or have the same processors: jobs may go to either.
EDGE_FEATURES = ("same_partition", "same_processor", "speed")
# Of the whole cluster at one moment; the LSTM sees the last `TICKS` moments.
GLOBAL_FEATURES = ("offered", "load", "wait", "queue", "trend", "interval", "spread_of_sizes", "belief")
# Of one job in one place.
CANDIDATE_FEATURES = (
    "wait_by_run",
    "run_by_best",
    "wait_by_usual",
    "run_by_usual",
    "against_others",
    "behind_first",
    "first",
    "spread",
    "slowdown",
    "pressure",
    "pressure_spread",
    "share_of_pool",
    "room",
    "after",
    "new_app",
    "limit",
)
# Of a kernel in the job's dataflow graph, and of the bytes between two.
KERNEL_FEATURES = ("work_share", "intensity", "on_gpu", "on_cpu")
FLOW_FEATURES = ("size_by_memory",)

TICKS = 12  # moments the LSTM looks back
EDGE_HIDDEN, EDGE_OUT = 32, 16
NODE_HIDDEN, NODE_OUT = 32, 16
GLOBAL_OUT = 16
KERNEL_OUT = 8
MEMORY = 8  # of the LSTM
HEAD_HIDDEN, HEAD_OUT = 32, 16
CRITIC_HIDDEN = 16
# Residuals are logarithms of factors; beyond these the network is not believed.
MOST = 1.5

_N, _E, _G = len(POOL_FEATURES), len(EDGE_FEATURES), len(GLOBAL_FEATURES)
_HEAD_IN = len(CANDIDATE_FEATURES) + NODE_OUT + GLOBAL_OUT + MEMORY + KERNEL_OUT


class Weights(NamedTuple):
    """Every array of the network; matrices are (inputs, outputs)."""

    edge_w1: Floats
    edge_b1: Floats
    edge_w2: Floats
    edge_b2: Floats
    node_w1: Floats
    node_b1: Floats
    node_w2: Floats
    node_b2: Floats
    global_w: Floats
    global_b: Floats
    lstm_x: Floats
    lstm_h: Floats
    lstm_b: Floats
    kernel_w: Floats
    kernel_b: Floats
    flow_w: Floats
    flow_b: Floats
    head_w1: Floats
    head_b1: Floats
    head_w2: Floats
    head_b2: Floats
    head_w3: Floats
    head_b3: Floats
    critic_w1: Floats
    critic_b1: Floats
    critic_w2: Floats
    critic_b2: Floats
    belief: Floats  # Pr(contention level | counters' levels), flattened: see `advisor.policy.learned.beliefs`
    belief_parameters: Floats  # what the table was made from, to go on learning from
    range_low: Floats  # of each candidate feature in training: beyond it the network is not asked
    range_high: Floats
    pool_low: Floats  # the same of pools and of the cluster's moments
    pool_high: Floats
    moment_low: Floats
    moment_high: Floats
    alone: Floats  # 1: an ablation, whose network scores without the arithmetic; 2: and sees plain observations


# Counters that speak of contention, and how many levels each of them and the contention has.
COUNTERS, LEVELS = 3, 5

SHAPES: Mapping[str, tuple[int, ...]] = {
    "edge_w1": (2 * _N + _E, EDGE_HIDDEN),
    "edge_b1": (EDGE_HIDDEN,),
    "edge_w2": (EDGE_HIDDEN, EDGE_OUT),
    "edge_b2": (EDGE_OUT,),
    "node_w1": (_N + EDGE_OUT + _G, NODE_HIDDEN),
    "node_b1": (NODE_HIDDEN,),
    "node_w2": (NODE_HIDDEN, NODE_OUT),
    "node_b2": (NODE_OUT,),
    "global_w": (_G + NODE_OUT, GLOBAL_OUT),
    "global_b": (GLOBAL_OUT,),
    "lstm_x": (_G, 4 * MEMORY),
    "lstm_h": (MEMORY, 4 * MEMORY),
    "lstm_b": (4 * MEMORY,),
    "kernel_w": (len(KERNEL_FEATURES) + KERNEL_OUT, KERNEL_OUT),
    "kernel_b": (KERNEL_OUT,),
    "flow_w": (len(KERNEL_FEATURES) + len(FLOW_FEATURES), KERNEL_OUT),
    "flow_b": (KERNEL_OUT,),
    "head_w1": (_HEAD_IN, HEAD_HIDDEN),
    "head_b1": (HEAD_HIDDEN,),
    "head_w2": (HEAD_HIDDEN, HEAD_OUT),
    "head_b2": (HEAD_OUT,),
    "head_w3": (HEAD_OUT, 2),
    "head_b3": (2,),
    "critic_w1": (GLOBAL_OUT + MEMORY, CRITIC_HIDDEN),
    "critic_b1": (CRITIC_HIDDEN,),
    "critic_w2": (CRITIC_HIDDEN, 1),
    "critic_b2": (1,),
    "belief": (LEVELS**COUNTERS, LEVELS),
    "belief_parameters": (18,),
    "range_low": (len(CANDIDATE_FEATURES),),
    "range_high": (len(CANDIDATE_FEATURES),),
    "pool_low": (_N,),
    "pool_high": (_N,),
    "moment_low": (_G,),
    "moment_high": (_G,),
    "alone": (1,),
}


def weights_of(arrays: Mapping[str, npt.NDArray[np.floating]]) -> Weights:
    """The weights from arrays by name; raises `ValueError` naming what is missing or has another shape."""
    for name, shape in SHAPES.items():
        if name not in arrays:
            raise ValueError(f"the weights have no {name!r}")
        if arrays[name].shape != shape:
            raise ValueError(f"{name} is {arrays[name].shape}, this version of the network has {shape}")
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} holds values that are no numbers")
    if unknown := sorted(set(arrays) - set(SHAPES)):
        raise ValueError(f"the weights have {unknown[0]!r}, which this version of the network does not know")
    return Weights(**{name: np.ascontiguousarray(arrays[name], dtype=np.float64) for name in SHAPES})


def zero_weights() -> Weights:
    """A network that answers with the arithmetic, whatever it sees."""
    arrays = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    arrays["belief"][:] = 1 / LEVELS
    return weights_of(arrays | {name: bounds(name) for name in RANGES})


RANGES = ("range_low", "range_high", "pool_low", "pool_high", "moment_low", "moment_high")


def bounds(name: str) -> Floats:
    """A range that nothing is beyond."""
    return np.full(SHAPES[name], -1e9 if name.endswith("low") else 1e9)
