"""Two processes with Slurm's environment do what one does, to the same result; a lost one ends the other cleanly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from advisor.config import load
from advisor.policy.learned.files import Card, write_model
from advisor.policy.learned.shapes import zero_weights
from advisor.training import distributed
from advisor.training.checkpoint import ResumeError, train_into
from advisor.training.recipe import read_recipe
from advisor.training.retrain import retrain
from tests.training import logs

ROOT = Path(__file__).resolve().parents[2]
RECIPE = {
    "name": "small", "iterations": 4, "meta_iterations": 1, "tasks": 4, "tasks_each": 2, "forks": 3, "horizon": 8,
    "steps": 2, "replay": 3, "validation": 3, "every": 2, "samples": 8,
    "mixture": {"jobs": 60, "types": [2, 3], "apps": [3, 4]},
}  # fmt: skip


class Ranks:
    """`advisor` as so many ranks on this machine, as srun would start them on many."""

    def __init__(self, count: int, *words: str, patience: float = 60.0) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "MASTER_"))}
        plain |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ADVISOR_RANK_PATIENCE": str(patience)}
        slurm = {"SLURM_NTASKS": str(count), "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": port}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "advisor", *words],
                env={**plain, **slurm, "SLURM_PROCID": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]

    def ended(self) -> list[tuple[int, str, str]]:
        """Exit code, output and errors of each."""
        found = []
        for process in self.processes:
            out, err = process.communicate(timeout=250)
            found.append((process.returncode, out, err))
        return found

    def lose(self, rank: int, how: signal.Signals, when: Path) -> None:
        """As soon as the file is there."""
        until = time.monotonic() + 200
        while not when.exists():
            assert all(process.poll() is None for process in self.processes), self.ended()
            assert time.monotonic() < until, f"{when} did not appear"
            time.sleep(0.01)
        self.processes[rank].send_signal(how)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.fixture(scope="module")
def by_one(recipe: Path) -> Path:
    """The folder of a training by one process."""
    train_into(recipe.parent / "one", read_recipe(recipe), None, False, "", lambda *_: None)
    return recipe.parent / "one"


def assert_alike(one: Path, other: Path) -> None:
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_killed_rank_ends_the_other_and_the_next_start_resumes_to_the_weights_of_one_process(
    recipe: Path, by_one: Path, tmp_path: Path
) -> None:
    words = ("train", str(recipe), "--json", "--resume", "--out", str(tmp_path))
    ranks = Ranks(2, *words)
    ranks.lose(1, signal.SIGKILL, tmp_path / "checkpoint.pt")
    (code, _, err), (killed, _, _) = ranks.ended()
    assert (code, killed) == (1, -signal.SIGKILL)
    assert "start again with --resume" in err and "Traceback" not in err
    assert not (tmp_path / "weights.safetensors").exists()
    with pytest.raises(ResumeError, match="made by 2 ranks"):
        train_into(tmp_path, read_recipe(recipe), None, True, "", lambda *_: None)
    again = Ranks(2, *words).ended()
    assert [each[0] for each in again] == [0, 0], again
    assert json.loads(again[0][1])["iterations"] == 5 and again[1][1:] == ("", ""), "only the first rank speaks"
    assert_alike(by_one / "weights.safetensors", tmp_path / "weights.safetensors")
    assert (tmp_path / "curve.svg").read_text() == (by_one / "curve.svg").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, a network to begin with, and settings that name both."""
    folder = tmp_path_factory.mktemp("site")
    logs.simulated(folder, jobs=220)
    write_model(folder / "base", zero_weights(), Card("base"))
    return folder


def config_in(folder: Path, site: Path) -> Path:
    folder.mkdir()
    database = folder / "advisor.db"
    database.write_bytes((site / "advisor.db").read_bytes())
    settings = {
        "paths": {"database": str(database)},
        "policy": {"name": "learned", "model": str(site / "base")},
        "gate": {"latency_ms": 1000},
    }
    config = folder / "advisor.yaml"
    config.write_text(yaml.safe_dump(settings))
    return config


def test_a_hanging_rank_is_noticed_and_the_next_start_resumes_to_the_version_of_one_process(
    site: Path, tmp_path: Path
) -> None:
    config = config_in(tmp_path / "two", site)
    models = tmp_path / "two" / "models"
    words = ("--config", str(config), "retrain", "--json", "--resume", "--seed", "4")
    ranks = Ranks(2, *words, patience=4)
    ranks.lose(1, signal.SIGSTOP, models / ".retrain" / "sources.done")
    out, err = ranks.processes[0].communicate(timeout=200)
    ranks.processes[1].kill()
    ranks.processes[1].communicate()
    assert ranks.processes[0].returncode == 1 and not out
    assert "rank 1 of 2 has not been heard of for 4 s" in err and "--resume" in err
    again = Ranks(2, *words).ended()
    assert [each[0] for each in again] == [0, 0], again
    assert "going on with" in again[0][2] and "copying" not in again[0][2]
    assert again[1][1:] == ("", ""), "one rank writes and speaks"
    two = json.loads(again[0][1])
    assert two["promoted"] and [path.name for path in models.glob("2*")] == [two["version"]]
    settings = load(config_in(tmp_path / "one", site)).settings
    one = retrain(settings, seed=4)
    assert one.simulated is not None and one.policy.after_s is not None
    assert two["simulated"]["gain"]["value"] == pytest.approx(one.simulated.gain.value)
    assert two["policy"]["after_s"] == pytest.approx(one.policy.after_s, rel=1e-6)
    assert_alike(Path(one.path) / "policy.safetensors", Path(two["path"]) / "policy.safetensors")


def test_a_retrain_that_is_refused_ends_every_rank(tmp_path: Path, site: Path) -> None:
    config = config_in(tmp_path / "empty", site)
    (tmp_path / "empty" / "advisor.db").write_bytes(b"")
    first, second = Ranks(2, "--config", str(config), "retrain").ended()
    assert first[0] == 1 and "advisor collect" in first[2] and "Traceback" not in first[2]
    assert second == (1, "", "")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("piles", [[5], [3, 3], [0, 4, 1], [2, 2, 2, 2]])
def test_everything_is_dealt_to_exactly_one_rank(monkeypatch, count: int, piles: list[int]) -> None:
    given: list[tuple[int, int]] = []
    for rank in range(count):
        monkeypatch.setattr(distributed, "world_rank", lambda rank=rank: (rank, count))
        dealt, busy = distributed.deal(piles)
        assert dealt, "a rank without work keeps in step with the others"
        if busy:
            given += [(pile, piece) for pile, part in dealt for piece in range(part.start, part.stop)]
    assert sorted(given) == [(pile, piece) for pile, size in enumerate(piles) for piece in range(size)]
