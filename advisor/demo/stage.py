"""The mini-cluster on which the demonstration runs, through `scripts/cluster`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from advisor import resources

SLURM_ID = "64030"  # the slurm user of Debian's packages, as which slurmctld connects


class StageError(Exception):
    """The mini-cluster cannot be had; the text says why and what to do."""


class Stage:
    """One mini-cluster, in Docker or from Debian's packages on this host."""

    def __init__(self, name: str, *, docker: bool, release: str) -> None:
        self.name, self.docker, self.release = name, docker, release
        self._script = resources.folder("slurm").parent / "scripts" / "cluster"
        if not self._script.exists():
            raise StageError("the mini-cluster is part of a checkout (scripts/cluster), not of the installed package")

    def up(self) -> None:
        """Starts it; progress goes to standard error."""
        words = ["up", "--name", self.name, "--slurm", self.release]
        if not self.docker:
            words.append("--without-docker")
        self._call(*words, show=True)
        facts = json.loads(self._call("status", "--json"))[self.name]
        self.command: list[str] = facts["command"]
        self._enter: dict[str, list[str]] = facts["users"]
        self.run_folder = Path(facts["run"])

    def enable_hook(self) -> None:
        """Puts `slurm/advisor.lua` and the sample `job_submit.lua` into slurmctld."""
        self._call("hook", "--name", self.name, str(resources.folder("slurm")))

    def down(self) -> None:
        """Removes it, and stops the engine if it was started for it."""
        self._call("down", "--name", self.name, "--engine")

    def sbatch(self, user: str, options: tuple[str, ...], script: str) -> subprocess.CompletedProcess[str]:
        """Plain `sbatch` as an ordinary user."""
        return self.run("sbatch", "--parsable", *options, user=user, stdin=script)

    def run(self, *words: str, user: str = "root", stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Any command inside the cluster."""
        return subprocess.run([*self._enter[user], *words], input=stdin, capture_output=True, text=True, check=False)

    def _call(self, *words: str, show: bool = False) -> str:
        done = subprocess.run(
            [str(self._script), *words],
            stdout=subprocess.PIPE,
            stderr=None if show else subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            told = (done.stderr or "").strip()
            raise StageError(
                f"scripts/cluster {words[0]} failed" + (f": {told}" if told else "; its words stand above")
            )
        if done.stderr and show:
            print(done.stderr, file=sys.stderr)
        return done.stdout
