"""How the daemon is, as one typed answer on the same socket the hook uses.

`advisor status` prints it, the doctor and the dashboard read it. `problems` is the single place that says
what counts as not well, so that a command's exit code and its words always agree.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from advisor.server.counters import LatencyFigures


class SnapshotStatus(msgspec.Struct, frozen=True):
    """What the daemon knows of the cluster, and how old that is."""

    taken_at: float | None = None  # null: Slurm has not answered yet
    age_s: float | None = None
    stale: bool = True  # the last poll failed, or is overdue
    usable: bool = False  # young enough to advise on (slurm.stale_after_s)
    cluster: str = ""
    release: str = ""
    source: str = ""
    partitions: int = 0
    pools: int = 0
    queued: int = 0
    running: int = 0


class DecisionCounts(msgspec.Struct, frozen=True):
    """Decisions since the daemon started."""

    submissions: int = 0
    prepared: int = 0  # of the submissions, those whose answer was with the hook before they came
    eligible: int = 0
    rewritten: int = 0
    kept: int = 0
    holdout: int = 0
    dry_runs: int = 0
    reasons: dict[str, int] = {}


class LogStatus(msgspec.Struct, frozen=True):
    """The decision log."""

    path: str = ""
    written: int = 0
    buffered: int = 0
    dropped: int = 0
    last_error: str | None = None
    lost: int = 0  # decisions seen on jobs that never reached the log, ever
    set_aside: tuple[str, ...] = ()  # corrupt files that were renamed since the start


class CollectorStatus(msgspec.Struct, frozen=True):
    """The process that asks Slurm."""

    pid: int | None = None
    restarts: int = 0
    last_exit: str | None = None
    rss_mb: float = 0.0
    poll_took_s: float | None = None
    collected_at: float | None = None
    errors: dict[str, str] = {}  # what fails at present: poll, tokens, lost, history, collect


class RoundsStatus(msgspec.Struct, frozen=True):
    """Looks at the pending jobs, and what came of them, since the daemon started."""

    levers: tuple[str, ...] = ()
    rounds: int = 0
    last_at: float | None = None
    took_s: float | None = None  # the last one
    looked_at: int = 0  # jobs that might have moved, in the last one
    outcomes: dict[str, dict[str, int]] = {}  # lever → ok, refused, would, undone, half done → jobs

    def with_one(self, at: float, took_s: float, looked_at: int, more: dict[str, dict[str, int]]) -> RoundsStatus:
        """With one more round counted."""
        total = {lever: dict(counts) for lever, counts in self.outcomes.items()}
        for lever, counts in more.items():
            mine = total.setdefault(lever, {})
            for outcome, count in counts.items():
                mine[outcome] = mine.get(outcome, 0) + count
        return RoundsStatus(self.levers, self.rounds + 1, at, took_s, looked_at, total)

    def count(self, outcome: str) -> int:
        """Of all levers."""
        return sum(counts.get(outcome, 0) for counts in self.outcomes.values())


class TelemetryStatus(msgspec.Struct, frozen=True):
    """The port that takes the agents' batches, since it started."""

    listening: str = ""  # address; empty: off
    pid: int | None = None
    restarts: int = 0
    nodes: int = 0  # heard of in the last ten minutes
    batches: int = 0
    bytes: int = 0
    samples: int = 0
    duplicates: int = 0  # samples that were delivered again, and merged once
    old: int = 0  # samples older than telemetry.accept_days, passed over
    refused: dict[str, int] = {}  # batches, by why: credential, oversize, malformed, busy
    error: str | None = None


class WebStatus(msgspec.Struct, frozen=True):
    """The status page's process."""

    listening: str = ""  # address; empty: off, or it could not listen
    error: str | None = None


class FallbackStatus(msgspec.Struct, frozen=True):
    """Where the arithmetic decides in place of the learned policy, and why."""

    refused: str = ""  # its model cannot be used
    resting: str = ""  # it was too slow, or failed: it rests for a while
    decisions: dict[str, int] = {}  # made by the arithmetic, by why: no model, failed, no GPU, …


class Faults(msgspec.Struct, frozen=True):
    """What was refused or went wrong since the daemon started."""

    refused_peers: int = 0
    bad_requests: int = 0
    other_versions: int = 0
    errors: int = 0  # exceptions while deciding; the job was kept
    evicted: int = 0
    unknown_notes: int = 0  # the hook used an answer that this daemon does not know; its decision is lost


class Status(msgspec.Struct, frozen=True):
    """Everything `advisor status` tells."""

    v: int
    version: str
    pid: int
    uptime_s: float
    socket: str
    settings_file: str | None
    reloaded_at: float | None
    reload_error: str | None
    mode: str
    mode_exceptions: dict[str, str]  # "partition gpu": "enforce"
    holdout: float
    policy: str
    policy_version: str
    connections: int
    snapshot: SnapshotStatus
    decisions: DecisionCounts
    latency: LatencyFigures
    log: LogStatus
    collector: CollectorStatus
    faults: Faults
    rss_mb: float = 0.0
    telemetry: TelemetryStatus = TelemetryStatus()
    fallback: FallbackStatus = FallbackStatus()
    rounds: RoundsStatus = RoundsStatus()
    web: WebStatus = WebStatus()

    def problems(self) -> list[str]:
        """What is not well, each with what to do; empty when all is."""
        return list(self._problems())

    def well(self) -> bool:
        """Whether nothing needs an admin."""
        return not self.problems()

    def _problems(self) -> Iterator[str]:
        if self.reload_error:
            yield f"the last reload was refused, earlier settings serve: {self.reload_error}"
        if self.collector.pid is None:
            yield f"the collector process is not running ({self.collector.last_exit}); see the daemon's log"
        poll_error = self.collector.errors.get("poll")
        if self.snapshot.taken_at is None:
            yield f"Slurm has not answered yet, every job is kept: {poll_error or 'the first poll is under way'}"
        elif not self.snapshot.usable:
            yield (
                f"the last good poll of Slurm is {_span(self.snapshot.age_s)} old, every job is kept: "
                f"{poll_error or 'no poll has ended since'}"
            )
        elif self.snapshot.stale:
            yield f"the last poll of Slurm failed, the one before serves: {poll_error or 'it is overdue'}"
        if self.log.last_error:
            yield (f"the log cannot be written, {self.log.buffered} decisions wait in memory: {self.log.last_error}")
        if self.log.dropped:
            yield f"{self.log.dropped} decisions were dropped because the log's buffer was full (log.buffer)"
        for file in self.log.set_aside:
            yield f"the database was damaged and is kept as {file}; a new one was begun"
        for what, error in sorted(self.collector.errors.items()):
            if what != "poll":
                yield f"{_ERRORS.get(what, what)}: {error}"
        if self.fallback.refused:
            yield f"the {self.policy} policy cannot be used, the arithmetic decides: {self.fallback.refused}"
        elif self.fallback.resting:
            yield f"the {self.policy} policy rests, the arithmetic decides for a while: {self.fallback.resting}"
        if self.telemetry.error:
            yield f"agents' batches are not stored, they wait on the nodes: {self.telemetry.error}"
        if self.web.error:
            yield f"the status page is not there (server.http): {self.web.error}"
        if half_done := self.rounds.count("half done"):
            yield (
                f"{half_done} updates of pending jobs were taken by half and could not be taken back; "
                "see `half done` in the log's table moves"
            )
        if self.faults.errors:
            yield f"{self.faults.errors} decisions failed inside the daemon and were kept; its log has the traceback"

    def _memory(self) -> float:
        return self.rss_mb + self.collector.rss_mb

    def lines(self) -> list[str]:
        """The same for a terminal."""
        exceptions = ", ".join(f"{where}: {mode}" for where, mode in sorted(self.mode_exceptions.items()))
        counts, snapshot, faults = self.decisions, self.snapshot, self.faults
        rows = [
            ("daemon", f"{self.version}, pid {self.pid}, up {_span(self.uptime_s)}, {self._memory():.0f} MB"),
            ("settings", self.settings_file or "defaults (no file)"),
            ("mode", self.mode + (f" ({exceptions})" if exceptions else "") + f", holdout {self.holdout:.0%}"),
            ("policy", f"{self.policy} {self.policy_version}".rstrip() + _fallback(self.fallback)),
            ("cluster", _cluster(snapshot)),
            (
                "decisions",
                f"{counts.submissions} submissions, {counts.eligible} eligible, "
                f"{counts.rewritten} rewritten, {counts.kept} kept, {counts.holdout} held out; "
                f"{counts.prepared} prepared ahead",
            ),
            (
                "latency",
                f"p50 {self.latency.p50_us:.0f} µs, p99 {self.latency.p99_us:.0f} µs, max {self.latency.max_us:.0f} µs",
            ),
            (
                "log",
                f"{self.log.path}: {self.log.written} written, {self.log.buffered} waiting, "
                f"{self.log.dropped} dropped, {self.log.lost} lost",
            ),
            (
                "refused",
                f"{faults.refused_peers} peers, {faults.bad_requests} bad requests, "
                f"{faults.other_versions} of another version",
            ),
        ]
        if self.rounds.levers:
            rows.append(("rounds", _rounds(self.rounds)))
        if self.telemetry.listening:
            rows.append(("telemetry", _telemetry(self.telemetry)))
        if self.web.listening:
            rows.append(("page", f"http://{self.web.listening}/"))
        text = [f"{label:<10} {value}" for label, value in rows]
        for reason, count in sorted(counts.reasons.items(), key=lambda item: -item[1])[:8]:
            text.append(f"{'':<10} {count:>6} × {reason}")
        return text + [f"{'problem':<10} {problem}" for problem in self.problems()]


_ERRORS = {
    "collect": "outcomes could not be collected",
    "history": "past run times could not be read",
    "tokens": "job ids could not be noted",
    "lost": "lost decisions could not be counted",
    "rounds": "pending jobs are not looked at again",
}


def _cluster(snapshot: SnapshotStatus) -> str:
    if snapshot.taken_at is None:
        return "not known yet"
    return (
        f"{snapshot.cluster} (Slurm {snapshot.release}, {snapshot.source}), {snapshot.partitions} partitions, "
        f"{snapshot.pools} pools, {snapshot.running} running, {snapshot.queued} queued, "
        f"{_span(snapshot.age_s)} old{', stale' if snapshot.stale else ''}"
    )


def _fallback(fallback: FallbackStatus) -> str:
    if not fallback.decisions:
        return ""
    counts = ", ".join(f"{count} {why}" for why, count in sorted(fallback.decisions.items()))
    return f" (decided by the arithmetic: {counts})"


def _rounds(rounds: RoundsStatus) -> str:
    text = f"{rounds.rounds} rounds ({', '.join(rounds.levers)})"
    for lever, counts in sorted(rounds.outcomes.items()):
        text += f"; {lever}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    return text


def _telemetry(port: TelemetryStatus) -> str:
    refused = ", ".join(f"{count} {why}" for why, count in sorted(port.refused.items()))
    return (
        f"{port.listening}: {port.nodes} nodes, {port.samples} samples in {port.batches} batches, "
        f"{port.duplicates} twice, {port.old} too old, refused: {refused or 'none'}"
    )


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"
