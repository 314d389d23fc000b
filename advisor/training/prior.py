"""What all sites have in common about run times: a prior learned from many drawn sites, for one never seen.

An app's run time on a processor is off from what its annotation or its limit tells. By how much has a part that
processors' figures and the share of its time that memory bounds explain on average, a part in which apps differ
(slopes over the figures), and a small one that nothing explains. The three are learned by expectation maximisation on
the tasks of training, whose processors and seeds no benchmark has: what meta-learning is for run times.
"""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np

from advisor.policy.learned.shapes import Floats
from advisor.training.tasks import Mixture, Task, draw_task

TASKS, FIRST_SEED, ROUNDS = 300, 40_000, 30
_FEWEST = 1e-4
# One run against the next, where nobody has looked; and for how many spreads a learned prior stands, from how many runs
# of an app each is told.
PLAIN_NOISE = 0.35
_NOISES, _FEWEST_RUNS = 6, 10


class Prior(msgspec.Struct, frozen=True):
    """Of apps whose graph is told (1), and of others (0)."""

    mean: tuple[Floats, Floats]  # coefficients of `_explained`
    slopes: tuple[Floats, Floats]  # covariance of an app's own coefficients over `_figures`
    own: tuple[float, float]  # variance of what is left
    noise: tuple[float, ...] = (PLAIN_NOISE,)  # spreads of one run against the next, an app's being any of them

    def of(self, task: Task, app: int) -> tuple[Floats, Floats]:
        """Mean and covariance of the logarithm of the app's run time over what is told, in each place."""
        graph = task.graphs[app]
        told = int(len(graph.kernels) > 0)
        figures = _figures(task.figures)
        same = (np.abs(task.figures[:, None] - task.figures[None]).sum(axis=2) < 1e-9).astype(np.float64)
        covariance = figures @ self.slopes[told] @ figures.T + self.own[told] * same
        mean = _explained(figures, graph.sensitivity) @ self.mean[told]
        return mean, covariance + _FEWEST * np.eye(len(figures))


def _figures(rows: Floats) -> Floats:
    """Of each place: 1, and the logarithms of peak arithmetic and bandwidth."""
    return np.concatenate([np.ones((len(rows), 1)), rows[:, :2]], axis=1)


def _explained(figures: Floats, sensitivity: float) -> Floats:
    squares = np.stack([figures[:, 1] ** 2, figures[:, 2] ** 2, figures[:, 1] * figures[:, 2]], axis=1)
    plain = np.concatenate([figures, squares], axis=1)
    return np.concatenate([plain, sensitivity * plain], axis=1)


def plain_prior() -> Prior:
    """Nothing learned: what is told is off by a factor that all places share, and a smaller one of each."""
    slopes = np.zeros((3, 3))
    slopes[0, 0] = 1.0
    return Prior((np.zeros(12), np.zeros(12)), (slopes, slopes), (0.35**2, 0.35**2))


@cache
def learned_prior(taste: float = Mixture().taste, told_off: float = Mixture().told_off) -> Prior:
    """The prior of the tasks that training draws, or of others whose apps are less alike (see `Mixture`)."""
    mixture = Mixture(jobs=200, oracle=0.0, new_apps=1.0, workflows=0.0, contended=0.0, taste=taste, told_off=told_off)
    groups: list[list[tuple[Floats, Floats, Floats]]] = [[], []]
    noise: list[float] = []
    for seed in range(FIRST_SEED, FIRST_SEED + TASKS):
        task = draw_task(seed, mixture)
        figures = _figures(task.figures)
        for app, graph in enumerate(task.graphs):
            jobs = np.flatnonzero(task.app == app)
            if len(jobs):
                off = np.log(task.mean[jobs[0]] / task.told[jobs[0]])
                told = int(len(graph.kernels) > 0)
                groups[told].append((_explained(figures, graph.sensitivity), figures, off))
            if len(jobs) >= _FEWEST_RUNS:
                first = task.cluster.places[0].processor
                ran = [j for j in jobs if first in task.workload.jobs[j].run_time]
                runs = [task.workload.jobs[j].run_time[first] / task.mean[j, 0] for j in ran]
                noise.append(float(np.std(np.log(runs), ddof=1)))
    others, annotated = (_fit(rows) for rows in groups)
    usual = np.quantile(noise, (np.arange(_NOISES) + 0.5) / _NOISES)
    return Prior(
        mean=(others[0], annotated[0]),
        slopes=(others[1], annotated[1]),
        own=(others[2], annotated[2]),
        noise=tuple(usual.tolist()),
    )


def _fit(rows: list[tuple[Floats, Floats, Floats]]) -> tuple[Floats, Floats, float]:
    """Mean, slopes and what is left: the mean by weighted least squares, the others by expectation maximisation."""
    wide, deep = rows[0][0].shape[1], rows[0][1].shape[1]
    mean: Floats = np.zeros(wide)
    slopes: Floats = np.eye(deep)
    own = 0.1
    for _ in range(ROUNDS):
        normal, right = 1e-3 * np.eye(wide), np.zeros(wide)
        for x, z, y in rows:
            weighted = np.linalg.solve(z @ slopes @ z.T + own * np.eye(len(y)), x).T
            normal += weighted @ x
            right += weighted @ y
        mean = np.asarray(np.linalg.solve(normal, right), dtype=np.float64)
        kept, left = np.zeros((deep, deep)), 0.0
        inverse = np.linalg.inv(slopes)
        for x, z, y in rows:
            covariance = np.linalg.inv(inverse + z.T @ z / own)
            u = covariance @ z.T @ (y - x @ mean) / own
            kept += np.outer(u, u) + covariance
            left += float(((y - x @ mean - z @ u) ** 2).sum() + np.trace(z @ covariance @ z.T))
        slopes, own = kept / len(rows), left / sum(len(y) for _, _, y in rows)
    return mean, slopes, own
