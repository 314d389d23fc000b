"""One job as Slurm shows it at this moment, and the words that change it.

Whoever moves a job looks first, since minutes may have passed since the last poll, and looks again afterwards: where
one field of an update is refused, Slurm (seen on 22.05 and 24.11) may already have taken another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from advisor.cluster import v22_05
from advisor.cluster.command import SlurmCommand
from advisor.cluster.gres import parse_gres
from advisor.cluster.types import Gres, SourceError

# How the fields of a submission are spelt in `scontrol update`; both releases take these for pending jobs.
SPELLING = {
    "partition": "Partition",
    "tres_per_node": "TresPerNode",
    "tres_per_job": "TresPerJob",
    "tres_per_task": "TresPerTask",
    "tres_per_socket": "TresPerSocket",
    "nice": "Nice",
}
# What may stand in a word: a prefix such as `ssh ctl` hands it to a shell, and users choose some of it.
_SAFE = re.compile(r"[A-Za-z0-9_.,:=/+-]+")


class Shown(msgspec.Struct, frozen=True):
    """A job as `scontrol show job` tells it, as far as it bears on moving it."""

    state: str
    partition: str
    requests: dict[str, str]  # tres_per_node, … → as Slurm writes it
    priority: int  # 0: held
    nice: int = 0
    reason: str = ""
    requeue: bool = False  # whether Slurm may requeue it
    pinned: str = ""  # what ties it to where it is: a reservation, nodes by name, being part of a het job

    def has(self, fields: Mapping[str, str]) -> bool:
        """Whether the job asks for just this, whatever the spelling."""
        if set(_names(self.partition)) != set(_names(fields.get("partition", ""))):
            return False
        asked = {field for field in fields if field != "partition"} | self.requests.keys()
        return all(_asked(self.requests.get(field)) == _asked(fields.get(field)) for field in asked)


def safe(fields: Mapping[str, str]) -> bool:
    """Whether these fields can be written as words of a command."""
    return all(name in SPELLING and _SAFE.fullmatch(value) for name, value in fields.items())


def show(slurm: SlurmCommand, job_id: int) -> Shown | None:
    """The job now; None where Slurm does not know it (any more), or it is several. Raises `SourceError`."""
    try:
        text = v22_05.text_of(slurm.stream("scontrol", "-o", "show", "job", str(job_id)))
    except SourceError as error:
        if "invalid job id" in str(error).lower():
            return None
        raise
    records = [record for record in v22_05.job_records(text) if record.strip()]
    if len(records) != 1:
        return None  # an array of which some tasks have begun
    head, _, middle, tail = v22_05.job_parts(records[0])
    pinned = ""
    if "HetJobId=" in head.group():
        pinned = "it is part of a heterogeneous job"
    elif middle.get("Reservation", "(null)") != "(null)":
        pinned = "it uses a reservation"
    elif middle.get("ReqNodeList", "(null)") != "(null)":
        pinned = "it names the nodes it wants"
    return Shown(
        state=re.split(r"[,+]", middle.get("JobState", ""))[0],
        partition=middle.get("Partition", ""),
        requests={f"tres_per_{per}": value for per, value in v22_05.requests_in(tail).items()},
        priority=_number(middle.get("Priority")),
        nice=_number(middle.get("Nice")),
        reason=middle.get("Reason", ""),
        requeue=middle.get("Requeue") == "1",
        pinned=pinned,
    )


def update(slurm: SlurmCommand, job_id: int, fields: Mapping[str, str]) -> None:
    """Asks Slurm to change these fields of a pending job; raises `SourceError` with Slurm's words if it refuses."""
    if not safe(fields):
        raise SourceError(f"the fields {dict(fields)!r:.200} cannot be written as a command")
    words = [f"{SPELLING[name]}={value}" for name, value in fields.items()]
    slurm.run("scontrol", "update", f"JobId={job_id}", *words)


def requeue(slurm: SlurmCommand, job_id: int) -> None:
    """Ends the job's run and puts it back into the queue; raises `SourceError` if Slurm refuses.

    Slurm (22.05, 24.11) lets it start again two minutes later at the earliest: time enough to say where.
    """
    slurm.run("scontrol", "requeue", str(job_id))


def _asked(text: str | None) -> list[Gres]:
    return sorted(parse_gres(text), key=lambda gres: (gres.name, gres.type or "", gres.count))


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _number(text: str | None) -> int:
    return int(text) if text and text.removeprefix("-").isdecimal() else 0
