import shutil
import tempfile
from pathlib import Path

import pytest

from tests.telemetry.ports import LocalPort, Munged


@pytest.fixture(scope="session")
def munged():
    if not (shutil.which("munged") or shutil.which("/usr/sbin/munged")):
        pytest.skip("munge is not installed")
    # Not in pytest's folder, which is closed to the users that some tests become.
    with tempfile.TemporaryDirectory(prefix="advisor-munge-") as folder:
        Path(folder).chmod(0o711)
        made = Munged(Path(folder) / "site")
        yield made
        made.stop()


@pytest.fixture
def make_port(tmp_path, munged):
    made = []

    def make(**options):
        made.append(LocalPort(tmp_path, munged.munge(), **options))
        return made[-1]

    yield make
    for port in made:
        port.stop()
