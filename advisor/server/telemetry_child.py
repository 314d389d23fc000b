"""The telemetry port's process, where the settings ask for one, and how it is."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from advisor.server.child import Child
from advisor.server.status import TelemetryStatus
from advisor.settings import Settings

log = logging.getLogger(__name__)


class TelemetryChild(Child):
    """Tells how it is, a line of JSON each time."""

    what = "the telemetry port"
    module = "advisor.server.telemetry_port"
    patience_s = 12.0  # what waits for the database is written first
    status = TelemetryStatus()
    _restarts = 0

    def concerns(self, settings: Settings) -> tuple[object, ...] | None:
        return None if settings.telemetry.listen is None else (settings.telemetry, settings.paths.database)

    async def hear(self, out: asyncio.StreamReader) -> str:
        while line := await out.readline():
            try:
                told = msgspec.json.decode(line, type=TelemetryStatus)
            except msgspec.MsgspecError as error:
                log.error("the telemetry port said something odd: %s", error)
                continue
            self.status = msgspec.structs.replace(told, restarts=self._restarts)
        return ""

    def lost(self, why: str) -> None:
        if not why:
            self.status = TelemetryStatus()
            return
        self._restarts += 1
        listen = self._settings.telemetry.listen or ""
        self.status = TelemetryStatus(listening=listen, restarts=self._restarts, error=f"the port is not there: {why}")
