"""Which of several processes this is, by Slurm's environment; nothing heavy is imported to find out."""

from __future__ import annotations

import os

from advisor.cluster.hostlist import HostlistError, expand_hostlist


class RankLost(Exception):
    """Another rank is gone, or never came; the text says what to do."""


def slurm_rank() -> tuple[int, int]:
    """(This process's rank, how many there are)."""
    count = int(os.environ.get("SLURM_NTASKS", "1"))
    if count < 2 or "SLURM_PROCID" not in os.environ or not meeting_place():
        return 0, 1
    return int(os.environ["SLURM_PROCID"]), count


def meeting_place() -> str:
    """MASTER_ADDR, else the first node of the step: only `srun` names one, a batch script is not several processes."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", "")
    try:
        return os.environ.get("MASTER_ADDR") or (expand_hostlist(nodes)[0] if nodes else "")
    except HostlistError:
        return ""


def meeting_port() -> int:
    """MASTER_PORT, else one of the step's own, so that two jobs can meet on one node."""
    told = os.environ.get("MASTER_PORT")
    if told:
        return int(told)
    return 20_000 + (int(os.environ.get("SLURM_JOB_ID", "0")) * 7 + int(os.environ.get("SLURM_STEP_ID", "0"))) % 12_000
