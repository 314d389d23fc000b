"""What the jobs that have ended tell of run times: a normal posterior for each app over the cluster's processors.

The logarithm of an app's run time on a type is what its annotation (or its limit) tells, off by an error of which a
prior learned from many sites says what is usual (`advisor.training.prior`); runs are spread around it. All normal, so
the posterior is a few lines of algebra. A job that still runs says that its run time is longer than that: what the
normal posterior becomes by it, matched in mean and variance, counts until the job ends.
In training this stands for the daemon's run-time model, which knows more and takes longer.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from advisor.policy.learned.shapes import Floats, Ints
from advisor.training.prior import Prior, learned_prior
from advisor.training.tasks import Task
from advisor.training.world import END, EXPECTED, SPREAD, START, State, World

NOISE_SD = 0.35
# Jobs that have run for much less than expected say nothing: so many spreads below it.
_EARLY = 2.0


class RunTimes:
    """Beliefs about a task's apps; starts from what annotations and limits tell, and from runs seen before."""

    def __init__(self, task: Task, prior: Prior | None = None) -> None:
        """`prior`: default: the one learned from many sites."""
        self._task = task
        apps, places = len(task.graphs), task.told.shape[1]
        self._precision, self._weighted = np.zeros((apps, places, places)), np.zeros((apps, places))
        self._prior = prior or learned_prior()
        for app in range(apps):
            mean, covariance = self._prior.of(task, app)
            self._precision[app] = np.linalg.inv(covariance)
            self._weighted[app] = self._precision[app] @ mean
        self._seen = np.zeros(len(task.app), dtype=np.bool_)
        self._running: list[tuple[int, int, float]] = []  # app, place, at least so far off

    def for_task(self, task: Task) -> RunTimes:
        """The same beliefs about apps for another workload of the same site."""
        other = RunTimes(task, self._prior)
        count = min(len(self._precision), len(other._precision))
        other._precision[:count], other._weighted[:count] = self._precision[:count], self._weighted[:count]
        return other

    def observe(self, jobs: Ints, places: Ints, seconds: Floats) -> None:
        """Runs that have ended, `seconds` being without slowdown as far as that is known."""
        off = np.log(seconds / self._task.told[jobs, places])
        for job, place, error in zip(jobs, places, off, strict=True):
            app = self._task.app[job]
            self._precision[app, place, place] += 1.0 / NOISE_SD**2
            self._weighted[app, place] += error / NOISE_SD**2

    def expected(self) -> tuple[Floats, Floats]:
        """Run times [job, place] with the arithmetic's slowdown, inf where they cannot run, and their spread."""
        task = self._task
        covariance: Floats = np.linalg.inv(self._precision).astype(np.float64)
        mean: Floats = np.einsum("apq,aq->ap", covariance, self._weighted)
        if self._running:
            precision, weighted = self._with_running(mean, covariance)
            covariance = np.linalg.inv(precision).astype(np.float64)
            mean = np.einsum("apq,aq->ap", covariance, weighted)
        variance = np.diagonal(covariance, axis1=1, axis2=2) + NOISE_SD**2
        spread = np.minimum(np.sqrt(variance), 1.0)
        seconds = task.told * np.exp(mean[task.app] + spread[task.app] ** 2 / 2) * task.slow
        return np.where(np.isfinite(task.expected), seconds, np.inf), spread[task.app]

    def learn_from(self, world: World, state: State, now: float) -> None:
        """Takes in what has ended by now, and tells the policy."""
        ended = np.flatnonzero((state.place >= 0) & (state.times[:, END] <= now) & ~self._seen)
        self._seen[ended] = True
        places = state.place[ended]
        took = (state.times[ended, END] - state.times[ended, START]) / self._task.slow[ended, places]
        self.observe(ended, places, np.maximum(took, 1.0))
        running = np.flatnonzero((state.place >= 0) & (state.times[:, START] < now) & (state.times[:, END] > now))
        where = state.place[running]
        so_far = (now - state.times[running, START]) / self._task.slow[running, where]
        off = np.log(np.maximum(so_far, 1.0) / self._task.told[running, where])
        self._running = list(
            zip(self._task.app[running].tolist(), where.tolist(), off.tolist(), strict=True) if np.isfinite(now) else ()
        )
        self.tell(world)

    def _with_running(self, mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
        """Precision and weighted mean, with what jobs say that have not ended yet."""
        precision, weighted = self._precision.copy(), self._weighted.copy()
        for app, place, least in self._running:
            middle, variance = mean[app, place], covariance[app, place, place]
            spread = math.sqrt(variance + NOISE_SD**2)
            above = (middle - least) / spread
            if above > _EARLY:
                continue
            ratio = math.exp(-(above**2) / 2 - float(log_ndtr(above))) / math.sqrt(2 * math.pi)
            less = max(variance - (variance / spread) ** 2 * ratio * (above + ratio), 1e-6)
            precision[app, place, place] += 1.0 / less - 1.0 / variance
            weighted[app, place] += (middle + variance * ratio / spread) / less - middle / variance
        return precision, weighted

    def tell(self, world: World) -> None:
        """Writes the present beliefs where the policy reads them."""
        world.pair[:, :, EXPECTED], world.pair[:, :, SPREAD] = self.expected()


def tell_truth(task: Task, world: World) -> None:
    """The mean run times themselves, as after very many runs: what the best informed policy would know."""
    runs = RunTimes(task)
    for place in range(task.told.shape[1]):
        jobs = np.flatnonzero(np.isfinite(task.expected[:, place]))
        # Each app's typical run, seen so often that the prior no longer counts.
        for _ in range(20):
            runs.observe(jobs, np.full(len(jobs), place), task.mean[jobs, place])
    runs.tell(world)
