"""The learned policy's part of a retrain: fine-tuned on the calibrated site, and kept only if that helps there.

The site's jobs are cut into stretches of time; the network learns on some and is tried on the others. Sites whose
settings name another policy than the learned one get no weights: their version holds figures alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from advisor.performance import processors as table
from advisor.performance.processors import lookup
from advisor.resources import folder
from advisor.settings import Settings
from advisor.sim.cluster import SimCluster
from advisor.sim.workload import Workload
from advisor.training.calibrated import Beliefs, History, LoggedJob, Site, one_history
from advisor.training.serving import POLICY
from advisor.training.versions import VersionError, Versions

if TYPE_CHECKING:
    from advisor.training.tasks import Task

Say = Callable[[str], None]
# Jobs in a stretch, and so many of the last stretches; every second one is for the trial.
STRETCH, STRETCHES = 300, 6


class Lesson(msgspec.Struct, frozen=True):
    """What the network learns a site from: its jobs, what is known of run times, and the weights to begin with."""

    cluster: SimCluster
    jobs: list[LoggedJob]
    history: History
    before: bytes
    seed: int


class PolicyStage(msgspec.Struct, frozen=True):
    """What was done about the policy's weights; mean completion times on stretches that it did not learn from."""

    policy: str
    tuned: bool
    why: str
    before_s: float | None = None
    after_s: float | None = None
    arithmetic_s: float | None = None


Tune = Callable[[Lesson, Settings, Say], tuple[PolicyStage, bytes | None]]


def tune_policy(
    site: Site | None,
    history: History,
    versions: Versions,
    settings: Settings,
    seed: int,
    say: Say,
    tune: Tune,
) -> tuple[PolicyStage, bytes | None]:
    """The weights of a version, as safetensors; None where it has none."""
    name = settings.policy.name
    if name != "learned":
        return PolicyStage(name, False, f"policy.name is {name}: it has no weights"), None
    before = _weights_before(versions, settings)
    if before is None:
        return PolicyStage(name, False, "there are no weights to begin with: `advisor train` makes some"), None
    jobs = [job for job in site.jobs if job.job.gpus] if site is not None else []
    if site is None or len(jobs) < 2 * STRETCH // 3:
        return PolicyStage(name, False, f"{len(jobs)} GPU jobs are too few to learn from; weights stay"), before
    return tune(Lesson(site.cluster, jobs, history, before, seed), settings, say)


def _weights_before(versions: Versions, settings: Settings) -> bytes | None:
    """Those in force: of the version, of the settings' folder, or the shipped ones."""
    try:
        version = versions.current()
    except VersionError:
        version = None
    places = [version.file(POLICY) if version is not None else None]
    base = Path(settings.policy.model) if settings.policy.model else folder("models") / "default"
    places.append(base if base.is_file() else base / "weights.safetensors")
    for place in places:
        if place is not None and place.is_file():
            return place.read_bytes()
    return None


def tuned(lesson: Lesson, settings: Settings, say: Say) -> tuple[PolicyStage, bytes | None]:
    """Tunes on every second stretch and tries on the others; on all ranks at once, where there are several."""
    from safetensors.numpy import save

    from advisor.policy.learned.files import FORMAT, ModelError, read_weights
    from advisor.policy.learned.shapes import SHAPES
    from advisor.training.environment import Environment
    from advisor.training.fine_tuning import Budget, fine_tune

    try:
        weights = read_weights(lesson.before, "the weights in force")
    except ModelError as error:
        return PolicyStage("learned", False, f"{error}; the arithmetic decides"), None
    rng, jobs = np.random.default_rng(lesson.seed), lesson.jobs
    cuts = [jobs[i : i + STRETCH] for i in range(0, len(jobs), STRETCH)]
    stretches = [cut for cut in cuts if len(cut) >= STRETCH // 3][-STRETCHES:]
    if len(stretches) < 2:
        half = len(jobs) // 2
        stretches = [jobs[:half], jobs[half:]]
    tasks = [task_of(lesson.cluster, stretch, lesson.history, settings, rng) for stretch in stretches]
    lessons = [Environment(task, weights) for task in tasks[::2]]
    trials = [Environment(task, weights) for task in tasks[1::2]]
    arithmetic = float(np.mean([trial.arithmetic.avg_jct for trial in trials]))
    old = float(np.mean([trial.play().avg_jct for trial in trials]))
    say(f"fine-tuning the policy on {len(lessons)} stretches of the site's jobs")
    new_weights = fine_tune(weights, lessons, lesson.seed, Budget(seconds=1e9))
    for trial in trials:
        trial.set_weights(new_weights)
    new = float(np.mean([trial.play().avg_jct for trial in trials]))
    if new >= old:
        return PolicyStage(
            "learned", False, "fine-tuning did not help on this site's jobs", old, new, arithmetic
        ), lesson.before
    arrays = new_weights._asdict()
    packed = {key: np.ascontiguousarray(arrays[key], dtype=np.float32) for key in SHAPES}
    content: bytes = save(packed, {"format": str(FORMAT)})
    return PolicyStage("learned", True, "fine-tuned on this site's jobs", old, new, arithmetic), content


def task_of(
    cluster: SimCluster, jobs: list[LoggedJob], history: History, settings: Settings, rng: np.random.Generator
) -> Task:
    """A stretch of the site's jobs as the network's training plays it: one possible world, the version's beliefs."""
    from advisor.policy.learned.graphs import NO_GRAPH, processor_features
    from advisor.policy.learned.shapes import COUNTERS
    from advisor.training.tasks import Task

    places = tuple(place for place in cluster.places if place.processor != "cpu")
    part = SimCluster(cluster.name, cluster.nodes, places, places[0].partition)
    figures = table.load(settings.processors)
    beliefs = Beliefs(history, figures)
    first = jobs[0].job.submit
    moved = [job._replace(job=msgspec.structs.replace(job.job, submit=job.job.submit - first)) for job in jobs]
    world: Workload = one_history(Site(part, tuple(moved)), history, beliefs, rng)[0]
    n, p = len(moved), len(places)
    expected, spread = np.full((n, p), np.inf), np.full((n, p), 0.5)
    new = np.zeros(n)
    for j, logged in enumerate(moved):
        known = history.get(logged.job.app, {})
        new[j] = float(not known)
        for k, place in enumerate(places):
            if place.processor in world.jobs[j].run_time:
                expected[j, k] = beliefs.seconds(logged.job, place.processor)
            past = known.get(place.processor)
            spread[j, k] = past.sd_log if past is not None else 1.0
    peak = [lookup(figures, place.processor) for place in places]
    # A processor that nobody has figures of counts as a middling one.
    rows = [processor_features(f.tflops, f.memory_gbs, f.memory_gb) if f else (0.0, 0.0, 0.0) for f in peak]
    usual = np.where(np.isfinite(expected), expected, 1e9)
    return Task(
        cluster=part, workload=world, figures=np.asarray(rows), expected=expected, spread=spread, slow=np.ones((n, p)),
        counters=np.zeros((n, p, COUNTERS), dtype=np.int64), sensitivity=np.zeros(n), after=np.zeros(n), new=new,
        app=np.zeros(n, dtype=np.int64), graphs=(NO_GRAPH,), load=0.0, pressure=np.zeros((n, p)), told=usual,
        mean=usual,
    )  # fmt: skip
