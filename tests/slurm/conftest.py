"""A real Slurm in Docker for each release, with the real daemon on this host.

`site` is a mini-cluster with the hook enabled and the daemon enforcing. A test that changes settings or
hurts the daemon does so through `site`; every test starts with a healthy daemon and an empty queue.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.site import Cluster, Site

RELEASES = os.environ.get("ADVISOR_TEST_SLURM", "22.05 24.11").split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session", params=RELEASES)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(request.param)
    cluster.up()
    yield cluster
    cluster.down()


@pytest.fixture(scope="session")
def running_site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(cluster, tmp_path_factory.mktemp(f"site-{cluster.release}"))
    site.enable_hook()
    yield site
    site.stop()


@pytest.fixture
def site(running_site: Site) -> Iterator[Site]:
    running_site.reset()
    yield running_site
    running_site.cancel_all()
