"""The cluster as pyslurm tells it: the same facts without starting a process for each question.

pyslurm is bound to one release of Slurm, blocks for a minute on import where there is no slurm.conf, and ends the
whole process when libslurm gives up. So before it is imported here, its version is compared with Slurm's and a child
process tries it. Written against pyslurm 22.5, 24.11 and 25.11, whose interfaces differ in where TRES are found.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor.cluster.facts import (
    Requests,
    holds_resources,
    hosts,
    job_gres,
    job_states,
    memory_in_all,
    names,
    node_states,
    oversubscription,
)
from advisor.cluster.gres import Tres, merge, parse_gres, parse_tres
from advisor.cluster.hostlist import count_tasks
from advisor.cluster.types import ClusterState, Gres, Job, Node, Partition, SourceError

_SLURM_CONF = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",  # configless
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
)
_TRIAL = "import pyslurm; pyslurm.Partitions.load()"


class PyslurmSource:
    """Reads the cluster through pyslurm; raises `SourceError` at once where that cannot work, and says why."""

    name = "pyslurm"

    def __init__(self, slurm_release: tuple[int, int], timeout_s: float = 20.0) -> None:
        self._release = slurm_release
        check_usable(slurm_release, timeout_s)
        self._pyslurm: Any = importlib.import_module("pyslurm")

    def read(self) -> ClusterState:
        """One complete reading; raises `SourceError`."""
        pyslurm = self._pyslurm
        taken_at = time.time()
        try:
            nodes = tuple(_node(node) for node in pyslurm.Nodes.load().values())
            partitions = tuple(_partition(part) for part in pyslurm.Partitions.load().values())
            jobs = _jobs(pyslurm)
            cluster = str(pyslurm.slurmctld.Config.load().cluster or "")
        except pyslurm.PyslurmError as error:
            raise SourceError(f"pyslurm: {error}. Is slurmctld running and reachable (scontrol ping)?") from None
        return ClusterState(
            cluster=cluster,
            release=self._release,
            taken_at=taken_at,
            nodes=nodes,
            partitions=partitions,
            jobs=jobs,
        )


def check_usable(slurm_release: tuple[int, int], timeout_s: float = 20.0) -> None:
    """Raise `SourceError` unless pyslurm is installed, matches Slurm, and works; imports nothing of it here."""
    try:
        version = importlib.metadata.version("pyslurm")
    except importlib.metadata.PackageNotFoundError:
        raise SourceError("pyslurm is not installed") from None
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()) or (int(major), int(minor)) != slurm_release:
        raise SourceError(
            f"pyslurm {version} is not made for Slurm {slurm_release[0]}.{slurm_release[1]:02d}; the first two numbers "
            "must be the same"
        )
    given = os.environ.get("SLURM_CONF")
    if not any(Path(path).is_file() for path in ((given,) if given else _SLURM_CONF)):
        raise SourceError("pyslurm needs a slurm.conf on this host and none was found; SLURM_CONF can name it")
    try:
        trial = subprocess.run(
            (sys.executable, "-c", _TRIAL),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"pyslurm did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise SourceError(f"pyslurm could not be tried: {error}") from None
    if trial.returncode:
        said = trial.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SourceError(f"pyslurm does not work here: {said[-1][:300] if said else trial.returncode}")


def _node(node: Any) -> Node:
    # 22.5 has no TRES of nodes, but {"gpu:v100": 1}.
    used = _tres(node.allocated_tres).gres if hasattr(node, "allocated_tres") else _gres(node.allocated_gres)
    return Node(
        name=node.name,
        states=node_states(str(node.state or "").split("+")),
        cpus=node.effective_cpus or node.total_cpus or 0,
        memory_mb=max((node.real_memory or 0) - (node.memory_reserved_for_system or 0), 0),
        gres=_gres(node.configured_gres),
        features=tuple(node.active_features or ()),
        partitions=tuple(node.partitions or ()),
        cpus_allocated=node.allocated_cpus or 0,
        memory_allocated_mb=node.allocated_memory or 0,
        gres_allocated=used,
        sockets=node.sockets or 1,
        weight=node.weight or 0,
    )


def _partition(part: Any) -> Partition:
    exclusive, oversubscribe = oversubscription(part.oversubscribe or "NO")
    return Partition(
        name=part.name,
        nodes=hosts(part.nodes, f"nodes of partition {part.name}"),
        up=part.state == "UP",
        default=bool(part.is_default),
        max_time=_limit(part.max_time),
        default_time=_limit(part.default_time),
        min_nodes=_limit(part.min_nodes) or None,
        max_nodes=_limit(part.max_nodes),
        max_cpus_per_node=_limit(part.max_cpus_per_node),
        max_mem_per_node=_limit(part.max_memory_per_node),
        max_mem_per_cpu=_limit(part.max_memory_per_cpu),
        def_mem_per_node=_limit(part.default_memory_per_node),
        def_mem_per_cpu=_limit(part.default_memory_per_cpu),
        allow_accounts=_listed(part.allowed_accounts),
        deny_accounts=_listed(part.denied_accounts) or (),
        allow_groups=_listed(part.allowed_groups),
        allow_qos=_listed(part.allowed_qos),
        deny_qos=_listed(part.denied_qos) or (),
        priority_tier=part.priority_tier or 0,
        exclusive=exclusive,
        oversubscribe=oversubscribe,
    )


def _jobs(pyslurm: Any) -> tuple[Job, ...]:
    # Before 25.11 only the older interface tells a job's TRES; it is one more question to slurmctld.
    plain: Mapping[int, Mapping[str, Any]] = {} if hasattr(pyslurm.Job, "requested_tres") else pyslurm.job().get()
    found = (_job(job, plain.get(job.id, {})) for job in pyslurm.Jobs.load(preload_passwd_info=True).values())
    return tuple(job for job in found if job is not None)


def _job(job: Any, plain: Mapping[str, Any]) -> Job | None:
    states = job_states((str(job.state or ""),))
    if states is None:
        return None
    running = holds_resources(states)
    if plain:
        tres = parse_tres((plain.get("tres_alloc_str") if running else None) or plain.get("tres_req_str"))
        requests = Requests(
            plain.get("tres_per_job"),
            plain.get("tres_per_node"),
            plain.get("tres_per_socket"),
            plain.get("tres_per_task"),
        )
    else:
        tres = _tres(
            (getattr(job, "allocated_tres", None) if running else None) or getattr(job, "requested_tres", None)
        )
        requests = Requests(None, _spelled(job.gres_per_node), None, None)
    node_names = hosts(job.allocated_nodes, f"nodes of job {job.id}") if running else ()
    node_count = len(node_names) or tres.nodes or job.num_nodes or 1
    cpus = tres.cpus or job.cpus or 1
    task_list = job.array_tasks_waiting or None
    throttle = job.array_tasks_parallel
    task = job.array_task_id
    reason = str(job.state_reason or "")
    return Job(
        job_id=job.id,
        states=states,
        name=job.name or "",
        user=job.user_name or "",
        account=job.account or "",
        qos=job.qos or "",
        partitions=names(job.partition),
        reason="" if reason == "None" else reason.replace(" ", "_"),
        priority=job.priority or 0,
        submit_time=job.submit_time or 0,
        eligible_time=job.eligible_time or 0,
        start_time=(job.start_time or None) if running else None,
        time_limit=_limit(job.time_limit),
        nodes=node_names,
        node_count=node_count,
        cpus=cpus,
        memory_mb=memory_in_all(tres, job.memory_per_node, job.memory_per_cpu, node_count, cpus),
        gres=job_gres(
            _held(job) if running else (), tres, requests.total(node_count, job.sockets_per_node or 1, job.ntasks or 1)
        ),
        features=",".join(job.constraints or ()),
        dependency=plain["dependency"] or "" if "dependency" in plain else _dependency(job.dependencies),
        exclusive=job.resource_sharing == "NO",
        array_job_id=job.array_id or None,
        array_task=(f"{task_list}%{throttle}" if throttle else task_list)
        if task_list
        else (str(task or 0) if job.array_id else None),
        tasks=count_tasks(task_list) if task_list and not running else 1,
        admin_comment=job.admin_comment or "",
        restarts=job.requeue_count or 0,
    )


def _held(job: Any) -> tuple[Gres, ...]:
    """The gres of a running job, added up over its nodes."""
    layout = job.get_resource_layout_per_node() or {}
    return merge(gres for share in layout.values() for gres in _gres(share.get("gres")))


def _gres(entries: Mapping[str, Any] | None) -> tuple[Gres, ...]:
    """pyslurm's `{"gpu:v100": 2}` or `{"gpu:v100": {"count": 2, …}}`."""
    return parse_gres(_spelled(entries))


def _spelled(entries: Mapping[str, Any] | None) -> str:
    counts = {
        name: value.get("count", 0) if isinstance(value, Mapping) else value for name, value in (entries or {}).items()
    }
    return ",".join(f"gres/{name.removeprefix('gres/')}={count}" for name, count in counts.items())


def _tres(found: Any) -> Tres:
    """A TRES dictionary (24.11), or a `TrackableResources` (25.11)."""
    if found is None:
        return Tres()
    if isinstance(found, Mapping):
        return parse_tres(",".join(f"{name}={count}" for name, count in found.items()))
    parts = [f"gres/{name}={gres.count}" for name, gres in (found.gres or {}).items()]
    for word in ("cpu", "mem", "node"):
        resource = getattr(found, word, None)
        if resource is not None:
            parts.append(f"{word}={getattr(resource, 'count', resource)}")
    return parse_tres(",".join(parts))


def _dependency(found: Mapping[str, Any] | None) -> str:
    """pyslurm takes a dependency apart; put together again as Slurm writes it."""
    if not found:
        return ""
    parts = [
        f"{kind}:{':'.join(str(job) for job in jobs)}"
        for kind, jobs in found.items()
        if isinstance(jobs, list) and jobs
    ]
    if found.get("singleton"):
        parts.append("singleton")
    return ("?" if found.get("satisfy") == "any" else ",").join(parts)


def _limit(value: Any) -> int | None:
    """A limit; None for pyslurm's "UNLIMITED" and for nothing."""
    return value if isinstance(value, int) else None


def _listed(entries: list[str] | None) -> tuple[str, ...] | None:
    """Names; None for ["ALL"], which pyslurm also gives for an empty list of the denied."""
    return None if not entries or list(entries) == ["ALL"] else tuple(entries)
