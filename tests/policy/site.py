"""A small site for tests of decisions: the nodes and partitions of the mini-cluster, and submissions to it."""

from __future__ import annotations

import itertools
import random
from math import log
from typing import Any

import msgspec

from advisor.cluster.types import ClusterState, Gres, Job, Node, Partition
from advisor.performance.queue import build_snapshot
from advisor.performance.snapshot import RunTimes, Snapshot
from advisor.performance.waits import Ledger
from advisor.policy.decision import decide
from advisor.policy.interface import Decision
from advisor.policy.registry import make_policy
from advisor.protocol import VERSION, PartitionLimits, SubmitRequest
from advisor.settings import Experiment, Modes, PolicySettings, Settings

NOW = 1_750_000_000.0

NODES = (
    Node("v1", ("IDLE",), 16, 64_000, (Gres("gpu", 2, "v100"),), ("gpu", "volta"), weight=20),
    Node("p1", ("IDLE",), 12, 48_000, (Gres("gpu", 2, "p100"),), ("gpu", "pascal"), weight=10),
    Node("p2", ("IDLE",), 12, 48_000, (Gres("gpu", 2, "p100"),), ("gpu", "pascal"), weight=10),
    Node("k1", ("IDLE",), 8, 32_000, (Gres("gpu", 2, "k80"), Gres("shard", 8)), ("gpu", "kepler")),
    Node("k2", ("IDLE",), 8, 32_000, (Gres("gpu", 2, "k80"), Gres("shard", 8)), ("gpu", "kepler")),
    Node("c1", ("IDLE",), 24, 96_000, (), ("cpu", "avx512")),
    Node("c2", ("IDLE",), 24, 96_000, (), ("cpu", "avx2")),
)

PARTITIONS = (
    Partition("cpu", ("c1", "c2"), default=True, default_time=5, max_time=1440, def_mem_per_cpu=100),
    Partition("v100", ("v1",), default_time=5, max_time=1440, def_mem_per_cpu=100),
    Partition("p100", ("p1", "p2"), default_time=5, max_time=1440, def_mem_per_cpu=100),
    Partition("k80", ("k1", "k2"), default_time=5, max_time=1440, def_mem_per_cpu=100),
    Partition("short", ("v1", "p1", "p2", "k1", "k2"), default_time=5, max_time=10, def_mem_per_cpu=100),
    Partition(
        "restricted", ("v1", "p1"), default_time=5, max_time=1440, def_mem_per_cpu=100, allow_accounts=("physics",)
    ),
    Partition("shared", ("c1", "c2"), default_time=5, max_time=1440, def_mem_per_cpu=100, oversubscribe=2),
)


def running(node: str, gpus: int, kind: str | None, *, hours: float, cpus: int = 2, **more: Any) -> Job:
    """A job that holds GPUs (or CPUs) of a node for so many more hours."""
    number = next(_numbers)
    return Job(
        job_id=number,
        states=("RUNNING",),
        name=more.pop("name", f"other{number}"),
        partitions=(more.pop("partition", "short"),),
        start_time=int(NOW),
        time_limit=round(hours * 60),
        nodes=(node,),
        cpus=cpus,
        gres=(Gres("gpu", gpus, kind),) if gpus else (),
        **more,
    )


def pending(partition: str, *, minutes: int, gpus: int = 0, kind: str | None = None, cpus: int = 1, **more: Any) -> Job:
    """A job that waits."""
    return Job(
        job_id=more.pop("job_id", next(_numbers)),
        states=("PENDING",),
        partitions=tuple(partition.split(",")),
        reason=more.pop("reason", "Priority"),
        time_limit=minutes,
        cpus=cpus,
        gres=(Gres("gpu", gpus, kind),) if gpus else (),
        **more,
    )


_numbers = itertools.count(1)

# Every v100 is busy for hours, one p100 is free, the k80s are idle; Slurm takes k80s first, they weigh least.
BUSY = (
    running("v1", 2, "v100", hours=10, cpus=4),
    running("p1", 2, "p100", hours=6, cpus=4),
    running("p2", 1, "p100", hours=3, cpus=4),
)


def state(*jobs: Job, nodes: tuple[Node, ...] = NODES, partitions: tuple[Partition, ...] = PARTITIONS) -> ClusterState:
    return ClusterState("mini", (24, 11), NOW, nodes, partitions, jobs)


def runs(seconds: float, count: int = 8) -> RunTimes:
    """So many past runs of about so many seconds."""
    return RunTimes(count, log(seconds), 0.1)


# What is known of the app in most tests: it hardly differs between v100 and p100, and is slow on k80.
PAST = {"train": {"v100": runs(1100), "p100": runs(1200), "k80": runs(6000)}}


def snapshot(*jobs: Job, history: dict[str, dict[str, RunTimes]] = PAST, **more: Any) -> Snapshot:
    return build_snapshot(state(*jobs, **more), history)


def part_list(partitions: tuple[Partition, ...] = PARTITIONS, account: str = "chemistry") -> list[PartitionLimits]:
    """What slurmctld would list for a user with this account."""
    return [
        PartitionLimits(
            p.name,
            default=p.default,
            max_time=p.max_time,
            default_time=p.default_time,
            allow_accounts=",".join(p.allow_accounts) if p.allow_accounts else None,
        )
        for p in partitions
    ]


def submission(**fields: Any) -> SubmitRequest:
    """An sbatch with these options; by default one GPU of any type, in one of three partitions."""
    given: dict[str, Any] = {
        "v": VERSION,
        "uid": 1001,
        "user": "ada",
        "account": "chemistry",
        "qos": "normal",
        "name": "train",
        "partition": "k80,p100,v100",
        "tres_per_node": "gres/gpu:1",
        "time_limit": 240,
        "partitions": part_list(),
        **fields,
    }
    return SubmitRequest(**given)


def settings(mode: str = "enforce", holdout: float = 0.0, **more: Any) -> Settings:
    return Settings(
        modes=more.pop("modes", Modes(default=mode)),  # type: ignore[arg-type]
        experiment=Experiment(holdout=holdout),
        policy=more.pop("policy", PolicySettings()),
        **more,
    )


def advise(
    request: SubmitRequest,
    snap: Snapshot | None,
    config: Settings | None = None,
    *,
    ledger: Ledger | None = None,
    seed: int = 0,
    now: float = NOW,
) -> Decision:
    config = config or settings()
    tokens = itertools.count()
    return decide(
        # Through the wire, as in the daemon.
        msgspec.json.decode(msgspec.json.encode(request), type=SubmitRequest),
        snap,
        ledger,
        make_policy(config),
        config,
        random.Random(seed),
        now,
        lambda: f"t{seed}-{next(tokens)}",
    )
