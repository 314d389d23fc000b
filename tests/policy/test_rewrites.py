"""Golden record: for every spelling of every release, exactly the fields that a rewrite sets."""

from pathlib import Path

from tests.policy.site import BUSY, advise, runs, snapshot, submission

GOLDEN = Path(__file__).parent / "golden" / "rewrites.txt"

SPELLINGS = [
    ("22.05", "--gres=gpu:1", "tres_per_node", "gres:gpu:1"),
    ("22.05", "--gres=gpu", "tres_per_node", "gres:gpu"),
    ("22.05", "--gpus-per-node=2", "tres_per_node", "gres:gpu:2"),
    ("22.05", "--gpus=2", "tres_per_job", "gres:gpu:2"),
    ("22.05", "--gpus-per-task=1", "tres_per_task", "gres:gpu:1"),
    ("22.05", "--gpus-per-socket=1", "tres_per_socket", "gres:gpu:1"),
    ("24.11", "--gres=gpu:1", "tres_per_node", "gres/gpu:1"),
    ("24.11", "--gpus-per-node=2", "tres_per_node", "gres/gpu:2"),
    ("24.11", "--gpus=2", "tres_per_job", "gres/gpu:2"),
    ("24.11", "--gpus-per-task=1", "tres_per_task", "gres/gpu=1"),
    ("24.11", "--tres-per-task=cpu:2,gres/gpu:1", "tres_per_task", "cpu=2,gres/gpu=1"),
    ("24.11", "--gpus-per-socket=1", "tres_per_socket", "gres/gpu:1"),
    ("24.11", "--gres=gpu:1,shard:1", "tres_per_node", "gres/gpu:1,gres/shard:1"),
]


def rewrites() -> str:
    lines = []
    # Slurm would take the k80s first, on which the job is slow; p2 has both its p100s free.
    snap = snapshot(*BUSY[:2], history={"train": {"v100": runs(100), "p100": runs(120), "k80": runs(590)}})
    for release, option, field, value in SPELLINGS:
        fields = {"tres_per_node": None, field: value, "time_limit": 10}
        for partition in ("short", "v100,short"):
            decision = advise(submission(partition=partition, **fields), snap)
            result = ", ".join(f"{key}={text}" for key, text in decision.set.items()) or f"keep ({decision.why})"
            lines.append(f"{release}  -p {partition} {option}  {field}={value}  →  {result}")
    return "\n".join(lines) + "\n"


def test_a_rewrite_keeps_the_spelling_of_the_release():
    assert rewrites() == GOLDEN.read_text(encoding="utf-8")
