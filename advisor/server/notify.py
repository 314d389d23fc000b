"""Tells systemd how the daemon is: ready, reloading, stopping, alive (the sd_notify protocol).

One datagram to the socket that `$NOTIFY_SOCKET` names; without that variable every call is a no-op,
so the daemon runs the same outside systemd.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Notifier:
    """A channel to the service manager that started this process, if one did."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        address = env.get("NOTIFY_SOCKET", "")
        # "@name" is systemd's spelling of a socket in the abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = _watchdog(env) if address else None

    def ready(self, status: str) -> None:
        """The socket is listening."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Settings are being read again; `ready` follows."""
        # systemd's notify-reload wants the time, so that it can tell this reload from an earlier one.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """No new connection is accepted any more."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """The event loop turns."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={text}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)
                channel.connect(self._address)
                channel.send(message.encode())
        except OSError as error:
            log.warning("systemd was not told %r: %s", message.partition("\n")[0], error)


def _watchdog(env: Mapping[str, str]) -> float | None:
    """Seconds within which systemd expects a sign of life; None: it does not ask."""
    usec, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    if not usec.isdigit() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6
