"""A reading of the cluster kept in a file: for tests, for the demo, and to reproduce what a site saw."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from advisor.cluster.types import ClusterState, SourceError


class RecordedSource:
    """Gives the reading in a file, as it is in the file at the time."""

    name = "recorded"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def read(self) -> ClusterState:
        """The recorded reading; raises `SourceError`."""
        try:
            text = self.path.read_bytes()
        except OSError as error:
            raise SourceError(f"cannot read the recording {self.path}: {error.strerror or error}") from None
        try:
            return msgspec.json.decode(text, type=ClusterState)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SourceError(f"{self.path} is not a recording of a cluster: {error}") from None


def save(state: ClusterState, path: str | os.PathLike[str]) -> None:
    """Write a reading so that `RecordedSource` gives it back. A reader never sees half of it."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
