"""Makes one sample of the node at the end of each period: a row of metrics for each job, and one for the node.

A metric is a rate per second over the period (`cpu.user` in cores, `io.write` in bytes/s, `perf.instructions` …) or
what was in use at its end (`memory`, in bytes). Hardware counters come with the seconds they were enabled and running.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.telemetry import gpu, node, processes
from advisor.telemetry.jobs import JobKey, Jobs, RunningJob
from advisor.telemetry.notes import Notes
from advisor.telemetry.perf import Reading
from advisor.telemetry.perfrun import PerfStat, Target

Metric = float | list[float]  # rate or level; or [rate, seconds enabled, seconds running]
_LEVELS = frozenset(("memory", "memory.anonymous"))
_SHORTEST_S = 0.5  # over less than this a rate says little


@dataclass(slots=True)
class _Known:
    """What is remembered of a job from one period to the next."""

    number: int
    totals: processes.ProcessTotals
    cgroup: dict[str, float]
    seen: float


class Sampler:
    """Looks at the node once in each period."""

    def __init__(
        self,
        jobs: Jobs,
        perf: PerfStat | None,
        gpus: gpu.Gpus | None,
        notes: Notes,
        proc: Path = processes.PROC,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._jobs = jobs
        self._perf = perf
        self._gpus = gpus
        self._notes = notes
        self._proc = proc
        self._clock = clock
        self._known: dict[JobKey, _Known] = {}
        self._numbered = 0
        self._node: dict[str, float] = {}
        self._last: float | None = None

    def sample(self) -> dict[str, Any] | None:
        """What happened since the last call; None at the first one, and when that was only a moment ago."""
        now = self._clock()
        span = now - self._last if self._last is not None else 0.0
        if self._last is not None and span < _SHORTEST_S:
            return None
        counted = self._perf.end() if self._perf is not None else {}
        running = self._jobs.now()
        gpus = self._gpus.now() if self._gpus is not None else []
        rows = [row for job in running if (row := self._row(job, now, span, counted, gpus))]
        totals = node.totals(self._proc)
        whole: dict[str, Metric] = dict(node.rates(self._node, totals, span)) if span else {}
        if gpus:
            whole["gpu.busy"], whole["gpu.memory"] = sum(g.busy for g in gpus), sum(g.memory for g in gpus)
        first = self._last is None
        self._node, self._last = totals, now
        live = {job.key for job in running}
        self._known = {key: known for key, known in self._known.items() if key in live}
        self._begin(running)
        return None if first else {"b": round(now, 3), "dt": round(span, 3), "jobs": rows, "node": _rounded(whole)}

    def close(self) -> None:
        """Ends what still counts."""
        if self._perf is not None:
            self._perf.abandon()

    def _begin(self, running: list[RunningJob]) -> None:
        if self._perf is None:
            return
        targets = {}
        for job in running:
            name = job.cgroup.perf_name if job.cgroup is not None else ""
            targets[self._known[job.key].number] = Target(name, tuple(job.pids))
        self._perf.begin(targets)

    def _row(
        self, job: RunningJob, now: float, span: float, counted: dict[int, list[Reading]], gpus: list[gpu.Gpu]
    ) -> dict[str, Any] | None:
        known = self._known.get(job.key)
        # A job that was not there at the last look has used all it has used since then.
        fresh = known is None and self._last is not None
        if known is None:
            self._numbered += 1
            known = self._known[job.key] = _Known(self._numbered, processes.ProcessTotals(), {}, now)
        found = [p for pid in job.pids[: processes.MOST] if (p := processes.read_process(pid, self._proc))]
        if len(job.pids) > processes.MOST:
            self._notes.add(f"job {job.key.job_id}", "many processes", f"figures are of {processes.MOST} of them")
        seconds = self._seconds(found, now, span, fresh)
        switched: dict[int, float] = {}
        for process in found:
            if len(switched) < processes.MOST_THREADS:
                switched |= processes.switches(process.pid, self._proc, processes.MOST_THREADS - len(switched))
        used = known.totals.advance(found, switched, fresh)
        if found and not any("io.read" in process.totals for process in found):
            self._notes.add("io", "not readable", "/proc/PID/io may not be read: run the agent as root")
        metrics: dict[str, Metric] = {"memory": sum(p.memory for p in found), "threads": sum(p.threads for p in found)}
        if seconds >= _SHORTEST_S:
            metrics |= {name: amount / seconds for name, amount in used.items()}
        if job.cgroup is not None:
            self._from_cgroup(job, known, metrics, seconds, fresh)
        metrics |= gpu.of_job(gpus, set(job.pids))
        if span >= _SHORTEST_S:
            metrics |= _from_perf(counted.get(known.number, []), span)
        if self._last is None or not found:
            return None
        key = job.key
        row: dict[str, Any] = {"job": key.job_id, "m": _rounded(metrics)}
        if key.restarts:
            row["restarts"] = key.restarts
        return row | ({"cluster": key.cluster} if key.cluster else {})

    @staticmethod
    def _seconds(found: list[processes.Process], now: float, span: float, fresh: bool) -> float:
        if not fresh or not found:
            return span
        return min(span, now - min(processes.boottime_of(p) for p in found))

    @staticmethod
    def _from_cgroup(job: RunningJob, known: _Known, metrics: dict[str, Metric], seconds: float, fresh: bool) -> None:
        """The cgroup's books are better than the sum over processes: they forget nobody."""
        assert job.cgroup is not None
        usage = job.cgroup.usage()
        before = known.cgroup or (dict.fromkeys(usage, 0.0) if fresh else {})
        for name, value in usage.items():
            if name in _LEVELS:
                metrics[name] = value
            elif name in before and value >= before[name] and seconds >= _SHORTEST_S:
                metrics[name] = (value - before[name]) / seconds
        known.cgroup = usage


def _from_perf(readings: list[Reading], seconds: float) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for reading in readings:
        if reading.value is not None:
            # perf tells clocks in milliseconds; everything here is in seconds.
            value = reading.value / 1000 if reading.unit == "msec" else reading.value
            metrics[f"perf.{reading.event}"] = [value / seconds, reading.enabled_ns * 1e-9, reading.running_ns * 1e-9]
    return metrics


def _rounded(metrics: dict[str, Metric]) -> dict[str, Metric]:
    """Six significant digits: the rest is noise, and would travel and be stored."""
    return {
        name: [float(f"{part:.6g}") for part in value] if isinstance(value, list) else float(f"{value:.6g}")
        for name, value in metrics.items()
    }
