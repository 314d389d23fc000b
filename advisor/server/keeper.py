"""Keeps the collector process running and hands its snapshots to the daemon.

The collector (`advisor.server.collector`) is a child of its own, not a fork and not a thread: parsing fifty
thousand jobs there never holds the interpreter that answers the hook. When it dies it is started again,
with growing pauses; until it speaks, the last snapshot serves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec

import advisor
from advisor.performance.snapshot import RunTimes, Snapshot
from advisor.performance.told import Told
from advisor.policy.remembered import Remembered
from advisor.server import frames
from advisor.server.status import CollectorStatus, RoundsStatus
from advisor.settings import Settings

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

OnSnapshot = Callable[[Snapshot], None]


class Keeper:
    """The collector process, restarted as often as it takes."""

    def __init__(self, settings: Settings, on_snapshot: OnSnapshot, log_level: str = "info") -> None:
        self._settings = settings
        self._on_snapshot = on_snapshot
        self._log_level = log_level
        self._history: dict[str, dict[str, RunTimes]] = {}
        self._incoming: dict[str, dict[str, RunTimes]] = {}
        self._waits: dict[str, tuple[tuple[float, float, float], ...]] = {}
        self._told: Told | None = None
        self._child: _Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._status = CollectorStatus()
        self.lost = 0
        self.rounds = RoundsStatus()
        self._submitted: Remembered | None = None
        self.source = ""
        self.polled = 0  # good polls since the start
        self.last_poll_failed = False

    @property
    def status(self) -> CollectorStatus:
        """How the collector is."""
        return self._status

    def start(self) -> None:
        """Starts the collector and keeps it running until `stop`."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ends the collector for good."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        if self._child is not None:
            await self._child.end()

    def configure(self, settings: Settings) -> None:
        """Makes the collector work with other settings."""
        self._settings = settings
        self._send(frames.Configure(settings))

    def submitted(self, remembered: Remembered) -> None:
        """Tells the collector what the learned policy has seen submitted, where it is not known there yet."""
        if self._submitted is None or remembered.count != self._submitted.count:
            self._submitted = remembered
            self._send(frames.Submitted(remembered))

    def drained(self, at: float) -> None:
        """Tells the collector that every decision made before `at` has left the log's buffer."""
        self._send(frames.Drained(at))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, protocol = await loop.subprocess_exec(
                    lambda: _Child(self._received),
                    *self._command(),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=None,
                    env=environment(),
                )
            except OSError as error:
                self._ended(f"could not be started: {error}")
            else:
                self._child = protocol
                self._heard_at = time.monotonic()
                self._status = msgspec.structs.replace(self._status, pid=protocol.pid)
                self._send(frames.Configure(self._settings))
                if self._submitted is not None:
                    self._send(frames.Submitted(self._submitted))
                await self._watch(protocol)
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    async def _watch(self, child: _Child) -> None:
        """Returns when the child has ended; ends it when it has been silent for too long."""
        slurm = self._settings.slurm
        while not child.ended.is_set():
            silence = slurm.poll_s + 10 * slurm.timeout_s + 60
            try:
                await asyncio.wait_for(child.ended.wait(), timeout=5.0)
            except TimeoutError:
                if time.monotonic() - self._heard_at > silence:
                    log.error("the collector has been silent for %.0f s; it is ended and started again", silence)
                    await child.end()
        self._child = None
        self._ended(child.how())

    def _ended(self, how: str) -> None:
        self._status = msgspec.structs.replace(
            self._status, pid=None, restarts=self._status.restarts + 1, last_exit=how
        )
        self.last_poll_failed = True
        self._incoming = {}
        log.error("the collector %s; starting it again in %.0f s", how, self._pause_s)

    def _command(self) -> list[str]:
        # -P: never import from the working directory of a daemon that runs as root.
        return [sys.executable, "-P", "-m", "advisor.server.collector", "--log-level", self._log_level]

    def _send(self, message: frames.ToCollector) -> None:
        if self._child is not None:
            self._child.send(frames.encode(message))

    def _received(self, message: frames.FromCollector) -> None:
        self._heard_at = time.monotonic()
        match message:
            case frames.Polled():
                self._polled(message)
            case frames.History():
                self._incoming.update(message.apps)
                if message.last:
                    self._history, self._incoming = self._incoming, {}
                    self._waits, self._told = message.waits, message.told
            case frames.Collected():
                self._status = msgspec.structs.replace(self._status, collected_at=message.at)
            case frames.Lost():
                self.lost = message.count
            case frames.Rounded():
                self.rounds = self.rounds.with_one(message.at, message.took_s, message.looked_at, message.outcomes)
            case frames.Recovered():
                self._clear_error(message.what)
            case frames.Failed():
                self._failed(message)

    def _polled(self, message: frames.Polled) -> None:
        self._pause_s = FIRST_PAUSE_S
        self.source = message.source
        self.polled += 1
        if self.last_poll_failed:
            log.info("Slurm answers again (%s)", message.source)
        self.last_poll_failed = False
        self._status = msgspec.structs.replace(self._status, poll_took_s=message.took_s)
        self._clear_error("poll")
        snapshot = msgspec.structs.replace(
            message.snapshot, history=self._history, wait_corrections=self._waits, told=self._told
        )
        self._on_snapshot(snapshot)

    def _failed(self, message: frames.Failed) -> None:
        if self._status.errors.get(message.what) != message.error:
            log.warning("%s: %s", message.what, message.error)
        self._status = msgspec.structs.replace(
            self._status, errors={**self._status.errors, message.what: message.error}
        )
        if message.what == "poll":
            self._pause_s = FIRST_PAUSE_S
            self.last_poll_failed = True

    def _clear_error(self, what: str) -> None:
        if what in self._status.errors:
            rest = {key: text for key, text in self._status.errors.items() if key != what}
            self._status = msgspec.structs.replace(self._status, errors=rest)


class _Child(asyncio.SubprocessProtocol):
    """The pipes of one collector process."""

    def __init__(self, received: Callable[[frames.FromCollector], None]) -> None:
        self._received = received
        self._frames = frames.from_collector()
        self._transport: asyncio.SubprocessTransport | None = None
        self._spoke_nonsense = ""
        self.ended = asyncio.Event()
        self.pid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self._spoke_nonsense:
            return
        try:
            for message in self._frames.feed(data):
                self._received(message)
        except frames.FrameError as error:
            self._spoke_nonsense = str(error)
            if self._transport is not None:
                self._transport.kill()

    def process_exited(self) -> None:
        self.ended.set()

    def send(self, frame: bytes) -> None:
        """Hands a frame to the child; one that is gone is started again anyway."""
        pipe = self._transport.get_pipe_transport(0) if self._transport is not None else None
        if pipe is not None and not pipe.is_closing():
            cast(asyncio.WriteTransport, pipe).write(frame)

    def how(self) -> str:
        """How it ended, in words."""
        if self._spoke_nonsense:
            return f"was ended: {self._spoke_nonsense}"
        code = self._transport.get_returncode() if self._transport is not None else None
        return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"

    async def end(self) -> None:
        """Closes its input, then insists."""
        if self._transport is None or self.ended.is_set():
            return
        self._transport.terminate()
        try:
            await asyncio.wait_for(self.ended.wait(), timeout=3.0)
        except TimeoutError:
            self._transport.kill()
            await self.ended.wait()


def environment() -> dict[str, str]:
    """The child imports the same package, also from a checkout that is not installed."""
    env = dict(os.environ)
    package_parent = str(Path(advisor.__file__).resolve().parent.parent)
    if package_parent not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), package_parent]))
    # The child's own notices are the daemon's; systemd must hear from one process only.
    env.pop("NOTIFY_SOCKET", None)
    env.pop("WATCHDOG_PID", None)
    return env
