"""What the whole node does: processors, memory, disks, and how long its tasks waited for them (pressure)."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_SECTOR = 512
# Partitions and layers on top of a disk would count its bytes twice.
_DISK = re.compile(r"(?:sd[a-z]+|vd[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+|hd[a-z]+)$")
_PRESSURE = re.compile(r"^some .*total=(\d+)", re.M)

GAUGES = ("memory",)


def totals(proc: Path = Path("/proc")) -> dict[str, float]:
    """Totals since boot, and memory in use now; without what this kernel does not tell."""
    found: dict[str, float] = {}
    _processors(_read(proc / "stat"), found)
    _memory(_read(proc / "meminfo"), found)
    _disks(_read(proc / "diskstats"), found)
    for what in ("cpu", "memory", "io"):
        match = _PRESSURE.search(_read(proc / "pressure" / what))
        if match:
            found[f"pressure.{what}"] = int(match[1]) * 1e-6
    return found


def rates(before: dict[str, float], now: dict[str, float], seconds: float) -> dict[str, float]:
    """What was used per second between two looks, and gauges as they are now."""
    found = {name: now[name] for name in GAUGES if name in now}
    for name, value in now.items():
        if name not in GAUGES and name in before and value >= before[name]:
            found[name] = (value - before[name]) / seconds
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _processors(text: str, found: dict[str, float]) -> None:
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["cpu"] and len(words) >= 6:
            user, nice, system, _, waiting = (int(word) * _TICK for word in words[1:6])
            found.update({"cpu.user": user + nice, "cpu.system": system, "cpu.iowait": waiting})
        elif words[:1] == ["ctxt"] and len(words) == 2:
            found["switches"] = float(words[1])


def _memory(text: str, found: dict[str, float]) -> None:
    kib = {key: int(number) for key, number in re.findall(r"^(\w+):\s+(\d+)", text, re.M)}
    if "MemTotal" in kib and "MemAvailable" in kib:
        found["memory"] = (kib["MemTotal"] - kib["MemAvailable"]) * 1024.0


def _disks(text: str, found: dict[str, float]) -> None:
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 10 and _DISK.match(words[2]):
            found["disk.read"] = found.get("disk.read", 0.0) + int(words[5]) * _SECTOR
            found["disk.write"] = found.get("disk.write", 0.0) + int(words[9]) * _SECTOR
