"""How many jobs uncertainty-driven exploration needs against ε-greedy, to the same regret.

A site whose apps run on each GPU type at a speed of their own, partly against the data sheets. Every job is decided by
the daemon's own `consider` on a snapshot whose queues differ from job to job, with what the run-time model has learned
so far; the run is then told to the model. Regret is against a chooser that knows every app's mean run time everywhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from advisor.cluster.types import ClusterState, Gres, Job, Node, Partition
from advisor.performance import processors
from advisor.performance.model.model import RunTimeModel
from advisor.performance.model.observations import Observation
from advisor.performance.model.table import entries_of, table
from advisor.performance.queue import build_snapshot
from advisor.performance.snapshot import Snapshot
from advisor.policy.arithmetic import EarliestFinish
from advisor.policy.decision import consider
from advisor.policy.exploration import Explorer, epsilon_greedy, explore
from advisor.policy.interface import Decision
from advisor.policy.plans import Plans
from advisor.protocol import VERSION, PartitionLimits, SubmitRequest
from advisor.settings import Experiment, Explore, Modes, PolicySettings, Settings

NOW = 1_750_000_000.0
TYPES = ("k80", "p100", "v100", "t4", "rtx3090", "a100")
EPSILONS = (0.01, 0.02, 0.05, 0.1)
WINDOW = 100  # jobs over which the regret of a job is averaged, beside the seeds

Floats = npt.NDArray[np.float64]
Progress = Callable[[str], None]


class Site(msgspec.Struct, frozen=True):
    """What is drawn for each seed."""

    apps: tuple[int, int] = (4, 12)  # as at the sites that tasks are drawn from; more: most are hardly ever run
    # Log seconds of an app at the reference: median twenty minutes.
    level: tuple[float, float] = (math.log(1200), 0.9)
    gain: tuple[float, float] = (0.6, 0.35)  # log run time per log of the data sheet's speed, against an app's taste
    odd: float = 0.45  # how far an app on a type is from what its gain promises
    noise: float = 0.25  # one run against the next
    # Share of the times at which a type has a queue: drawn for each site. The busier, the more jobs are spread anyway.
    busy: tuple[float, float] = (0.0, 0.6)
    queue_s: float = 1200.0  # mean wait where it has one
    known: int = 12  # runs in the log of this new cluster before the first decision, most where Slurm put them


class Figures(msgspec.Struct, frozen=True):
    """What the study found. Regret: of a job, its expected completion time over the best one, less 1."""

    explore_ratio: (
        float  # jobs until the mean regret so far is down to what ε-greedy's is after all its jobs, over those
    )
    explore_ratio_low: float  # 95 % interval (bootstrap over the seeds)
    explore_ratio_high: float
    one_job_ratio: float  # the same for the regret of a job as it has become, without the early losses; it is noisier
    level: float  # for that: what ε-greedy has come down to in the last third of its jobs
    epsilon: float  # the best one, chosen on seeds that are not scored
    max_regret: float
    jobs: int
    seeds: int
    regret_posterior: float  # mean over all jobs and seeds
    regret_epsilon: float
    regret_greedy: float
    late_regret_posterior: float  # mean over the last third
    late_regret_epsilon: float
    late_regret_greedy: float


def study(
    seeds: Sequence[int],
    jobs: int = 1200,
    tuning: Sequence[int] = (901, 902),
    max_regret: float = 1.0,
    progress: Progress | None = None,
    site: Site | None = None,
) -> Figures:
    """Runs both on every seed; ε is the best of `EPSILONS` on the tuning seeds, by its regret over all jobs."""
    tell = progress or (lambda text: None)
    tried: dict[float, float] = {}
    for share in EPSILONS:
        tried[share] = float(np.mean([run(epsilon_greedy(share), seed, jobs, site) for seed in tuning]))
        tell(f"tuning ε = {share}: regret {tried[share]:.3f}")
    epsilon = min(tried, key=lambda share: tried[share])
    curves: list[list[Floats]] = [[], [], []]
    for seed in seeds:
        for number, explorer in enumerate((explore, epsilon_greedy(epsilon), epsilon_greedy(0.0))):
            curves[number].append(run(explorer, seed, jobs, site, max_regret))
        tell(f"seed {seed}: regret {', '.join(f'{each[-1].mean():.3f}' for each in curves)} (posterior, ε, greedy)")
    posterior, plain, greedy = (np.array(each) for each in curves)
    draw = np.random.default_rng(0)
    picks = [draw.integers(0, len(seeds), len(seeds)) for _ in range(400)]
    low, high = np.quantile([ratio(posterior[pick], plain[pick])[0] for pick in picks], (0.025, 0.975))
    found, one_job, level = ratio(posterior, plain)
    late = slice(-(jobs // 3), None)
    return Figures(
        explore_ratio=found,
        explore_ratio_low=float(low),
        explore_ratio_high=float(high),
        one_job_ratio=one_job,
        level=level,
        epsilon=epsilon,
        max_regret=max_regret,
        jobs=jobs,
        seeds=len(seeds),
        regret_posterior=float(posterior.mean()),
        regret_epsilon=float(plain.mean()),
        regret_greedy=float(greedy.mean()),
        late_regret_posterior=float(posterior[:, late].mean()),
        late_regret_epsilon=float(plain[:, late].mean()),
        late_regret_greedy=float(greedy[:, late].mean()),
    )


def ratio(ours: Floats, theirs: Floats) -> tuple[float, float, float]:
    """Jobs to the same regret over their jobs, by the mean of all so far and by the regret of a job; and its level.

    `ours[seed, job]`. Where the level is never reached, twice all jobs count, which is too few.
    """
    jobs = ours.shape[1]
    level = float(theirs[:, -(jobs // 3) :].mean())
    needed = [_first(_trailing(each.mean(axis=0)), level) for each in (ours, theirs)]
    so_far = [np.cumsum(each.mean(axis=0)) / np.arange(1, jobs + 1) for each in (ours, theirs)]
    paid = float(so_far[1][-1])
    return _for_good(so_far[0], paid) / jobs, needed[0] / needed[1], level


def _trailing(regret: Floats) -> Floats:
    """The mean over the last `WINDOW` jobs, from the first full window on; earlier ones count as never low enough."""
    total = np.concatenate(([0.0], np.cumsum(regret)))
    window = min(WINDOW, len(regret))
    return np.concatenate((np.full(window - 1, np.inf), (total[window:] - total[:-window]) / window))


def _for_good(values: Floats, level: float) -> int:
    """From which job on the level is never exceeded again."""
    above = np.flatnonzero(values > level * (1 + 1e-6))
    if not len(above):
        return 1
    return int(above[-1]) + 2 if above[-1] + 1 < len(values) else 2 * len(values)


def _first(values: Floats, level: float) -> int:
    below = np.flatnonzero(values <= level * (1 + 1e-6))  # sums are rounded
    return int(below[0]) + 1 if len(below) else 2 * len(values)


def run(explorer: Explorer, seed: int, jobs: int, site: Site | None = None, max_regret: float = 1.0) -> Floats:
    """Regret of each job of one drawn site. The same seed draws the same site, jobs and noise whoever chooses."""
    return _Run(explorer, seed, site or Site(), max_regret).regret(jobs)


class _Run:
    """A drawn site while its jobs are decided one after the other."""

    def __init__(self, explorer: Explorer, seed: int, site: Site, max_regret: float) -> None:
        draw = random.Random(f"site {seed}")
        self.site, self.explorer, self.seed = site, explorer, seed
        self.processors = processors.load()
        self.apps = draw.randint(*site.apps)
        self.truth = [_app(draw, site) for _ in range(self.apps)]
        busy = draw.uniform(*site.busy)
        self.snapshots = [_snapshot(draw, busy, site.queue_s) for _ in range(48)]
        self.settings = Settings(
            modes=Modes(default="enforce"),
            experiment=Experiment(holdout=0.0),
            policy=PolicySettings(min_gain=0.0, min_gain_s=0.0),
            explore=Explore(max_regret=max_regret, max_regret_s=1e9),
        )
        self.policy = EarliestFinish(self.processors)
        self.plans = Plans()
        self.limits = [PartitionLimits(name, default=name == TYPES[0]) for name in TYPES]
        self.log: list[Observation] = []
        # What ran before: jobs that named no partition went to the default one, a few users knew better.
        for number in range(site.known):
            app = draw.randrange(self.apps)
            self._ran(app, TYPES[0] if draw.random() < 0.7 else draw.choice(TYPES), f"before {number}")
        self._fit()

    def regret(self, jobs: int) -> Floats:
        draw = random.Random(f"jobs {self.seed}")
        regret: list[float] = []
        for number in range(jobs):
            # Some apps are submitted far more often than others.
            app = min(int(draw.paretovariate(0.8)) - 1, 10**6) % self.apps
            snapshot = self.snapshots[draw.randrange(len(self.snapshots))]
            decision = self._decide(app, snapshot, number)
            finish = [each.wait_s + self._mean(app, each.processor) for each in decision.predictions]
            regret.append(finish[decision.chosen] / min(finish) - 1.0)
            run = self._ran(app, decision.predictions[decision.chosen].processor, f"job {number}")
            self.model.update(run)
            self.history.update(entries_of(self.model, run.app, TYPES))
            if len(self.log) >= 1.25 * self.fitted + 10:
                self._fit()
        return np.array(regret)

    def _decide(self, app: int, snapshot: Snapshot, number: int) -> Decision:
        request = SubmitRequest(
            v=VERSION,
            uid=1000,
            user="ada",
            name=f"app-{app}-x",
            partition=",".join(TYPES),
            tres_per_node="gres/gpu:1",
            time_limit=10_000,
            partitions=self.limits,
        )
        # A history of its own for each decision: the policy keeps estimates for as long as it is the same one.
        seen = msgspec.structs.replace(snapshot, history=dict(self.history))
        return consider(
            request,
            seen,
            None,
            self.policy,
            self.settings,
            random.Random(0),
            NOW,
            lambda: f"{self.seed}-{number}",
            self.processors,
            self.plans,
            self.explorer,
        ).complete()

    def _mean(self, app: int, processor: str) -> float:
        return math.exp(self.truth[app][processor] + self.site.noise**2 / 2)

    def _ran(self, app: int, processor: str, what: str) -> Observation:
        noise = random.Random(f"{self.seed} {what} {processor}").gauss(0.0, self.site.noise)
        run = Observation(f"app-{app}-x", "ada", processor, 1, self.truth[app][processor] + noise)
        self.log.append(run)
        return run

    def _fit(self) -> None:
        self.model = RunTimeModel.fitted(self.log, self.processors)
        self.history = table(self.model, TYPES)
        self.fitted = len(self.log)


def _app(draw: random.Random, site: Site) -> dict[str, float]:
    """Log seconds on each type."""
    level, gain = draw.gauss(*site.level), draw.gauss(*site.gain)
    figures = processors.load()
    return {
        name: level
        - gain * math.log(processors.speed(figures[name]) / processors.speed(figures["v100"]))
        + draw.gauss(0.0, site.odd)
        for name in TYPES
    }


def _snapshot(draw: random.Random, busy: float, queue_s: float) -> Snapshot:
    """One node of each type, free or with a job that holds it for a while."""
    nodes, jobs = [], []
    for number, name in enumerate(TYPES):
        nodes.append(Node(f"n{number}", ("MIXED",), 8, 64_000, (Gres("gpu", 1, name),), partitions=(name,)))
        if draw.random() < busy:
            jobs.append(
                Job(
                    job_id=number + 1,
                    states=("RUNNING",),
                    partitions=(name,),
                    start_time=int(NOW),
                    time_limit=max(round(draw.expovariate(1 / queue_s) / 60), 1),
                    nodes=(f"n{number}",),
                    cpus=4,
                    gres=(Gres("gpu", 1, name),),
                )
            )
    partitions = tuple(Partition(name, (f"n{n}",), default=n == 0) for n, name in enumerate(TYPES))
    return build_snapshot(ClusterState("drawn", (24, 11), NOW, tuple(nodes), partitions, tuple(jobs)), {})
