"""Tells the kernel that the daemon works in short bursts that somebody waits for.

On a busy controller a process that wakes up may wait milliseconds for the time slice of another to end, while
slurmctld holds its locks. From Linux 6.12 on a process may ask for shorter slices, and then gets each of them
sooner: not more of the CPU than others, only earlier. No privilege is needed; an older kernel takes no notice.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SLICE_NS = 300_000

# sched_setattr(2) has no wrapper in Python, and its number is the machine's own.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
# struct sched_attr: size, policy, flags, nice, priority, runtime (of SCHED_OTHER: the slice), deadline, period
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def ask_for_short_slices() -> bool:
    """For the calling thread; whether the kernel took the question at all."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False  # not known, or an admin has chosen another policy for the daemon
    nice = os.getpriority(os.PRIO_PROCESS, 0)  # stays as it is
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
