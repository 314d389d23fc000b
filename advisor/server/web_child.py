"""Keeps the status page's process running, where the settings ask for one, and knows how it is."""

from __future__ import annotations

import asyncio
import logging
import sys

import msgspec

from advisor.config import Settings
from advisor.server.keeper import environment
from advisor.server.status import WebStatus

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_END_S = 3.0


class WebChild:
    """The page's process, restarted as often as it takes."""

    def __init__(self, settings: Settings, log_level: str = "info") -> None:
        self._settings = settings
        self._log_level = log_level
        self._task: asyncio.Task[None] | None = None
        self.status = WebStatus()

    def start(self) -> None:
        """Starts it, if the settings name an address."""
        if self._settings.server.http is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._settings))

    async def stop(self) -> None:
        """Ends it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        self.status = WebStatus()

    async def configure(self, settings: Settings) -> None:
        """Follows the settings; a page whose settings have not changed goes on."""
        before, self._settings = self._settings, settings
        if (before.server, before.paths, before.drift) != (settings.server, settings.paths, settings.drift):
            await self.stop()
            self.start()

    async def _run(self, settings: Settings) -> None:
        pause = FIRST_PAUSE_S
        while True:
            began = asyncio.get_running_loop().time()
            why = await self._once(settings)
            if asyncio.get_running_loop().time() - began > LONGEST_PAUSE_S:
                pause = FIRST_PAUSE_S
            self.status = WebStatus(error=why)
            log.error("the status page is not there: %s; trying again in %.0f s", why, pause)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _once(self, settings: Settings) -> str:
        """One life of the process; how it ended."""
        try:
            process = await asyncio.create_subprocess_exec(
                # -P: never import from the working directory of a daemon that runs as root.
                *(sys.executable, "-P", "-m", "advisor.server.web", "--log-level", self._log_level),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment(),
            )
        except OSError as error:
            return f"it could not be started: {error}"
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(settings) + b"\n")
            told = (await process.stdout.readline()).decode(errors="replace").strip()
            if told and not told.startswith("error: "):
                self.status = WebStatus(listening=told)
                log.info("status page and metrics on http://%s/", told)
            code = await process.wait()
            return told.removeprefix("error: ") if told.startswith("error: ") else f"its process ended with {code}"
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except TimeoutError:
        process.kill()
        await process.wait()
