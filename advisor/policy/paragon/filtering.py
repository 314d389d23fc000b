"""Collaborative filtering: a table of which only some entries were measured, completed by its own regularities.

Paragon (ASPLOS 2013) profiles a new app on a few machines only and infers the rest from apps that behaved alike there.
An entry (a logarithm) is the mean + what its row adds + what its column adds + a product of latent factors of both; all
are found by alternating least squares with a ridge, which is what a truncated SVD becomes where entries are missing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RANK, TURNS = 2, 30
# How strongly rows' levels, columns' levels and factors are drawn to 0: a level is soon believed, a factor is not.
LEVEL_RIDGE, FACTOR_RIDGE = 1e-3, 0.3


def complete(table: Floats, rank: int = RANK, turns: int = TURNS, seed: int = 0) -> Floats:
    """The table with its missing entries (nan) inferred; measured ones stay as they are.

    A row without any entry gets what its columns have on the whole; a table without any gets zeros.
    """
    rows, columns = table.shape
    known = np.isfinite(table)
    if not known.any():
        return np.zeros_like(table)
    mean = float(table[known].mean())
    values = np.where(known, table - mean, 0.0)
    rank = max(min(rank, rows - 1, columns - 1), 0)
    draw = np.random.default_rng(seed)
    row_side = np.concatenate([np.zeros((rows, 1)), 0.1 * draw.standard_normal((rows, rank))], axis=1)
    column_side = np.concatenate([np.zeros((columns, 1)), 0.1 * draw.standard_normal((columns, rank))], axis=1)
    for _ in range(turns):
        row_side = _fit(values - known * column_side[None, :, 0], known, column_side)
        column_side = _fit((values - known * row_side[:, None, 0]).T, known.T, row_side)
    inferred = mean + row_side[:, [0]] + column_side[:, 0] + row_side[:, 1:] @ column_side[:, 1:].T
    return np.where(known, table, inferred)


def _fit(values: Floats, known: npt.NDArray[np.bool_], other: Floats) -> Floats:
    """Level and factors of each row, given those of the columns."""
    features = other.copy()
    features[:, 0] = 1.0
    weight = known.astype(np.float64)
    normal = np.einsum("rc,ci,cj->rij", weight, features, features)
    ridge = np.full(features.shape[1], FACTOR_RIDGE)
    ridge[0] = LEVEL_RIDGE
    right = np.einsum("rc,ci->ri", weight * values, features)
    return np.asarray(np.linalg.solve(normal + np.diag(ridge), right[:, :, None])[:, :, 0])
