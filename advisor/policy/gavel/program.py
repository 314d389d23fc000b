"""The constraints that every allocation has in common, and the questions asked of them.

Shares are 0…1; a type's GPUs are not promised twice; a job, alone and in all its pairs, has at most all of its time.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from advisor.policy.gavel.offer import Floats, Offer
from advisor.policy.gavel.solver import maximise, maximise_priced


class Program:
    """One offer as a linear program over the shares, row by row of [job or pair, type]."""

    def __init__(self, offer: Offer, aware: bool = True) -> None:
        m, n = offer.speed.shape
        k = len(offer.pairs)
        self.offer = offer
        self.columns = (m + k) * n
        # To a policy that does not know types, all look like the same one.
        self.speed = offer.speed if aware else np.ones_like(offer.speed)
        self.rows_of_job = self._job_rows(m, n)
        self.throughput = self._throughput(m, n)
        gpus = np.concatenate([offer.gpus, offer.gpus[offer.pairs[:, 0]]]) if k else offer.gpus
        capacity = sparse.kron(sparse.csr_matrix(gpus[None, :]), sparse.identity(n))
        self.limits = sparse.vstack([capacity, self.rows_of_job], format="csr")
        self.at_most = np.concatenate([offer.counts, np.ones(m)])
        # Pairs that cannot share, and types that cannot run a job, get no time.
        usable = np.concatenate([offer.speed > 0, (offer.pair_speed > 0).all(axis=2)]) if k else offer.speed > 0
        self.upper = usable.astype(np.float64).ravel() if aware else np.ones(self.columns)

    def maximise_least(self, value: sparse.spmatrix) -> tuple[Floats, float]:
        """Shares for which the least of value @ x is as large as possible, and that least."""
        shares, least, _ = self.maximise_least_priced(value)
        return shares, least

    def maximise_least_priced(self, value: sparse.spmatrix) -> tuple[Floats, float, Floats]:
        """The same, and how much each job holds it down: parts of one."""
        m = value.shape[0]
        least = sparse.hstack([-value, sparse.csr_matrix(np.ones((m, 1)))])
        limits = sparse.hstack([self.limits, sparse.csr_matrix((self.limits.shape[0], 1))])
        goal = np.zeros(self.columns + 1)
        goal[-1] = 1.0
        x, price = maximise_priced(
            goal,
            sparse.vstack([limits, least], format="csr"),
            np.concatenate([self.at_most, np.zeros(m)]),
            np.append(self.upper, np.inf),
        )
        weight = np.maximum(price[-m:], 0.0)
        return self.table(x[:-1]), float(x[-1]), weight / max(float(weight.sum()), 1e-12)

    def largest_factor(self, least: Floats) -> float:
        """The largest f for which every job can have f times this throughput."""
        return self.largest_factor_priced(least)[1]

    def largest_factor_priced(self, least: Floats) -> tuple[Floats, float, Floats]:
        """Shares that give every job f times this throughput, the largest such f, and who holds it down."""
        # In units of what an even split gives, so that the answer is near 1, where the solver's tolerances are meant.
        even = self.throughput @ np.full(self.columns, 1.0 / len(self.offer.jobs))
        guess = float(np.min(even / least))
        shares, factor, price = self.maximise_least_priced(sparse.diags(1.0 / (least * guess)) @ self.throughput)
        return shares, guess * factor, price

    def inside(self, least: Floats) -> Floats:
        """Shares from the inside of all that give every job at least this throughput; raises `Infeasible`."""
        x = maximise(
            np.zeros(self.columns),
            sparse.vstack([self.limits, -sparse.diags(1.0 / least) @ self.throughput], format="csr"),
            np.concatenate([self.at_most, -np.ones(len(least))]),
            self.upper,
        )
        return self.table(x)

    def _job_rows(self, m: int, n: int) -> sparse.csr_matrix:
        """[job, column]: 1 where the column is a share of that job, alone or in a pair."""
        pairs = self.offer.pairs
        rows = np.concatenate([np.arange(m), pairs[:, 0], pairs[:, 1]]).astype(np.int64)
        combos = np.concatenate([np.arange(m), np.arange(len(pairs)) + m, np.arange(len(pairs)) + m])
        data = np.ones(len(rows))
        by_combo = sparse.csr_matrix((data, (rows, combos)), shape=(m, m + len(pairs)))
        return sparse.csr_matrix(sparse.kron(by_combo, np.ones((1, n))))

    def _throughput(self, m: int, n: int) -> sparse.csr_matrix:
        """[job, column]: steps per second that the job makes in that column."""
        pairs = self.offer.pairs
        types = np.arange(n)
        rows = [np.repeat(np.arange(m), n)]
        columns = [np.arange(m * n)]
        data = [self.speed.ravel()]
        for side in (0, 1):
            rows.append(np.repeat(pairs[:, side], n))
            columns.append(((np.arange(len(pairs)) + m)[:, None] * n + types).ravel())
            data.append(self.offer.pair_speed[:, :, side].ravel())
        return sparse.csr_matrix(
            (np.concatenate(data), (np.concatenate(rows), np.concatenate(columns))), shape=(m, self.columns)
        )

    def table(self, x: Floats) -> Floats:
        """The solution as shares [row, type]."""
        return np.clip(x, 0.0, 1.0).reshape(self.offer.rows, len(self.offer.types))
