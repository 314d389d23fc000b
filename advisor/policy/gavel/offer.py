"""What an optimisation policy sees, and what it answers: shares of time on each processor type.

Rows are jobs, then pairs of jobs that could share a GPU; columns are processor types in the order of their names.
A share is the part of time that a row should spend on a type.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Offer(msgspec.Struct, frozen=True):
    """The jobs there are and the cluster they would share."""

    jobs: Ints  # numbers of the jobs, ascending: the order of arrival
    types: tuple[str, ...]
    counts: Floats  # [type] GPUs
    speed: Floats  # [job, type] steps per second alone; 0: cannot run
    gpus: Floats  # [job]
    weight: Floats  # [job]
    steps_left: Floats  # [job]
    elapsed: Floats  # [job] seconds since arrival
    pairs: Ints  # [pair, 2] rows of the two jobs, the earlier first; empty where sharing is off
    pair_speed: Floats  # [pair, type, 2] steps per second of each beside the other
    entity: Ints | None = None  # [job] whose it is (an account), for hierarchical fairness; None: everybody's own
    deadline: Floats | None = None  # [job] seconds until it should be done; inf: none
    cost: Floats | None = None  # [type] of one GPU for some time

    @property
    def rows(self) -> int:
        """Jobs and pairs together."""
        return len(self.jobs) + len(self.pairs)


def as_if_all_were(offer: Offer, kind: str) -> Offer:
    """The offer as a policy sees it that takes the speed on one type (or the first there is) for the speed on all.

    A job that cannot run there counts with its highest speed; where it cannot run at all it still cannot.
    """
    column = offer.types.index(kind) if kind in offer.types else 0
    known = np.where(offer.speed[:, column] > 0, offer.speed[:, column], offer.speed.max(axis=1))
    speed = np.where(offer.speed > 0, known[:, None], 0.0)
    return msgspec.structs.replace(offer, speed=speed)


class Allocation(Protocol):
    """An optimisation policy: shares for the jobs (and pairs) of an offer. May remember earlier answers."""

    shared: bool  # whether it uses pairs
    aware: bool  # whether it knows that types differ

    def shares(self, offer: Offer) -> Floats:
        """[row, type], each in 0…1."""
        ...


class ByReference:
    """A policy of which one takes the speed on a reference type for the speed everywhere."""

    def __init__(self, aware: bool = True, shared: bool = False, reference: str = "v100") -> None:
        self.aware = aware
        self.shared = shared
        self.reference = reference

    def seen(self, offer: Offer) -> Offer:
        """The offer as far as the policy tells types apart."""
        return offer if self.aware else as_if_all_were(offer, self.reference)
