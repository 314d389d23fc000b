"""Gathers the daemon's parts into one `Status`."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from advisor import __version__, protocol
from advisor.performance.snapshot import Snapshot
from advisor.policy.guarded import Guarded
from advisor.policy.interface import Policy
from advisor.server.counters import Counters
from advisor.server.keeper import Keeper
from advisor.server.status import (
    DecisionCounts,
    FallbackStatus,
    Faults,
    LogStatus,
    SnapshotStatus,
    Status,
    TelemetryStatus,
    WebStatus,
)
from advisor.settings import Modes, Settings


def snapshot_status(
    snapshot: Snapshot | None, settings: Settings, source: str, poll_failed: bool, now: float
) -> SnapshotStatus:
    """What is known of the cluster, and whether it is still good enough."""
    if snapshot is None:
        return SnapshotStatus()
    age_s = max(0.0, now - snapshot.taken_at)
    overdue = age_s > 2 * settings.slurm.poll_s + settings.slurm.timeout_s
    return SnapshotStatus(
        taken_at=snapshot.taken_at,
        age_s=age_s,
        stale=poll_failed or overdue,
        usable=age_s <= settings.slurm.stale_after_s,
        cluster=snapshot.cluster,
        release="{}.{:02d}".format(*snapshot.release),
        source=source,
        partitions=len(snapshot.partitions),
        pools=len(snapshot.pools),
        queued=snapshot.queued,
        running=snapshot.running,
    )


class Report:
    """What stays the same over a daemon's life, for its status."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._started = time.monotonic()
        self.settings_file: str | None = None
        self.reloaded_at: float | None = None
        self.reload_error: str | None = None

    def status(
        self,
        settings: Settings,
        policy: Policy,
        snapshot: Snapshot | None,
        counters: Counters,
        keeper: Keeper,
        log: LogStatus,
        connections: int,
        telemetry: TelemetryStatus = TelemetryStatus(),  # noqa: B008  (immutable)
        web: WebStatus = WebStatus(),  # noqa: B008  (immutable)
    ) -> Status:
        """The whole answer."""
        return Status(
            v=protocol.VERSION,
            version=__version__,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._started,
            socket=self._socket,
            settings_file=self.settings_file,
            reloaded_at=self.reloaded_at,
            reload_error=self.reload_error,
            mode=settings.modes.default,
            mode_exceptions=_exceptions(settings.modes),
            holdout=settings.experiment.holdout,
            policy=policy.name,
            policy_version=policy.version,
            connections=connections,
            snapshot=snapshot_status(snapshot, settings, keeper.source, keeper.last_poll_failed, time.time()),
            decisions=_decisions(counters),
            latency=counters.latency.figures(),
            log=log,
            collector=msgspec.structs.replace(keeper.status, rss_mb=_rss_mb(keeper.status.pid)),
            faults=Faults(
                refused_peers=counters.refused_peers,
                bad_requests=counters.bad_requests,
                other_versions=counters.other_versions,
                errors=counters.errors,
                evicted=counters.evicted,
                unknown_notes=counters.unknown_notes,
            ),
            rss_mb=_rss_mb(os.getpid()),
            telemetry=telemetry,
            fallback=_fallback(policy),
            rounds=msgspec.structs.replace(keeper.rounds, levers=settings.levers),
            web=web,
        )


def _fallback(policy: Policy) -> FallbackStatus:
    if not isinstance(policy, Guarded):
        return FallbackStatus()
    return FallbackStatus(policy.refused, policy.resting, dict(policy.fallbacks))


def _decisions(counters: Counters) -> DecisionCounts:
    return DecisionCounts(
        submissions=counters.submissions,
        prepared=counters.prepared,
        eligible=counters.eligible,
        rewritten=counters.rewritten,
        kept=counters.kept,
        holdout=counters.holdout,
        dry_runs=counters.dry_runs,
        reasons=dict(counters.reasons),
    )


def _exceptions(modes: Modes) -> dict[str, str]:
    return {
        f"{kind} {name}": mode
        for kind, table in (("partition", modes.partitions), ("account", modes.accounts), ("user", modes.users))
        for name, mode in table.items()
    }


def _rss_mb(pid: int | None) -> float:
    if pid is None:
        return 0.0
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has just ended
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
