"""Logs of a made-up site: the daemon's own decisions on a simulated cluster, or rows whose truth is known."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np

from advisor.settings import Experiment, Explore, Modes, Paths, Settings
from advisor.sim.cluster import Place, SimCluster, SimNode
from advisor.sim.engine import Engine
from advisor.sim.workload import SimJob, Workload
from advisor.store import decisions, outcomes
from advisor.store.database import Database
from advisor.training.simulated_site import LoggingSite

GPUS = {"k80": 2, "p100": 2, "v100": 1}
SPEED = {"k80": 1.0, "p100": 3.2, "v100": 5.0}
START = 1_700_000_000


def settings_in(folder: Path, **more) -> Settings:
    given = {
        "paths": Paths(database=str(folder / "advisor.db")),
        "modes": Modes(default="enforce"),
        "experiment": Experiment(holdout=0.2),
        "explore": Explore(max_regret=0.2),
    }
    return Settings(**(given | more))


def simulated(folder: Path, jobs: int = 250, seed: int = 1, name: str = "mini", **more) -> Settings:
    """A log of some days of a small site, every decision by the daemon's own code."""
    settings = settings_in(folder, **more)
    draw = random.Random(seed)
    nodes, places = [], []
    for kind, count in GPUS.items():
        first = len(nodes)
        nodes += [SimNode(f"{kind}-{i}", 16, 1 << 16, 2, kind) for i in range(count)]
        places.append(Place("gpu", kind, tuple(range(first, len(nodes)))))
    apps = [(f"app{chr(97 + a)}", draw.uniform(0.1, 1.0), draw.gauss(7.5, 0.5)) for a in range(6)]
    times = sorted(draw.uniform(0, jobs * 900.0) for _ in range(jobs))
    made = []
    for number, submit in enumerate(times):
        app, gain, level = draw.choice(apps)
        one = math.exp(level + draw.gauss(0, 0.2))
        run = {kind: one * (SPEED["p100"] / speed) ** gain for kind, speed in SPEED.items()}
        user = f"user{draw.randrange(3)}"
        made.append(
            SimJob(str(number), submit, run, app, user, f"group{user[-1]}", cpus=2, gpus=1, time_limit=30_000.0)
        )
    cluster = SimCluster(name, tuple(nodes), tuple(places), "gpu")
    engine = Engine(cluster, Workload("test", tuple(made)))
    with Database(settings.paths.database) as db:
        site = LoggingSite(engine, settings, db, seed=seed)
        engine.run_deciding(site)
        site.write(math.inf)
    return settings


PLACES = ("keep", "gpu/v100", "gpu/p100")


def trial(folder: Path, jobs: int, gain: float, holdout: float = 0.3, seed: int = 1, kinds: int = 40) -> Path:
    """A log whose changed jobs take `1 - gain` of what they take as submitted; each job prefers place 1."""
    rng = np.random.default_rng(seed)
    level = rng.normal(8.0, 0.7, kinds)
    rows, ends = [], []
    for j in range(jobs):
        c = int(rng.integers(kinds))
        chosen = 0 if rng.random() < holdout else 1
        whole = math.exp(level[c] + rng.normal(0, 0.4)) * ((1 - gain) if chosen else 1.0)
        submit, wait, run = START + 600 * j, round(0.3 * whole), max(round(0.7 * whole), 1)
        kind = "v100" if chosen else "k80"
        told = math.exp(level[c] + 0.08)
        rows.append(
            decisions.DecisionRow(
                token=f"t{j}", decided_at=float(submit), cluster="mini", app=f"app{c}", user=f"user{c % 5}",
                account=f"group{c % 2}", partition="gpu", mode="enforce", action="rewrite" if chosen else "keep",
                eligible=True, why="", applied=chosen > 0, holdout=chosen == 0, chosen=chosen, preferred=1,
                probability=holdout if not chosen else 1 - holdout, probabilities=[holdout, 1 - holdout, 0.0],
                candidates=[{"name": name, "partition": "gpu"} for name in PLACES],
                predictions=[
                    {"wait_s": 0.3 * told * f, "run_s": 0.7 * told * f, "processor": p, "pool": i, "sd_log": 0.4}
                    for i, (p, f) in enumerate((("k80", 1.0), ("v100", 1 - gain), ("p100", 1.0)))
                ],
                features={"gpus": 1.0, "cpus": 2.0, "nodes": 1.0, "limit_s": 0.0},
            )
        )  # fmt: skip
        ends.append(
            outcomes.OutcomeRow(
                cluster="mini", db_index=str(j), job=str(j), job_id=j, token=f"t{j}", submit=submit, eligible=submit,
                start=submit + wait, end=submit + wait + run, elapsed=run, log_elapsed=math.log(run),
                state="COMPLETED", user=f"user{c % 5}", account=f"group{c % 2}", partition="gpu", name=f"app{c}",
                node_count=1, nodes=f"{kind}-{j % 3}", cpus=2, gpus=1, gpu_type=kind, processor=kind,
            )
        )  # fmt: skip
    path = folder / "advisor.db"
    with Database(path) as db:
        decisions.insert_many(db, rows)
        outcomes.store(db, ends, None, 0.0)
    return path
