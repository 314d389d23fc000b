"""A decision as a row of the log: what the daemon writes, and what a simulated site writes to be learned from."""

from __future__ import annotations

import msgspec

from advisor.policy.interface import Decision
from advisor.protocol import PartitionLimits, SubmitRequest
from advisor.store.decisions import DecisionRow


def decision_row(request: SubmitRequest, decision: Decision, latency_us: float, cluster: str) -> DecisionRow:
    """The row of a decision and the submission that it was made for."""
    # The script's head stays out of the log, and of the partitions only the names are news: their limits are Slurm's.
    slim = msgspec.structs.replace(
        request,
        kind=0,
        row=1,
        script_head=None,
        partitions=[PartitionLimits(name=limits.name) for limits in request.partitions],
    )
    known = decision.snapshot_taken_at > 0
    return DecisionRow(
        token=decision.token,
        decided_at=decision.decided_at,
        cluster=cluster,
        app=decision.app,
        mode=decision.mode,
        action=decision.action,
        eligible=decision.eligible,
        why=decision.why,
        uid=request.uid,
        user=request.user,
        account=request.account or request.default_account,
        qos=request.qos or request.default_qos,
        name=request.name,
        partition=request.partition,
        request=slim,
        applied=decision.applied,
        holdout=decision.holdout,
        candidates=decision.candidates,
        predictions=decision.predictions,
        features=decision.features,
        chosen=decision.chosen if decision.candidates else None,
        preferred=decision.preferred if decision.candidates else None,
        probability=decision.probabilities[decision.chosen] if decision.probabilities else None,
        probabilities=decision.probabilities,
        policy=decision.policy,
        policy_version=decision.policy_version,
        message=decision.message,
        set_fields=decision.set,
        annotation=decision.annotation,
        annotation_error=decision.annotation_error,
        latency_us=latency_us,
        snapshot_age_s=max(0.0, decision.decided_at - decision.snapshot_taken_at) if known else None,
    )
