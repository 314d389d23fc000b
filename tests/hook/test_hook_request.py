"""The exact request for real-looking submissions, as golden files, readable by the daemon's own types.

To write them anew after a change that was meant: `ADVISOR_UPDATE_GOLDEN=1 pytest tests/hook/test_hook_request.py`,
then read the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hook_ends import Daemon, Slurmctld

from advisor.protocol import SubmitRequest

GOLDEN = Path(__file__).with_name("golden")
NO_VAL16, NO_VAL, INFINITE = 0xFFFE, 0xFFFFFFFE, 0xFFFFFFFF
NO_VAL64, INFINITE64 = float(2**64), float(2**64)  # as doubles they are one number

SCRIPT = """\
#!/bin/bash
#SBATCH --gres=gpu:1 --time=04:00:00

#ADVISOR app: resnet50
#ADVISOR kernels:
#ADVISOR   train: {on: [gpu, cpu], work: 8.0e15, memory: 12G}
export SECRET=hunter2
python train.py
"""

# As part_record_t holds them, limits given and not given.
PARTITIONS: dict[str, dict[str, Any]] = {
    "cpu": {
        "flag_default": 1, "state_up": 3, "max_time": INFINITE, "default_time": NO_VAL, "min_nodes": 0,
        "max_nodes": INFINITE, "max_cpus_per_node": INFINITE, "max_mem_per_node": 0, "priority_tier": 1,
    },
    "gpu": {
        "flag_default": 0, "state_up": 3, "max_time": 2880, "default_time": 60, "min_nodes": 1, "max_nodes": 4,
        "max_cpus_per_node": 32, "max_mem_per_cpu": 4096, "allow_accounts": "physics,chemistry", "deny_qos": "long",
        "priority_tier": 10,
    },
    "drained": {
        "flag_default": 0, "state_up": 2, "max_time": 60, "default_time": NO_VAL, "min_nodes": 1,
        "max_nodes": INFINITE, "max_mem_per_node": 64000, "deny_accounts": "guests", "allow_qos": "normal",
    },
    "down": {"flag_default": 0, "state_up": 1, "max_mem_per_node": NO_VAL64, "max_mem_per_cpu": INFINITE64},
}  # fmt: skip

SUBMISSIONS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "sbatch_plain": (
        {
            "user_id": 1001, "user_name": "alice", "default_account": "physics", "default_qos": "normal",
            "name": "wrap", "min_cpus": 1, "num_tasks": NO_VAL, "script": "#!/bin/sh\nhostname\n",
        },
        {"PATH": "/usr/bin", "ADVISOR_HOME": "/x"},
    ),
    "sbatch_annotated_gpu": (
        {
            "user_id": 1001, "user_name": "alice", "account": "chemistry", "qos": "high", "name": "train",
            "tres_per_node": "gres/gpu:1", "cpus_per_tres": "gres/gpu:8", "mem_per_tres": "gres/gpu:16384",
            "time_limit": 240, "time_min": 60, "min_cpus": 8, "cpus_per_task": 4, "num_tasks": 2,
            "ntasks_per_node": 2, "ntasks_per_tres": 2, "min_nodes": 1, "max_nodes": 1, "min_mem_per_node": 32768,
            "script": SCRIPT, "comment": "for the paper", "extra": "site=1",
        },
        {"ADVISOR": "on", "ADVISOR_APP": "resnet", "ADVISOR_DFG": "app: other", "SECRET": "hunter2"},
    ),
    "sbatch_array_everything_fixed": (
        {
            "user_id": 1002, "user_name": "bob", "partition": "gpu,cpu", "tres_per_job": "gres/gpu:v100:4",
            "tres_per_task": "gres/gpu:v100:1", "tres_per_socket": "gres/gpu:v100:2", "features": "skylake&ib",
            "prefer": "nvme", "licenses": "matlab:1", "reservation": "maint", "req_nodes": "n[1-4]",
            "exc_nodes": "n9", "clusters": "east", "array_inx": "0-99%4", "dependency": "afterok:17",
            "begin_time": 1767225600, "shared": 0, "min_mem_per_cpu": 2048, "script": "#!/bin/sh\n",
        },
        {},
    ),
    "srun_in_het_job": (
        {"user_id": 1001, "user_name": "alice", "het_job_offset": 1, "shared": 2, "name": "bash"},
        {},
    ),
    "no_limit_asked_for": (
        {
            "user_id": 1001, "time_limit": INFINITE, "max_nodes": INFINITE, "min_mem_per_node": 0,
            "cpus_per_task": NO_VAL16,
        },
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_the_request_is_exactly_the_golden_one(daemon: Daemon, slurmctld: Slurmctld, name: str) -> None:
    fields, environment = SUBMISSIONS[name]
    slurmctld.submit(fields, environment, PARTITIONS, uid=0)
    request = daemon.last_request
    request["partitions"].sort(key=lambda limits: limits["name"])  # a Lua table has no order
    golden = GOLDEN / f"{name}.json"
    text = json.dumps(request, indent=1, sort_keys=True) + "\n"
    if os.environ.get("ADVISOR_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert "hunter2" not in text


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_the_daemon_reads_every_field_of_the_request(daemon: Daemon, slurmctld: Slurmctld, name: str) -> None:
    fields, environment = SUBMISSIONS[name]
    slurmctld.submit(fields, environment, PARTITIONS, uid=0)
    request = msgspec.json.decode(daemon.requests[-1], type=SubmitRequest)
    # Nothing was sent that the types do not know, and nothing was lost.
    known = msgspec.to_builtins(request)
    sent = daemon.last_request
    assert set(sent) <= {field.name for field in msgspec.structs.fields(SubmitRequest)}
    assert all(sent[field] == value for field, value in known.items() if field != "partitions")
    assert {limits.name for limits in request.partitions} == set(PARTITIONS)
