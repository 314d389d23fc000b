"""Processes beside the daemon that are told the settings on standard input: started, started again, and ended."""

from __future__ import annotations

import asyncio
import logging
import sys
from abc import ABC, abstractmethod

import msgspec

from advisor.server.keeper import environment
from advisor.settings import Settings

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0  # before one that ended is started again; twice as long each time
_LONGEST_PAUSE_S = 60.0


class Child(ABC):
    """A process that is there as long as the settings ask for it, restarted as often as it takes."""

    what = ""  # as the log calls it: "the status page"
    module = ""
    patience_s = 3.0  # from being told to end until it is killed

    def __init__(self, settings: Settings, log_level: str = "info") -> None:
        self._settings = settings
        self._log_level = log_level
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def concerns(self, settings: Settings) -> tuple[object, ...] | None:
        """The settings for which it is started again when they change; None: it is not to be there."""

    @abstractmethod
    async def hear(self, out: asyncio.StreamReader) -> str:
        """Takes in what it tells until it has nothing more to say; why it ends, where it said so."""

    @abstractmethod
    def lost(self, why: str) -> None:
        """It has ended, and is started again after a while; an empty reason: nobody wants it any more."""

    def start(self) -> None:
        """Starts it, if the settings ask for it."""
        if self.concerns(self._settings) is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._settings))

    async def stop(self) -> None:
        """Ends it; what it has begun it may finish."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        self.lost("")

    async def configure(self, settings: Settings) -> None:
        """Follows the settings; a process that they do not concern goes on."""
        before, self._settings = self._settings, settings
        if self.concerns(before) != self.concerns(settings):
            await self.stop()
            self.start()

    async def _run(self, settings: Settings) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            began = asyncio.get_running_loop().time()
            try:
                why = await self._once(settings)
            except Exception as error:  # whatever it was, the process is to be there again
                log.exception("%s could not be followed", self.what)
                why = f"it could not be followed ({type(error).__name__}: {error})"
            if asyncio.get_running_loop().time() - began > _LONGEST_PAUSE_S:
                pause = _FIRST_PAUSE_S
            self.lost(why)
            log.error("%s is not there: %s; starting it again in %.0f s", self.what, why, pause)
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 2)

    async def _once(self, settings: Settings) -> str:
        """One life of the process; how it ended."""
        try:
            process = await _started(self.module, self._log_level, settings)
        except OSError as error:
            return f"it could not be started: {error}"
        assert process.stdout is not None
        try:
            told = await self.hear(process.stdout)
            code = await process.wait()
        finally:
            await _end(process, self.patience_s)
        if told:
            return told
        return f"it ended with exit code {code}; see the log above" if code >= 0 else f"it was killed by signal {-code}"


async def _started(module: str, log_level: str, settings: Settings) -> asyncio.subprocess.Process:
    """The module as a process, with these settings as the first line it reads; raises OSError."""
    process = await asyncio.create_subprocess_exec(
        # -P: never import from the working directory of a daemon that runs as root.
        *(sys.executable, "-P", "-m", module, "--log-level", log_level),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(settings) + b"\n")
    return process


async def _end(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """Closes its standard input, at which it is to end by itself; kills it where it has not after a while."""
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), patience_s)
    except TimeoutError:
        process.kill()
        await process.wait()
