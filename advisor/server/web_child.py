"""The status page's process, where the settings ask for one, and how it is."""

from __future__ import annotations

import asyncio
import logging

from advisor.server.child import Child
from advisor.server.status import WebStatus
from advisor.settings import Settings

log = logging.getLogger(__name__)


class WebChild(Child):
    """Tells its address in one line, or why it has none."""

    what = "the status page"
    module = "advisor.server.web"
    status = WebStatus()

    def concerns(self, settings: Settings) -> tuple[object, ...] | None:
        return None if settings.server.http is None else (settings.server, settings.paths, settings.drift)

    async def hear(self, out: asyncio.StreamReader) -> str:
        told = (await out.readline()).decode(errors="replace").strip()
        if told.startswith("error: "):
            return told.removeprefix("error: ")
        if told:
            self.status = WebStatus(listening=told)
            log.info("status page and metrics on http://%s/", told)
        await out.read()
        return ""

    def lost(self, why: str) -> None:
        self.status = WebStatus(error=why) if why else WebStatus()
