"""The daemon's status in Prometheus' text format: names, types and help of every figure stand here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from advisor.server.status import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[dict[str, str], float]


def text(status: Status | None, effect: Mapping[str, float] | None = None) -> str:
    """All figures; where the daemon does not answer, that alone. `effect`: value, low and high of what is saved."""
    lines = _family("up", "gauge", "Whether the daemon answers.", [({}, float(status is not None))])
    if status is not None:
        for name, kind, said, samples in _families(status):
            lines += _family(name, kind, said, samples)
    if effect is not None:
        samples = [({"bound": bound}, value) for bound, value in effect.items()]
        lines += _family(
            "turnaround_gain_ratio",
            "gauge",
            "Share by which changed jobs finish sooner than the control group.",
            samples,
        )
    return "\n".join(lines) + "\n"


def _families(status: Status) -> Iterator[tuple[str, str, str, list[Sample]]]:
    counts, log, faults, snapshot = status.decisions, status.log, status.faults, status.snapshot
    about = {"version": status.version, "mode": status.mode, "policy": status.policy, "model": status.policy_version}
    yield "info", "gauge", "What serves; always 1.", [(about, 1.0)]
    yield "uptime_seconds", "gauge", "Since the daemon started.", [({}, status.uptime_s)]
    yield "problems", "gauge", "What is not well, as `advisor status` tells it.", [({}, float(len(status.problems())))]
    yield "submissions_total", "counter", "Submissions that were answered.", [({}, float(counts.submissions))]
    outcomes = {
        "rewritten": counts.rewritten,
        "kept": counts.kept,
        "held_out": counts.holdout,
    }
    told = [({"outcome": name}, float(count)) for name, count in outcomes.items()]
    yield "decisions_total", "counter", "Answers by what became of the job; held_out is among kept.", told
    yield "eligible_total", "counter", "Submissions that could have gone elsewhere.", [({}, float(counts.eligible))]
    reasons = [({"reason": reason}, float(count)) for reason, count in sorted(counts.reasons.items())]
    yield "reasons_total", "counter", "Answers by reason.", reasons
    quantiles = {"0.5": status.latency.p50_us, "0.99": status.latency.p99_us, "1": status.latency.max_us}
    yield (
        "answer_seconds",
        "gauge",
        "How long answers took in the daemon since it started, by quantile.",
        [({"quantile": quantile}, micro * 1e-6) for quantile, micro in quantiles.items()],
    )
    if snapshot.age_s is not None:
        yield "snapshot_age_seconds", "gauge", "Age of what is known of the cluster.", [({}, snapshot.age_s)]
    usable = float(snapshot.usable)
    yield "snapshot_usable", "gauge", "Whether it is young enough to advise on.", [({}, usable)]
    jobs = [({"state": "queued"}, float(snapshot.queued)), ({"state": "running"}, float(snapshot.running))]
    yield "jobs", "gauge", "Jobs of the cluster at the last poll.", jobs
    for name, count, said in (
        ("log_written_total", log.written, "Decisions written to the log."),
        ("log_dropped_total", log.dropped, "Decisions dropped because the log's buffer was full."),
        ("log_lost_total", log.lost, "Decisions seen on jobs that never reached the log."),
        ("collector_restarts_total", status.collector.restarts, "Restarts of the process that asks Slurm."),
        ("rounds_total", status.rounds.rounds, "Looks at the pending jobs."),
    ):
        yield name, "counter", said, [({}, float(count))]
    yield "log_buffered", "gauge", "Decisions that wait to be written.", [({}, float(log.buffered))]
    wrong = {
        "refused peer": faults.refused_peers,
        "bad request": faults.bad_requests,
        "other version": faults.other_versions,
        "error": faults.errors,
    }
    yield "faults_total", "counter", "What was refused or failed.", [({"kind": k}, float(n)) for k, n in wrong.items()]
    moved = [
        ({"lever": lever, "outcome": outcome}, float(count))
        for lever, found in sorted(status.rounds.outcomes.items())
        for outcome, count in sorted(found.items())
    ]
    yield "moves_total", "counter", "Pending jobs changed by rounds, by lever and outcome.", moved
    memory = (status.rss_mb + status.collector.rss_mb) * 1e6
    yield "memory_bytes", "gauge", "Resident memory of the daemon and its collector.", [({}, memory)]
    yield "holdout_ratio", "gauge", "Share of eligible jobs left alone as the control group.", [({}, status.holdout)]


def _family(name: str, kind: str, said: str, samples: list[Sample]) -> list[str]:
    if not samples:
        return []
    whole = f"slurm_advisor_{name}"
    lines = [f"# HELP {whole} {said}", f"# TYPE {whole} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(told)}"' for label, told in labels.items())
        lines.append(f"{whole}{f'{{{inside}}}' if inside else ''} {value:.10g}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
