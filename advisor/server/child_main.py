"""What every process that the daemon starts for itself does first."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal

import msgspec

from advisor.server import journal
from advisor.settings import Settings

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def begin(module: str, nice: int, arguments: list[str] | None) -> None:
    """Ends with the daemon, stands back for it, leaves its signals to it, and logs as it does."""
    parser = argparse.ArgumentParser(prog=module, description="Started by `advisor serve`.")
    parser.add_argument("--log-level", default="info")
    options = parser.parse_args(arguments)
    # SIGTERM when the daemon dies, also in the middle of something long.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    os.nice(nice)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on a terminal is for the daemon, which then ends us
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    journal.set_up(options.log_level)


def settings_given() -> Settings | None:
    """The settings, from the first line of standard input; None where it was closed instead.

    Unbuffered, to the end of the line and no further: what follows is somebody else's to read.
    """
    given = b""
    while not given.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        given += byte
    return msgspec.json.decode(given, type=Settings)
