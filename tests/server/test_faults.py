"""The fault table: whatever breaks around the daemon, the hook gets answers and `status` tells what is wrong."""

import contextlib
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from advisor.cluster.types import Job
from tests.server.daemons import submission, wait_until


def job_with(token, job_id):
    return Job(
        job_id=job_id,
        states=("PENDING",),
        name="train",
        user="alice",
        partitions=("cpu",),
        time_limit=60,
        admin_comment=f"site=x advisor={token}",
    )


def logged(daemon):
    return {row[0] for row in daemon.query("select token from decisions")}


def lost(daemon):
    return {row[0] for row in daemon.query("select token from lost_decisions")}


def test_a_daemon_killed_amid_a_thousand_submissions_loses_no_decision_without_counting_it(daemon):
    tokens = []
    with daemon.hook() as hook, contextlib.suppress(ConnectionResetError):
        for number in range(1000):
            if number == 600:
                daemon.signal(signal.SIGKILL)
            tokens.append(hook.ask().token)
    daemon.process.wait()
    assert len(tokens) >= 600
    assert daemon.query("pragma integrity_check") == [("ok",)]
    survived = logged(daemon)
    assert survived <= set(tokens)
    # Slurm shows the jobs that were submitted with these replies.
    daemon.record(*(job_with(token, 100 + n) for n, token in enumerate(tokens)))
    daemon.start()
    with daemon.hook() as hook:
        tokens.append(hook.ask().token)
    wait_until(lambda: logged(daemon) | lost(daemon) == set(tokens))
    assert lost(daemon) == set(tokens) - survived - {tokens[-1]}
    wait_until(lambda: daemon.status().log.lost == len(lost(daemon)))


def test_decisions_that_still_wait_to_be_written_are_not_counted_as_lost(daemon):
    with contextlib.closing(sqlite3.connect(daemon.database, isolation_level=None)) as other:
        other.execute("begin exclusive")
        with daemon.hook() as hook:
            tokens = {hook.ask().token for _ in range(5)}
        daemon.record(*(job_with(token, 100 + n) for n, token in enumerate(sorted(tokens))))
        polls = daemon.status().snapshot.taken_at
        wait_until(lambda: daemon.status().snapshot.taken_at != polls)
        time.sleep(1.0)
        other.execute("rollback")
    wait_until(lambda: logged(daemon) == tokens)
    wait_until(lambda: len(daemon.query("select * from job_tokens")) == 5)
    time.sleep(1.5)
    assert lost(daemon) == set()


def test_a_locked_database_holds_up_the_log_but_no_answer(daemon):
    with contextlib.closing(sqlite3.connect(daemon.database, isolation_level=None)) as other:
        other.execute("begin exclusive")
        with daemon.hook() as hook:
            tokens = {hook.ask().token for _ in range(50)}
        status = wait_until(lambda: (status := daemon.status()).log.last_error and status)
        assert status.log.buffered == 50
        assert "locked" in status.log.last_error
        assert not status.well()
        other.execute("rollback")
    wait_until(lambda: logged(daemon) == tokens)
    status = wait_until(lambda: (status := daemon.status()).log.last_error is None and status)
    assert status.log.written == 50 and status.log.buffered == 0


def test_a_full_buffer_drops_and_counts_instead_of_growing(make_daemon):
    daemon = make_daemon(log={"buffer": 20}).start()
    with contextlib.closing(sqlite3.connect(daemon.database, isolation_level=None)) as other:
        other.execute("begin exclusive")
        with daemon.hook() as hook:
            for _ in range(100):
                assert hook.ask().token
        status = wait_until(lambda: (status := daemon.status()).log.dropped and status)
        assert status.log.buffered <= 100 and status.log.dropped >= 100 - 2 * 20
        other.execute("rollback")
    status = wait_until(lambda: (status := daemon.status()).log.buffered == 0 and status)
    assert status.log.written + status.log.dropped == 100
    assert any("log.buffer" in problem for problem in status.problems())


def test_a_corrupt_database_is_set_aside_and_a_new_one_begun(daemon):
    with daemon.hook() as hook:
        hook.ask()
        wait_until(lambda: daemon.status().log.written == 1)
        daemon.stop()
    daemon.database.write_bytes(b"this is not a database, and never will be\n" * 200)
    daemon.start()
    with daemon.hook() as hook:
        token = hook.ask().token
    wait_until(lambda: logged(daemon) == {token})
    aside = [path for path in daemon.database.parent.iterdir() if ".corrupt-" in path.name]
    assert len(aside) == 1
    assert aside[0].read_bytes().startswith(b"this is not a database")
    assert daemon.query("pragma integrity_check") == [("ok",)]


def test_a_database_overwritten_while_serving_does_not_stop_the_answers(daemon):
    with daemon.hook() as hook:
        hook.ask()
        wait_until(lambda: daemon.status().log.written == 1)
        for part in daemon.database.parent.glob("advisor.db*"):
            part.write_bytes(b"garbage " * 4096)
        tokens = {hook.ask().token for _ in range(10)}
        assert None not in tokens
    wait_until(lambda: _logged_in_a_sound_file(daemon, tokens))
    assert daemon.status().log.dropped == 0


def _logged_in_a_sound_file(daemon, tokens):
    try:
        return daemon.query("pragma integrity_check") == [("ok",)] and tokens <= logged(daemon)
    except sqlite3.DatabaseError:
        return False


def test_a_database_folder_that_cannot_be_used_is_told_and_recovers(make_daemon):
    daemon = make_daemon()
    daemon.database.parent.write_text("a file where the folder should be")
    daemon.start()
    with daemon.hook() as hook:
        tokens = {hook.ask().token for _ in range(5)}
    status = wait_until(lambda: (status := daemon.status()).log.last_error and status)
    assert str(daemon.database) in status.log.last_error
    assert status.log.buffered == 5
    daemon.database.parent.unlink()
    wait_until(lambda: daemon.status().log.buffered == 0)
    assert logged(daemon) == tokens
    wait_until(lambda: daemon.status().well(), seconds=30)


def test_a_collector_that_dies_is_started_again_and_the_last_snapshot_serves(daemon):
    before = daemon.status()
    os.kill(before.collector.pid, signal.SIGKILL)
    with daemon.hook() as hook:
        assert hook.ask().action == "rewrite"
    after = wait_until(lambda: (s := daemon.status()).collector.pid not in (None, before.collector.pid) and s)
    assert after.collector.restarts == 1
    assert "signal 9" in after.collector.last_exit
    daemon.record()
    wait_until(lambda: daemon.status().snapshot.taken_at > before.snapshot.taken_at)
    wait_until(lambda: daemon.status().well())


def test_when_slurm_does_not_answer_the_last_snapshot_serves_then_every_job_is_kept(make_daemon):
    daemon = make_daemon(slurm={"stale_after_s": 6.0})
    daemon.record()
    daemon.start()
    daemon.recording.unlink()
    status = wait_until(lambda: (status := daemon.status()).snapshot.stale and status)
    assert "cluster.json" in status.collector.errors["poll"]
    assert not status.well()
    with daemon.hook() as hook:
        if status.snapshot.age_s < 4:
            assert hook.ask().action == "rewrite"
        wait_until(lambda: not daemon.status().snapshot.usable)
        assert hook.ask().action == "keep"
        daemon.record()
        wait_until(lambda: daemon.status().snapshot.usable)
        assert hook.ask().action == "rewrite"
    wait_until(lambda: daemon.status().well())


def test_before_slurm_has_ever_answered_every_job_is_kept(make_daemon):
    daemon = make_daemon()
    daemon.recording.write_text("not a recording")
    daemon.start(wait=False)
    wait_until(daemon.answers)
    with daemon.hook() as hook:
        reply = hook.ask()
        assert (reply.action, reply.error) == ("keep", None)
        status = wait_until(lambda: (status := daemon.status()).collector.errors.get("poll") and status)
        assert any("Slurm has not answered yet" in problem for problem in status.problems())
        reply = hook.ask(submission(op="advise"))
        assert "has not answered" in reply.error
        daemon.record()
        wait_until(lambda: daemon.status().snapshot.taken_at)
        assert hook.ask().action == "rewrite"


def test_slurm_commands_that_fail_are_named_with_what_to_do(make_daemon, tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    daemon = make_daemon(slurm={"source": "commands", "command": [str(tools / "ctl")]})
    daemon.start(wait=False)
    wait_until(daemon.answers)
    status = wait_until(lambda: (status := daemon.status()).collector.errors.get("poll") and status)
    assert str(tools / "ctl") in status.collector.errors["poll"]
    assert status.collector.pid  # a failing command is no reason to restart anything
    assert status.collector.restarts == 0


def test_jobs_are_matched_to_their_decisions_while_they_live(daemon):
    with daemon.hook() as hook:
        token = hook.ask().token
    daemon.record(job_with(token, 4711))
    wait_until(lambda: daemon.query("select token, job_id from job_tokens") == [(token, 4711)])


RECORDINGS = Path(__file__).parents[1] / "data" / "slurm"


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_without_accounting_the_cluster_is_known_and_the_lack_is_told(make_daemon, release):
    replay = Path(__file__).parents[1] / "cluster" / "replay.py"  # answers scontrol, and fails for sacct
    daemon = make_daemon(
        slurm={
            "source": "commands",
            "command": [sys.executable, str(replay), str(RECORDINGS / release), "scontrol"],
        }
    ).start()
    status = wait_until(lambda: (status := daemon.status()).collector.errors.get("collect") and status)
    assert status.snapshot.release == release
    assert status.snapshot.partitions > 1
    assert not status.snapshot.stale
    assert any(problem.startswith("outcomes could not be collected") for problem in status.problems())
    assert set(status.collector.errors) == {"collect"}
