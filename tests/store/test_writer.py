"""The log writer under real faults: nothing waits, nothing is lost that fits the buffer, all recovers."""

import ctypes
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from advisor.store import decisions
from advisor.store.database import Database
from advisor.store.writer import LogWriter
from tests.store.rows import decision

CHECKOUT = Path(__file__).resolve().parents[2]


def until(condition, limit_s=20.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def tokens(path):
    with Database(path, read_only=True) as db:
        return [row[0] for row in db.rows("SELECT token FROM decisions ORDER BY rowid")]


def put(writer, first, last):
    for number in range(first, last):
        writer.put(decision(f"t{number}"))


def expected(first, last):
    return [f"t{number}" for number in range(first, last)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "advisor.db"


def test_what_is_put_is_in_the_log_after_closing(path):
    writer = LogWriter(path)
    put(writer, 0, 2500)
    stats = writer.close()
    assert (stats.written, stats.buffered, stats.dropped, stats.healthy, stats.last_error) == (2500, 0, 0, True, None)
    assert tokens(path) == expected(0, 2500)


def test_rows_reach_the_file_without_closing(path):
    writer = LogWriter(path, flush_s=0.01)
    put(writer, 0, 1)
    until(lambda: writer.stats().written == 1)
    assert tokens(path) == ["t0"]
    put(writer, 1, 2)
    until(lambda: writer.stats().written == 2)
    writer.close()


def test_while_the_database_is_locked_rows_wait_in_the_buffer_and_are_written_afterwards(path):
    Database(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    writer = LogWriter(path, flush_s=0.01)
    put(writer, 0, 50)
    until(lambda: not writer.stats().healthy)
    stats = writer.stats()
    assert (stats.buffered, stats.written) == (50, 0)
    assert "locked by another process" in stats.last_error
    other.execute("COMMIT")
    until(lambda: writer.stats().healthy and not writer.stats().buffered)
    writer.close()
    assert tokens(path) == expected(0, 50)


def test_closing_gives_up_on_a_locked_database_and_says_what_is_left(path):
    Database(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    writer = LogWriter(path, flush_s=0.01)
    put(writer, 0, 3)
    stats = writer.close(timeout_s=0.2)
    assert (stats.buffered, stats.healthy) == (3, False)
    other.close()


def test_rows_beyond_the_buffer_are_counted_as_dropped(path):
    Database(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    writer = LogWriter(path, capacity=10, flush_s=0.01)
    put(writer, 0, 25)
    assert (writer.stats().buffered, writer.stats().dropped) == (10, 15)
    other.close()
    until(lambda: not writer.stats().buffered)
    put(writer, 25, 26)
    assert writer.close().written == 11
    assert tokens(path) == [*expected(0, 10), "t25"]


def test_a_row_that_cannot_be_stored_does_not_hold_up_those_behind_it(path):
    writer = LogWriter(path, flush_s=0.01)
    writer.put(decision("good"))
    writer.put(decision("not-json", features={"x": object()}))
    writer.put(decision("too-large", uid=1 << 70))
    writer.put(decision("surrogate", why="\ud800"))
    writer.put(decision("no-cluster", cluster=None))
    writer.put(decision("last"))
    stats = writer.close()
    assert (stats.written, stats.dropped, stats.buffered) == (2, 4, 0)
    assert stats.last_error is not None
    assert tokens(path) == ["good", "last"]


def test_a_corrupt_file_is_set_aside_at_the_start(path):
    path.write_bytes(b"garbage " * 1000)
    writer = LogWriter(path)
    put(writer, 0, 5)
    stats = writer.close()
    assert (stats.written, stats.healthy) == (5, True)
    assert [Path(name).read_bytes() for name in stats.set_aside] == [b"garbage " * 1000]
    assert tokens(path) == expected(0, 5)


def test_damaged_pages_behind_a_sound_beginning_are_set_aside_when_they_are_met(path):
    writer = LogWriter(path, flush_s=0.01)
    put(writer, 0, 500)
    until(lambda: writer.stats().written == 500)
    writer.close()
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = b"\xa5" * (len(damaged) - 4096)  # every page but the first, which holds the schema
    path.write_bytes(damaged)
    writer = LogWriter(path, flush_s=0.01)
    put(writer, 500, 600)
    stats = writer.close()
    assert (stats.written, stats.buffered) == (100, 0)
    assert tokens(path) == expected(500, 600)
    assert len(list(path.parent.glob("advisor.db.corrupt-*"))) >= 1


def test_a_file_that_was_deleted_under_the_daemon_is_begun_anew(path):
    writer = LogWriter(path, flush_s=0.01)
    put(writer, 0, 5)
    until(lambda: writer.stats().written == 5)
    for part in path.parent.glob("advisor.db*"):
        part.unlink()
    put(writer, 5, 8)
    writer.close()
    assert tokens(path) == expected(5, 8)


def test_a_folder_in_the_place_of_the_file_is_reported_and_recovered_from(path):
    path.mkdir()
    writer = LogWriter(path, flush_s=0.01)
    put(writer, 0, 5)
    until(lambda: not writer.stats().healthy)
    assert "cannot be opened" in writer.stats().last_error
    path.rmdir()
    until(lambda: writer.stats().written == 5)
    writer.close()


def start_unprivileged(path):
    """A writer whose thread has no more rights to files than an ordinary user, also where the tests run as root."""
    made = []

    def make():
        if os.geteuid() == 0:
            # Of this thread only, and of those it starts; also takes away root's right to write anything.
            ctypes.CDLL(None).setfsuid(65534)
        made.append(LogWriter(path, flush_s=0.01))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def test_a_read_only_database_is_reported_and_recovered_from():
    folder = Path(tempfile.mkdtemp(prefix="slurm-advisor-test-"))  # pytest's own are closed to other users
    try:
        path = folder / "advisor.db"
        Database(path).close()
        path.chmod(0o444)
        folder.chmod(0o555)
        writer = start_unprivileged(path)
        put(writer, 0, 5)
        until(lambda: not writer.stats().healthy)
        assert "must exist and be writable" in writer.stats().last_error or "read-only" in writer.stats().last_error
        assert writer.stats().buffered == 5
        folder.chmod(0o777)
        path.chmod(0o666)
        until(lambda: writer.stats().written == 5)
        assert writer.close().healthy
    finally:
        folder.chmod(0o777)
        shutil.rmtree(folder)


FULL = """
import resource, sys, time
from advisor.store.writer import LogWriter
from tests.store.rows import decision
writer = LogWriter(sys.argv[1], flush_s=0.01)
writer.put(decision("first"))
while not writer.stats().written: time.sleep(0.01)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))  # no file may grow beyond this
for number in range(400): writer.put(decision(f"t{number}", request={"x": "y" * 4000}))
while writer.stats().healthy: time.sleep(0.01)
print(writer.stats().last_error)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
stats = writer.close(20)
print(stats.written, stats.buffered, stats.dropped, stats.healthy)
"""


def test_when_there_is_no_room_on_the_disk_rows_wait_until_there_is(path):
    result = subprocess.run(
        [sys.executable, "-c", FULL, path], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True
    )
    error, after = result.stdout.splitlines()
    assert "full" in error
    assert after == "401 0 0 True"
    assert tokens(path) == ["first", *expected(0, 400)]


KILLED = """
import itertools, sys
from advisor.store.writer import LogWriter
from tests.store.rows import decision
writer = LogWriter(sys.argv[1], flush_s=0.001)
for number in itertools.count():
    while writer.stats().buffered > 500: pass
    writer.put(decision(f"t{number}", request={"x": "y" * 1000}))
    if number % 100 == 0: print(writer.stats().written, flush=True)
"""


def test_a_daemon_killed_in_the_middle_of_writing_leaves_an_intact_log_that_goes_on(path):
    for _ in range(3):
        path.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, path], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
        )
        reported = 0
        while reported < 2000:
            reported = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        with Database(path) as db:
            assert db.rows("PRAGMA integrity_check")[0][0] == "ok"
            found = decisions.count(db)
        assert found >= reported  # what was called written is there
        assert tokens(path) == expected(0, found)  # in order, and without a gap
        writer = LogWriter(path)
        writer.put(decision("after"))
        assert writer.close().set_aside == ()
        assert tokens(path)[-1] == "after"
        for part in path.parent.glob("advisor.db-*"):
            part.unlink()


def test_a_row_that_contains_itself_is_counted_and_the_thread_lives_on(path):
    endless = []
    endless.append(endless)
    writer = LogWriter(path, flush_s=0.01)
    writer.put(decision("bad", request=endless))
    writer.put(decision("good"))
    stats = writer.close()
    assert tokens(path) == ["good"]
    assert (stats.dropped, stats.buffered) == (1, 0)
    assert "bad" in stats.last_error
