"""A real daemon learns from jobs as they end, and still knows after it was restarted."""

import json
import math
import time

from advisor.store import outcomes
from advisor.store.database import Database
from tests.server.daemons import submission, wait_until
from tests.store.rows import outcome


def finish(daemon, first, count, seconds, gpu="a100", app="train"):
    """Jobs that have ended, as accounting tells of them."""
    now = int(time.time())
    rows = [
        outcome(
            first + i, first + i, cluster="test", name=app, user="alice", partition="new", processor=gpu, gpus=1,
            elapsed=seconds + i, log_elapsed=math.log(seconds + i), submit=now - seconds - 90, start=now - seconds - 60,
            end=now - 60, time_limit=60,
        )
        for i in range(count)
    ]  # fmt: skip
    with Database(daemon.database) as db:
        outcomes.store(db, rows, None, time.time())


def expectation(daemon):
    """What the daemon expects of the next job on the new GPUs: seconds, and where that comes from."""
    with daemon.hook() as hook:
        token = hook.ask(submission()).token
    found = wait_until(lambda: daemon.query("select predictions from decisions where token = ?", token))
    for place in json.loads(found[0][0]):
        if place["processor"] == "a100":
            return place["run_s"], place["run_source"]
    raise AssertionError(found)


def reason(daemon, script):
    """Why an annotated job is expected to take as long as it is."""

    def told():
        with daemon.hook() as hook:
            token = hook.ask(submission(environment={"ADVISOR_DFG": script})).token
        found = wait_until(lambda: daemon.query("select predictions from decisions where token = ?", token))
        text = " ".join(place["reason"] for place in json.loads(found[0][0]))
        return text if "corrected" in text else None

    return wait_until(told, seconds=90, every=0.3)


def expects(daemon, low, high):
    """The expectation once it lies within these seconds."""

    def reached():
        seconds, source = expectation(daemon)
        return (seconds, source) if low <= seconds <= high else None

    return wait_until(reached, seconds=90, every=0.3)


def test_jobs_that_end_change_what_is_expected_and_neither_a_restart_nor_a_damaged_model_loses_it(make_daemon):
    daemon = make_daemon().start()
    assert expectation(daemon)[1] == "time limit"
    assert "corrected by what other sites taught" in reason(daemon, "kernels: {t: {on: [gpu], work: 8.0e15}}")
    finish(daemon, 100, 8, 300)
    assert expects(daemon, 200, 450)[1] == "history"
    finish(daemon, 200, 40, 1200)  # the program has become slower
    assert expects(daemon, 700, 1500)[1] == "history"

    assert daemon.stop() == 0
    daemon.start()
    assert expects(daemon, 700, 1500)[1] == "history"
    assert "loaded from" in daemon.said()

    daemon.kill()
    model = daemon.database.parent / "models" / "run-times" / "run_times.msgpack"
    model.write_bytes(b"\x00" + model.read_bytes())
    daemon.start()
    assert expects(daemon, 600, 2500)[1] == "history"
    assert "a saved run-time model is refused" in daemon.said()
