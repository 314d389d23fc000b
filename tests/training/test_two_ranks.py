"""Two processes with Slurm's environment train as one would on the same data, and a dead one ends the other cleanly."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The same 64 rows for everybody; each rank looks at its share of them.
PROGRAM = """
import json, os, sys
import torch
from advisor.training.distributed import average_gradients, join, world_rank
torch.set_num_threads(1)
rank, world = world_rank()
join()
torch.manual_seed(3)
network, rows = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)), torch.randn(64, 4)
wanted = rows.sum(dim=1, keepdim=True).sin()
adam = torch.optim.Adam(network.parameters(), lr=0.02)
for step in range(20):
    if len(sys.argv) > 1 and step == 5 and rank == 1:
        os._exit(9)
    mine = slice(rank, None, world)
    adam.zero_grad()
    ((network(rows[mine]) - wanted[mine]) ** 2).mean().backward()
    average_gradients(network)
    adam.step()
print(json.dumps([p.flatten().tolist() for p in network.parameters()]))
"""


def ranks(count: int, *words: str, by_node_list: bool = False) -> list[subprocess.CompletedProcess[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "MASTER_"))}
    where = {"SLURM_STEP_NODELIST": "localhost"} if by_node_list else {"MASTER_ADDR": "127.0.0.1"}
    started = []
    for rank in range(count):
        slurm = {"SLURM_NTASKS": str(count), "SLURM_PROCID": str(rank), "MASTER_PORT": port, **where}
        env = {**plain, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **slurm}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *words],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    done = []
    for process in started:
        out, err = process.communicate(timeout=250)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


def test_two_ranks_end_with_the_weights_of_one_on_the_same_data() -> None:
    (alone,) = ranks(1)
    both = ranks(2, by_node_list=True)
    assert [each.returncode for each in (alone, *both)] == [0, 0, 0], [each.stderr[-500:] for each in both]
    one, first, second = (json.loads(each.stdout) for each in (alone, *both))
    assert first == second
    for a, b in zip(one, first, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


def test_a_rank_that_dies_ends_the_other_with_an_error() -> None:
    survivor, dead = ranks(2, "die")
    assert dead.returncode == 9
    assert survivor.returncode not in (0, 9) and not survivor.stdout
