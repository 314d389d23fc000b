"""`advisor report` as an admin reads it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from advisor.cli import cli
from advisor.store.database import Database
from tests.training import logs


def run(folder: Path, *words: str):
    file = folder / "advisor.yaml"
    file.write_text(yaml.safe_dump({"paths": {"database": str(folder / "advisor.db")}}))
    return CliRunner().invoke(cli, ["--config", str(file), "report", *words])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    logs.trial(folder, 3000, gain=0.2)
    return folder


def test_the_effect_is_that_of_the_trial_with_its_interval(site: Path) -> None:
    found = json.loads(run(site, "--json").output)
    turnaround, wait, run_time = found["effects"]
    for effect in (turnaround, wait, run_time):
        assert effect["gain"]["low"] < 0.2 < effect["gain"]["high"] and effect["gain"]["low"] > 0.1
    assert "sooner" in found["verdict"]
    assert {e["name"] for e in found["by_account"]} == {"group0", "group1"}
    assert found["by_partition"][0]["name"] == "gpu" and len(found["by_app"]) == 12
    # A fifth of what the changed jobs would have used, on average.
    saved = found["saved"]["gpu_hours"]
    assert saved["low"] > 0 and saved["value"] == pytest.approx(0.14 * found["saved"]["gpu_hours_used"], rel=0.5)
    assert found["changes"] == {"gpu → gpu/v100": turnaround["changed"]}


def test_predictions_that_are_right_are_told_to_be(site: Path) -> None:
    found = json.loads(run(site, "--json").output)["calibration"]
    runs = next(c for c in found if c["what"] == "run time")
    assert runs["within_half"] == pytest.approx(0.5, abs=0.06) and runs["within_nine"] == pytest.approx(0.9, abs=0.04)
    assert sum(b["jobs"] for b in runs["bins"]) == runs["jobs"] == 3000


def test_a_changed_holdout_is_no_bias(tmp_path: Path) -> None:
    """Hard weeks with many controls and easy ones with few would fool a plain comparison."""
    logs.trial(tmp_path, 2000, gain=0.0, holdout=0.5, seed=2)
    easy = tmp_path / "easy"
    easy.mkdir()
    path = logs.trial(easy, 2000, gain=0.0, holdout=0.1, seed=3)
    with Database(path) as db, db.transaction() as connection:
        connection.execute("UPDATE decisions SET token = 'e' || token, decided_at = decided_at + 2e6")
        connection.execute(
            "UPDATE outcomes SET token = 'e' || token, db_index = 'e' || db_index, submit = submit + 2e6, "
            "eligible = submit + 2e6, start = submit + 2e6 + (start - submit) / 10, elapsed = elapsed / 10 + 1, "
            "end = submit + 2e6 + (start - submit) / 10 + elapsed / 10 + 1"
        )
    with Database(tmp_path / "advisor.db") as db:
        db.connection.execute("ATTACH DATABASE ? AS other", (str(path),))
        with db.transaction() as connection:
            for table in ("decisions", "outcomes"):
                connection.execute(f"INSERT INTO {table} SELECT * FROM other.{table}")
    gain = json.loads(run(tmp_path, "--json").output)["effects"][0]["gain"]
    assert gain["low"] < 0 < gain["high"], gain


def test_the_text_says_it_in_words(site: Path) -> None:
    text = run(site).output
    assert text.startswith("Changed jobs finish") and "GPU hours saved" in text and "drift:" in text
    assert re.search(r"turnaround +\d+ +\d+ .*95 %", text)


def test_drift_is_told_with_when_and_what(tmp_path: Path) -> None:
    path = logs.trial(tmp_path, 600, gain=0.0, kinds=2)
    with Database(path) as db, db.transaction() as connection:
        connection.execute(
            "UPDATE outcomes SET elapsed = elapsed * 3, end = start + elapsed * 3 WHERE name = 'app1' AND job_id > 300"
        )
    page = tmp_path / "report.html"
    text = run(tmp_path, "--html", str(page)).output
    alarm = next(a for a in json.loads(run(tmp_path, "--json").output)["drift"] if a["app"] == "app1")
    # Single jobs count for three spreads at most, so that a large change is told smaller than it is.
    assert alarm["direction"] == "longer" and 1.5 < alarm["factor"] < 3.5
    began, found = (time.strftime("%Y-%m-%d", time.gmtime(alarm[key])) for key in ("since", "at"))
    line = next(line for line in text.splitlines() if "app1" in line and "longer" in line)
    assert found in line and began in line
    assert abs(alarm["since"] - (logs.START + 600 * 300)) < 2 * 86_400
    told = page.read_text()
    assert "app1" in told and began in told and "longer" in told


def test_without_enough_jobs_no_effect_is_claimed(tmp_path: Path) -> None:
    logs.trial(tmp_path, 30, gain=0.5)
    text = run(tmp_path).output
    assert text.startswith("Not enough evidence") and "too few jobs" in text


def test_a_harmful_effect_is_called_so(tmp_path: Path) -> None:
    logs.trial(tmp_path, 1500, gain=-0.4)
    assert "LATER" in run(tmp_path).output and "rollback" in run(tmp_path).output


def test_a_missing_log_is_said(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.exit_code == 1 and "advisor serve" in done.output


class _Reader(HTMLParser):
    """Fails on tags that do not close, and notes what the page asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asks: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in ("meta", "line", "circle", "rect", "polyline"):
            self.open.append(tag)
        self.asks += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag) -> None:
        if tag not in ("line", "circle", "rect", "polyline"):
            assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += data


def test_the_page_needs_nothing_else_and_shows_names_as_they_are(tmp_path: Path) -> None:
    path = logs.trial(tmp_path, 800, gain=0.3, kinds=3)
    with Database(path) as db, db.transaction() as connection:
        connection.execute("UPDATE decisions SET app = '<script>alert(1)</script>' WHERE app = 'app1'")
    page = tmp_path / "report.html"
    assert run(tmp_path, "--html", str(page)).exit_code == 0
    text = page.read_text(encoding="utf-8")
    reader = _Reader()
    reader.feed(text)
    assert reader.open == [] and reader.asks == []
    assert "<script" not in text and "<script>alert(1)</script>" in reader.text
    assert text.count("<svg") >= 3 and "http" not in text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here: install the Debian package chromium")
def test_a_browser_shows_the_page(site: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    run(site, "--html", str(page))
    shot = tmp_path / "report.png"
    done = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1000,2000", f"--screenshot={shot}", page.as_uri(),
        ],
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 20_000
