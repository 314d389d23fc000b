"""What the run-time model believes before it has seen a job, and how firmly; refined from the site's own log.

Every figure is a spread of natural logarithms of seconds (0.1 is about 10 %), so it can be read and argued with.
A coefficient is drawn three times: for the site, for each family around the site's, for each app around its family's.
"""

from __future__ import annotations

import msgspec

# Coefficients of the model, in order; then one for each known processor ("processor"), and one for each size that is
# not the usual one there ("scaling").
LEVEL, CPU, SPEED, BALANCE, SIZE, NUMBER, LIMIT = range(7)
KINDS = ("level", "cpu", "speed", "balance", "size", "number", "limit", "processor", "scaling")
FIXED = 7  # coefficients before those of the processors
PROCESSOR, SCALING = 7, 8  # the kinds of which there may be any number
TRAITS = (NUMBER, LIMIT)  # multiplied with what is known of an app before it has run


class Spread(msgspec.Struct, frozen=True):
    """One coefficient: the site's mean, and how far site, families and apps lie from what they are drawn around."""

    mean: float
    site: float
    family: float
    app: float


class Prior(msgspec.Struct, frozen=True):
    """All beliefs; `strength` counts how many families or apps they weigh as much as."""

    # Log seconds on one unit of the reference GPU: an hour, give or take a factor of ten.
    level: Spread = Spread(8.2, 2.5, 1.0, 0.6)
    # Without GPUs it is another program: hardly bound to what it does with them.
    cpu: Spread = Spread(0.0, 2.0, 1.5, 1.0)
    # Per log of sqrt(peak FLOP/s × bandwidth): a twice as fast GPU all but halves the time.
    speed: Spread = Spread(-0.9, 0.25, 0.3, 0.15)
    # Per log of sqrt(peak FLOP/s / bandwidth): bound by arithmetic (below 0) or by memory (above).
    balance: Spread = Spread(0.0, 0.25, 0.3, 0.15)
    # Per log of GPUs or cores: between the same work spread out (-1) and work that grows with them (0).
    size: Spread = Spread(-0.4, 0.3, 0.3, 0.15)
    # Per log of the last number in the name, a batch size or a mere counter; apps have no slope of their own in it.
    number: Spread = Spread(0.0, 0.3, 0.3, 0.0)
    # Per log of the time limit its users ask for: half of what is not known otherwise.
    limit: Spread = Spread(0.5, 0.3, 0.15, 0.0)
    # A processor against what its peak figures promise.
    processor: Spread = Spread(0.0, 0.2, 0.15, 0.1)
    # So many units of a processor against what `size` says of all: four GPUs on one node or on two are not alike.
    scaling: Spread = Spread(0.0, 0.1, 0.1, 0.1)
    # The same for one whose peak figures nobody told, beside `processor`.
    unknown_processor: float = 0.7
    user: float = 0.35  # a user's runs of an app against everybody's
    noise: float = 0.35  # one run against the next of the same user
    noise_strength: float = 4.0  # in runs: how alike apps are in their noise
    tail: float = 4.0  # degrees of freedom of the noise: one run in a hundred is far off
    strength: float = 8.0


def spreads(prior: Prior) -> tuple[Spread, ...]:
    """The prior of each coefficient of `KINDS`."""
    return tuple(getattr(prior, kind) for kind in KINDS)
