"""Paragon's greedy choice in the daemon: of what is free now, the place where the job runs fastest.

Run times on types where the app has never run are inferred by collaborative filtering of the history's table of apps
and types, worked out once for each history; what runs beside it counts through its expected slowdown. Queues are not
weighed against speed: where nothing is free, whatever comes free first is taken.
"""

from __future__ import annotations

import math

from advisor.performance.runtime import History
from advisor.performance.snapshot import Snapshot
from advisor.policy.interface import JobShape, Prediction

# A wait below this is none: the next pass of the scheduler starts the job.
FREE_S = 30.0
# Apps whose rows are filtered together: the ones with most runs. Others are few and behave like somebody among them.
MOST_APPS = 512


class Greedy:
    """Scores for `advisor.policy.rules.Rescored`."""

    def __init__(self) -> None:
        self._history: History | None = None
        self._inferred: dict[tuple[str, str], float] = {}

    def __call__(self, predictions: list[Prediction], shape: JobShape, snapshot: Snapshot, now: float) -> list[float]:
        """Free places by how long the job would run there; then the others, by when they come free."""
        if snapshot.history is not self._history:
            self._inferred = inferred(snapshot.history)
            self._history = snapshot.history
        run = [self._run_s(p, shape) * p.slowdown for p in predictions]
        longest = max((s for s, p in zip(run, predictions, strict=True) if p.wait_s <= FREE_S), default=0.0)
        return [s if p.wait_s <= FREE_S else longest + p.wait_s for s, p in zip(run, predictions, strict=True)]

    def _run_s(self, prediction: Prediction, shape: JobShape) -> float:
        return self._inferred.get((shape.app, prediction.processor), prediction.run_s)


def inferred(history: History) -> dict[tuple[str, str], float]:
    """Seconds of each app on each type on which it has not run while others have; needs numpy."""
    from importlib.util import find_spec

    if find_spec("numpy") is None:
        return {}
    import numpy as np

    from advisor.policy.paragon.filtering import complete

    runs = {app: {kind: past for kind, past in of.items() if past.count > 0} for app, of in history.items()}
    apps = sorted(
        (app for app, of in runs.items() if of and "@" not in app),
        key=lambda app: (-sum(past.count for past in runs[app].values()), app),
    )[:MOST_APPS]
    kinds = sorted({kind for app in apps for kind in runs[app]})
    if len(apps) < 2 or len(kinds) < 2:
        return {}
    table = np.full((len(apps), len(kinds)), np.nan)
    for i, app in enumerate(apps):
        for kind, past in runs[app].items():
            table[i, kinds.index(kind)] = past.mean_log
    full = complete(table)
    return {
        (app, kind): math.exp(min(float(full[i, k]), 20.0))
        for i, app in enumerate(apps)
        for k, kind in enumerate(kinds)
        if math.isnan(table[i, k])
    }
