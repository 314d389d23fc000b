"""How well annotations are corrected (`advisor.performance.told`), on drawn sites that nothing was fitted to."""

from __future__ import annotations

import math

import numpy as np

from advisor.performance.told import Told, explained
from advisor.training.tasks import Mixture, draw_task
from advisor.training.told_fit import TASTE, TOLD_OFF

FIRST_SEED = 9_007_000
_Z90 = 1.645


def figures(told: Told, sites: int = 40) -> dict[str, float]:
    """Errors of the logarithm of run times of apps that have never run, as told and corrected.

    Between places: without what is alike everywhere, which changes no choice of a place.
    """
    as_told: list[float] = []
    corrected: list[float] = []
    places_told: list[float] = []
    places_corrected: list[float] = []
    covered: list[bool] = []
    mixture = Mixture(held_out=True, oracle=0.0, new_apps=1.0, workflows=0.0, jobs=200, taste=TASTE, told_off=TOLD_OFF)
    for seed in range(FIRST_SEED, FIRST_SEED + sites):
        task = draw_task(seed, mixture)
        rows = [(1.0, float(place[0]), float(place[1])) for place in task.figures]
        for app, graph in enumerate(task.graphs):
            jobs = np.flatnonzero(task.app == app)
            if not len(jobs) or not len(graph.kernels):
                continue
            off = np.log(task.mean[jobs[0]] / task.told[jobs[0]])
            left = off - np.asarray([np.dot(explained(row, graph.sensitivity), told.mean) for row in rows])
            spread = np.asarray([math.sqrt(np.asarray(row) @ np.asarray(told.slopes) @ row + told.own) for row in rows])
            as_told += list(abs(off))
            corrected += list(abs(left))
            places_told += list(abs(off - off.mean()))
            places_corrected += list(abs(left - left.mean()))
            covered += list(abs(left) < _Z90 * spread)
    return {
        "median_error_told": round(float(np.median(as_told)), 3),
        "median_error_corrected": round(float(np.median(corrected)), 3),
        "median_error_between_places_told": round(float(np.median(places_told)), 3),
        "median_error_between_places_corrected": round(float(np.median(places_corrected)), 3),
        "interval90_covers": round(float(np.mean(covered)), 3),
    }
