"""Makes workloads that look like a site's: daily waves, few large jobs, app families with their own taste in GPUs.

Arrivals, sizes and run times follow the shape of Lublin and Feitelson's model (JPDC 2003); the figures of each
are named below with what they mean. Speeds of GPU generations are medians of Gavel's public measurements
(k80 = 1), spread by app, since a small model gains little from a large GPU.
"""

from __future__ import annotations

import math
import random

import msgspec

from advisor.sim.workload import SimJob, TraceError, Workload, checked

# Speed of one GPU against a k80; types that are not here count as a v100. A CPU node against a k80.
SPEED = {"cpu": 0.15, "k80": 1.0, "p100": 3.2, "v100": 5.0, "rtx6000": 5.5, "a100": 10.0, "h100": 20.0}

# Share of a day's arrivals by hour: quiet until 7, highest from 10 to 17. Lublin and Feitelson, figure 11, smoothed.
HOURS = (2, 2, 1, 1, 1, 1, 2, 3, 5, 6, 7, 7, 7, 7, 7, 7, 7, 6, 5, 4, 4, 3, 3, 2)

SERIAL = 0.24  # share of one-unit jobs in Lublin and Feitelson's batch logs
POWER_OF_TWO = 0.75  # share of the other jobs whose size is a power of two
# Hyper-gamma of log2(seconds / 60): short ones (compile, test) and long ones (training).
SHORT = (4.2, 0.94, 0.45)  # shape, scale, share
LONG = (40.0, 0.22)


class App(msgspec.Struct, frozen=True):
    """A family of jobs: what it is called, how strongly it gains from faster GPUs, what its jobs ask for."""

    name: str
    gain: float  # run time on a type = base / speed ** gain; 0: no gain from a faster GPU, 1: all of it
    cpus_per_gpu: int
    memory_gb: int
    share: bool
    weight: float  # how often it is submitted
    use: tuple[float, float, float]  # alone: share of the GPU's cores, of its memory bandwidth, of the node's
    data_gb: int  # what it reads before it computes


# Apps that gain much from a large GPU are those that fill one; reading-heavy ones press on the node's memory.
APPS = (
    App("resnet50", 0.95, 4, 16, False, 3.0, (0.90, 0.70, 0.30), 150),
    App("resnet18", 0.60, 4, 12, True, 3.0, (0.55, 0.45, 0.35), 150),
    App("transformer", 0.85, 2, 16, False, 3.0, (0.85, 0.60, 0.10), 20),
    App("lstm", 0.45, 2, 8, True, 3.0, (0.40, 0.30, 0.05), 2),
    App("recommender", 0.30, 2, 24, True, 2.0, (0.25, 0.50, 0.50), 60),
    App("a3c", 0.15, 4, 8, True, 2.0, (0.15, 0.10, 0.20), 1),
    App("cyclegan", 1.00, 2, 16, False, 1.0, (0.95, 0.80, 0.10), 5),
    App("molecular-dynamics", 0.75, 6, 8, False, 2.0, (0.80, 0.35, 0.05), 1),
)

# Use of both together beyond which each is slowed, and by how much for each unit beyond: GPU cores are
# time-shared, bandwidth hurts from below its peak (the same figures as the contention model's prior).
KNEES = ((0.9, 1.0), (0.6, 1.2), (0.6, 1.5))
WORK_RATE = 1e13  # operations a second on a v100, for the work in a job's graph


def slowdowns() -> dict[tuple[str, str], float]:
    """How many times longer each app takes beside another, from what both use: a table for `AppTable`."""
    return {
        (mine.name, other.name): 1.0
        + sum(
            cost * max(0.0, a + b - knee) * a / max(a + b, 1e-9) * 2
            for (knee, cost), a, b in zip(KNEES, mine.use, other.use, strict=True)
        )
        for mine in APPS
        for other in APPS
    }


class Recipe(msgspec.Struct, frozen=True):
    """What to make."""

    jobs: int = 1000
    load: float = 0.8  # offered work / capacity, each job counted on the type that it gains least from waiting for
    types: dict[str, int] = {}  # processor type → units; the capacity that load refers to
    max_gpus: int = 8
    users: int = 20
    dependent: float = 0.0  # share of jobs that wait for an earlier one of the same user
    limit_factor: float = 3.0  # mean of the users' limit / the longest run time
    seed: int = 0


def from_text(text: str, seed: int = 0) -> Workload:
    """Reads `synthetic:jobs=500,load=0.9,v100=8,k80=8`: settings of `Recipe`, and processor types with their units."""
    settings: dict[str, float] = {}
    types: dict[str, int] = {}
    known = {f.name for f in msgspec.structs.fields(Recipe)} - {"types"}
    for word in filter(None, text.partition(":")[2].split(",")):
        name, _, value = word.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise TraceError(text, None, name, f"{value!r} is not a number") from None
        if name in known:
            settings[name] = number
        else:
            types[name] = int(number)
    try:
        recipe = msgspec.convert(
            {"seed": seed, "types": types or {"v100": 8, "p100": 8, "k80": 8}, **settings}, Recipe, strict=False
        )
    except msgspec.ValidationError as error:
        raise TraceError(text, None, "recipe", str(error)) from None
    if recipe.jobs < 1 or recipe.load <= 0 or min(recipe.types.values()) < 1:
        raise TraceError(text, None, "recipe", "jobs, load and units must be above 0")
    return make(recipe)


def make(recipe: Recipe) -> Workload:
    """The workload; the same recipe makes the same jobs."""
    draw = random.Random(recipe.seed)
    apps = draw.choices(APPS, weights=[app.weight for app in APPS], k=recipe.jobs)
    # Every app has a few users, so that history of app and user means something.
    homes = {app.name: [draw.randrange(recipe.users) for _ in range(4)] for app in APPS}
    drafts: list[SimJob] = []
    work = 0.0
    last_of: dict[str, str] = {}
    for i, app in enumerate(apps):
        gpus = _size(draw, recipe)
        seconds = _seconds(draw)
        run_time = {
            kind: round(seconds * (SPEED["v100"] / SPEED.get(kind, SPEED["v100"])) ** app.gain, 3)
            for kind in recipe.types
        }
        user = f"user{draw.choice(homes[app.name])}"
        depends: tuple[str, ...] = ()
        if user in last_of and draw.random() < recipe.dependent:
            depends = (last_of[user],)
        last_of[user] = str(i + 1)
        longest = max(run_time.values())
        # Users round up, generously and to whole quarters of an hour.
        limit = math.ceil(longest * (1 + draw.expovariate(1 / max(recipe.limit_factor - 1, 1e-9))) / 900) * 900.0
        job = SimJob(
            id=str(i + 1),
            submit=0.0,
            run_time=run_time,
            app=app.name,
            user=user,
            account=f"group{int(user[4:]) % 4}",
            cpus=app.cpus_per_gpu * gpus,
            memory_mb=app.memory_gb * 1024 * gpus,
            gpus=gpus,
            nodes=gpus,
            time_limit=limit,
            share=app.share,
            depends=depends,
            dfg=_graph(app, seconds * gpus),
        )
        drafts.append(job)
        work += gpus * min(run_time.values())
    # At load 1 the fastest place of every job would be busy all the time.
    span = work / (recipe.load * sum(recipe.types.values()))
    submits = _arrivals(draw, recipe.jobs, span)
    jobs = [
        (i + 1, msgspec.structs.replace(job, submit=at))
        for i, (job, at) in enumerate(zip(drafts, submits, strict=True))
    ]
    return checked(f"synthetic seed {recipe.seed}", jobs, "synthetic")


def _graph(app: App, gpu_seconds: float) -> dict[str, object]:
    """What the job computes, as an annotation would say it: reading on CPUs, then computing where it is fast."""
    return {
        "kernels": {
            "read": {"on": ["cpu"], "work": app.data_gb * 1e10, "memory": f"{max(1, app.memory_gb // 2)}G"},
            "compute": {"on": ["gpu", "cpu"], "work": gpu_seconds * WORK_RATE, "memory": f"{app.memory_gb}G"},
        },
        "edges": [["read", "compute", f"{app.data_gb}G"]],
    }


def _size(draw: random.Random, recipe: Recipe) -> int:
    most = min(recipe.max_gpus, min(recipe.types.values()))
    if most == 1 or draw.random() < SERIAL + (1 - SERIAL) * 0.6:
        # Accelerator sites have far more one-GPU jobs than Lublin and Feitelson's machines had serial ones.
        return 1
    size = 2 ** draw.uniform(0.0, math.log2(most))
    if draw.random() < POWER_OF_TWO:
        return int(2 ** round(math.log2(size)))
    return max(1, round(size))


def _seconds(draw: random.Random) -> float:
    shape, scale = SHORT[:2] if draw.random() < SHORT[2] else LONG
    exponent = draw.gammavariate(shape, scale)
    return 60.0 * 2 ** min(exponent, 12.0)


def _arrivals(draw: random.Random, count: int, span: float) -> list[float]:
    """Ascending times over the span, denser by day; gaps are gamma of shape 0.5, burstier than a Poisson process."""
    gaps = [draw.gammavariate(0.5, 2.0) for _ in range(count)]
    total = sum(gaps)
    # Position in the span by cumulated gaps, then bent by the hours' weights within each day.
    times, position = [], 0.0
    share = [w / sum(HOURS) for w in HOURS]
    cumulated = [0.0]
    for part in share:
        cumulated.append(cumulated[-1] + part)
    for gap in gaps:
        position += gap
        at = span * position / total
        day, within = divmod(at / 86400.0, 1.0)
        hour = next(h for h in range(24) if within <= cumulated[h + 1] + 1e-12)
        inside = (within - cumulated[hour]) / share[hour]
        times.append(round((day + (hour + min(max(inside, 0.0), 1.0)) / 24) * 86400.0, 3))
    first = times[0]
    return [round(t - first, 3) for t in times]
