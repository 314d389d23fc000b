"""Recorded answers of real Slurm releases, and the sources that read them."""

import sys
from pathlib import Path

import pytest

from advisor.cluster.commands_source import CommandsSource

RECORDINGS = Path(__file__).parent.parent / "data" / "slurm"
RELEASES = sorted(folder.name for folder in RECORDINGS.iterdir() if (folder / "sinfo_version.txt").exists())
REPLAY = Path(__file__).with_name("replay.py")


def replaying(release: str, kind: str = "scontrol") -> CommandsSource:
    return CommandsSource([sys.executable, str(REPLAY), str(RECORDINGS / release), kind])


@pytest.fixture(scope="session", params=RELEASES)
def release(request):
    return request.param


@pytest.fixture(scope="session")
def state(release):
    """The recorded scenario of slurm/cluster/record, as one release tells it."""
    return replaying(release).read()


@pytest.fixture(scope="session")
def odd(release):
    """Jobs whose names and comments imitate Slurm's own output, as one release tells them."""
    return replaying(release, "odd").read()
