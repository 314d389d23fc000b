import pytest

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
