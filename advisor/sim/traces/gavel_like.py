"""Makes traces like Gavel's from a table of throughputs: a site's earlier jobs, of the same job types.

Every type of the table comes equally often, does between half an hour and six hours of a V100's work (of the first type
of GPU where the table has none), and jobs come as a Poisson process that fills the cluster to the load asked for.
"""

from __future__ import annotations

import math
import random

import msgspec

from advisor.sim.cluster import SimCluster
from advisor.sim.traces.gavel import Throughputs
from advisor.sim.workload import SimJob, TraceError, Workload, checked

# Seconds on the reference GPU: the logarithm is drawn evenly between these.
SHORTEST_S, LONGEST_S = 1800.0, 6 * 3600.0
REFERENCE = "v100"


class Recipe(msgspec.Struct, frozen=True):
    """What to make."""

    jobs: int = 1000
    gpus: int = 1  # the widest job
    wide: float = 0.3  # share of jobs with several GPUs, where the widest has
    load: float = 1.0  # offered work / what the cluster can do, each job counted as its mean over the types
    seed: int = 0


def from_text(text: str, table: Throughputs, cluster: SimCluster, seed: int = 0) -> Workload:
    """Reads `gavel:jobs=200,gpus=4,seed=7`: settings of `Recipe`."""
    settings: dict[str, float] = {}
    for word in filter(None, text.partition(":")[2].split(",")):
        name, _, value = word.partition("=")
        if name not in {field.name for field in msgspec.structs.fields(Recipe)}:
            raise TraceError(text, None, name, "is no setting; there are jobs, gpus, wide, load, seed")
        try:
            settings[name] = float(value)
        except ValueError:
            raise TraceError(text, None, name, f"{value!r} is not a number") from None
    try:
        recipe = msgspec.convert({"seed": seed, **settings}, Recipe, strict=False)
    except msgspec.ValidationError as error:
        raise TraceError(text, None, "recipe", str(error)) from None
    if recipe.jobs < 1 or recipe.load <= 0 or recipe.gpus < 1:
        raise TraceError(text, None, "recipe", "jobs, gpus and load must be above 0")
    return make(recipe, table, cluster)


def make(recipe: Recipe, table: Throughputs, cluster: SimCluster) -> Workload:
    """The workload; the same recipe, table and cluster make the same jobs."""
    draw = random.Random(recipe.seed)
    types = [kind for kind in cluster.processors if kind in table.alone]
    reference = REFERENCE if REFERENCE in types else types[0]
    kinds: dict[int, list[str]] = {}
    for name, gpus in sorted(table.alone[reference]):
        if gpus <= recipe.gpus and table.alone[reference][name, gpus] > 0:
            kinds.setdefault(gpus, []).append(name)
    widths = sorted(gpus for gpus in kinds if gpus > 1)
    drafts: list[SimJob] = []
    work = 0.0
    for number in range(1, recipe.jobs + 1):
        gpus = draw.choice(widths) if widths and draw.random() < recipe.wide else 1
        name = draw.choice(kinds[gpus])
        seconds = math.exp(draw.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
        steps = float(max(round(seconds * table.alone[reference][name, gpus]), 1))
        speed = {kind: table.alone[kind].get((name, gpus), 0.0) for kind in types}
        run = {kind: steps / each for kind, each in speed.items() if each > 0}
        drafts.append(
            SimJob(id=str(number), submit=0.0, run_time=run, app=name, nodes=gpus, gpus=gpus, cpus=gpus, steps=steps,
                   share=True)
        )  # fmt: skip
        work += gpus * sum(run.values()) / len(run)
    gap = work / recipe.jobs / (recipe.load * cluster.gpus)
    at, jobs = 0.0, []
    for line, job in enumerate(drafts, 1):
        jobs.append((line, msgspec.structs.replace(job, submit=round(at, 3))))
        at += draw.expovariate(1.0 / gap)
    return checked(f"gavel-like seed {recipe.seed}", jobs, "gavel")
