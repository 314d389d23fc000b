"""`train.sbatch` on two nodes of a real Slurm: two ranks make what one process makes."""

from __future__ import annotations

import json
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


@pytest.fixture
def folder(cluster: Cluster) -> Path:
    """A folder that host and nodes share, with an `advisor` in it that is this one."""
    if not cluster.mounted:
        pytest.skip("this Python is the system's own, which cannot be mounted over that of the cluster")
    folder = cluster.run_folder / "training"
    (folder / "lib").mkdir(parents=True)
    for library in libraries():
        shutil.copy(library, folder / "lib" / library.name)
    for kept in Path.home().glob(".cache/slurm-advisor/training-*"):  # compiling takes a minute
        shutil.copytree(kept, folder / "cache" / "slurm-advisor" / kept.name)
    around = f"LD_LIBRARY_PATH={INSIDE}/lib XDG_CACHE_HOME={INSIDE}/cache PYTHONPATH={ROOT} OMP_NUM_THREADS=1"
    command = folder / "advisor"
    command.write_text(f'#!/bin/sh\nexec env {around} {sys.executable} -m advisor "$@"\n')
    command.chmod(0o755)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    shutil.copy(ROOT / "slurm" / "train.sbatch", folder)
    return folder


def test_a_job_on_two_nodes_trains_to_the_weights_of_one_process(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    train_into(tmp_path, read_recipe(folder / "recipe.yaml"), None, False, "", lambda *_: None)
    out, log = INSIDE / "model", INSIDE / "job.log"
    words = ("train", str(INSIDE / "recipe.yaml"), "--out", str(out), "--json")
    # Not by --export: for a list of variables 24.11's slurmd asks for the user's login, which no plain container may.
    env = {"PATH": f"{INSIDE}:/usr/local/bin:/usr/bin:/bin"}
    sent = cluster.run(
        "sbatch", "--parsable", "-p", "cpu", "-o", str(log), str(INSIDE / "train.sbatch"), *words, env=env
    )
    assert sent.returncode == 0, sent.stderr
    job = int(sent.stdout.split(";")[0])
    ended = cluster.wait_job(job, ["COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED"], 240)
    said = (folder / "job.log").read_text()
    assert ended["JobState"] == "COMPLETED" and ended["NumNodes"] == "2", said
    assert json.loads(said[said.index("{") :])["iterations"] == 4, said
    one, two = (load_file(each / "weights.safetensors") for each in (tmp_path, folder / "model"))
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5, atol=1e-7, err_msg=name)
