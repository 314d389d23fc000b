"""Made-up runs whose truth is known: log run time = app + processor + user + noise."""

from __future__ import annotations

import math
import random

from advisor.performance import processors
from advisor.performance.model.model import RunTimeModel
from advisor.performance.model.observations import Observation

PROCESSORS = processors.load()
GPUS = ("k80", "p100", "v100")
SLOWER = {"k80": 1.3, "p100": 0.4, "v100": 0.0}


def site(seed: int, apps: int = 12, runs: int = 6, noise: float = 0.15) -> list[Observation]:
    """Every app on every GPU type, by two users."""
    rng = random.Random(seed)
    found = []
    for number in range(apps):
        level = 7.0 + rng.gauss(0, 1)
        for gpu in GPUS:
            for i in range(runs):
                offset = 0.3 if i % 2 else 0.0
                log_s = level + SLOWER[gpu] + offset + rng.gauss(0, noise)
                found.append(Observation(f"app{chr(97 + number)}", f"user{i % 2}", gpu, 1, log_s))
    return found


def fitted(runs: list[Observation]) -> RunTimeModel:
    return RunTimeModel.fitted(runs, PROCESSORS)


def cut_at(run: Observation, log_limit: float) -> Observation:
    """The run as accounting has it when its limit was this."""
    if run.log_s <= log_limit:
        return run
    return Observation(run.app, run.user, run.processor, run.units, log_limit, True)


def spread_of(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
