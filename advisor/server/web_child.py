"""Keeps the status page's process running, where the settings ask for one, and knows how it is."""

from __future__ import annotations

import asyncio
import logging

from advisor.config import Settings
from advisor.server import child
from advisor.server.status import WebStatus

log = logging.getLogger(__name__)

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
        pause = child.FIRST_PAUSE_S
        while True:
            began = asyncio.get_running_loop().time()
            why = await self._once(settings)
            if asyncio.get_running_loop().time() - began > child.LONGEST_PAUSE_S:
                pause = child.FIRST_PAUSE_S
            self.status = WebStatus(error=why)
            log.error("the status page is not there: %s; trying again in %.0f s", why, pause)
            await asyncio.sleep(pause)
            pause = min(child.LONGEST_PAUSE_S, pause * 2)

    async def _once(self, settings: Settings) -> str:
        """One life of the process; how it ended."""
        try:
            process = await child.start("advisor.server.web", self._log_level, settings)
        except OSError as error:
            return f"it could not be started: {error}"
        assert process.stdout is not None
        try:
            told = (await process.stdout.readline()).decode(errors="replace").strip()
            if told and not told.startswith("error: "):
                self.status = WebStatus(listening=told)
                log.info("status page and metrics on http://%s/", told)
            code = await process.wait()
            return told.removeprefix("error: ") if told.startswith("error: ") else f"its process ended with {code}"
        finally:
            await child.end(process, _END_S)
