"""What is written down matches what is there."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/docs", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_link_in_the_docs_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "slurm").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def test_no_file_is_so_long_that_nobody_reads_it() -> None:
    for path in sorted((ROOT / "advisor").rglob("*.py")):
        assert len(path.read_text().splitlines()) <= 600, path


def test_the_changelog_names_the_version() -> None:
    from advisor import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
