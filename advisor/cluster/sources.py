"""Opens the source of cluster facts that a site has chosen, or the best that works here.

`auto` is a recording where one is given, else pyslurm where it is installed and matches Slurm, else Slurm's commands.
What was chosen, and why not the other, is one line in the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Literal

from advisor.cluster.command import SlurmCommand
from advisor.cluster.commands_source import CommandsSource, parse_release
from advisor.cluster.pyslurm_source import PyslurmSource
from advisor.cluster.recorded import RecordedSource
from advisor.cluster.types import Source, SourceError

log = logging.getLogger("advisor.cluster")

Kind = Literal["auto", "commands", "pyslurm", "recorded"]


def open_source(
    kind: Kind = "auto",
    command: Sequence[str] = (),
    timeout_s: float = 20.0,
    recording: str | os.PathLike[str] | None = None,
) -> Source:
    """The source to read from. Never fails for pyslurm's sake; the first `read` shows whether Slurm answers."""
    if kind == "recorded" or (kind == "auto" and recording is not None):
        if recording is None:
            raise SourceError("a recorded cluster needs a file: set slurm.recording")
        return RecordedSource(recording)
    if kind in ("auto", "pyslurm"):
        try:
            source = _pyslurm(command, timeout_s)
        except SourceError as error:
            level = logging.WARNING if kind == "pyslurm" else logging.INFO
            log.log(level, "reading the cluster through Slurm's commands: %s", error)
        else:
            log.info("reading the cluster through pyslurm")
            return source
    return CommandsSource(command, timeout_s)


def _pyslurm(command: Sequence[str], timeout_s: float) -> PyslurmSource:
    if command:
        raise SourceError("slurm.command is set, so Slurm is not on this host, where pyslurm would look for it")
    said = SlurmCommand((), timeout_s).run("scontrol", "--version").decode("utf-8", "replace")
    release = parse_release(said)
    if release is None:
        raise SourceError(f"`scontrol --version` said {said[:80]!r}, which names no release of Slurm")
    return PyslurmSource(release, timeout_s)
