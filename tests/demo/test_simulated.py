"""The demonstration on machines without root and without Docker."""

import json
import subprocess
import sys
from pathlib import Path

from advisor.demo import show, simulated, workload

ROOT = Path(__file__).resolve().parents[2]


def test_the_simulated_demo_says_that_it_is_one_and_shows_the_effect(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "advisor", "demo", "--on", "simulator", "--picture", str(tmp_path / "demo.svg")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "not Slurm" in done.stdout
    assert "slurm-advisor: partition" in done.stdout and "The effect" in done.stdout
    assert "<svg" in (tmp_path / "demo.svg").read_text()


def test_json_has_both_passes(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "advisor",
            "demo",
            "--on",
            "simulator",
            "--jobs",
            "20",
            "--json",
            "--picture",
            str(tmp_path / "p.svg"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    told = json.loads(done.stdout)
    assert [len(told[name]["jobs"]) for name in ("alone", "advised")] == [20, 20]
    assert (tmp_path / "p.svg").exists()


def test_advice_shortens_the_average_over_many_mixes_of_jobs() -> None:
    """One mix may go either way; over twenty the advised pass must be clearly better, or the demo shows nothing."""
    ratios = []
    for seed in range(20):
        alone, advised = simulated.play(workload.jobs(50, seed), lambda made: None)
        ratios.append(show.mean_turnaround_s(advised) / show.mean_turnaround_s(alone))
    assert sum(ratios) / len(ratios) < 0.9
