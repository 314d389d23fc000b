"""What the jobs that have ended tell of run times: a normal posterior for each app over the cluster's processors.

The logarithm of an app's run time on a type is what its annotation (or its limit) tells, off by an error of which a
prior learned from many sites says what is usual (`advisor.training.prior`); runs are spread around it, by how much
being learned as well. Given the spread all is normal, so the posterior is a few lines of algebra for each of a few
spreads, which count as well as each explains the runs. A job that still runs says that its run time is longer than
that: what the normal posterior becomes by it, matched in mean and variance, counts until the job ends.
In training this stands for the daemon's run-time model, which knows more and takes longer.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from advisor.policy.learned.shapes import Floats, Ints
from advisor.training.prior import PLAIN_NOISE, Prior, learned_prior
from advisor.training.tasks import Task
from advisor.training.world import END, EXPECTED, SPREAD, START, State, World

# Jobs that have run for much less than expected say nothing: so many spreads below it.
_EARLY = 2.0


class RunTimes:
    """Beliefs about a task's apps; starts from what annotations and limits tell, and from runs seen before."""

    def __init__(self, task: Task, prior: Prior | None = None) -> None:
        """`prior`: default: the one learned from many sites."""
        self._task, self._prior = task, prior or learned_prior()
        apps, places = len(task.graphs), task.told.shape[1]
        self._noise: Floats = np.asarray(self._prior.noise) ** 2  # variances that a run may have around its app's mean
        spreads = len(self._noise)
        self._mean = np.zeros((apps, spreads, places))
        self._covariance = np.zeros((apps, spreads, places, places))
        self._evidence = np.zeros((apps, spreads))  # logarithm of how well each spread explains the runs
        for app in range(apps):
            self._mean[app], self._covariance[app] = self._prior.of(task, app)
        self._seen = np.zeros(len(task.app), dtype=np.bool_)
        self._running: dict[int, list[tuple[int, float]]] = {}  # app → place, at least so far off

    def for_task(self, task: Task) -> RunTimes:
        """The same beliefs about apps for another workload of the same site."""
        other = RunTimes(task, self._prior)
        for name in ("_mean", "_covariance", "_evidence"):
            mine, theirs = getattr(self, name), getattr(other, name)
            count = min(len(mine), len(theirs))
            theirs[:count] = mine[:count]
        return other

    def observe(self, jobs: Ints, places: Ints, seconds: Floats) -> None:
        """Runs that have ended, `seconds` being without slowdown as far as that is known."""
        off = np.log(seconds / self._task.told[jobs, places])
        for job, place, error in zip(jobs, places, off, strict=True):
            app = self._task.app[job]
            mean, covariance = self._mean[app], self._covariance[app]
            variance = covariance[:, place, place] + self._noise
            gain = covariance[:, :, place] / variance[:, None]
            missed = error - mean[:, place]
            self._evidence[app] -= (missed**2 / variance + np.log(variance)) / 2
            mean += gain * missed[:, None]
            covariance -= gain[:, :, None] * covariance[:, None, place, :]

    def believed(self) -> tuple[Floats, Floats, Floats]:
        """Of each app: mean [app, place] and covariance of how far off it is, and the variance of one run."""
        mean, covariance, evidence = self._mean, self._covariance, self._evidence
        if self._running:
            mean, covariance, evidence = mean.copy(), covariance.copy(), evidence.copy()
            for app, running in self._running.items():
                for place, least in running:
                    self._lasts(mean[app], covariance[app], evidence[app], place, least)
        weight = np.exp(evidence - evidence.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        middle: Floats = np.einsum("as,asp->ap", weight, mean)
        apart = mean - middle[:, None]
        between = np.einsum("as,asp,asq->apq", weight, apart, apart)
        return middle, np.einsum("as,aspq->apq", weight, covariance) + between, weight @ self._noise

    def _lasts(self, mean: Floats, covariance: Floats, evidence: Floats, place: int, least: float) -> None:
        """Takes in a job of the app that has run for so long."""
        variance = covariance[:, place, place]
        spread = np.sqrt(variance + self._noise)
        above = (mean[:, place] - least) / spread
        if above.min() > _EARLY:
            return
        chance = log_ndtr(above)
        ratio = np.exp(-(above**2) / 2 - chance) / math.sqrt(2 * math.pi)
        gain = covariance[:, :, place] / spread[:, None]
        evidence += chance
        mean += gain * ratio[:, None]
        covariance -= gain[:, :, None] * gain[:, None, :] * (ratio * (above + ratio))[:, None, None]

    def expected(self) -> tuple[Floats, Floats]:
        """Run times [job, place] with the arithmetic's slowdown, inf where they cannot run, and their spread."""
        task = self._task
        mean, covariance, noise = self.believed()
        spread = np.minimum(np.sqrt(np.diagonal(covariance, axis1=1, axis2=2) + noise[:, None]), 1.0)
        seconds = task.told * np.exp(mean[task.app] + spread[task.app] ** 2 / 2) * task.slow
        return np.where(np.isfinite(task.expected), seconds, np.inf), spread[task.app]

    def learn_from(self, world: World, state: State, now: float) -> None:
        """Takes in what has ended by now in training's simulator, and tells the policy."""
        self.take_in(state.place, state.times[:, START], state.times[:, END], now)
        self.tell(world)

    def take_in(self, place: Ints, start: Floats, end: Floats, now: float) -> None:
        """What has ended by now, and what runs; `place` is -1 and times are nan, or later than now, of all others."""
        task = self._task
        ended = np.flatnonzero((place >= 0) & (end <= now) & ~self._seen)
        self._seen[ended] = True
        places = place[ended]
        took = (end[ended] - start[ended]) / task.slow[ended, places]
        self.observe(ended, places, np.maximum(took, 1.0))
        self._running = {}
        if not np.isfinite(now):
            return
        running = np.flatnonzero((place >= 0) & (start <= now) & ~(end <= now))
        where = place[running]
        so_far = (now - start[running]) / task.slow[running, where]
        off = np.log(np.maximum(so_far, 1.0) / task.told[running, where])
        for app, at, least in zip(task.app[running].tolist(), where.tolist(), off.tolist(), strict=True):
            self._running.setdefault(app, []).append((at, least))

    def tell(self, world: World) -> None:
        """Writes the present beliefs where the policy reads them."""
        world.pair[:, :, EXPECTED], world.pair[:, :, SPREAD] = self.expected()


def tell_truth(task: Task, world: World) -> None:
    """The mean run times themselves, as after very many runs: what the best informed policy would know."""
    possible = np.isfinite(task.expected)
    world.pair[:, :, EXPECTED] = np.where(possible, task.mean * math.exp(PLAIN_NOISE**2 / 2) * task.slow, np.inf)
    world.pair[:, :, SPREAD] = PLAIN_NOISE
