"""Which events perf measures on this node: what is wanted, less what its PMU does not have, in turns.

`events_wanted` is the interface through which a model asks for events: it gets the processor and returns groups, each
small enough to be counted at once, so that perf need not multiplex within a group. Software events are counted
always; the groups of hardware events take turns, one in each period.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Kept by the kernel itself: there on every machine, also without a PMU, and never multiplexed.
SOFTWARE = ("task-clock", "context-switches", "cpu-migrations", "page-faults", "major-faults")


@dataclass(frozen=True, slots=True)
class Cpu:
    """What decides which events exist: the processor's make, and how many counters a core has."""

    vendor: str  # GenuineIntel, AuthenticAMD, ARM (its implementer), or ""
    family: int
    model: int
    cores: int
    counters: int  # programmable ones that can be counted on


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events that are counted together."""

    name: str
    events: tuple[str, ...]


EventSource = Callable[[Cpu], list[EventGroup]]


def this_cpu(proc: Path = Path("/proc")) -> Cpu:
    """The processor of this node."""
    facts: dict[str, str] = {}
    try:
        for line in (proc / "cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    except OSError:
        pass  # no word on the processor: the generic events are asked for
    vendor = facts.get("vendor_id") or facts.get("CPU implementer", "")
    # With hyper-threading Intel has four for each thread; the NMI watchdog may hold one, perf then multiplexes.
    counters = 6 if vendor == "AuthenticAMD" else 4
    return Cpu(vendor, _int(facts.get("cpu family")), _int(facts.get("model")), os.cpu_count() or 1, counters)


def _int(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def events_wanted(cpu: Cpu) -> list[EventGroup]:
    """The generic events that perf maps on every PMU. Cycles and instructions are in each group, as its yardstick."""
    base = ("cycles", "instructions")
    room = max(1, cpu.counters)
    wanted = [
        ("caches", ("cache-references", "cache-misses")),
        ("branches", ("branches", "branch-misses")),
        ("first-level", ("L1-dcache-loads", "L1-dcache-load-misses")),
        ("last-level", ("LLC-loads", "LLC-load-misses", "LLC-stores")),
        ("translation", ("dTLB-loads", "dTLB-load-misses", "iTLB-load-misses")),
        ("stalls", ("stalled-cycles-frontend", "stalled-cycles-backend")),
    ]
    return [EventGroup(name, (*base, *events[:room])) for name, events in wanted]


def groups_of(texts: Iterable[str]) -> list[EventGroup]:
    """Groups as an admin writes them, each a comma-separated list; commas inside pmu/…/ do not separate."""
    groups = []
    for number, text in enumerate(texts, 1):
        events, depth = [""], 0
        for letter in text:
            depth ^= letter == "/"
            if letter == "," and not depth:
                events.append("")
            else:
                events[-1] += letter
        kept = tuple(event.strip() for event in events if event.strip())
        if kept:
            groups.append(EventGroup(f"group {number}", kept))
    return groups


class Rotation:
    """Hands out, period by period, the software events and one group of hardware events."""

    def __init__(self, groups: Sequence[EventGroup]) -> None:
        self._groups = list(groups)
        self._software: tuple[str, ...] = SOFTWARE
        self._turn = 0

    @property
    def events(self) -> tuple[str, ...]:
        """Every event, each once."""
        return tuple(dict.fromkeys((*self._software, *(e for group in self._groups for e in group.events))))

    def drop(self, events: Iterable[str]) -> None:
        """Never asks for these again: this node does not have them. A group that only repeats others goes."""
        gone = frozenset(events)
        self._software = tuple(e for e in self._software if e not in gone)
        kept: dict[tuple[str, ...], EventGroup] = {}
        for group in self._groups:
            left = tuple(e for e in group.events if e not in gone)
            if left:
                kept.setdefault(left, EventGroup(group.name, left))
        bare = [left for left in kept if any(left != other and set(left) <= set(other) for other in kept)]
        self._groups = [group for left, group in kept.items() if left not in bare]

    def next(self) -> tuple[str, ...]:
        """What to count in the next period; empty when this node can count nothing."""
        if not self._groups:
            return self._software
        group = self._groups[self._turn % len(self._groups)]
        self._turn += 1
        return (*self._software, *group.events)
