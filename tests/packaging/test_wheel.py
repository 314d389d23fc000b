"""Installed from a wheel, the advisor finds its hook, its SQL and its tables as in a checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from advisor import resources

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked where nothing of the checkout can be seen."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("slurm_advisor-*.whl")
    target = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(installed)!r}); import advisor.cli; advisor.cli.main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *words], capture_output=True, text=True, check=False, cwd=installed
    )


def test_the_hook_is_installed_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "hook", "install", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "advisor.lua").read_bytes() == (ROOT / "slurm" / "advisor.lua").read_bytes()


def test_the_log_is_made_from_the_wheels_sql(installed: Path, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "from advisor import resources\nfrom advisor.store.database import Database\n"
        f"Database({str(tmp_path / 'log.db')!r}).close(); print(resources.folder('sql'))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(installed / "advisor/_installed/sql")


def test_every_shipped_folder_is_in_the_wheel_and_in_the_checkout(installed: Path) -> None:
    for name in ("slurm", "models", "sql"):
        assert resources.folder(name) == ROOT / name
        shipped = {p.name for p in (installed / "advisor/_installed" / name).iterdir()}
        assert {p.name for p in (ROOT / name).iterdir() if not p.name.startswith((".", "__"))} <= shipped
