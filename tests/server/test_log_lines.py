"""What an admin reads in the journal: one line a minute for a fault that repeats, levels for systemd."""

import io
import logging

import pytest

from advisor.server import journal


@pytest.fixture(autouse=True)
def restore_advisor_logger():
    root = logging.getLogger("advisor")
    before = (root.handlers[:], root.propagate, root.level)
    yield
    root.handlers[:], root.propagate = before[0], before[1]
    root.setLevel(before[2])


def test_a_fault_that_repeats_is_said_once_a_minute_with_a_count():
    stream = io.StringIO()
    journal.set_up("info", stream)
    now = [0.0]
    sparingly = journal.Sparingly(logging.getLogger("advisor.test"), clock=lambda: now[0])
    for _ in range(1000):
        sparingly.say(logging.ERROR, "decide", "a decision failed")
    sparingly.say(logging.ERROR, "other", "something else")
    now[0] = 61.0
    sparingly.say(logging.ERROR, "decide", "a decision failed")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert "something else" in lines[1]
    assert lines[2].endswith("a decision failed (999 more like it since the last such line)")


def test_under_systemd_every_line_of_a_traceback_has_its_level(monkeypatch):
    monkeypatch.setenv("JOURNAL_STREAM", "8:12345")
    stream = io.StringIO()
    journal.set_up("info", stream)
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("advisor.test").error("it failed", exc_info=True)
    lines = stream.getvalue().splitlines()
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)
    assert lines[0] == "<3>advisor.test: it failed"
