"""Water filling: when the worst-off can have no more, the next worst-off still can.

Max-min fairness leaves what is above the least to chance. Here the least is raised, those that hold it down are kept
where they are, and the rest is raised again, until nobody can have more. With `entity` in the offer it is hierarchical:
an entity (an account) has its weight, which its jobs share alike.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from advisor.policy.gavel.offer import Floats, Offer
from advisor.policy.gavel.program import Program
from advisor.policy.gavel.solver import Infeasible, maximise

Flags = npt.NDArray[np.bool_]

# Levels are raised at most so often; who gains less than this part of the level is at rest.
MOST_LEVELS, AT_REST = 8, 1e-2


class WaterFilling:
    """Max-min fairness, level by level."""

    def __init__(self, aware: bool = True, shared: bool = False) -> None:
        self.aware = aware
        self.shared = shared

    def shares(self, offer: Offer) -> Floats:
        """Shares with which nobody can have more without somebody who has less losing some."""
        program = Program(offer, aware=self.aware)
        alone = program.speed @ (offer.counts / offer.counts.sum())
        value = sparse.csr_matrix(sparse.diags(offer.gpus / (weights(offer) * alone)) @ program.throughput)
        shares, level = program.maximise_least(value)
        kept = np.full(len(offer.jobs), level * (1 - 1e-6))
        open_ = np.ones(len(offer.jobs), dtype=np.bool_)
        try:
            for _ in range(MOST_LEVELS):
                shares, gained = self._room_above(program, value, kept, open_)
                open_ &= gained > AT_REST * max(level, 1e-12)
                if not open_.any():
                    break
                level = self._raised(program, value, kept, open_)
                kept = np.where(open_, np.maximum(kept, level * (1 - 1e-6)), kept)
        except Infeasible:  # within the solver's tolerances there is no more room: the last shares stand
            pass
        return shares

    @staticmethod
    def _raised(program: Program, value: sparse.csr_matrix, kept: Floats, open_: Flags) -> float:
        """The highest level of the open jobs while the others keep theirs."""
        lifted = sparse.csr_matrix(np.where(open_, 1.0, 0.0)[:, None])
        rows = sparse.bmat([[program.limits, None], [-value, lifted]], format="csr")
        at_most = np.concatenate([program.at_most, np.where(open_, 0.0, -kept)])
        goal = np.append(np.zeros(value.shape[1]), 1.0)
        return float(maximise(goal, rows, at_most, np.append(program.upper, np.inf))[-1])

    @staticmethod
    def _room_above(program: Program, value: sparse.csr_matrix, kept: Floats, open_: Flags) -> tuple[Floats, Floats]:
        """What each open job could have above what is kept, all at once; more than a tenth of it counts no more."""
        m, columns = value.shape
        more = sparse.bmat([[program.limits, None], [-value, sparse.diags(open_.astype(np.float64))]], format="csr")
        x = maximise(
            np.concatenate([np.zeros(columns), open_.astype(np.float64)]),
            more,
            np.concatenate([program.at_most, -kept]),
            np.concatenate([program.upper, np.full(m, 0.1 * max(float(kept.max(initial=0.0)), 1e-9))]),
        )
        return program.table(x[:columns]), x[columns:]


def weights(offer: Offer) -> Floats:
    """A job's weight; jobs of one entity have the entity's together: the mean of theirs, in equal parts."""
    if offer.entity is None:
        return offer.weight
    _, of, count = np.unique(offer.entity, return_inverse=True, return_counts=True)
    total = np.bincount(of, weights=offer.weight)
    return np.asarray((total / count / count)[of])
