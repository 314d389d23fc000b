"""Rows for tests of the log."""

from advisor.store.decisions import DecisionRow
from advisor.store.outcomes import OutcomeRow


def decision(token="t1", **fields):
    given = {
        "decided_at": 1000.0,
        "cluster": "mini",
        "app": "resnet50",
        "mode": "enforce",
        "action": "rewrite",
        "eligible": True,
        "why": "v100 finishes first",
    }
    return DecisionRow(token=token, **(given | fields))


def outcome(db_index, job_id=1, **fields):
    given = {"cluster": "mini", "job": str(job_id), "end": 2000, "state": "COMPLETED", "submit": 1000}
    return OutcomeRow(db_index=str(db_index), job_id=job_id, **(given | fields))
