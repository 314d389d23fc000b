"""The one line a user is told at submission: what was changed, or could be, and what is expected of it."""

from __future__ import annotations

from advisor.policy.interface import Candidate, Prediction
from advisor.policy.words import duration
from advisor.protocol import SubmitRequest

_OPTION = {
    "tres_per_node": "--gres",
    "tres_per_job": "--gpus",
    "tres_per_task": "--gpus-per-task",
    "tres_per_socket": "--gpus-per-socket",
}


def rewritten(request: SubmitRequest, candidate: Candidate, best: Prediction, keep: Prediction) -> str:
    """What was changed, and what is expected of it."""
    changes = []
    for field, value in candidate.set.items():
        if field == "partition":
            changes.append(f"partition {request.partition or '(default)'} -> {value}")
        else:
            changes.append(value)
    return f"slurm-advisor: {', '.join(changes)} {_expected(best, keep)}. '#ADVISOR off' leaves your jobs alone."


def suggested(request: SubmitRequest, candidate: Candidate, best: Prediction, keep: Prediction) -> str:
    """What the user could have written instead."""
    options = []
    for field, value in candidate.set.items():
        if field == "partition":
            options.append(f"-p {value}")
        else:
            options.append(f"{_OPTION[field]}={_as_typed(field, value)}")
    return f"slurm-advisor: you could use {' '.join(options)} {_expected(best, keep)}; nothing was changed."


def _expected(best: Prediction, keep: Prediction) -> str:
    """`(expected start in 2 min, run 50 min; was: 3 h, 50 min)`."""
    start = "now" if best.wait_s < 1 else f"in {duration(best.wait_s)}"
    before = "now" if keep.wait_s < 1 else f"in {duration(keep.wait_s)}"
    run, kept = duration(best.run_s * best.slowdown), duration(keep.run_s * keep.slowdown)
    return f"(expected start {start}, run {run}; was: start {before}, run {kept})"


def _as_typed(field: str, value: str) -> str:
    """The value as on a command line: `gres/gpu:v100:1` is `gpu:v100:1` of --gres and `v100:1` of --gpus."""
    entries = []
    for entry in value.split(","):
        entry = entry.removeprefix("gres:").removeprefix("gres/").replace("=", ":")
        if field != "tres_per_node" and entry.startswith("gpu:"):
            entry = entry.removeprefix("gpu:")
        entries.append(entry)
    return ",".join(entries)
