"""`train.sbatch` on two nodes of a real Slurm: two ranks make what one process makes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from advisor.training.checkpoint import train_into
from advisor.training.recipe import read_recipe
from tests.slurm.site import ROOT, Cluster

INSIDE = Path("/run/slurm-advisor/training")
RECIPE = {
    "name": "small", "iterations": 3, "meta_iterations": 1, "tasks": 4, "tasks_each": 2, "forks": 3, "horizon": 8,
    "steps": 2, "replay": 3, "validation": 2, "every": 2, "samples": 8,
    "mixture": {"jobs": 60, "types": [2, 3], "apps": [3, 4]},
}  # fmt: skip


def libraries() -> list[Path]:
    """What this interpreter's own modules need of the host beside the C library, which is never too new inside."""
    modules = Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("*.so")
    told = subprocess.run(["ldd", *map(str, modules)], capture_output=True, text=True, check=False).stdout
    found = {Path(path) for path in re.findall(r"=> (/\S+)", told)}
    of_libc = re.compile(r"(libc|libm|libdl|libpthread|librt|libutil|ld-linux\S*)\.so")
    return sorted(path for path in found if not of_libc.match(path.name))


@pytest.fixture(scope="module")
def by_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same recipe, trained by one process on this host."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    train_into(folder, read_recipe(folder / "recipe.yaml"), None, False, "", lambda *_: None)
    return folder


@pytest.fixture
def folder(cluster: Cluster, by_one: Path) -> Path:
    """A folder that host and nodes share, with an `advisor` in it that is this one."""
    if not cluster.mounted:
        pytest.skip("this Python is the system's own, which cannot be mounted over that of the cluster")
    folder = cluster.run_folder / "training"
    (folder / "lib").mkdir(parents=True)
    for library in libraries():
        shutil.copy(library, folder / "lib" / library.name)
    # Compiling takes a minute, and `by_one` has done it.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for kept in cache.glob("slurm-advisor/training-*"):
        shutil.copytree(kept, folder / "cache" / "slurm-advisor" / kept.name)
    around = f"LD_LIBRARY_PATH={INSIDE}/lib XDG_CACHE_HOME={INSIDE}/cache PYTHONPATH={ROOT} OMP_NUM_THREADS=1"
    command = folder / "advisor"
    command.write_text(f'#!/bin/sh\nexec env {around} {sys.executable} -m advisor "$@"\n')
    command.chmod(0o755)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    shutil.copy(ROOT / "slurm" / "train.sbatch", folder)
    return folder


def test_a_job_on_two_nodes_trains_to_the_weights_of_one_process(cluster: Cluster, folder: Path, by_one: Path) -> None:
    out = INSIDE / "model"
    words = ("train", str(INSIDE / "recipe.yaml"), "--out", str(out), "--json")
    # Not by --export: for a list of variables 26.05's slurmd asks for the user's login, which no plain container may.
    env = {"PATH": f"{INSIDE}:/usr/local/bin:/usr/bin:/bin"}
    options = ("-p", "cpu", "-o", str(INSIDE / "job.out"), "-e", str(INSIDE / "job.err"))
    sent = cluster.run("sbatch", "--parsable", *options, str(INSIDE / "train.sbatch"), *words, env=env)
    assert sent.returncode == 0, sent.stderr
    job = int(sent.stdout.split(";")[0])
    ended = cluster.wait_job(job, ["COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED"], 240)
    assert ended["JobState"] == "COMPLETED" and ended["NumNodes"] == "2", (folder / "job.err").read_text()
    assert json.loads((folder / "job.out").read_text())["iterations"] == 4, "and only the first rank speaks"
    one, two = (load_file(each / "weights.safetensors") for each in (by_one, folder / "model"))
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5, atol=1e-7, err_msg=name)
