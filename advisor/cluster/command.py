"""Runs Slurm's commands: through a site's prefix (`docker exec ctl`, `ssh ctl`), with a time-out and bounded output.

The environment is set with `env` behind the prefix, since a prefix seldom passes ours on: untranslated messages, times
as Unix seconds, long lists of array tasks, and no other cluster than the local one.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

from advisor.cluster.types import SourceError

ENVIRONMENT = (
    "env",
    "-u",
    "SLURM_CLUSTERS",
    "LC_ALL=C",
    "TZ=UTC0",
    "SLURM_TIME_FORMAT=%s",
    "SLURM_BITSTR_LEN=4096",  # the most Slurm allows without making it list millions of tasks
)

# Half a million jobs in JSON; more is a runaway.
MAX_OUTPUT = 6 << 30
MAX_STDERR = 64 << 10
_CHUNK = 1 << 18
_WORDS_SHOWN = 5


class SlurmCommand:
    """How to run Slurm's commands on this site."""

    def __init__(self, prefix: Sequence[str] = (), timeout_s: float = 20.0, max_output: int = MAX_OUTPUT) -> None:
        self.prefix = tuple(prefix)
        self.timeout_s = timeout_s
        self.max_output = max_output

    def run(self, *words: str) -> bytes:
        """All that the command printed; raises `SourceError` if it failed, took too long or printed too much."""
        return b"".join(self.stream(*words))

    def stream(self, *words: str) -> Iterator[bytes]:
        """What the command prints, piece by piece; at the end raises `SourceError` if it failed.

        The time-out covers the whole run. A reader that stops early ends the command.
        """
        # Enough to know it by. The rest may be long, and other each time, so that one fault would look like many.
        shown = shlex.join((*self.prefix, *words[:_WORDS_SHOWN])) + (" …" if len(words) > _WORDS_SHOWN else "")
        try:
            process = subprocess.Popen(
                (*self.prefix, *ENVIRONMENT, *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so that a time-out also ends what the prefix started
            )
        except OSError as error:
            raise SourceError(
                f"cannot run `{shown}`: {error.strerror or error}. Is slurm-client installed, or slurm.command right?"
            ) from None
        said = bytearray()
        try:
            yield from self._read(process, said, shown)
            status = process.wait(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            raise self._too_slow(shown) from None
        finally:
            _end(process)
        if status:
            raise SourceError(f"`{shown}` failed with exit status {status}: {_first_line(said)}. {_advice(said)}")

    def _read(self, process: subprocess.Popen[bytes], said: bytearray, shown: str) -> Iterator[bytes]:
        assert process.stdout is not None and process.stderr is not None
        deadline = time.monotonic() + self.timeout_s
        total = 0
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stderr, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(deadline - time.monotonic(), 0))
                if time.monotonic() >= deadline:
                    raise self._too_slow(shown)
                for key, _ in ready:
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stderr:
                        said += chunk[: MAX_STDERR - len(said)]
                    else:
                        total += len(chunk)
                        if total > self.max_output:
                            raise SourceError(f"`{shown}` printed more than {self.max_output} bytes; it was stopped")
                        yield chunk

    def _too_slow(self, shown: str) -> SourceError:
        return SourceError(
            f"`{shown}` did not finish within {self.timeout_s:g} s. Is slurmctld up and not overloaded (sdiag)? "
            "slurm.timeout allows more time"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it may end by itself just now
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _first_line(said: bytearray) -> str:
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"


def _advice(said: bytearray) -> str:
    text = said.decode("utf-8", "replace").lower()
    if "not found" in text or "no such file" in text:
        return "Install slurm-client where this runs, or set slurm.command to a prefix that has it"
    if "persistent connection" in text or "slurmdbd" in text:
        return "Is slurmdbd running and reachable (sacctmgr ping)?"
    if "unable to contact" in text or "connection refused" in text:
        return "Is slurmctld running and reachable (scontrol ping)?"
    if "munge" in text or "authentication" in text or "credential" in text:
        return "Is munged running here with the cluster's key?"
    if "no such container" in text or "is not running" in text:
        return "Is the container of slurm.command running?"
    return "Run it by hand to see more"
