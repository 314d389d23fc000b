"""The network's answer as plain loops over one flat vector of weights, for the compiled loop.

The same as `advisor.policy.learned.forward`, which a test holds it to; written out because numba compiles loops in
a tenth of the time that it needs for array expressions.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.policy.learned.shapes import (
    CRITIC_HIDDEN,
    EDGE_HIDDEN,
    EDGE_OUT,
    GLOBAL_OUT,
    HEAD_HIDDEN,
    HEAD_OUT,
    KERNEL_OUT,
    MEMORY,
    MOST,
    NODE_HIDDEN,
    NODE_OUT,
    SHAPES,
    Floats,
    Ints,
    Weights,
)
from advisor.training.machine_code import inner, machine_code

_AT: dict[str, int] = {}
SIZE = 0
for _name, _shape in SHAPES.items():
    _AT[_name] = SIZE
    SIZE += math.prod(_shape)

EDGE1, EDGE1_B, EDGE2, EDGE2_B = _AT["edge_w1"], _AT["edge_b1"], _AT["edge_w2"], _AT["edge_b2"]
NODE1, NODE1_B, NODE2, NODE2_B = _AT["node_w1"], _AT["node_b1"], _AT["node_w2"], _AT["node_b2"]
GLOBAL, GLOBAL_B = _AT["global_w"], _AT["global_b"]
LSTM_X, LSTM_H, LSTM_B = _AT["lstm_x"], _AT["lstm_h"], _AT["lstm_b"]
HEAD1, HEAD1_B, HEAD2, HEAD2_B = _AT["head_w1"], _AT["head_b1"], _AT["head_w2"], _AT["head_b2"]
ALONE = _AT["alone"]
RANGE_LOW, RANGE_HIGH = _AT["range_low"], _AT["range_high"]
POOL_LOW, POOL_HIGH = _AT["pool_low"], _AT["pool_high"]
MOMENT_LOW, MOMENT_HIGH = _AT["moment_low"], _AT["moment_high"]
HEAD3, HEAD3_B = _AT["head_w3"], _AT["head_b3"]
CRITIC1, CRITIC1_B, CRITIC2, CRITIC2_B = _AT["critic_w1"], _AT["critic_b1"], _AT["critic_w2"], _AT["critic_b2"]


def flat(weights: Weights) -> Floats:
    """All weights in one vector, in the order of `SHAPES`."""
    return np.concatenate([np.asarray(array, dtype=np.float64).ravel() for array in weights])


@inner
def _layer(w: Floats, at: int, bias: int, x: Floats, n: int, out: Floats, m: int, kind: int) -> None:
    """out = f(x · W + b), f being relu (0), tanh (1) or nothing (2)."""
    for j in range(m):
        out[j] = w[bias + j]
    for i in range(n):
        if x[i] != 0.0:
            row = at + i * m
            for j in range(m):
                out[j] += x[i] * w[row + j]
    for j in range(m):
        if kind == 0:
            out[j] = max(out[j], 0.0)
        elif kind == 1:
            out[j] = math.tanh(out[j])


@inner
def within(w: Floats, low: int, high: int, x: Floats) -> bool:
    """Whether these features are in the range that was met in training."""
    for k in range(len(x)):  # noqa: SIM110 - numba has no all()
        if not w[low + k] <= x[k] <= w[high + k]:
            return False
    return True


@machine_code
def embed_topology(
    w: Floats, pools: Floats, sources: Ints, targets: Ints, edges: Floats, whole: Floats, out: Floats
) -> None:
    """Edge, node and global update; the cluster's embedding goes into the last row."""
    count, features = pools.shape
    x = np.zeros(2 * features + edges.shape[1] + EDGE_OUT + len(whole))
    hidden = np.zeros(max(EDGE_HIDDEN, NODE_HIDDEN))
    message = np.zeros(EDGE_OUT)
    gathered = np.zeros((count, EDGE_OUT))
    for k in range(len(sources)):
        x[:features] = pools[sources[k]]
        x[features : 2 * features] = pools[targets[k]]
        x[2 * features : 2 * features + edges.shape[1]] = edges[k]
        _layer(w, EDGE1, EDGE1_B, x, 2 * features + edges.shape[1], hidden, EDGE_HIDDEN, 0)
        _layer(w, EDGE2, EDGE2_B, hidden, EDGE_HIDDEN, message, EDGE_OUT, 0)
        gathered[targets[k]] += message
    total = np.zeros(len(whole) + NODE_OUT)
    total[: len(whole)] = whole
    for p in range(count):
        x[:features] = pools[p]
        x[features : features + EDGE_OUT] = gathered[p]
        x[features + EDGE_OUT : features + EDGE_OUT + len(whole)] = whole
        _layer(w, NODE1, NODE1_B, x, features + EDGE_OUT + len(whole), hidden, NODE_HIDDEN, 0)
        _layer(w, NODE2, NODE2_B, hidden, NODE_HIDDEN, out[p], NODE_OUT, 1)
        total[len(whole) :] += out[p]
    _layer(w, GLOBAL, GLOBAL_B, total, len(total), out[count], GLOBAL_OUT, 1)


@machine_code
def remember(w: Floats, moments: Floats, out: Floats) -> None:
    """The LSTM over the moments, oldest first, from nothing."""
    out[:] = 0.0
    c = np.zeros(MEMORY)
    gates, more = np.zeros(4 * MEMORY), np.zeros(4 * MEMORY)
    for t in range(moments.shape[0]):
        _layer(w, LSTM_X, LSTM_B, moments[t], moments.shape[1], gates, 4 * MEMORY, 2)
        more[:] = 0.0
        for i in range(MEMORY):
            for j in range(4 * MEMORY):
                more[j] += out[i] * w[LSTM_H + i * 4 * MEMORY + j]
        for j in range(MEMORY):
            enter = 1.0 / (1.0 + math.exp(-gates[j] - more[j]))
            forget = 1.0 / (1.0 + math.exp(-gates[MEMORY + j] - more[MEMORY + j]))
            new = math.tanh(gates[2 * MEMORY + j] + more[2 * MEMORY + j])
            let = 1.0 / (1.0 + math.exp(-gates[3 * MEMORY + j] - more[3 * MEMORY + j]))
            c[j] = forget * c[j] + enter * new
            out[j] = let * math.tanh(c[j])


@machine_code
def residuals(
    w: Floats, row: Floats, features: int, topology: Floats, pool: int, memory: Floats, graph: Floats, out: Floats
) -> None:
    """Logarithms of the factors on wait and run time for one candidate."""
    cluster = topology.shape[0] - 1
    x = np.empty(features + NODE_OUT + GLOBAL_OUT + MEMORY + KERNEL_OUT)
    x[:features] = row
    x[features : features + NODE_OUT] = topology[pool]
    x[features + NODE_OUT : features + NODE_OUT + GLOBAL_OUT] = topology[cluster]
    x[features + NODE_OUT + GLOBAL_OUT : features + NODE_OUT + GLOBAL_OUT + MEMORY] = memory
    x[features + NODE_OUT + GLOBAL_OUT + MEMORY :] = graph
    hidden, second = np.empty(HEAD_HIDDEN), np.empty(HEAD_OUT)
    _layer(w, HEAD1, HEAD1_B, x, len(x), hidden, HEAD_HIDDEN, 0)
    _layer(w, HEAD2, HEAD2_B, hidden, HEAD_HIDDEN, second, HEAD_OUT, 0)
    _layer(w, HEAD3, HEAD3_B, second, HEAD_OUT, out, 2, 2)
    for k in range(2):
        out[k] = MOST * math.tanh(out[k] / MOST)


@machine_code
def value(w: Floats, topology: Floats, memory: Floats) -> float:
    """The critic's word on the present state."""
    x, hidden, out = np.empty(GLOBAL_OUT + MEMORY), np.empty(CRITIC_HIDDEN), np.empty(1)
    x[:GLOBAL_OUT] = topology[topology.shape[0] - 1]
    x[GLOBAL_OUT:] = memory
    _layer(w, CRITIC1, CRITIC1_B, x, len(x), hidden, CRITIC_HIDDEN, 0)
    _layer(w, CRITIC2, CRITIC2_B, hidden, CRITIC_HIDDEN, out, 1, 2)
    return float(out[0])
