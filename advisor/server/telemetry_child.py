"""Keeps the telemetry port's process running, where the settings ask for one, and knows how it is."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from advisor.config import Settings
from advisor.server import child
from advisor.server.status import TelemetryStatus

log = logging.getLogger(__name__)

_END_S = 12.0  # what waits for the database is written first


class TelemetryChild:
    """The port's process, restarted as often as it takes."""

    def __init__(self, settings: Settings, log_level: str = "info") -> None:
        self._settings = settings
        self._log_level = log_level
        self._task: asyncio.Task[None] | None = None
        self._status = TelemetryStatus()
        self._restarts = 0

    @property
    def status(self) -> TelemetryStatus:
        """How the port is."""
        return self._status

    def start(self) -> None:
        """Starts the port, if the settings name an address."""
        if self._settings.telemetry.listen is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._settings))

    async def stop(self) -> None:
        """Ends the port; what it has taken is written first."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        self._status = TelemetryStatus()

    async def configure(self, settings: Settings) -> None:
        """Follows the settings; a port whose settings have not changed goes on."""
        before, self._settings = self._settings, settings
        if (before.telemetry, before.paths.database) != (settings.telemetry, settings.paths.database):
            await self.stop()
            self.start()

    async def _run(self, settings: Settings) -> None:
        pause = child.FIRST_PAUSE_S
        while True:
            began = asyncio.get_running_loop().time()
            try:
                how = await self._once(settings)
            except Exception as error:  # whatever it was, the port is to be there again
                log.exception("the telemetry port could not be followed")
                how = f"could not be followed ({type(error).__name__}: {error})"
            if asyncio.get_running_loop().time() - began > child.LONGEST_PAUSE_S:
                pause = child.FIRST_PAUSE_S
            self._restarts += 1
            listen = settings.telemetry.listen or ""
            self._status = TelemetryStatus(listening=listen, restarts=self._restarts, error=f"the port {how}")
            log.error("the telemetry port %s; starting it again in %.0f s", how, pause)
            await asyncio.sleep(pause)
            pause = min(child.LONGEST_PAUSE_S, pause * 2)

    async def _once(self, settings: Settings) -> str:
        """One life of the process; how it ended."""
        try:
            process = await child.start("advisor.server.telemetry_port", self._log_level, settings)
        except OSError as error:
            return f"could not be started: {error}"
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._heard(line)
            code = await process.wait()
            return (
                f"ended with exit code {code}; see the daemon's log" if code >= 0 else f"was killed by signal {-code}"
            )
        finally:
            await child.end(process, _END_S)

    def _heard(self, line: bytes) -> None:
        try:
            told = msgspec.json.decode(line, type=TelemetryStatus)
        except msgspec.MsgspecError as error:
            log.error("the telemetry port said something odd: %s", error)
            return
        self._status = msgspec.structs.replace(told, restarts=self._restarts)
