"""A log in which some apps hurt each other on one node and some do not, as accounting would have written it."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

from advisor.store import outcomes
from advisor.store.database import Database
from advisor.store.outcomes import OutcomeRow

ALONE_S = {"v100": 600.0, "p100": 780.0}
NODE = {"v100": "v1", "p100": "p1"}
HURT = frozenset({"stream", "gather"})  # each of the two runs three times as long beside the other
HARMLESS = "prime"
TIMES = 3.0


def rows(seed: int = 0, repeats: int = 6) -> list[OutcomeRow]:
    """Runs alone and in pairs, one GPU each, on a node with two; nothing else was there."""
    draw = random.Random(seed)
    found: list[OutcomeRow] = []
    at = int(time.time()) - 20 * 86400

    def ran(app: str, processor: str, start: int, seconds: float) -> int:
        number = len(found) + 1
        elapsed = round(seconds * math.exp(draw.gauss(0, 0.03)))
        found.append(
            OutcomeRow(
                cluster="mini", db_index=f"seeded{number}", job=str(900_000 + number), job_id=900_000 + number,
                submit=start, eligible=start, start=start, end=start + elapsed, elapsed=elapsed,
                log_elapsed=math.log(elapsed), state="COMPLETED", user="alice", name=app, partition=processor,
                node_count=1, nodes=NODE[processor], cpus=1, gpus=1, gpu_type=processor, processor=processor,
                time_limit=120,
            )
        )  # fmt: skip
        return start + elapsed

    for processor, alone in ALONE_S.items():
        for _ in range(repeats):
            for app in (*sorted(HURT), HARMLESS):
                at = ran(app, processor, at, alone) + 60
            for one, other in (("gather", "stream"), ("gather", HARMLESS), ("stream", HARMLESS)):
                seconds = alone * (TIMES if {one, other} == HURT else 1.0)
                at = max(ran(one, processor, at, seconds), ran(other, processor, at, seconds)) + 60
    return found


def seed(path: Path) -> None:
    """Writes them into a log of their own."""
    with Database(path) as db:
        outcomes.store(db, rows(), None, time.time())
