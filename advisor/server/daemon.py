"""`advisor serve`: puts the parts together, reacts to signals, and stops without losing anything.

The event loop only answers the hook; a child process asks Slurm (`keeper`), a thread writes the log
(`advisor.store`). The daemon is ready as soon as its socket listens, whether or not Slurm can be asked yet:
until then every answer is to keep the job.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from advisor import __version__, config
from advisor.policy.guarded import Guarded
from advisor.server import journal, peers
from advisor.server.connection import Connections
from advisor.server.counters import Counters
from advisor.server.decision_log import DecisionLog
from advisor.server.hotpath import HotPath
from advisor.server.keeper import Keeper
from advisor.server.listener import Listener, ListenError, listen
from advisor.server.notify import Notifier
from advisor.server.report import Report
from advisor.server.status import Status
from advisor.server.succession import Succession
from advisor.server.telemetry_child import TelemetryChild
from advisor.server.urgency import ask_for_short_slices
from advisor.server.web_child import WebChild
from advisor.training.serving import policy_in_force
from advisor.training.versions import Versions

log = logging.getLogger(__name__)

TICK_S = 1.0
# What arrived before the stop is answered within this; slurmctld's hook waits 20 ms in all.
DRAIN_S = 0.05


def run(loaded: config.Loaded, config_path: Path | None = None, *, log_level: str = "info") -> int:
    """Serves until SIGTERM or SIGINT; the exit code of the command."""
    journal.set_up(log_level)
    # The network's matrices are small: threads for them would cost more than they save, here and in the children.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(Daemon(loaded, config_path, log_level).serve())
    except ListenError as error:
        log.critical("%s", error)
        return 1
    except config.ConfigError as error:
        log.critical("%s", error)
        return 2
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed (the extra `fast`): from request to reply it is some 40 µs quicker."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory


class Daemon:
    """One daemon on one socket."""

    def __init__(self, loaded: config.Loaded, config_path: Path | None, log_level: str) -> None:
        self._config_path = config_path
        self._settings = loaded.settings
        self._counters = Counters()
        self._log = DecisionLog(loaded.settings)
        self._version_stamp = Versions.of(loaded.settings).stamp()
        policy, refused = policy_in_force(loaded.settings)
        self._hot = HotPath(loaded.settings, policy, self._counters, self._log.record, self._status)
        self._connections = Connections(self._hot.answer, self._counters, self._hot.answer_together)
        self._keeper = Keeper(loaded.settings, Succession(self._hot).offer, log_level)
        self._telemetry = TelemetryChild(loaded.settings, log_level)
        self._web = WebChild(loaded.settings, log_level)
        self._notifier = Notifier()
        self._report = Report(loaded.settings.paths.socket)
        self._report.settings_file = loaded.file
        # The learned policy without a model tells so itself.
        self._report.reload_error = None if isinstance(policy, Guarded) and policy.refused else refused
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()

    async def serve(self) -> None:
        """Listens, serves until a signal says to stop, and leaves nothing behind."""
        loop = asyncio.get_running_loop()
        listener = listen(Path(self._settings.paths.socket), self._settings.server.socket_group)
        self._admit()
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            loop.add_signal_handler(signal.SIGHUP, self._reload.set)
            await asyncio.to_thread(self._log.open)
            server = await loop.create_unix_server(self._connections.new, sock=listener.socket)
            self._keeper.start()
            self._telemetry.start()
            self._web.start()
            _calm_the_interpreter()
            log.info("slurm-advisor %s answers on %s", __version__, listener.path)
            self._notifier.ready(self._headline())
            ticking = loop.create_task(self._tick())
            reloading = loop.create_task(self._reload_when_told())
            await self._stop.wait()
            for task in (ticking, reloading):
                task.cancel()
            await self._shut_down(server, listener)
        finally:
            listener.close()

    async def _shut_down(self, server: asyncio.Server, listener: Listener) -> None:
        """Accepts nothing new, answers what has arrived, then writes the log out."""
        log.info("stopping")
        self._notifier.stopping()
        server.close()
        await self._connections.drain(DRAIN_S)
        self._hot.settle()
        listener.close()
        await self._keeper.stop()
        left = await asyncio.to_thread(self._log.close)
        await self._telemetry.stop()
        await self._web.stop()
        if left:
            log.error("%d decisions could not be written to %s and are lost", left, self._log.path)
        log.info("stopped")

    async def _tick(self) -> None:
        """Once a second: a sign of life for systemd, word to the collector that the log is written out, the pointer."""
        beat_s = self._notifier.watchdog_s / 2 if self._notifier.watchdog_s else None
        beaten = 0.0
        while True:
            now = time.monotonic()
            if beat_s is not None and now - beaten >= beat_s - TICK_S:
                self._notifier.alive()
                beaten = now
            drained_at = time.time()
            # A job may carry the token of an answer whose use was noted, and nobody has read the note yet.
            self._hot.settle()
            if self._settings.levers and isinstance(self._hot.policy, Guarded):
                remembered = self._hot.policy.remembered()
                if remembered is not None:
                    self._keeper.submitted(remembered)
            if self._log.drained():
                self._keeper.drained(drained_at)
            stamp = Versions.of(self._settings).stamp()
            if stamp != self._version_stamp:
                self._version_stamp = stamp
                self._reload.set()
            await asyncio.sleep(TICK_S)

    async def _reload_when_told(self) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            self._notifier.reloading()
            try:
                loaded = await asyncio.to_thread(config.load, self._config_path)
                policy, refused = await asyncio.to_thread(policy_in_force, loaded.settings)
            except config.ConfigError as error:
                self._report.reload_error = str(error)
                log.error("the settings were not reloaded, the earlier ones serve on: %s", error)
            else:
                if loaded.settings.paths.socket != self._settings.paths.socket:
                    log.warning("paths.socket has changed: the daemon must be restarted to listen elsewhere")
                self._settings = loaded.settings
                if refused is not None:
                    log.error("a model version is refused, what decided before decides on: %s", refused)
                    before = self._hot.policy
                    if before.name == policy.name and not (isinstance(before, Guarded) and before.refused):
                        policy = before
                self._hot.configure(loaded.settings, policy)
                self._admit()
                self._keeper.configure(loaded.settings)
                await self._telemetry.configure(loaded.settings)
                await self._web.configure(loaded.settings)
                await asyncio.to_thread(self._log.reopen, loaded.settings)
                self._report.settings_file = loaded.file
                self._report.reload_error = refused
                self._report.reloaded_at = time.time()
                log.info("settings reloaded from %s", loaded.file or "defaults")
            self._notifier.ready(self._headline())

    def _admit(self) -> None:
        allowed = peers.allowed(self._settings.server.allowed_users)
        self._connections.allowed = allowed.uids
        if allowed.unknown:
            log.warning(
                "server.allowed_users: this host does not know %s; where slurmctld runs in a container, give the uid",
                ", ".join(allowed.unknown),
            )

    def _headline(self) -> str:
        return f"{self._settings.modes.default} mode, policy {self._hot.policy.name}"

    def _status(self) -> Status:
        return self._report.status(
            self._settings,
            self._hot.policy,
            self._hot.snapshot,
            self._counters,
            self._keeper,
            self._log.status(self._keeper.lost),
            len(self._connections.open),
            self._telemetry.status,
            self._web.status,
        )


def _calm_the_interpreter() -> None:
    """Keeps pauses out of the answers."""
    # The log's thread must hand the interpreter back well within the hook's patience (the default is 5 ms).
    sys.setswitchinterval(0.0005)
    # What is loaded now stays: the garbage collector need not look at it again.
    gc.collect()
    gc.freeze()
    ask_for_short_slices()
