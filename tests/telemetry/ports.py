"""A private munged, and a telemetry port in this process, with clocks that a test can set."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
import threading
import time

import msgspec

from advisor.server.telemetry_port import Port
from advisor.server.telemetry_writer import Writer
from advisor.settings import Settings
from advisor.store.database import Database
from advisor.telemetry import wire
from advisor.telemetry.munge import MungeLibrary


class Munged:
    """A munged with a key of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.socket = str(folder / "socket")
        folder.mkdir(mode=0o700)
        folder.chmod(0o711)  # any user may ask a munged
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(str(folder).encode().ljust(64, b"k"))
        program = shutil.which("munged") or "/usr/sbin/munged"
        names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / name}" for option, name in names.items()]
        self.process = subprocess.Popen(
            [program, "--foreground", "--force", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 20
        while not (folder / "socket").exists():
            assert self.process.poll() is None and time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.02)

    def munge(self):
        return MungeLibrary(self.socket)

    def stop(self):
        self.process.terminate()
        self.process.wait()


class LocalPort:
    """The port on an address of this host; `now` is the daemon's clock."""

    def __init__(self, folder, munge, now=1_800_000_000.0, **telemetry):
        self.now = now
        self.database = folder / "advisor.db"
        given = {"paths": {"database": str(self.database)}, "telemetry": {"listen": "127.0.0.1:0", **telemetry}}
        self.settings = msgspec.convert(given, Settings)
        self.munge = munge
        self.address = None
        self.start()

    def start(self):
        self._loop = asyncio.new_event_loop()
        self.writer = Writer(self.settings, clock=lambda: self.now)
        self.port = Port(self.settings, self.munge, self.writer)
        started = threading.Event()

        async def serve():
            host, number = self.address or ("127.0.0.1", 0)
            self._server = await asyncio.start_server(self.port.serve, host, number)
            self.address = self._server.sockets[0].getsockname()[:2]
            started.set()

        def run():
            asyncio.set_event_loop(self._loop)
            self._loop.create_task(serve())
            self._loop.run_forever()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert started.wait(10)

    def stop(self):
        """The daemon goes away; what was acknowledged is in the database."""

        async def close():
            self._server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)
        self.writer.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def status(self):
        return self.port.status("here")

    def rows(self, sql, *values):
        with Database(self.database) as db:
            return [tuple(row) for row in db.rows(sql, values)]

    def send(self, data, *, hang_up=False):
        """Bytes as they are; the answer, or None if there was none."""
        with socket.create_connection(self.address, timeout=20) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
                if hang_up:
                    connection.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := connection.recv(65536):
                    answer += chunk
                    if len(answer) >= 4 and len(answer) >= 4 + wire.LENGTH.unpack(answer[:4])[0]:
                        break
        return wire.decode_answer(answer[4:]) if len(answer) > 4 else None
