"""The network's answer, in numpy: what the daemon runs.

`advisor.policy.learned.network` is the same in torch, for gradients, `advisor.training.compiled_forward` in compiled
loops, for the simulator; a test holds the three together.
"""

from __future__ import annotations

import numpy as np

from advisor.policy.learned.shapes import (
    CANDIDATE_FEATURES,
    GLOBAL_OUT,
    KERNEL_OUT,
    MEMORY,
    MOST,
    NODE_OUT,
    Floats,
    Ints,
    Weights,
)

# The head's inputs end here: the candidate's own, its pool's, the cluster's, the LSTM's; then the dataflow graph's.
_CANDIDATE = len(CANDIDATE_FEATURES)
_POOL = _CANDIDATE + NODE_OUT
_WHOLE = _POOL + GLOBAL_OUT
_PAST = _WHOLE + MEMORY


def embed_topology(w: Weights, pools: Floats, sources: Ints, targets: Ints, edges: Floats, whole: Floats) -> Floats:
    """Edge, node and global update over the pools: one row for each pool, and the cluster's in the last row."""
    count = pools.shape[0]
    gathered = np.zeros((count, w.edge_w2.shape[1]))
    if len(sources) > 0:
        pairs = np.concatenate((pools[sources], pools[targets], edges), axis=1)
        hidden = np.maximum(np.dot(pairs, w.edge_w1) + w.edge_b1, 0.0)
        messages = np.maximum(np.dot(hidden, w.edge_w2) + w.edge_b2, 0.0)
        for k in range(len(targets)):
            gathered[targets[k]] += messages[k]
    around = np.zeros((count, whole.shape[0]))
    around[:] = whole
    inputs = np.concatenate((pools, gathered, around), axis=1)
    hidden = np.maximum(np.dot(inputs, w.node_w1) + w.node_b1, 0.0)
    nodes = np.tanh(np.dot(hidden, w.node_w2) + w.node_b2)
    total = np.concatenate((whole, nodes.sum(axis=0)))
    found = np.empty((count + 1, NODE_OUT))
    found[:count] = nodes
    found[count, :GLOBAL_OUT] = np.tanh(np.dot(total, w.global_w) + w.global_b)
    return found


def remember(w: Weights, moments: Floats) -> Floats:
    """The LSTM over the last moments, oldest first, from nothing."""
    h = np.zeros(MEMORY)
    c = np.zeros(MEMORY)
    for t in range(moments.shape[0]):
        gates = np.dot(moments[t], w.lstm_x) + np.dot(h, w.lstm_h) + w.lstm_b
        enter = 1.0 / (1.0 + np.exp(-gates[:MEMORY]))
        forget = 1.0 / (1.0 + np.exp(-gates[MEMORY : 2 * MEMORY]))
        new = np.tanh(gates[2 * MEMORY : 3 * MEMORY])
        out = 1.0 / (1.0 + np.exp(-gates[3 * MEMORY :]))
        c = forget * c + enter * new
        h = out * np.tanh(c)
    return h


def embed_graph(w: Weights, kernels: Floats, sources: Ints, targets: Ints, flows: Floats) -> Floats:
    """One round of messages along the job's dataflow graph, summed over its kernels; zeros for a job without one."""
    count = kernels.shape[0]
    if count == 0:
        return np.zeros(KERNEL_OUT)
    gathered = np.zeros((count, KERNEL_OUT))
    if len(sources) > 0:
        messages = np.maximum(np.dot(np.concatenate((kernels[sources], flows), axis=1), w.flow_w) + w.flow_b, 0.0)
        for k in range(len(targets)):
            gathered[targets[k]] += messages[k]
    inputs = np.concatenate((kernels, gathered), axis=1)
    # Weighted by their share of the work (the first feature): many small kernels are not many large ones.
    each = np.tanh(np.dot(inputs, w.kernel_w) + w.kernel_b)
    total: Floats = np.dot(np.ascontiguousarray(kernels[:, 0]), each)
    return total


def ground(w: Weights, topology: Floats, memory: Floats) -> Floats:
    """What the head's first layer makes of pools, the cluster and its past, whatever the job: once a snapshot.

    Rows are those of `topology`, whose last one is the whole cluster.
    """
    whole = np.dot(topology[topology.shape[0] - 1], w.head_w1[_POOL:_WHOLE])
    found: Floats = np.dot(topology, w.head_w1[_CANDIDATE:_POOL])
    found += whole + np.dot(memory, w.head_w1[_WHOLE:_PAST]) + w.head_b1
    return found


def residuals(w: Weights, candidates: Floats, pools: Floats, graph: Floats, where: Ints) -> Floats:
    """For each candidate the logarithms of two factors: on its wait and on its run time; 0, 0 is the arithmetic.

    `pools` is the snapshot's `ground`, `where` each candidate's row of it. Of several jobs at once, `graph` has a row
    for each candidate.
    """
    hidden = np.dot(candidates, w.head_w1[:_CANDIDATE])
    hidden += pools[where]
    hidden += np.dot(graph, w.head_w1[_PAST:])
    np.maximum(hidden, 0.0, out=hidden)
    hidden = np.maximum(np.dot(hidden, w.head_w2) + w.head_b2, 0.0)
    found: Floats = MOST * np.tanh((np.dot(hidden, w.head_w3) + w.head_b3) / MOST)
    return found


def value(w: Weights, topology: Floats, memory: Floats) -> float:
    """The critic: how much longer than their run times the next jobs will take, in usual run times, on average."""
    seen = np.concatenate((topology[topology.shape[0] - 1], memory))
    hidden = np.maximum(np.dot(seen, w.critic_w1) + w.critic_b1, 0.0)
    return float((np.dot(hidden, w.critic_w2) + w.critic_b2)[0])
