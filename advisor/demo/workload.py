"""The demonstration's jobs: five apps that gain very differently from a faster GPU.

Each job really runs: it sleeps as long as its app would take on the kind of GPU it was given, on a
scale of seconds instead of hours. The ratios between GPU types follow published training throughputs
(vision models gain most from newer GPUs, reinforcement learning hardly anything).
"""

from __future__ import annotations

import random

import msgspec

# Seconds on each kind of processor.
APPS: dict[str, dict[str, float]] = {
    "resnet50": {"v100": 5, "p100": 11, "k80": 38},
    "transformer": {"v100": 7, "p100": 12, "k80": 21},
    "recommender": {"v100": 6, "p100": 10, "k80": 26},
    "a3c": {"v100": 11, "p100": 12, "k80": 13},
    "preprocess": {"cpu": 6},
}
_MIX = (
    "resnet50",
    "resnet50",
    "resnet50",
    "transformer",
    "recommender",
    "recommender",
    "a3c",
    "a3c",
    "a3c",
    "preprocess",
)
_LIMIT_MINUTES = 3


class DemoJob(msgspec.Struct, frozen=True):
    """One `sbatch` of the demonstration."""

    after_s: float  # since the submission before it
    user: str
    app: str
    options: tuple[str, ...]

    @property
    def run_s(self) -> dict[str, float]:
        """How long it runs on each kind of processor."""
        return APPS[self.app]

    @property
    def limit_s(self) -> float:
        """What the user said it would take at most."""
        return _LIMIT_MINUTES * 60

    @property
    def partitions(self) -> tuple[str, ...]:
        """What the user named, in his order."""
        return tuple(self.options[self.options.index("-p") + 1].split(","))

    def script(self) -> str:
        """The job script: it finds out where it runs and takes as long as its app would there."""
        cases = "\n".join(f"  {kind[0]}*) sleep {seconds:g} ;;" for kind, seconds in self.run_s.items())
        head = f"#!/bin/bash\n#SBATCH --output=/dev/null\n#ADVISOR app: {self.app}\n"
        return f'{head}case "$SLURMD_NODENAME" in\n{cases}\nesac\n'


def jobs(count: int, seed: int = 1) -> list[DemoJob]:
    """The workload: the same jobs in the same order for a seed."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        app = rng.choice(_MIX)
        # The careful user's habit on Slurm alone: name every partition, the fastest first.
        gpu = "cpu" not in APPS[app]
        options = ("-p", "v100,p100,k80", "--gres=gpu:1") if gpu else ("-p", "cpu", "-c", "2")
        found.append(
            DemoJob(
                after_s=round(rng.expovariate(1 / 0.35), 2),
                user=rng.choice(("alice", "bob")),
                app=app,
                options=(*options, "-t", str(_LIMIT_MINUTES), "-J", app),
            )
        )
    return found
