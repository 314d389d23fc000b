"""What every adapter must decide the same way: live job states, a job's gres in all, node and partition details.

The adapters only know how a release spells things; what the spelling means is decided here, once, so
that the same cluster read through text, JSON or pyslurm gives the same facts.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.cluster.gres import Tres, merge, parse_gres, scale
from advisor.cluster.hostlist import HostlistError, expand_hostlist
from advisor.cluster.types import Gres, SourceError

# In the order in which Slurm's own one-word state prefers them.
_HOLDING_FLAGS = ("COMPLETING", "STAGE_OUT", "CONFIGURING")
_LIVE = ("PENDING", "RUNNING", "SUSPENDED")
_FLAGS_OF_RUNNING = frozenset({"RESIZING", "STOPPED", "SIGNALING"})
_FLAGS_OF_PENDING = frozenset(
    {"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "RECONFIG_FAIL", "EXPEDITING"}
)


def job_states(words: Sequence[str]) -> tuple[str, ...] | None:
    """A job's states with the one that counts first, or None for a job that is over.

    JSON gives the base state and all flags; text gives a single word, which hides the base state
    (`COMPLETING`). Both come out with the same first state.
    """
    found = [word for word in words if word]
    if "REVOKED" in found:  # a sibling of a federated job that started elsewhere
        return None
    for state in (*_HOLDING_FLAGS, *_LIVE):
        if state in found:
            return (state, *(word for word in found if word != state))
    for word in found:
        if word in _FLAGS_OF_RUNNING:
            return ("RUNNING", *found)
        if word in _FLAGS_OF_PENDING:
            return ("PENDING", *found)
    return None


def holds_resources(states: tuple[str, ...]) -> bool:
    """Whether a live job has nodes (anything but pending)."""
    return states[0] != "PENDING"


def node_states(words: Sequence[str]) -> tuple[str, ...]:
    """Base state first, then the flags in alphabetical order (releases list them in different orders)."""
    clean = [word.strip("*~#!%$@^-").upper() for word in words]
    clean = [word for word in clean if word]
    return (clean[0], *sorted(set(clean[1:]))) if clean else ("UNKNOWN",)


class Requests:
    """The tres_per_* fields of a job, to be added up into what it asks for in all."""

    __slots__ = ("per_job", "per_node", "per_socket", "per_task")

    def __init__(self, per_job: str | None, per_node: str | None, per_socket: str | None, per_task: str | None) -> None:
        self.per_job = per_job
        self.per_node = per_node
        self.per_socket = per_socket
        self.per_task = per_task

    def total(self, nodes: int, sockets_per_node: int, tasks: int) -> tuple[Gres, ...]:
        """All gres asked for."""
        if not (self.per_job or self.per_node or self.per_socket or self.per_task):
            return ()
        return merge(
            (
                *parse_gres(self.per_job),
                *scale(parse_gres(self.per_node), max(nodes, 1)),
                *scale(parse_gres(self.per_socket), max(nodes, 1) * max(sockets_per_node, 1)),
                *scale(parse_gres(self.per_task), max(tasks, 1)),
            )
        )


def job_gres(allocated: tuple[Gres, ...], tres: Tres, requested: tuple[Gres, ...]) -> tuple[Gres, ...]:
    """A job's gres in all: what it has, else what accounting counted, else what its request adds up to.

    Accounting knows the count in all but only the gres and types that AccountingStorageTRES names, so the
    request fills in the names and the type that it lacks.
    """
    if allocated:
        return allocated
    counted = {gres.name for gres in tres.gres}
    types: dict[str, set[str | None]] = {}
    for gres in requested:
        types.setdefault(gres.name, set()).add(gres.type)
    found = [gres for gres in requested if gres.name not in counted]
    for gres in tres.gres:
        asked = types.get(gres.name, set())
        kind = next(iter(asked)) if gres.type is None and len(asked) == 1 else gres.type
        found.append(Gres(gres.name, gres.count, kind))
    return merge(found)


def memory_in_all(tres: Tres, per_node: int | None, per_cpu: int | None, nodes: int, cpus: int) -> int:
    """A job's memory in MB: as accounted, else from the request (0: it asked for none)."""
    if tres.memory_mb:
        return tres.memory_mb
    if per_cpu:
        return per_cpu * cpus
    return (per_node or 0) * nodes


def hosts(text: str | None, whose: str) -> tuple[str, ...]:
    """Expand a node list; `whose` says where it stood, for the error."""
    if not text or text in ("(null)", "N/A", "None"):
        return ()
    try:
        return expand_hostlist(text)
    except HostlistError as error:
        raise SourceError(f"{whose}: {error}") from None


def names(text: str | None) -> tuple[str, ...]:
    """A comma separated list; Slurm's ways to say none give an empty one."""
    if not text or text in ("(null)", "N/A", "NONE"):
        return ()
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def allowed(text: str | None) -> tuple[str, ...] | None:
    """A list of who may use a partition; None where everyone may."""
    listed = names(text)
    return None if not listed or listed[0].upper() == "ALL" else listed


def oversubscription(text: str) -> tuple[bool, int]:
    """Slurm's OverSubscribe word (`NO`, `FORCE:2`, `EXCLUSIVE`) as (whole nodes, jobs per resource)."""
    word, _, count = text.upper().partition(":")
    if word == "EXCLUSIVE":
        return True, 1
    if word in ("FORCE", "YES"):
        return False, int(count) if count.isdecimal() and 0 < len(count) < 6 and int(count) else 4
    return False, 1
