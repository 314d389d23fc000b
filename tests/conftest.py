"""Settings for every test."""

import os
import re
from typing import Any

import pytest
from hypothesis import settings

# A change is judged by the same examples each time; at a desk hypothesis looks for new ones.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("desk", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Side by side (`-n`) run files, and the two Slurm releases: what is set up for one of these is set up once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFileAndRelease(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            release = re.search(r"\[(\d\d\.\d\d)[-\]]", nodeid)
            return f"slurm {release[1]}" if release and file.startswith("tests/slurm/") else file

    return ByFileAndRelease(config, log)
