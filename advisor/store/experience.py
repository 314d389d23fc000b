"""Each decision with what became of its job, as off-policy evaluation, reports and drift detection read it. Only reads.

A job array is one decision: its wait, run time and turnaround are means over its tasks. A job that was requeued counts
from its first submission to its last end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from advisor.store.database import Database, explained

# Hosts' clocks differ a little; a decision and its job's submission are further apart only where one of them jumped.
CLOCK_S = 3600.0

_SQL = """
WITH ends AS (
    SELECT token, count(*) AS records, count(DISTINCT job_id) AS tasks, min(submit) AS submit, min(start) AS start,
           max(end) AS end, avg(start - max(submit, coalesce(eligible, submit))) AS wait, avg(elapsed) AS run,
           avg(end - submit) AS turnaround, sum(gpus * elapsed) AS gpu_s, max(gpus) AS gpus,
           sum(cpus * elapsed) AS cpu_s,
           min(cluster) AS cluster, max(partition) AS partition, max(processor) AS processor, max(account) AS account,
           sum(state = 'COMPLETED') AS completed, sum(state = 'TIMEOUT') AS timed_out,
           sum(state IN ('REQUEUED', 'PREEMPTED', 'NODE_FAIL')) AS sent_back,
           sum(start IS NULL) AS never_started,
           sum(coalesce(start < submit - 1, 0) + coalesce(end < start, 0) + coalesce(end < submit - 1, 0)) AS backwards
    FROM outcomes WHERE token IS NOT NULL GROUP BY token
)
SELECT d.token, d.decided_at, d.cluster, d.user, coalesce(d.account, e.account), d.app, d.mode, d.eligible, d.applied,
       d.holdout, d.chosen, d.preferred, d.probability, d.probabilities, d.predictions, d.candidates, d.annotation,
       d.features, d.policy, d.policy_version, d.latency_us, d.partition,
       EXISTS (SELECT 1 FROM moved AS m WHERE m.token = d.token),
       e.records, e.tasks, e.submit, e.start, e.end, e.wait, e.run, e.turnaround, e.gpu_s, e.gpus, e.cpu_s,
       e.cluster, e.partition, e.processor, e.completed, e.timed_out,
       e.sent_back, e.never_started, e.backwards
FROM decisions AS d LEFT JOIN ends AS e ON e.token = d.token
WHERE d.decided_at > ? AND d.decided_at <= ? AND (? OR d.eligible)
ORDER BY d.decided_at, d.token
"""


class Predicted(msgspec.Struct, frozen=True):
    """What a decision expected of one candidate; the fields of it that are read again."""

    wait_s: float
    run_s: float
    score: float = 0.0
    slowdown: float = 1.0
    processor: str = ""
    pool: int | None = None
    queue_wait_s: float | None = None
    sd_log: float = 0.0


class Place(msgspec.Struct, frozen=True):
    """A candidate as far as it is read again."""

    name: str
    partition: str | None = None
    gpu_type: str | None = None


_predictions = msgspec.json.Decoder(list[Predicted])
_places = msgspec.json.Decoder(list[Place])
_floats = msgspec.json.Decoder(list[float])


class Ended(NamedTuple):
    """How the job (or all tasks of the array) of a decision went; times in seconds."""

    records: int
    tasks: int
    submit: int | None
    start: int | None
    end: int
    wait: float | None
    run: float
    turnaround: float | None
    gpu_s: float
    gpus: int
    cpu_s: float | None
    cluster: str
    partition: str | None
    processor: str
    completed: int
    timed_out: int
    sent_back: int
    never_started: int
    backwards: int


class Experience(NamedTuple):
    """One decision, and how it ended; `ended` is None while that is not known."""

    token: str
    decided_at: float
    cluster: str
    user: str | None
    account: str | None
    app: str
    mode: str
    eligible: bool
    applied: bool
    holdout: bool
    chosen: int | None
    preferred: int | None
    probability: float | None
    probabilities_text: str
    predictions_text: str
    candidates_text: str
    annotation: str | None
    features: str
    policy: str | None
    policy_version: str | None
    latency_us: float | None
    partition: str | None  # as the user asked; None: the default one
    moved: bool  # a round did something to it after its submission: what was expected of the wait then says nothing
    ended: Ended | None

    def probabilities(self) -> list[float]:
        """Of choosing each candidate; raises `msgspec.DecodeError`."""
        return _floats.decode(self.probabilities_text)

    def predictions(self) -> list[Predicted]:
        """Of each candidate; raises `msgspec.DecodeError`."""
        return _predictions.decode(self.predictions_text)

    def candidates(self) -> list[Place]:
        """Where it could have gone; raises `msgspec.DecodeError`."""
        return _places.decode(self.candidates_text)


def experiences(
    db: Database, after: float = 0.0, until: float = float("inf"), everything: bool = False
) -> Iterator[Experience]:
    """Decisions made after `after` and no later than `until`, oldest first; raises `StoreError`.

    Only those with something to decide, unless `everything` is wanted.
    """
    with explained(db.path):
        found = db.connection.cursor()
        found.row_factory = None
        found.execute(_SQL, (after, min(until, 1e18), everything))
        while rows := found.fetchmany(2000):
            for row in rows:
                yield _made(row)


def _made(row: tuple[Any, ...]) -> Experience:
    ended = None if row[23] is None else Ended(*row[23:])
    return Experience._make((*row[:7], *map(bool, row[7:10]), *row[10:22], bool(row[22]), ended))
