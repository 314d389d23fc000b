"""Keeps samples on the node's disk until the daemon has them.

A spool is a folder of segments: a line that says whose samples follow, then one JSON line for each. A sample is in its
segment the moment it is made; a segment is deleted when the daemon has stored it. The folder is bounded: when it is
full, the oldest segment goes, and that is counted. Segments of before a restart or a reboot are sent like any other.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

SEGMENT_BYTES = 512 << 10  # a batch: compressed well below what a daemon takes
_ENDING = ".jsonl"


@dataclass(frozen=True, slots=True)
class Segment:
    """What a finished segment holds."""

    path: Path
    boot: str
    run: str
    samples: list[dict[str, Any]]


class Spool:
    """The samples that wait on this node."""

    def __init__(self, folder: Path, boot: str, run: str, limit: int = 64 << 20, segment: int = SEGMENT_BYTES) -> None:
        """`run` is unique to this start of the agent; with a sample's number it names the sample for good."""
        self._folder = folder
        self._boot, self._run = boot, run
        self._limit, self._segment = limit, segment
        self._sequence = 0
        self._open: Path | None = None
        self._open_bytes = 0
        self._lock = threading.Lock()
        self.dropped = 0  # samples lost to the bound, or to a disk that takes nothing
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, sample: dict[str, Any]) -> None:
        """Writes a sample and gives it its number; a disk that is full costs this sample and is logged."""
        with self._lock:
            line = json.dumps({"n": self._sequence, **sample}, separators=(",", ":"), allow_nan=False) + "\n"
            try:
                self._append(line)
            except OSError as error:
                self.dropped += 1
                log.warning("a sample could not be kept in %s: %s", self._folder, error.strerror or error)
            self._sequence += 1
            self._bound()

    def _append(self, line: str) -> None:
        if self._open is None or self._open_bytes + len(line) > self._segment:
            # By time of begin: what was made first is sent first, and dropped first.
            self._open = self._folder / f"{self._run}-{self._sequence:010d}{_ENDING}"
            self._open_bytes = 0
            line = json.dumps({"boot": self._boot, "run": self._run}) + "\n" + line
        with self._open.open("a", encoding="utf-8") as file:
            file.write(line)
        self._open_bytes += len(line)

    def _bound(self) -> None:
        segments = self._segments()
        total = sum(size for _, size in segments)
        while total > self._limit and len(segments) > 1:
            path, size = segments.pop(0)
            self.dropped += max(0, len(_lines(path)) - 1)
            path.unlink(missing_ok=True)
            total -= size
            log.warning("the spool %s is full: the oldest samples were dropped", self._folder)

    def _segments(self) -> list[tuple[Path, int]]:
        found = []
        for path in self._folder.glob(f"*{_ENDING}"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found.append((status.st_mtime_ns, path.name, path, status.st_size))
        return [(path, size) for _, _, path, size in sorted(found)]

    def oldest(self) -> Segment | None:
        """The segment to send next; one that is still written to is closed by this."""
        while True:
            with self._lock:
                segments = self._segments()
                if not segments:
                    return None
                path = segments[0][0]
                if path == self._open:
                    self._open = None
            segment = _read(path)
            if segment is not None:
                return segment
            log.warning("%s holds nothing that can be read; it is removed", path)
            path.unlink(missing_ok=True)

    def done(self, segment: Segment) -> None:
        """The daemon has it, or will never take it."""
        segment.path.unlink(missing_ok=True)

    def later(self, segment: Segment) -> None:
        """Puts a segment behind all others."""
        try:
            os.utime(segment.path)
        except FileNotFoundError:  # the bound has taken it meanwhile
            return

    def halve(self, segment: Segment) -> bool:
        """Cuts a segment that is too large for the daemon into two; false if it is a single sample."""
        if len(segment.samples) < 2:
            return False
        middle = len(segment.samples) // 2
        head = json.dumps({"boot": segment.boot, "run": segment.run})
        times = segment.path.stat()
        for part in (segment.samples[:middle], segment.samples[middle:]):
            path = segment.path.with_name(f"{segment.run}-{part[0]['n']:010d}.{part[-1]['n']}{_ENDING}")
            path.write_text("\n".join([head, *(json.dumps(s, separators=(",", ":")) for s in part)]) + "\n")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        segment.path.unlink()
        return True

    def waiting(self) -> int:
        """Bytes on disk."""
        return sum(size for _, size in self._segments())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _read(path: Path) -> Segment | None:
    """A segment; a last line that a crash cut short is left out."""
    lines = _lines(path)
    samples = []
    for line in lines[1:]:
        sample = _object(line)
        if sample is not None and isinstance(sample.get("n"), int):
            samples.append(sample)
    head = _object(lines[0]) if lines else None
    if head is None or not samples:
        return None
    boot, run = head.get("boot"), head.get("run")
    return Segment(path, boot, run, samples) if isinstance(boot, str) and isinstance(run, str) else None


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's name for this boot of the node."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def new_run(boot: str, clock: Callable[[], int]) -> str:
    """A name for this start of the agent: no two starts within a boot share the nanosecond of their begin."""
    return f"{boot}.{clock()}"
