"""The wire between the hook in slurmctld and the daemon: one JSON line each way over a unix socket.

These types are the contract. The hook (`slurm/advisor.lua`) fills a `SubmitRequest`; the daemon answers
with a `Reply`. A hook that numbers its requests by `kind` also takes a `PreparedRow` ahead of the next ones of a
kind, and says with a `UsedNote` which answer of it it applied. Field names follow Slurm's own `job_desc`. Numbers that
Slurm calls NO_VAL or INFINITE arrive as null, so that nothing here has to know those constants.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

VERSION = 1

# A request is refused above this size. The comment block is at most 64 KiB and every other text is
# cut by the hook, so an honest request is far below it.
MAX_LINE = 1 << 20


class PartitionLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """One partition of slurmctld's `part_list`: this user may use it, within these limits."""

    name: str
    default: bool = False
    up: bool = True
    max_time: int | None = None  # minutes; null: no limit
    default_time: int | None = None  # minutes
    min_nodes: int | None = None
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None
    max_mem_per_node: int | None = None  # MB
    max_mem_per_cpu: int | None = None  # MB
    allow_accounts: str | None = None  # comma separated; null: all
    deny_accounts: str | None = None
    allow_qos: str | None = None
    deny_qos: str | None = None
    priority_tier: int | None = None


class SubmitRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the hook tells of one submission (one array, or one component of a het job)."""

    v: int
    op: Literal["submit", "advise"] = "submit"  # advise: the same, but nothing is logged or booked
    # The hook's number for requests that read like this one, on this connection; 0: it takes no prepared answers.
    kind: int = 0
    row: int = 1  # so many prepared answers to one kind the hook keeps, each to be used after the one before
    uid: int = -1
    user: str | None = None
    account: str | None = None
    default_account: str | None = None
    qos: str | None = None
    default_qos: str | None = None
    name: str | None = None
    partition: str | None = None  # as the user wrote it: null, one, or several with commas
    tres_per_node: str | None = None  # --gres, --gpus-per-node
    tres_per_job: str | None = None  # --gpus
    tres_per_task: str | None = None  # --gpus-per-task
    tres_per_socket: str | None = None  # --gpus-per-socket
    cpus_per_tres: str | None = None
    mem_per_tres: str | None = None
    features: str | None = None
    prefer: str | None = None
    licenses: str | None = None
    reservation: str | None = None
    req_nodes: str | None = None
    exc_nodes: str | None = None
    clusters: str | None = None
    # Minutes. Who asks for no limit at all sends 4294967295, above every partition's limit: null would
    # mean that the partition's default applies.
    time_limit: int | None = None
    time_min: int | None = None
    min_cpus: int | None = None
    cpus_per_task: int | None = None
    num_tasks: int | None = None
    ntasks_per_node: int | None = None
    ntasks_per_tres: int | None = None  # --ntasks-per-gpu
    min_nodes: int | None = None
    max_nodes: int | None = None
    min_mem_per_node: int | None = None  # MB
    min_mem_per_cpu: int | None = None  # MB
    shared: int | None = None  # job_desc.shared: 0 exclusive, 1 oversubscribe, 2 --exclusive=user, 3 =mcs
    array: str | None = None
    dependency: str | None = None
    het_offset: int | None = None
    begin_time: int | None = None
    batch: bool = True  # sbatch; false for srun and salloc
    script_head: str | None = None  # the leading comment block of the script, at most 64 KiB
    environment: dict[str, str] = {}  # only ADVISOR_* variables
    comment: str | None = None
    extra: str | None = None
    partitions: list[PartitionLimits] = []  # slurmctld's part_list for this user


class UsedNote(msgspec.Struct, frozen=True):
    """The hook applies a prepared answer. Nothing is sent back.

    Notes come on a connection of their own, which begins with `{"v":1,"op":"notes"}` and which the daemon looks at now
    and then: a line that wakes it up costs slurmctld more than all the rest of a submission.
    """

    v: int
    op: Literal["used"]
    number: int  # of the row
    place: int  # in it, from 0


class ControlRequest(msgspec.Struct, frozen=True):
    """A question of an admin's command to the running daemon."""

    v: int
    op: Literal["ping", "status"]


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The daemon's answer to a submission."""

    v: int
    token: str | None = None  # null: not logged (nothing was eligible to decide, or a dry run)
    action: Literal["keep", "rewrite"] = "keep"
    set: dict[str, str] = {}  # job_desc fields to set, only with action rewrite
    message: str | None = None  # one line for the user, through slurm.log_user
    error: str | None = None  # the request was refused; why
    decision: dict[str, Any] | None = None  # op advise only: the whole decision, for a person to read


class PreparedRow(msgspec.Struct, frozen=True):
    """Sent unasked: the answers to the next submissions, as long as these are of this kind, each after the one before.

    The hook knows it by how it begins: `{"v":1,"prepared":…,"after":…,"count":…,"number":…,"follows":…,"until":…,`. The
    rest is read when the first of them is needed. Answers differ in little, so what they set and say stands there once.
    """

    v: int
    prepared: int  # the kind
    after: int  # the first holds for a hook that has sent so many lines on this connection
    count: int
    number: int  # of the row
    follows: int  # 0, or the number of the row of which the last submission must have used the last answer
    until: float  # seconds since the epoch
    sets: list[dict[str, str]]
    says: list[str]
    # Three for each: its token ("": none), and which of `sets` and of `says` it is, counted from 1 (0: none).
    answers: list[str | int]


class Forget(msgspec.Struct, frozen=True):
    """Sent unasked: no reply that was prepared so far holds any more."""

    v: int
    prepared: Literal[0] = 0


# The fields that a rewrite may touch. The hook refuses a reply that names any other.
SETTABLE = ("partition", "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket")
