"""The jobs of the comparison: sleeps of seconds, varied in everything that a scheduler looks at.

Sizes, time limits, memory, partitions (one, several, overlapping ones) and dependencies are drawn at random; a seed
gives the same jobs everywhere. They are made for the partitions of the mini-cluster (slurm/cluster/README.md).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from advisor.sim.workload import ANY, SimJob, Workload

# Partitions as a user would name them, and how often.
GPU_REQUESTS = (
    ("v100", 3),
    ("p100", 4),
    ("k80", 4),
    ("v100,p100", 3),
    ("p100,k80", 3),
    ("v100,p100,k80", 4),
    ("short", 2),
)
RUN_S = (1, 2, 3, 4, 6, 8, 10, 13, 16, 20)
# Seconds between two submissions for each second that a job runs: as the default, most jobs must wait for a while.
GAP = 0.12
LIMITS_MIN = (1, 1, 2, 3, 5, 8)
MEMORY_PER_CPU_MB = 100  # the mini-cluster's DefMemPerCPU


def make_workload(count: int, seed: int, run_s: Sequence[int] = RUN_S, gap: float = GAP) -> Workload:
    """`count` jobs that sleep for one of these times; `gap` sets how quickly they come."""
    draw = random.Random(seed)
    spread = count * gap * sum(run_s) / len(run_s)
    times = sorted(draw.uniform(0.0, spread) for _ in range(count))
    jobs: list[SimJob] = []
    for i, at in enumerate(times):
        job = _gpu_job(draw) if draw.random() < 0.62 else _cpu_job(draw)
        depends: tuple[str, ...] = ()
        if i > 4 and draw.random() < 0.08:
            depends = tuple(sorted({str(draw.randint(i - 5, i - 1)) for _ in range(draw.choice((1, 1, 2)))}, key=int))
        jobs.append(
            SimJob(
                id=str(i),
                submit=round(at, 3),
                run_time={ANY: float(draw.choice(run_s))},
                time_limit=60.0 * draw.choice(LIMITS_MIN),
                depends=depends,
                user="alice",
                partitions=job[0],
                nodes=job[1],
                cpus=job[1] * job[2],
                gpus=job[1] * job[3],
                memory_mb=job[1] * job[2] * MEMORY_PER_CPU_MB,
            )
        )
    return Workload(f"{count} sleeps, seed {seed}", tuple(jobs))


Asked = tuple[tuple[str, ...], int, int, int]  # partitions, nodes, CPUs and GPUs on each node


def _gpu_job(draw: random.Random) -> Asked:
    names, weights = zip(*GPU_REQUESTS, strict=True)
    partitions = tuple(draw.choices(names, weights)[0].split(","))
    if partitions in (("p100",), ("k80",)) and draw.random() < 0.2:
        return partitions, 2, draw.choice((1, 2, 4)), draw.choice((1, 1, 2))
    return partitions, 1, draw.choice((1, 1, 2, 4, 6)), draw.choice((1, 1, 1, 2))


def _cpu_job(draw: random.Random) -> Asked:
    if draw.random() < 0.2:
        return ("cpu",), 2, draw.choice((4, 8, 16)), 0
    return ("cpu",), 1, draw.choice((1, 2, 4, 8, 12, 16, 24)), 0


def sbatch_options(job: SimJob) -> list[str]:
    """What a user would type for the job."""
    assert job.time_limit is not None
    words = [
        f"--partition={','.join(job.partitions)}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={job.cpus // job.nodes}",
        f"--time={int(job.time_limit // 60)}",
    ]
    return [*words, f"--gres=gpu:{job.gpus // job.nodes}"] if job.gpus else words
