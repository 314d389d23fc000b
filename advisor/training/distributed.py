"""Several processes train one network: under `srun`, ranks come from Slurm's environment, gradients are averaged.

With one process nothing of torch.distributed is touched. Every rank plays tasks of its own, so more ranks mean more
tasks in an iteration; all end with the same weights.
"""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import nn

from advisor.cluster.hostlist import HostlistError, expand_hostlist


@cache
def world_rank() -> tuple[int, int]:
    """(This process's rank, how many there are)."""
    count = int(os.environ.get("SLURM_NTASKS", "1"))
    if count < 2 or "SLURM_PROCID" not in os.environ or not _meeting_place():
        return 0, 1
    return int(os.environ["SLURM_PROCID"]), count


def _meeting_place() -> str:
    """MASTER_ADDR, else the first node of the step: only `srun` names one, a batch script is not several processes."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", "")
    try:
        return os.environ.get("MASTER_ADDR") or (expand_hostlist(nodes)[0] if nodes else "")
    except HostlistError:
        return ""


def join() -> None:
    """Meets the other ranks at MASTER_ADDR:MASTER_PORT, over gloo; alone, does nothing.

    A rank that dies ends the others with an error at their next exchange; the next start resumes from the checkpoint.
    """
    rank, count = world_rank()
    if count > 1 and not torch.distributed.is_initialized():
        os.environ.setdefault("MASTER_ADDR", _meeting_place())
        os.environ.setdefault("MASTER_PORT", "29511")
        torch.distributed.init_process_group("gloo", rank=rank, world_size=count)


def average_gradients(network: nn.Module) -> None:
    """The mean over all ranks in place of each rank's own gradient."""
    _, count = world_rank()
    if count == 1:
        return
    for parameter in network.parameters():
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= count
