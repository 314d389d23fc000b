"""Forks of an iteration, each played by one of the ranks; every rank then knows its part of the whole loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from advisor.policy.learned.shapes import Ints
from advisor.training.batches import Forked, assemble
from advisor.training.distributed import deal, sums, world_rank
from advisor.training.environment import Environment, Forks

Play = Callable[[int, Ints], tuple[Environment, Forks]]  # which task, and its decisions to fork


def fork_together(at: Sequence[Ints], play: Play, horizon: int) -> Forked:
    """This rank's forks of these decisions of each task, as a batch with its share in that of all ranks."""
    dealt, busy = deal([len(jobs) for jobs in at])
    forked = assemble([play(number, np.sort(at[number])[part]) for number, part in dealt], horizon)
    if world_rank()[1] == 1:
        return forked
    mine = (len(forked.whole), len(forked.cost)) if busy else (0, 0)
    total = sums(mine)
    return replace(forked, share=(mine[0] / total[0], mine[1] / total[1]))
