"""`scripts/demo` as the README has it, with fewer jobs: both passes on a real Slurm, measured by its accounting."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.slurm.site import ROOT, Cluster


def test_the_demo_plays_both_passes_and_shows_the_effect(cluster: Cluster, tmp_path) -> None:
    name = f"demo-{cluster.name}"  # the releases are tested side by side
    words = ["demo", "--slurm", cluster.release, "--name", name, "--jobs", "12", "--folder", str(tmp_path), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "advisor", *words, "--picture", str(tmp_path / "demo.svg")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [len(told[name]["jobs"]) for name in ("alone", "advised")] == [12, 12]
    assert all(job["run_s"] >= 4 for name in ("alone", "advised") for job in told[name]["jobs"]), "they really ran"
    assert "sbatch -p v100,p100,k80" in done.stderr
    assert "<svg" in (tmp_path / "demo.svg").read_text()
    left = subprocess.run(
        ["docker", "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True, check=True
    )
    assert f"slurm-advisor-{name}" not in left.stdout.split(), "the demo cleans up behind it"
