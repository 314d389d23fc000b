import time

import pytest

from advisor.server import ahead, audience
from tests.server.daemons import Daemon


@pytest.fixture
def make_daemon(tmp_path):
    """Makes daemons that are ended with the test."""
    made = []

    def make(**sections):
        folder = tmp_path / f"daemon{len(made)}"
        folder.mkdir()
        made.append(Daemon(folder, **sections))
        return made[-1]

    yield make
    for daemon in made:
        daemon.close()


@pytest.fixture
def daemon(make_daemon):
    """A daemon that serves."""
    return make_daemon().start()


class Clock:
    """The daemon's clock, which a test puts forward."""

    def __init__(self):
        self.ahead_s = 0.0

    def monotonic(self):
        return time.monotonic() + self.ahead_s

    def time(self):
        return time.time() + self.ahead_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(ahead, "time", clock)
    monkeypatch.setattr(audience, "time", clock)
    return clock
