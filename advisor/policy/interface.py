"""The one interface of every policy: candidates in, a scored choice out.

Heuristics, optimisation policies and the learned network all implement `Policy`; the daemon, the
dry run (`advisor advise`) and the simulator all call it through `advisor.policy.decision`, so that
what is evaluated is what is deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import msgspec

from advisor.dfg.graph import Annotation
from advisor.performance.demand import Demand, Need
from advisor.performance.snapshot import Snapshot


class JobShape(msgspec.Struct, frozen=True):
    """What a job needs, read once from the request, in whole-job numbers and per node."""

    app: str
    user: str
    account: str
    nodes: int
    cpus: int  # in all
    memory_mb: int  # in all
    gpus: int  # in all; 0: none asked
    gpus_per_node: int
    time_limit_s: float | None  # None: the partition's default
    tasks: int  # array tasks; 1 for a plain job
    exclusive: bool
    annotation: Annotation
    demand: Demand = Demand()  # the same, as far as it decides where the job fits
    tasks_at_once: int = 1  # of an array: as many as `%` allows
    gpu_fields: tuple[str, ...] = ()  # the request's fields that ask for GPUs
    after_s: float = 0.0  # from its end to the end of the last job that waits for it, where earlier runs have told


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True):
    """One place the job could go. `keep` is the submission as the user wrote it."""

    name: str  # "keep", or "partition/gpu type"
    partition: str | None  # where it would run; for keep: what the user wrote (maybe several)
    gpu_type: str | None = None
    set: dict[str, str] = {}  # job_desc fields in Slurm's own spelling; empty for keep
    pools: tuple[int, ...] = ()  # the snapshot's pools it could run in
    keep: bool = False
    needs: tuple[Need, ...] = ()  # what it would take of each of these pools
    tiers: tuple[int, ...] = ()  # the priority tier at which it would wait for each of them
    shared: bool = False  # it gets a part of a GPU


class Share(msgspec.Struct, frozen=True, array_like=True):
    """The tasks of an array that would start in one of several pools."""

    pool: int
    processor: str
    tasks: int
    run_s: float  # of one task there


class Prediction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a policy expects of one candidate. Lower `score` is better."""

    candidate: int  # index into the candidates
    wait_s: float
    run_s: float
    slowdown: float = 1.0  # by what runs there already; `run_s` is without it
    score: float = 0.0
    pool: int | None = None  # the pool in which it would start first
    processor: str = ""  # "v100", "cpu"
    run_source: str = ""  # history, annotation, time limit, …
    reason: str = ""  # one clause a user understands
    queue_wait_s: float | None = None  # the wait by the queue alone, where `wait_s` is corrected by past waits
    slowdown_sd: float = 0.0  # how sure `slowdown` is
    beside: tuple[str, ...] = ()  # apps on the nodes it would share, where they slow it down
    sd_log: float = 0.0  # spread of the log of the run time, of one run
    # Of that, what more runs would settle: the same wherever it runs, and of this place alone.
    doubt_log: float = 0.0
    apart_log: float = 0.0
    spread: tuple[Share, ...] = ()  # of an array whose tasks would start in several pools; `pool` has most of them


class Policy(Protocol):
    """Scores candidates. Must be pure: same inputs, same predictions; no I/O."""

    name: str
    version: str

    def predict(
        self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float
    ) -> list[Prediction]:
        """One prediction for each candidate, in their order."""
        ...


class Scored(msgspec.Struct, frozen=True):
    """Predictions as far as the choice needs them; `explained` gives the same with their reasons in words."""

    predictions: list[Prediction]
    explained: Callable[[], list[Prediction]]
    by: tuple[str, str] | None = None  # name and version of the policy that scored, where not the one that was asked
    fell_back: str = ""  # why it was not that one
    kind: str = ""  # the same in a word or two, by which such decisions are counted
    remember: Callable[[], None] | None = None  # to be called once the job is really submitted, and only then


def score(policy: Policy, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float) -> Scored:
    """What `policy` predicts. One that has a `score` of its own leaves the words until slurmctld has its answer."""
    early = getattr(policy, "score", None)
    if early is not None:
        return cast(Scored, early(shape, candidates, snapshot, now))
    predictions = policy.predict(shape, candidates, snapshot, now)
    return Scored(predictions, lambda: predictions)


def expect(
    policy: Policy, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float
) -> Scored:
    """As `score`, without what `correct` adds to it: waits, run times and pools are there, the score may change."""
    plain = getattr(policy, "expect", None)
    return score(policy, shape, candidates, snapshot, now) if plain is None else plain(shape, candidates, snapshot, now)


def correct(
    policy: Policy, asked: Sequence[tuple[JobShape, Scored]], snapshot: Snapshot, now: float
) -> Sequence[Scored]:
    """What `expect` told of several jobs, as `score` would tell it of each; in one go where the policy can."""
    together = getattr(policy, "correct", None)
    return [scored for _, scored in asked] if together is None else together(asked, snapshot, now)


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was decided for one submission: enough to act on it, explain it and learn from it."""

    token: str
    decided_at: float
    action: str  # keep, rewrite
    mode: str  # shadow, advise, enforce
    eligible: bool
    why: str  # in one sentence: why this, or why it was left alone
    app: str
    policy: str = ""
    policy_version: str = ""
    candidates: tuple[Candidate, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    chosen: int = 0  # what the experiment chose (index)
    preferred: int = 0  # what the policy likes best
    probabilities: tuple[float, ...] = ()  # of choosing each candidate
    holdout: bool = False
    applied: bool = False  # whether the job really was changed (enforce and not holdout)
    set: dict[str, str] = {}
    message: str | None = None
    annotation: Annotation | None = None
    annotation_error: str | None = None
    snapshot_taken_at: float = 0.0
    features: dict[str, float] = {}  # what the policy saw, for offline learning
