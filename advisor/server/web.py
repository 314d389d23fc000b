"""The status page and Prometheus' figures over HTTP, in a process of their own: the hot path never waits for a browser.

Started by the daemon where `server.http` names an address. It asks the daemon over its socket like any command does,
and only reads the log. Standard library alone: a handful of requests a minute need no more.
"""

from __future__ import annotations

import http.server
import ipaddress
import logging
import socket
import sys
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from advisor.server import child_main, client, web_metrics, web_page
from advisor.server.status import Status
from advisor.server.web_page import Decided, Effect
from advisor.settings import Settings
from advisor.store.database import Database, StoreError
from advisor.store.experience import Experience, experiences
from advisor.telemetry.agent import address

if TYPE_CHECKING:
    from advisor.training.report import Report

log = logging.getLogger(__name__)

NICE = 10
# Working out the effect reads the whole log: a hundredth of a core at most, and never because somebody reloads the
# page. A log that has just begun takes no time, and its first jobs are on the page at once.
EFFECT_SHARE = 0.01
EFFECT_EVERY_S = (1.0, 300.0)
EFFECT_DAYS = 90
LAST = 25
_IDLE_S = 10.0


class Site:
    """What there is to show, asked for anew at most once a second."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._status: tuple[float, Status | None, str] = (-1e9, None, "")
        self.effect: Effect | None = None

    def status(self) -> tuple[Status | None, str]:
        """How the daemon is, or why that is not known."""
        with self._lock:
            asked, status, trouble = self._status
            if time.monotonic() - asked > 1.0:
                try:
                    status, trouble = client.status(self._settings.paths.socket, 2.0), ""
                except client.ClientError as error:
                    status, trouble = None, str(error)
                self._status = (time.monotonic(), status, trouble)
            return status, trouble

    def decisions(self) -> list[Decided]:
        """The last ones in the log; none where it cannot be read, which `status` tells."""
        try:
            with Database(self._settings.paths.database, read_only=True) as db:
                rows = db.rows(
                    "SELECT decided_at, coalesce(user, uid, ''), app, coalesce(partition, ''), "
                    "coalesce(json_extract(candidates, '$[' || coalesce(preferred, chosen) || '].name'), ''), "
                    "mode, action, applied, holdout, why FROM decisions ORDER BY decided_at DESC LIMIT ?",
                    (LAST,),
                )
        except StoreError:
            return []
        return [
            Decided(at, str(user), app, asked, to, mode, action, bool(applied), bool(holdout), why)
            for at, user, app, asked, to, mode, action, applied, holdout, why in rows
        ]

    def keep_effect(self) -> None:
        """Works the effect out, as often as its cost allows, for as long as the process lives."""
        try:
            from advisor.training import report
        except ImportError:
            missing = "The effect is not worked out here: it needs what the extra `sim` brings."
            self.effect = Effect(missing, at=time.time())
            return
        while True:
            began = time.thread_time()
            try:
                rows = self._experiences()
                self.effect = _effect(report.make(rows, self._settings.drift))
            except StoreError:
                self.effect = None  # no log yet, or one that `status` complains of
            soonest, latest = EFFECT_EVERY_S
            time.sleep(min(latest, max(soonest, (time.thread_time() - began) / EFFECT_SHARE)))

    def _experiences(self) -> list[Experience]:
        since = time.time() - EFFECT_DAYS * 86_400
        with Database(self._settings.paths.database, read_only=True) as db:
            return list(experiences(db, since, float("inf"), everything=True))


def _effect(found: Report) -> Effect:
    gain = found.effects[0].gain
    if gain is None:
        return Effect(found.verdict, at=time.time())
    return Effect(found.verdict, gain.value, gain.low, gain.high, time.time())


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD of three paths, to whoever reaches the address under one of its own names."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "slurm-advisor", ""
    timeout = _IDLE_S

    def do_GET(self) -> None:
        """One of three paths."""
        if not self._named_rightly():
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "this address is not served here\n")
            return
        site, path = self.server.site, self.path.partition("?")[0]
        status, trouble = site.status()
        if path == "/":
            text = web_page.page(status, trouble, site.decisions(), site.effect, time.time())
            self._answer(HTTPStatus.OK, "text/html", text)
        elif path == "/metrics":
            effect = site.effect
            told = None
            if effect is not None and effect.value is not None and effect.low is not None and effect.high is not None:
                told = {"value": effect.value, "low": effect.low, "high": effect.high}
            self._answer(HTTPStatus.OK, web_metrics.CONTENT_TYPE, web_metrics.text(status, told))
        elif path == "/health":
            problems = [trouble] if status is None else status.problems()
            code = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
            self._answer(code, "text/plain", "\n".join(problems or ["well"]) + "\n")
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there are /, /metrics and /health\n")

    do_HEAD = do_GET

    def _named_rightly(self) -> bool:
        """A page elsewhere could let its own name point here and read this one in a visitor's browser."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        host = host.removeprefix("[").removesuffix("]").lower()
        if host in self.server.names:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    def _answer(self, code: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(code)
        self.send_header("Content-Type", kind if "charset" in kind else f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """To the daemon's log, for those who look closely."""
        log.debug("%s %s", self.address_string(), format % args)


class Server(http.server.ThreadingHTTPServer):
    """Listens where the settings say."""

    daemon_threads = True

    def __init__(self, settings: Settings) -> None:
        host, port = address(settings.server.http or "")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.site = Site(settings)
        self.names = {host.lower(), "localhost", socket.gethostname().lower(), socket.getfqdn().lower()}
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Without asking a name server who this host is, which may take its time."""
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away is none; anything else is in the log."""
        if not isinstance(sys.exception(), OSError):
            log.exception("a request of %s failed", client_address)


def main(arguments: list[str] | None = None) -> int:
    """The child's own main: settings on standard input, the address back, then serves until that input closes."""
    child_main.begin("advisor.server.web", NICE, arguments)
    settings = child_main.settings_given()
    if settings is None:
        return 0
    try:
        server = Server(settings)
    except (OSError, ValueError) as error:
        print(f"error: server.http: {settings.server.http} cannot be listened on: {error}", flush=True)
        return 1
    host = server.server_name
    print(f"{f'[{host}]' if ':' in host else host}:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=server.site.keep_effect, daemon=True).start()
    sys.stdin.buffer.read()
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
