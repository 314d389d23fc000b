"""Stands in for scontrol behind `slurm.command`: shows and updates jobs that are kept in a JSON file.

    python fake_scontrol.py STATE.json env … scontrol -o show job 7
    python fake_scontrol.py STATE.json env … scontrol update JobId=7 Partition=new

A job may have `_refuses` (a field that is refused, the ones before it are taken; `_refuses_once`: the first time),
`_lies` (says yes, does nothing) or `_starts` (runs as soon as it is looked at once). The file's `_hangs` makes every
command hang, `_down` makes it fail.
"""

import json
import sys
import time
from pathlib import Path

ORDER = ("UserId", "GroupId", "MCS_label", "Priority", "Nice", "Account", "QOS", "JobState", "Reason", "Partition")


def main(path, words):
    state = json.loads(path.read_text())
    words = words[words.index("scontrol") + 1 :]
    state.setdefault("_asked", []).append(words)
    if state.get("_hangs"):
        time.sleep(60)
    try:
        if state.get("_down"):
            sys.exit("slurm_update error: Unable to contact slurm controller (connect failure)")
        if "update" in words:
            update(state, dict(word.split("=", 1) for word in words[1:]))
        elif words[0] in ("requeue", "release"):
            job = state["jobs"][words[1]]
            if words[0] == "requeue":
                job |= {"JobState": "PENDING", "Reason": "BeginTime"}
        else:
            show(state, words[-1])
    finally:
        path.write_text(json.dumps(state))


def show(state, number):
    job = state["jobs"].get(number)
    if job is None:
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    fields = {
        "UserId": "alice(1000)",
        "GroupId": "alice(1000)",
        "MCS_label": "N/A",
        "Priority": "10",
        "Nice": "0",
        "Account": "physics",
        "QOS": "normal",
        "JobState": "PENDING",
        "Reason": "Resources",
        **job,
    }
    middle = " ".join(f"{key}={fields[key]}" for key in ORDER)
    rest = " ".join(f"{key}={fields[key]}" for key in ("Requeue", "Reservation", "ReqNodeList") if key in fields)
    tail = " ".join(f"{key}={value}" for key, value in fields.items() if key.startswith("TresPer"))
    het = "HetJobId=7 HetJobOffset=0 " if job.get("_het") else ""
    print(f"JobId={number} {het}JobName=train {middle} {rest} Command=/x WorkDir=/y AdminComment=z {tail} ")
    if job.get("_starts"):
        job["JobState"] = "RUNNING"


def update(state, fields):
    job = state["jobs"][fields.pop("JobId")]
    if job.get("JobState", "PENDING") != "PENDING":
        sys.exit("Job is no longer pending execution for job 7")
    if job.get("_lies"):
        return
    for name, value in fields.items():
        if name in (job.get("_refuses"), job.pop("_refuses_once", None) if name != "Partition" else None):
            sys.exit("Invalid Trackable RESource (TRES) specification for job 7")
        job[name] = value


main(Path(sys.argv[1]), sys.argv[2:])
