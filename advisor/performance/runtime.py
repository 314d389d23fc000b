"""How long a job is expected to run on a kind of processor, and what that expectation rests on.

The best evidence there is counts: past runs of the app on that processor; past runs on others, scaled by
their peak figures; the work the annotation tells; else the time limit, which says how long at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from advisor.cluster.gres import whole
from advisor.dfg.graph import Annotation, Kernel, topological_order
from advisor.performance.model.names import family
from advisor.performance.processors import lookup, speed
from advisor.performance.snapshot import RunTimes
from advisor.performance.told import EFFICIENCY, NOISE_SD, Told, sensitivity_of
from advisor.settings import Processor

History = Mapping[str, Mapping[str, RunTimes]]

# Between a node's memory and its GPUs, and between nodes: bytes per second.
TRANSFER_RATE = 10e9
# How much of its limit a job of which nothing else is known is taken to use when a faster processor is weighed:
# users ask for several times what they need, so a faster GPU saves a part of a fraction of the limit.
SHARE_OF_LIMIT_USED = 0.2
# Where neither the job nor the partition has a limit.
NO_LIMIT_S = 86_400.0
# A processor whose speed is not known may be this much slower; a job that goes by its limit is not sent there.
UNKNOWN_FACTOR = 2.0
# Spread of log seconds: of one run against the next, and what each weaker kind of evidence adds.
SD_ONE_RUN = 0.5
SD_SCALED = 0.4
SD_ANNOTATION = 1.0
SD_LIMIT = 1.2


class Estimate(msgspec.Struct, frozen=True):
    """Expected seconds, how sure (spread of the logarithm), and in a few words what it rests on."""

    seconds: float
    sd_log: float
    source: str  # history, history elsewhere, similar jobs, annotation, time limit
    detail: str  # "8 past runs of resnet50"
    # Of `sd_log`, what more runs would settle: the same wherever it runs, and on this processor alone.
    doubt_log: float = 0.0
    apart_log: float = 0.0


def expected(
    app: str,
    user: str,
    processor: str,
    time_limit_s: float | None,
    annotation: Annotation | None,
    history: History,
    processors: Mapping[str, Processor],
    *,
    gpus: int = 0,
    cpus: int = 1,
    reference: str | None = None,
    told: Told | None = None,
) -> Estimate:
    """The run time of `app` on `processor` ("v100", "cpu"), not cut at the time limit.

    Past runs of this user (`app@user`) count before those of everybody (`app`). `reference` is the slowest processor on
    which Slurm itself might run the job: its user must have chosen the limit with that in mind. `told`: how far off
    annotations usually are.
    """
    past = history.get(f"{app}@{user}") or history.get(app)
    if past:
        here = past.get(processor)
        if here is not None and here.modelled:
            return _from_model(here, app, cpus if processor == "cpu" else gpus, annotation)
        if here is not None and here.count > 0:
            sd = _spread(here)
            doubt = sd / math.sqrt(here.count)
            return Estimate(_mean(here.mean_log, sd), sd, "history", _runs(here.count, app), apart_log=doubt)
        elsewhere = _from_elsewhere(app, processor, past, processors)
        if elsewhere is not None:
            return elsewhere
    if annotation is not None and annotation.kernels:
        by_work = _from_annotation(annotation, processor, processors, gpus, cpus)
        if by_work is not None:
            return by_work if told is None else _corrected(by_work, told, annotation, processor, processors)
    alike = past_of_family(app, history).get(processor) if not past else None
    if alike is not None:
        return _from_model(alike, app, cpus if processor == "cpu" else gpus, annotation, alike=True)
    return _from_limit(processor, time_limit_s, processors, reference)


def can_run(annotation: Annotation | None, processor: str, processors: Mapping[str, Processor], gpus: int = 1) -> bool:
    """Whether every kernel of the annotation finds a processor it names, with the memory it needs, there."""
    if annotation is None:
        return True
    figures = lookup(processors, processor)
    return all(_kinds(kernel, processor, figures, gpus) for kernel in annotation.kernels)


def remaining(past: RunTimes, elapsed_s: float) -> float:
    """Expected seconds still to run of a job that has run for `elapsed_s`, by past runs of its app.

    The mean of what is left of a log-normal distribution beyond `elapsed_s`.
    """
    sd = max(_spread(past), 0.05)
    if elapsed_s <= 0:
        return _mean(past.mean_log, sd)
    z = (math.log(elapsed_s) - past.mean_log) / sd
    beyond = 0.5 * math.erfc(z / math.sqrt(2))
    if beyond < 1e-6:  # far longer than any run before: nothing is known but that it goes on
        return 0.2 * elapsed_s
    whole = _mean(past.mean_log, sd) * 0.5 * math.erfc((z - sd) / math.sqrt(2)) / beyond
    return max(whole - elapsed_s, 0.0)


def at_size(past: RunTimes, units: int) -> tuple[float, float]:
    """Mean and spread of log seconds for this many GPUs or cores."""
    if not past.modelled:
        return past.mean_log, past.sd_log
    for size, mean_log, sd_log in past.sizes:
        if size == units:
            return mean_log, sd_log
    # Beyond the sizes that were seen the slope is a guess: it carries a factor of eight, no more.
    larger = max(-2.0, min(math.log(max(units, 1)) - past.log_units, 2.0))
    return past.mean_log + past.size_slope * larger, past.sd_log


def _mean(mean_log: float, sd_log: float) -> float:
    # A very wide spread says that runs differ, not that the mean lies at their far end.
    return math.exp(min(mean_log, 20.0) + min(sd_log, 1.0) ** 2 / 2)


def _spread(past: RunTimes) -> float:
    """The spread of the runs, drawn towards that of an ordinary app while there are few."""
    if past.modelled:
        return math.hypot(past.sd_log, past.work_sd)  # nobody has told here how much it does
    return math.sqrt((past.count * past.sd_log**2 + SD_ONE_RUN**2) / (past.count + 1))


def _runs(count: int, app: str) -> str:
    return f"{count} past run{'s' if count != 1 else ''} of {app}"


def past_of_family(app: str, history: History) -> Mapping[str, RunTimes]:
    """What is known of apps whose names differ in the last number only (`train_0013`, `train_0014`)."""
    name, number = family(app)
    return history.get(name, {}) if number is not None else {}


def _from_model(
    past: RunTimes, app: str, units: int, annotation: Annotation | None = None, alike: bool = False
) -> Estimate:
    """What the run-time model tells, for this many GPUs or cores, and for the work that the job is told to do."""
    mean_log, sd_log = at_size(past, units)
    by_work = ""
    if past.log_work is not None:
        if annotation is not None and annotation.work > 0:
            mean_log += math.log(annotation.work) - past.log_work
            by_work = ", by the work that it tells"
        else:
            sd_log = math.hypot(sd_log, past.work_sd)
    seconds = _mean(mean_log, sd_log)
    if past.count > 0:
        source, detail = "history", _runs(past.count, app)
    elif alike:
        source, detail = "similar jobs", f"past runs of jobs like {app}"
    else:
        source, detail = "history elsewhere", f"past runs of {app} on other processors"
    return Estimate(seconds, sd_log, source, detail + by_work, past.doubt_log, past.apart_log)


def _from_elsewhere(
    app: str, processor: str, past: Mapping[str, RunTimes], processors: Mapping[str, Processor]
) -> Estimate | None:
    # A GPU app's runs without GPUs say nothing about GPUs, nor the other way round.
    others = [(name, runs) for name, runs in past.items() if runs.count > 0 and (name == "cpu") == (processor == "cpu")]
    if not others:
        return None
    # The whole of a GPU tells most about a part of it, and a part about the whole.
    name, runs = max(others, key=lambda item: (whole(item[0]) == whole(processor), item[1].count, item[0]))
    source, target = lookup(processors, name), lookup(processors, processor)
    known = source is not None and target is not None
    shift = math.log(speed(source) / speed(target)) if source is not None and target is not None else 0.0
    doubt, apart = _spread(runs) / math.sqrt(runs.count), SD_SCALED if known else SD_ANNOTATION
    sd = math.hypot(_spread(runs), apart)
    scaled = f"on {name}, scaled to {processor}" if known else f"on {name}, speed of {processor} not known"
    detail = f"{_runs(runs.count, app)} {scaled}"
    return Estimate(_mean(runs.mean_log + shift, sd), sd, "history elsewhere", detail, doubt, apart)


def _kinds(kernel: Kernel, processor: str, figures: Processor | None, gpus: int) -> list[str]:
    """Where on a node with `processor` a kernel can run, in its order of preference: "gpu", "cpu"."""
    kinds = []
    for name in kernel.on:
        if name == "cpu":
            kinds.append("cpu")
        elif processor != "cpu" and name in ("gpu", whole(processor)):
            room = figures.memory_gb * 2**30 * max(gpus, 1) if figures is not None else 0.0
            if not room or kernel.memory <= room:
                kinds.append("gpu")
    return kinds


def _from_annotation(
    annotation: Annotation, processor: str, processors: Mapping[str, Processor], gpus: int, cpus: int
) -> Estimate | None:
    """The longest chain of kernels and transfers, or the busiest processor's total, whichever is longer."""
    figures = lookup(processors, processor)
    core = processors["cpu"]
    rate = {"cpu": core.tflops * 1e12 * EFFICIENCY * max(cpus, 1)}
    if figures is not None and processor != "cpu":
        rate["gpu"] = figures.tflops * 1e12 * EFFICIENCY * max(gpus, 1)
    kind: dict[str, str] = {}
    seconds: dict[str, float] = {}
    busy = {"cpu": 0.0, "gpu": 0.0}
    for kernel in annotation.kernels:
        usable = [k for k in _kinds(kernel, processor, figures, gpus) if k in rate]
        if not usable:
            return None
        kind[kernel.name] = usable[0]
        seconds[kernel.name] = kernel.work / rate[usable[0]]
        busy[usable[0]] += seconds[kernel.name]
    if not any(seconds.values()):
        return None
    finish = dict(seconds)
    into: dict[str, list[tuple[str, float]]] = {}
    for edge in annotation.edges:
        moved = kind[edge.source] != kind[edge.target]
        into.setdefault(edge.target, []).append((edge.source, edge.size / TRANSFER_RATE if moved else 0.0))
    for name in topological_order(annotation.kernels, annotation.edges):
        arrive = max((finish[source] + transfer for source, transfer in into.get(name, ())), default=0.0)
        finish[name] = arrive + seconds[name]
    total = max(*finish.values(), *busy.values())
    return Estimate(total, SD_ANNOTATION, "annotation", "the work its annotation tells", SD_ANNOTATION, SD_SCALED)


def _corrected(
    estimate: Estimate, told: Told, annotation: Annotation, processor: str, processors: Mapping[str, Processor]
) -> Estimate:
    """What the annotation tells, as far off as that usually is there."""
    figures = lookup(processors, processor)
    if processor == "cpu" or figures is None:
        return estimate
    mean, shared, apart = told.off(figures, sensitivity_of(annotation))
    spread = math.sqrt(shared + apart + NOISE_SD**2)
    where = f"{told.runs} annotated runs here" if told.runs else "other sites"
    return Estimate(
        _mean(math.log(max(estimate.seconds, 1e-3)) + mean, spread),
        spread,
        "annotation",
        f"{estimate.detail}, corrected by what {where} taught",
        math.sqrt(shared),
        math.sqrt(apart),
    )


def _from_limit(
    processor: str, time_limit_s: float | None, processors: Mapping[str, Processor], reference: str | None
) -> Estimate:
    """The limit; a little less on a faster processor; more than it, which no job is sent into, on a slower one."""
    limit = NO_LIMIT_S if time_limit_s is None else time_limit_s
    factor = 1.0
    detail = "its time limit, nothing else is known"
    if reference is not None and reference != processor:
        slow, fast = lookup(processors, reference), lookup(processors, processor)
        if slow is None or fast is None:
            factor, detail = UNKNOWN_FACTOR, f"its time limit; how fast {processor} is, is not known"
        else:
            ratio = math.sqrt(speed(slow) / speed(fast))
            # Slower: the limit was chosen for something faster and may not suffice.
            factor = ratio if ratio > 1 else 1 - SHARE_OF_LIMIT_USED * (1 - ratio)
    return Estimate(limit * factor, SD_LIMIT, "time limit", detail, SD_LIMIT, SD_SCALED)
