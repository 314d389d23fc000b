"""How the daemon starts a process of its own that is told the settings on standard input, and how it ends one."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from advisor.config import Settings
from advisor.server.keeper import environment

FIRST_PAUSE_S = 1.0  # before one that ended is started again; twice as long each time
LONGEST_PAUSE_S = 60.0


async def start(module: str, log_level: str, settings: Settings) -> asyncio.subprocess.Process:
    """The module as a process, with these settings as the first line it reads; raises OSError."""
    process = await asyncio.create_subprocess_exec(
        # -P: never import from the working directory of a daemon that runs as root.
        *(sys.executable, "-P", "-m", module, "--log-level", log_level),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(settings) + b"\n")
    return process


async def end(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """Closes its standard input, at which it is to end by itself; kills it where it has not after a while."""
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), patience_s)
    except TimeoutError:
        process.kill()
        await process.wait()
