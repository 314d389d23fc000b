"""The cluster as Slurm's own commands tell it: three commands for each reading, read by the adapter of their release.

The release is asked once. The shape of the answers is that of the commands installed here, which need not be as
new as slurmctld; what is reported as the cluster's release is slurmctld's.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from advisor.cluster import v22_05, v24_11, v26_05
from advisor.cluster.command import SlurmCommand
from advisor.cluster.types import ClusterState, Job, Node, Partition, SourceError

log = logging.getLogger("advisor.cluster")

_VERSION = re.compile(r"\b(\d{2})\.(\d{2})\b")
_CONFIG = re.compile(r"^(ClusterName|SLURM_VERSION)\s*=\s*(\S+)", re.MULTILINE)


class Adapter(msgspec.Struct, frozen=True):
    """What to ask scontrol in one shape, and who reads the answers."""

    name: str
    node_words: tuple[str, ...]
    partition_words: tuple[str, ...]
    job_words: tuple[str, ...]
    nodes: Callable[[Iterable[bytes]], tuple[Node, ...]]
    partitions: Callable[[Iterable[bytes]], tuple[Partition, ...]]
    jobs: Callable[[Iterable[bytes]], tuple[Job, ...]]


TEXT = Adapter("text", v22_05.NODE, v22_05.PARTITION, v22_05.JOB, v22_05.nodes, v22_05.partitions, v22_05.jobs)
# Partitions as text: JSON does not tell the default one before 26.05.
JSON = Adapter("json", v24_11.NODE, v22_05.PARTITION, v24_11.JOB, v24_11.nodes, v22_05.partitions, v24_11.jobs)
JSON_26_05 = Adapter(
    "json of 26.05", v26_05.NODE, v26_05.PARTITION, v26_05.JOB, v26_05.nodes, v26_05.partitions, v26_05.jobs
)
NEWEST_KNOWN = (26, 5)


def adapter_for(release: tuple[int, int]) -> Adapter:
    """The adapter that reads what the commands of this release print; the newest for what is newer still."""
    if release < (23, 2):
        return TEXT
    if release < (26, 5):
        return JSON
    return JSON_26_05


def parse_release(text: str) -> tuple[int, int] | None:
    """(24, 11) of `slurm-wlm 24.11.5`."""
    match = _VERSION.search(text)
    return (int(match.group(1)), int(match.group(2))) if match else None


class CommandsSource:
    """Reads the cluster through `scontrol`, run behind an optional prefix."""

    name = "commands"

    def __init__(self, command: Sequence[str] = (), timeout_s: float = 20.0) -> None:
        self._slurm = SlurmCommand(command, timeout_s)
        self._found: tuple[Adapter, tuple[int, int], str] | None = None

    def read(self) -> ClusterState:
        """One complete reading; raises `SourceError`."""
        if self._found is None:
            self._found = self._look()
        try:
            return self._read(*self._found)
        except SourceError as error:
            # Slurm may have been upgraded since: look again next time.
            adapter, release, cluster = self._found
            self._found = None
            if adapter is TEXT or not _no_json(error):
                raise
            log.warning("scontrol %d.%02d here cannot write JSON; reading its text instead: %s", *release, error)
        state = self._read(TEXT, release, cluster)
        self._found = (TEXT, release, cluster)
        return state

    def _read(self, adapter: Adapter, release: tuple[int, int], cluster: str) -> ClusterState:
        taken_at = time.time()
        nodes = adapter.nodes(self._slurm.stream("scontrol", *adapter.node_words))
        partitions = adapter.partitions(self._slurm.stream("scontrol", *adapter.partition_words))
        jobs = adapter.jobs(self._slurm.stream("scontrol", *adapter.job_words))
        return ClusterState(
            cluster=cluster, release=release, taken_at=taken_at, nodes=nodes, partitions=partitions, jobs=jobs
        )

    def _look(self) -> tuple[Adapter, tuple[int, int], str]:
        """Which release this is and what the cluster is called."""
        said = self._slurm.run("scontrol", "--version").decode("utf-8", "replace")
        here = parse_release(said)
        if here is None:
            raise SourceError(f"`scontrol --version` said {said[:80]!r}, which names no release of Slurm")
        config = dict(_CONFIG.findall(self._slurm.run("scontrol", "show", "config").decode("utf-8", "replace")))
        release = parse_release(config.get("SLURM_VERSION", "")) or here
        adapter = adapter_for(here)
        if here > NEWEST_KNOWN:
            log.warning(
                "Slurm %d.%02d is newer than this version of slurm-advisor knows; reading it like %d.%02d",
                *here,
                *NEWEST_KNOWN,
            )
        return adapter, release, config.get("ClusterName", "")


def _no_json(error: SourceError) -> bool:
    """Whether scontrol was built or packaged without its JSON plugins."""
    text = str(error).lower()
    return "plugin" in text and ("json" in text or "serializer" in text or "data_parser" in text)
