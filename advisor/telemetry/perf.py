"""Reads what `perf stat` prints for machines: `-x SEP` and `-j`, of every release since 4.x.

Each line becomes a `Reading` with the counter's value, or with the reason why there is none. perf has already scaled
the value by time enabled / time running; both times are kept, because a scaled count is an estimate. Nothing that perf
or a broken pipe can print makes the parser raise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Missing = Literal["not supported", "not counted"]

_MISSING: dict[str, Missing] = {"<not supported>": "not supported", "<not counted>": "not counted"}
_INTERVAL = re.compile(r"\s*\d+\.\d{9}$")
_DIGITS = re.compile(r"\d{1,20}$")


@dataclass(frozen=True, slots=True)
class Reading:
    """One event of one cgroup (or of what perf was attached to) over one run of perf."""

    event: str
    value: float | None  # scaled by perf; in `unit` where there is one
    missing: Missing | None  # why there is no value
    unit: str
    cgroup: str  # "" where perf was not asked by cgroup
    running_ns: float
    enabled_ns: float


def parse(text: str, separator: str = ";") -> list[Reading]:
    """The readings in perf's output, in its order; lines that are none (errors, headers, metrics) are passed over."""
    readings = []
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            reading = _from_json(line) if line.startswith("{") else _from_fields(line.split(separator))
            if reading is not None:
                readings.append(reading)
    return readings


def _from_fields(fields: list[str]) -> Reading | None:
    if fields and _INTERVAL.match(fields[0]):  # -I puts the time first
        fields = fields[1:]
    if len(fields) < 5:
        return None
    value, unit, event = (field.strip() for field in fields[:3])
    # The cgroup's column is there only when perf was asked by cgroup; the running time after it is a plain number.
    with_cgroup = not _DIGITS.match(fields[3])
    cgroup = fields[3] if with_cgroup else ""
    rest = fields[4:] if with_cgroup else fields[3:]
    return _reading(event, value, unit, cgroup, rest[0], rest[1]) if len(rest) >= 2 else None


def _from_json(line: str) -> Reading | None:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or "counter-value" not in found:
        return None  # a metric of its own
    keys = ("event", "counter-value", "unit", "cgroup", "event-runtime", "pcnt-running")
    event, value, unit, cgroup, running, percent = (str(found.get(key, "")) for key in keys)
    return _reading(event, value, unit, cgroup, running, percent)


def _reading(event: str, value: str, unit: str, cgroup: str, running: str, percent: str) -> Reading | None:
    running_ns, share = _number(running), _number(percent)
    if not event or running_ns is None or share is None:
        return None
    if value in _MISSING:
        return Reading(event, None, _MISSING[value], unit, cgroup, 0.0, 0.0)
    number = _number(value)
    if number is None:
        return None
    # perf rounds the share down to whole percents: "0.00" is anything below one.
    enabled_ns = running_ns / (min(max(share, 0.5), 100.0) / 100)
    return Reading(event, number, None, unit, cgroup, running_ns, enabled_ns)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


# What perf says when it cannot count at all, in the words of 6.1 to 7.2.
_COMPLAINTS = (
    ("no permission", re.compile(r"perf_event_paranoid|No permission|Permission denied|Operation not permitted", re.I)),
    (
        "unknown event",
        re.compile(r"event syntax error|Bad event name|Unable to find event|invalid or unsupported", re.I),
    ),
    ("gone", re.compile(r"no access to cgroup|no cgroup matched|Problems finding threads|No such process", re.I)),
    ("too many", re.compile(r"Too many (open files|events)", re.I)),
)


def complaint(text: str) -> tuple[str, str] | None:
    """What kind of failure perf reports, and its own sentence; None if it reports none."""
    for kind, pattern in _COMPLAINTS:
        if pattern.search(text):
            return kind, _sentence(text)
    return None


def _sentence(text: str) -> str:
    lines: Iterator[str] = (line.strip() for line in text.splitlines())
    said = [line for line in lines if line and line != "Error:" and not line.startswith(("Usage", "{"))]
    return " ".join(said[:2])[:300]
