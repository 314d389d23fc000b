"""The vendor's relations between counters, read at run time from the perf that is installed.

`perf list --details metric` prints every metric of the CPU it runs on, or of the one that
`PERF_CPUID` names. Nothing of those tables is shipped: a node tells its own.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from advisor.contention.evaluate import Machine, Values, evaluate
from advisor.contention.expression import Expression, ExpressionError, names, parse

# Short names for the CPUs that sites ask about most; any other is named by its perf CPU id.
CPU_IDS = {
    "skx": "GenuineIntel-6-55-4",
    "clx": "GenuineIntel-6-55-7",
    "icx": "GenuineIntel-6-6A-0",
    "spr": "GenuineIntel-6-8F-4",
    "zen2": "AuthenticAMD-23-49-0",
    "zen3": "AuthenticAMD-25-1-0",
}


class PerfError(Exception):
    """perf is missing or did not answer; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a vendor's table."""

    name: str
    description: str
    text: str
    tree: Expression


@dataclass(frozen=True)
class Relations:
    """All metrics of one CPU. Where a metric uses the name of another, it means that metric."""

    cpu: str
    metrics: Mapping[str, Metric]

    @cached_property
    def events(self) -> tuple[str, ...]:
        """The names that must be measured: those that no metric defines."""
        used = dict.fromkeys(name for metric in self.metrics.values() for name in names(metric.tree))
        return tuple(name for name in used if name not in self.metrics)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The metrics, each after those that it uses."""
        graph = {
            name: [used for used in names(metric.tree) if used in self.metrics] for name, metric in self.metrics.items()
        }
        try:
            return tuple(TopologicalSorter(graph).static_order())
        except CycleError as error:
            circle = " → ".join(reversed(error.args[1]))
            raise PerfError(f"perf's metrics for {self.cpu} define each other in a circle: {circle}") from None

    def ancestors(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """`wanted` and everything they are computed from: metrics in evaluation order, then events."""
        found: dict[str, None] = {}
        pending = list(wanted)
        while pending:
            name = pending.pop()
            if name in found:
                continue
            found[name] = None
            if name in self.metrics:
                pending += names(self.metrics[name].tree)
        metrics = [name for name in self.order if name in found]
        return (*metrics, *(name for name in self.events if name in found))

    def evaluate(self, counts: Mapping[str, Values | float], machine: Machine) -> dict[str, Values]:
        """Every metric's value at these counts; arrays broadcast."""
        values: dict[str, Values | float] = dict(counts)
        for name in self.order:
            values[name] = evaluate(self.metrics[name].tree, values, machine)
        return {name: values[name] for name in self.order}  # type: ignore[misc]


def read(cpu: str | None = None, perf: str = "perf", timeout_s: float = 60.0) -> Relations:
    """The relations of a CPU (a short name, a perf CPU id, or None for this machine's own)."""
    identity = CPU_IDS.get(cpu.lower(), cpu) if cpu else None
    # A wide page keeps newer perf from breaking expressions over lines; no pager, no colours.
    environment = {**os.environ, "COLUMNS": "1000000", "PAGER": "cat", "LC_ALL": "C"}
    if identity:
        environment["PERF_CPUID"] = identity
    try:
        ran = subprocess.run(
            [perf, "list", "--details", "metric"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise PerfError(f"{perf} is not installed; on Debian: apt-get install linux-perf") from None
    except subprocess.TimeoutExpired:
        raise PerfError(f"`{perf} list --details metric` did not end within {timeout_s:g} s") from None
    if ran.returncode:
        raise PerfError(f"`{perf} list --details metric` failed ({ran.returncode}): {ran.stderr.strip()}")
    return from_listing(identity or "this machine", ran.stdout)


_ENTRY = re.compile(r"  (\S.*)")
_BLOCK = re.compile(r" {3,}\[(.*)")


def from_listing(cpu: str, listing: str) -> Relations:
    """Relations from the text of `perf list --details metric`: a name, [its sentence], [its expression]."""
    metrics: dict[str, Metric] = {}
    name, blocks = "", list[str]()

    def close() -> None:
        if name and len(blocks) >= 2 and name not in metrics:
            description, text = (block[: block.rfind("]")].strip() for block in blocks[:2])
            try:
                tree = parse(text)
            except ExpressionError as error:
                raise PerfError(f"{cpu}: metric {name}: {error}") from error
            metrics[name] = Metric(name, "" if description == "(null)" else description, text, tree)

    for line in listing.splitlines():
        if block := _BLOCK.fullmatch(line):
            blocks.append(block.group(1))
        elif entry := _ENTRY.fullmatch(line):
            close()
            name, blocks = entry.group(1).strip(), []
        elif line.strip() and blocks:
            blocks[-1] += " " + line.strip()
    close()
    return Relations(cpu, metrics)
