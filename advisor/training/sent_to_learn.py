"""The daemon's exploration (`advisor.policy.exploration`) where training's beliefs stand for its run-time model."""

from __future__ import annotations

import math

import numpy as np

from advisor.dfg.graph import Annotation
from advisor.policy.exploration import draw_by, explore
from advisor.policy.interface import JobShape, Prediction
from advisor.policy.learned.shapes import Floats
from advisor.policy.probes import Probes
from advisor.settings import Explore, PolicySettings
from advisor.training.posterior import RunTimes
from advisor.training.tasks import Task

# Any other place is a change alike: there is none where a job goes by itself.
_ANY_GAIN = PolicySettings(min_gain=0.0, min_gain_s=0.0)


class Explorer:
    """Says of each job whether it goes elsewhere to learn; of an app on a processor one at a time does."""

    def __init__(self, task: Task, runs: RunTimes, settings: Explore) -> None:
        self._task, self._runs, self._settings = task, runs, settings
        self._probes = Probes()

    def place(self, job: int, preferred: int, wait_s: Floats, run_s: Floats, score: Floats, now: float) -> int:
        """The place that the job's number draws, by what is not known; times are of each place, inf: it cannot run."""
        task = self._task
        app = int(task.app[job])
        places = np.flatnonzero(np.isfinite(score))
        if len(places) < 2:
            return preferred
        shared, own, spread = self._doubt(app, places.tolist())
        predictions = [
            Prediction(
                candidate=number,
                wait_s=float(wait_s[p]),
                run_s=float(run_s[p]),
                score=float(score[p]),
                pool=p,
                processor=task.cluster.places[p].processor,
                sd_log=float(spread[number]),
                doubt_log=shared,
                apart_log=float(own[number]),
            )
            for number, p in enumerate(places.tolist())
        ]
        best = int(np.flatnonzero(places == preferred)[0])
        spec = task.workload.jobs[job]
        shape = JobShape(spec.app, "", "", 1, 1, 0, spec.gpus, spec.gpus, spec.time_limit, 1, False, Annotation())
        open_to = self._probes.open(spec.app, best, predictions, now)
        chosen = draw_by(str(job), explore(best, open_to, shape, _ANY_GAIN, self._settings))
        if chosen != best:
            self._probes.send(spec.app, predictions[chosen], now)
        return int(places[chosen])

    def _doubt(self, app: int, places: list[int]) -> tuple[float, Floats, Floats]:
        """Spreads of the logarithm: what all places share, what each has of its own, and of one run."""
        _, covariance, noise = self._runs.believed()
        of = covariance[app][np.ix_(places, places)]
        variance = np.diagonal(of)
        common = max(float(of.sum() - variance.sum()) / (len(places) * (len(places) - 1)), 0.0)
        return math.sqrt(common), np.sqrt(np.maximum(variance - common, 0.0)), np.sqrt(variance + noise[app])
