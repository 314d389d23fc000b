"""Moves one pending job, so that whatever happens the job is where it was or where it was to go.

Slurm is asked what the job is now, told to change it, and asked again. A job that has started, was held or changed by
somebody else in the meantime is left as it is; an update of which Slurm took one half only is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from advisor.cluster import pending
from advisor.cluster.command import SlurmCommand
from advisor.cluster.types import SourceError
from advisor.server.rounds.places import Proposal
from advisor.store import moves

# What Slurm says to a user who may not change other users' jobs.
_MAY_NOT = ("invalid user id", "permission denied")
_OPERATOR = (
    "the daemon's user may not change users' jobs; "
    "`sacctmgr modify user NAME set adminlevel=operator`, or set `levers: []`"
)


class Result(NamedTuple):
    """What became of a move. Not `told`: Slurm did not answer or let us; the next need not be tried."""

    outcome: str
    said: str | None = None
    told: bool = True


def carry_out(slurm: SlurmCommand, each: Proposal) -> Result:
    """Does what was proposed; raises nothing."""
    if each.lever == "order":
        return give(slurm, each.job_id, each.after["points"] - each.before["points"])
    if each.lever == "requeue":
        return requeue(slurm, each.job_id, each.before["partition"], each.after)
    return move(slurm, each.job_id, each.before, each.after)


def requeue(slurm: SlurmCommand, job_id: int, partition: str, after: Mapping[str, str]) -> Result:
    """Requeues a running job and sends it elsewhere before it can start again; raises nothing."""
    try:
        shown = pending.show(slurm, job_id)
    except SourceError as error:
        return Result(moves.REFUSED, f"nothing was changed: {error}", told=False)
    if shown is None or shown.state != "RUNNING" or shown.partition != partition:
        return Result(moves.REFUSED, "it does not run there any more")
    if not shown.requeue or shown.pinned:
        return Result(moves.REFUSED, shown.pinned or "Slurm may not requeue it (--no-requeue, or JobRequeue=0)")
    try:
        pending.requeue(slurm, job_id)
    except SourceError as error:
        return Result(moves.REFUSED, str(error))
    said: str | None = None
    try:
        pending.update(slurm, job_id, after)
    except SourceError as error:
        said = str(error)
    try:
        shown = pending.show(slurm, job_id)
    except SourceError as error:
        return Result(moves.SENT, f"it was requeued, and where it goes is not known: {said or error}", told=False)
    if shown is not None and shown.has(after):
        return Result(moves.OK, said)
    return Result(moves.HALF_DONE, f"it was requeued, but not sent elsewhere: {said or 'Slurm did not take it'}")


def move(slurm: SlurmCommand, job_id: int, before: Mapping[str, str], after: Mapping[str, str]) -> Result:
    """Moves the job; raises nothing."""
    try:
        shown = pending.show(slurm, job_id)
    except SourceError as error:
        return Result(moves.REFUSED, f"nothing was changed: {error}", told=False)
    refusal = _not_now(shown, before)
    if refusal or shown is None:
        return Result(moves.REFUSED, refusal)
    changes = {name: value for name, value in after.items() if before.get(name) != value}
    said: str | None = None
    try:
        pending.update(slurm, job_id, changes)
    except SourceError as error:
        said = str(error)
    if said is not None and any(words in said.lower() for words in _MAY_NOT):
        return Result(moves.REFUSED, f"{_OPERATOR}: {said}", told=False)
    return _verified(slurm, job_id, before, after, said)


def give(slurm: SlurmCommand, job_id: int, points: int) -> Result:
    """Gives a pending job so many points of priority (or takes them), on top of what it has; raises nothing."""
    try:
        shown = pending.show(slurm, job_id)
        refusal = _not_pending(shown)
        if refusal or shown is None:
            return Result(moves.REFUSED, refusal)
        wanted = shown.nice - points
        pending.update(slurm, job_id, {"nice": str(wanted)})
        shown = pending.show(slurm, job_id)
    except SourceError as error:
        said = str(error)
        if any(words in said.lower() for words in _MAY_NOT):
            said = f"{_OPERATOR}: {said}"
        return Result(moves.REFUSED, said, told=False)
    if shown is None or shown.nice != wanted:
        return Result(moves.REFUSED, "Slurm said it took the change, and did not")
    return Result(moves.OK)


def _not_pending(shown: pending.Shown | None) -> str:
    if shown is None:
        return "Slurm does not know the job any more, or some of its tasks have begun"
    if shown.state != "PENDING":
        return f"it is {shown.state} by now"
    return "" if shown.priority else "it is held"


def _not_now(shown: pending.Shown | None, before: Mapping[str, str]) -> str:
    refusal = _not_pending(shown)
    if refusal or shown is None:
        return refusal
    if shown.pinned:
        return shown.pinned
    if not shown.has(before):
        return f"somebody else changed it (now {shown.partition} {' '.join(shown.requests.values())})"
    return ""


def _verified(
    slurm: SlurmCommand, job_id: int, before: Mapping[str, str], after: Mapping[str, str], said: str | None
) -> Result:
    """Goes by what Slurm shows, whatever the command's exit code was."""
    try:
        shown = pending.show(slurm, job_id)
    except SourceError as error:
        return Result(moves.SENT, f"whether Slurm took it is not known: {said or error}", told=False)
    if shown is None:
        return Result(moves.REFUSED, said or "the job is gone")
    if shown.has(after):
        return Result(moves.OK, said)
    if shown.has(before):
        return Result(moves.REFUSED, said or "Slurm said it took the change, and did not")
    if shown.state != "PENDING":
        return Result(moves.REFUSED, said or f"it is {shown.state} by now")
    return _undone(slurm, job_id, before, said or "Slurm took one half of the change")


def _undone(slurm: SlurmCommand, job_id: int, before: Mapping[str, str], said: str) -> Result:
    try:
        pending.update(slurm, job_id, before)
        shown = pending.show(slurm, job_id)
    except SourceError as error:
        return Result(moves.HALF_DONE, f"{said}; and it could not be taken back: {error}")
    if shown is not None and shown.has(before):
        return Result(moves.UNDONE, said)
    return Result(moves.HALF_DONE, f"{said}; and it could not be taken back")
