"""How far off what an annotation tells of run times usually is: for apps that have never run, wherever they may run.

The work of a job's kernels over a processor's peak figures says how long it should take. Real programs are off from
that, in part as the processor's figures and the share of time that memory bounds explain on average, in part each in
its own way. Both are learned from many drawn sites and shipped (`models/prior/`), and brought up to date with what
annotated jobs of the site really took by `advisor retrain`. Plain arithmetic on a few numbers: the hot path reads it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import msgspec

from advisor.dfg.graph import Annotation
from advisor.resources import folder
from advisor.settings import Processor

# What programs reach of peak arithmetic and of peak memory bandwidth; how often a kernel goes through its memory.
EFFICIENCY, MEMORY_EFFICIENCY, PASSES = 0.3, 0.5, 1000.0
# A middling GPU, on which kernels are compared: FLOP/s and bytes/s. One core.
MIDDLING_FLOPS, MIDDLING_BYTES, CORE_FLOPS = 10e12 * EFFICIENCY, 500e9 * MEMORY_EFFICIENCY, 0.05e12 * EFFICIENCY
# How much of its time a job of which nothing is told is taken to be bound by memory.
UNTOLD_SENSITIVITY = 0.4
# The GPU that figures are relative to, a V100: TFLOP/s and GB/s.
REFERENCE = (15.7, 900.0)
# One run against the next of the same app.
NOISE_SD = 0.35
FORMAT = 1
FILE = "prior.json"

Row = tuple[float, ...]


class ToldError(ValueError):
    """The file cannot be used; the text says which and why."""


class Told(msgspec.Struct, frozen=True):
    """The prior: log of (real run time / what the annotation tells), by what is known before a run."""

    format: int
    mean: Row  # coefficients of `explained`
    slopes: tuple[Row, ...]  # covariance of an app's own coefficients over `figures_row`
    own: float  # variance of what is left, of each processor
    runs: int = 0  # of the site that it has learned from; 0: of other sites alone

    def __post_init__(self) -> None:
        numbers = [*self.mean, self.own, *(value for row in self.slopes for value in row)]
        shaped = len(self.mean) == 12 and len(self.slopes) == 3 and all(len(row) == 3 for row in self.slopes)
        if not shaped or not all(map(math.isfinite, numbers)) or self.own < 0:
            raise ValueError("its numbers cannot be those of a prior")

    def off(self, figures: Processor, sensitivity: float) -> tuple[float, float, float]:
        """Mean of the logarithm, and of its variance: what all processors share, and what is this one's own."""
        row = figures_row(figures)
        mean = sum(a * b for a, b in zip(explained(row, sensitivity), self.mean, strict=True))
        spread = sum(row[i] * self.slopes[i][j] * row[j] for i in range(3) for j in range(3))
        shared = min(max(self.slopes[0][0], 0.0), max(spread, 0.0))
        return mean, shared, max(spread - shared, 0.0) + self.own


def figures_row(figures: Processor) -> Row:
    """1, and the logarithms of peak arithmetic and bandwidth against the reference."""
    return (
        1.0,
        math.log(max(figures.tflops, 1e-3) / REFERENCE[0]),
        math.log(max(figures.memory_gbs, 1e-3) / REFERENCE[1]),
    )


def explained(row: Row, sensitivity: float) -> Row:
    """What the mean is linear in: the figures, their products, and both once more by the share that memory bounds."""
    _, flops, bandwidth = row
    plain = (*row, flops**2, bandwidth**2, flops * bandwidth)
    return (*plain, *(sensitivity * value for value in plain))


def sensitivity_of(annotation: Annotation) -> float:
    """The share of a job's time that memory bounds on a middling GPU, as its annotation tells."""
    bound = total = 0.0
    for kernel in annotation.kernels:
        on_cpu = all(kind == "cpu" for kind in kernel.on)
        compute, traffic = kernel.work / MIDDLING_FLOPS, kernel.memory * PASSES / MIDDLING_BYTES
        seconds = kernel.work / CORE_FLOPS if on_cpu else max(compute, traffic)
        total += seconds
        if not on_cpu:
            bound += seconds * traffic / max(traffic + compute, 1e-12)
    return bound / total if total > 0 else UNTOLD_SENSITIVITY


def decode(content: bytes, where: str) -> Told:
    """The prior in a file's bytes; raises `ToldError`."""
    try:
        found = msgspec.json.decode(content, type=Told)
    except (msgspec.DecodeError, ValueError) as error:
        raise ToldError(f"{where} cannot be used: {error}") from None
    if found.format != FORMAT:
        raise ToldError(f"{where} is of format {found.format}, this slurm-advisor reads {FORMAT}")
    return found


def encode(prior: Told) -> bytes:
    """As it stands in a file; the same prior gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(prior), indent=1) + b"\n"


@lru_cache(maxsize=1)
def shipped() -> Told:
    """The one that comes with slurm-advisor; raises `ToldError`."""
    path: Path = folder("models") / "prior" / FILE
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise ToldError(f"{path}: {error.strerror or error}") from None
