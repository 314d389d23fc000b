"""Runs the jobs of the comparison on a mini-cluster: one process inside it submits each with sbatch at its time."""

from __future__ import annotations

import subprocess
from typing import Protocol

import msgspec

from advisor.sim.truth.log import Log, Record, read_log
from advisor.sim.truth.workload import sbatch_options
from advisor.sim.workload import ANY, SimJob, Workload

LOG = "/var/log/slurm/slurmctld.log"

# Reads `milliseconds;name;seconds;names it waits for;options` and prints `name job-id` for each.
SUBMIT = r"""
declare -A ids
began=${EPOCHREALTIME/./}
while IFS=';' read -r at name seconds after options; do
    left=$((began + at * 1000 - ${EPOCHREALTIME/./}))
    if ((left > 0)); then sleep "$(printf '%d.%06d' $((left / 1000000)) $((left % 1000000)))"; fi
    depend=
    for other in ${after//,/ }; do depend+=:${ids[$other]}; done
    ids[$name]=$(sbatch --parsable -o /dev/null ${depend:+--dependency=afterany$depend} $options \
        --wrap "exec sleep $seconds" < /dev/null) || exit 1
    echo "$name ${ids[$name]}"
done
while [ -n "$(squeue -h -o %i)" ]; do sleep 0.5; done
"""


class MiniCluster(Protocol):
    """Where commands can be run: `advisor.demo.stage.Stage`, or what a test has."""

    def run(self, *words: str, user: str = "root", stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command inside the cluster."""


class DriveError(Exception):
    """The real run cannot be used; the text says why."""


class Ran(msgspec.Struct, frozen=True):
    """A real run: one record for each job of the workload, in its order."""

    records: tuple[Record, ...]
    log: Log


def drive(cluster: MiniCluster, workload: Workload) -> Ran:
    """Runs the workload on an idle cluster to its end; takes as long as it takes."""
    _run(cluster, "scontrol", "setdebug", "debug2")
    try:
        begin = int(_run(cluster, "stat", "-c", "%s", LOG))
        told = _run(cluster, "bash", "-c", SUBMIT, user="alice", stdin="".join(map(_line, workload.jobs)))
        text = _run(cluster, "tail", "-c", f"+{begin + 1}", LOG)
    finally:
        cluster.run("scontrol", "setdebug", "info")
    ids = dict(line.split() for line in told.splitlines())
    log = read_log(text.splitlines())
    records: list[Record] = []
    for job in workload.jobs:
        record = log.jobs.get(int(ids[job.id]))
        if record is None or not record.complete:
            raise DriveError(f"slurmctld's log does not tell all of job {ids[job.id]} (number {job.id}): {record}")
        records.append(record)
    return Ran(tuple(records), log)


def _line(job: SimJob) -> str:
    words = " ".join(sbatch_options(job))
    return f"{job.submit * 1000:.0f};{job.id};{job.run_time[ANY]:g};{','.join(job.depends)};{words}\n"


def _run(cluster: MiniCluster, *words: str, user: str = "root", stdin: str = "") -> str:
    done = cluster.run(*words, user=user, stdin=stdin)
    if done.returncode:
        raise DriveError(
            f"{' '.join(words[:2])} failed in the mini-cluster: {done.stderr.strip() or done.stdout[-200:]}"
        )
    return done.stdout
