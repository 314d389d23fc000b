"""Makes and updates what is known of how far annotations are off (`advisor.performance.told`).

The shipped one comes from drawn sites (`advisor.training.prior`). A site's own is the same with its mean brought up to
date by annotated jobs that have ended there: a linear model with the shipped coefficients as its prior, in which an
app's runs count together, since they are off in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from advisor.dfg.graph import Annotation
from advisor.performance.processors import lookup
from advisor.performance.runtime import expected
from advisor.performance.told import FORMAT, NOISE_SD, Told, explained, figures_row, sensitivity_of
from advisor.policy.learned.shapes import Floats
from advisor.settings import Processor
from advisor.store.learning import AnnotatedRun
from advisor.training.prior import learned_prior

# Of the drawn sites: apps as different from each other as measured ones are, annotations off by a factor of two or so.
TASTE, TOLD_OFF = 0.45, 0.7
# How far a site's coefficients may lie from those of other sites, as a spread.
SITE_SD = 0.6


def from_drawn_sites() -> Told:
    """The prior of annotated apps, as it is shipped."""
    found = learned_prior(TASTE, TOLD_OFF)
    mean, slopes, own = found.mean[1], found.slopes[1], found.own[1]
    # Rounded, so that another machine's last digits make the same file.
    return Told(
        FORMAT,
        tuple(round(float(value), 5) for value in mean),
        tuple(tuple(round(float(value), 5) for value in row) for row in slopes),
        round(float(own), 5),
    )


class _Seen:
    """What an app's runs were off, by processor."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self.off: dict[str, list[float]] = {}


def updated(base: Told, runs: Iterable[AnnotatedRun], processors: Mapping[str, Processor]) -> Told:
    """The prior after a site's annotated runs; without any, the one before."""
    apps: dict[tuple[str, str], _Seen] = {}
    count = 0
    for run in runs:
        figures = lookup(processors, run.processor)
        annotation = _read(run.annotation)
        if figures is None or run.processor == "cpu" or annotation is None or run.elapsed_s < 1.0:
            continue
        told = expected("", "", run.processor, None, annotation, {}, processors, gpus=run.gpus or 1, cpus=run.cpus or 1)
        if told.source != "annotation" or not told.seconds > 0:
            continue
        row = figures_row(figures)
        seen = apps.setdefault((run.app, run.annotation), _Seen())
        seen.rows[run.processor] = (explained(row, sensitivity_of(annotation)), row)
        seen.off.setdefault(run.processor, []).append(math.log(run.elapsed_s / told.seconds))
        count += 1
    if not count:
        return base
    return msgspec.structs.replace(base, mean=tuple(map(float, _mean(base, apps.values()))), runs=base.runs + count)


def _mean(base: Told, apps: Iterable[_Seen]) -> Floats:
    before, slopes = np.asarray(base.mean), np.asarray(base.slopes)
    normal, right = np.eye(len(before)) / SITE_SD**2, before / SITE_SD**2
    for seen in apps:
        names = sorted(seen.rows)
        x = np.asarray([seen.rows[name][0] for name in names])
        z = np.asarray([seen.rows[name][1] for name in names])
        y = np.asarray([float(np.median(seen.off[name])) for name in names])
        noise = np.asarray([NOISE_SD**2 / len(seen.off[name]) for name in names])
        weighted = np.linalg.solve(z @ slopes @ z.T + np.diag(base.own + noise), x).T
        normal += weighted @ x
        right += weighted @ y
    return np.asarray(np.linalg.solve(normal, right), dtype=np.float64)


def _read(text: str) -> Annotation | None:
    try:
        found = msgspec.json.decode(text.encode(), type=Annotation)
    except (msgspec.DecodeError, ValueError):
        return None
    return found if found.kernels else None
