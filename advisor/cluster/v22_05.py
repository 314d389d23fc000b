"""The text of `scontrol -o -d show node|partition|job`: the only shape before 23.02, and readable ever since.

Values are not quoted, and users choose some of them: a job may be named `x UserId=root(0)` or have a
line break in its name or comment. So a job is read in three parts whose order Slurm fixes: the name, the middle
that holds no free text, and the tail of commands and comments. A comment made for the purpose can still add a
record or spoil the next one; from 23.02 jobs are read from JSON, which has no such gap.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from advisor.cluster.facts import (
    Requests,
    allowed,
    holds_resources,
    hosts,
    job_gres,
    job_states,
    memory_in_all,
    names,
    node_states,
    oversubscription,
)
from advisor.cluster.gres import parse_count, parse_gres, parse_memory, parse_tres
from advisor.cluster.hostlist import count_tasks
from advisor.cluster.types import Job, Node, Partition, SourceError

log = logging.getLogger("advisor.cluster")

NODE = ("-a", "-o", "-d", "show", "node")
PARTITION = ("-a", "-o", "show", "partition")
JOB = ("-a", "-o", "-d", "show", "job")

_HEAD = re.compile(
    r"JobId=(\d{1,10}) (?:ArrayJobId=(\d{1,10}) ArrayTaskId=(\S+) )?(?:ArrayTaskThrottle=\d+ )?"
    r"(?:HetJobId=\d+ HetJobOffset=\d+ )?JobName="
)
# What follows the job's name, however long that is: five keys in a row that no release has changed.
_MIDDLE = re.compile(r"\sUserId=(\S*)\(\d+\) GroupId=\S*\(\d+\) MCS_label=\S+\s+Priority=\d+ Nice=-?\d+ Account=")
_AFTER_NAME = re.compile(r"(?:\sSLUID=\S+)?(?:\sHetJobIdSet=\S+)?\Z")
_ADMIN_COMMENT = re.compile(
    r"\sAdminComment=(.*?)(?=\s(?:SystemComment|Comment|Extra|StdErr|StdIn|StdOut|Switches|SegmentSize|BurstBuffer"
    r"|BurstBufferState|Power|OOMKillStep|CpusPerTres|MemPerTres|Tres[A-Z][A-Za-z]+|MailUser|NtasksPerTRES|Container"
    r"|SELinuxContext|ResvPorts|GresEnforceBind|GresAllowTaskSharing)=|\Z)",
    re.DOTALL,
)
_TRES_PER = re.compile(r"\sTresPer(Job|Node|Socket|Task)=(\S+)")
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})\Z")
_EMPTY = re.compile(r"\s*(?:No (?:nodes|partitions|jobs) in the system\s*)?\Z", re.IGNORECASE)


def text_of(output: Iterable[bytes]) -> str:
    """All of a command's output as text; bytes that are no UTF-8 (users choose job names) are replaced."""
    text = b"".join(output).decode("utf-8", "replace")
    if text and not text.endswith("\n"):
        raise SourceError(f"the output of scontrol ends in the middle of a line: {text[-60:]!r}. Was it cut?")
    return text


def nodes(output: Iterable[bytes]) -> tuple[Node, ...]:
    """Nodes from `scontrol -o -d show node`."""
    return tuple(_node(record) for record in _records(text_of(output), "NodeName="))


def partitions(output: Iterable[bytes]) -> tuple[Partition, ...]:
    """Partitions from `scontrol -o show partition`."""
    return tuple(_partition(record) for record in _records(text_of(output), "PartitionName="))


def jobs(output: Iterable[bytes]) -> tuple[Job, ...]:
    """Live jobs from `scontrol -o -d show job`; a record that cannot be read is left out, and said."""
    text = text_of(output)
    if _EMPTY.match(text):
        return ()
    found: list[Job] = []
    records = 0
    unreadable: list[SourceError] = []
    for record in job_records(text):
        records += 1
        try:
            job = _job(record)
        except SourceError as error:
            unreadable.append(error)
            continue
        if job is not None:
            found.append(job)
    # One user's odd job must not blind us to all others; half of all is no longer one user's doing.
    if len(unreadable) * 2 >= max(records, 1):
        raise SourceError(
            f"`scontrol show job` gave {records} records of which {len(unreadable)} cannot be read; "
            f"it begins with {text[:80]!r}. Run the command by hand and compare"
        )
    if unreadable:
        log.warning("left out %d jobs that cannot be read; the first: %s", len(unreadable), unreadable[0])
    return tuple(found)


def _records(text: str, start: str) -> list[dict[str, str]]:
    """Nodes and partitions: a line each. The first of a key wins: free text (Reason) comes after all we read."""
    if _EMPTY.match(text):
        return []
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith(start):
            lines.append(line)
        elif lines:  # a reason or a comment with a line break
            lines[-1] += " " + line
    if not lines:
        raise SourceError(f"expected lines that start with {start} from scontrol, got {text[:80]!r}")
    return [_fields(line) for line in lines]


def _fields(text: str) -> dict[str, str]:
    """Key=value pairs; words without an equals sign belong to the value before them."""
    fields: dict[str, str] = {}
    key = ""
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            if key:
                fields[key] += f" {word}"
        elif name in fields:
            key = ""  # the first wins, and what follows is not its
        else:
            key = name
            fields[key] = value
    return fields


def _node(fields: dict[str, str]) -> Node:
    name = fields.get("NodeName", "")
    if not name or not fields.get("State") or "RealMemory" not in fields or "Weight" not in fields:
        raise SourceError(f"the record of node {name or '?'} is incomplete: was scontrol's output cut?")
    allocated_tres = parse_tres(fields.get("AllocTRES"))
    return Node(
        name=name,
        states=node_states(fields["State"].split("+")),
        cpus=_number(fields.get("CPUEfctv")) or _number(fields.get("CPUTot")) or 0,
        memory_mb=max((_number(fields["RealMemory"]) or 0) - (_number(fields.get("MemSpecLimit")) or 0), 0),
        gres=parse_gres(fields.get("Gres")),
        features=names(fields.get("ActiveFeatures")),
        partitions=names(fields.get("Partitions")),
        cpus_allocated=_number(fields.get("CPUAlloc")) or 0,
        memory_allocated_mb=_number(fields.get("AllocMem")) or 0,
        gres_allocated=parse_gres(fields["GresUsed"]) if "GresUsed" in fields else allocated_tres.gres,
        sockets=_number(fields.get("Sockets")) or 1,
        weight=_number(fields["Weight"]) or 0,
    )


def _partition(fields: dict[str, str]) -> Partition:
    name = fields.get("PartitionName", "")
    if not name or "State" not in fields or "Nodes" not in fields or "MaxTime" not in fields:
        raise SourceError(f"the record of partition {name or '?'} is incomplete: was scontrol's output cut?")
    exclusive, oversubscribe = oversubscription(fields.get("OverSubscribe", "NO"))
    return Partition(
        name=name,
        nodes=hosts(fields["Nodes"], f"nodes of partition {name}"),
        up=fields["State"] == "UP",
        default=fields.get("Default") == "YES",
        max_time=minutes(fields["MaxTime"]),
        default_time=minutes(fields.get("DefaultTime")),
        min_nodes=_number(fields.get("MinNodes")) or None,
        max_nodes=_number(fields.get("MaxNodes")),
        max_cpus_per_node=_number(fields.get("MaxCPUsPerNode")),
        max_mem_per_node=_number(fields.get("MaxMemPerNode")),
        max_mem_per_cpu=_number(fields.get("MaxMemPerCPU")),
        def_mem_per_node=_number(fields.get("DefMemPerNode")),
        def_mem_per_cpu=_number(fields.get("DefMemPerCPU")),
        allow_accounts=allowed(fields.get("AllowAccounts")),
        deny_accounts=names(fields.get("DenyAccounts")),
        allow_groups=allowed(fields.get("AllowGroups")),
        allow_qos=allowed(fields.get("AllowQos")),
        deny_qos=names(fields.get("DenyQos")),
        priority_tier=_number(fields.get("PriorityTier")) or 0,
        # From 26.05 whole nodes are said in a key of their own.
        exclusive=exclusive or fields.get("Exclusive", "NO").upper() in ("NODE", "TOPO"),
        oversubscribe=oversubscribe,
    )


def job_records(text: str) -> Iterable[str]:
    """One text for each job. A line break in a name or a comment does not start another job, even if what
    follows looks like one: its own record must be complete by then, and end as Slurm ends them (with a blank,
    until 25.05; the majority shows it).
    """
    lines = text.split("\n")
    whole = [line.endswith(" ") for line in lines if _HEAD.match(line) and " WorkDir=" in line]
    end = " " if sum(whole) * 2 > len(whole) else ""
    record = ""
    for line in lines:
        if not record:
            record = line
        elif record.endswith(end) and " WorkDir=" in record and _HEAD.match(line):
            yield record
            record = line
        else:
            record = f"{record}\n{line}"
    if record.strip():
        yield record


def job_parts(record: str) -> tuple[re.Match[str], re.Match[str], dict[str, str], str]:
    """A job's record in parts: its head, where the middle begins, the middle's fields, and the tail of free text."""
    head = _HEAD.match(record)
    if head is None:
        raise SourceError(f"a job's record begins with {record[:60]!r}")
    job_id = int(head.group(1))
    command = record.find(" Command=")
    starts = list(_middles(record, head.end()))
    if not starts or command < 0 or " WorkDir=" not in record:
        raise SourceError(f"the record of job {job_id} is incomplete: was scontrol's output cut?")
    # A name may imitate the middle (then the last before the command is the true one); so may a comment (the first).
    start = next((found for found in reversed(starts) if found.start() < command), starts[0])
    command = record.find(" Command=", start.end())
    middle = _fields(record[start.start() : command if command >= 0 else len(record)])
    return head, start, middle, record[command:] if command >= 0 else ""


def requests_in(tail: str) -> dict[str, str]:
    """What a job asks for by `TresPer…`, from the tail of its record: "node" → "gres:gpu:1"."""
    return {key.lower(): value for key, value in _TRES_PER.findall(tail)}  # the last one: after all free text


def _job(record: str) -> Job | None:
    head, start, middle, tail = job_parts(record)
    job_id = int(head.group(1))
    states = job_states(re.split(r"[,+]", middle.get("JobState", "")))
    if states is None:
        return None
    running = holds_resources(states)
    per = requests_in(tail)
    tres = parse_tres(middle.get("TRES") or (middle.get("AllocTRES") if running else "") or middle.get("ReqTRES"))
    node_names = hosts(middle.get("NodeList"), f"nodes of job {job_id}") if running else ()
    node_count = len(node_names) or tres.nodes or _number(middle.get("NumNodes")) or 1
    cpus = tres.cpus or _number(middle.get("NumCPUs")) or 1
    requests = Requests(per.get("job"), per.get("node"), per.get("socket"), per.get("task"))
    requested = requests.total(node_count, _number(middle.get("Socks/Node")) or 1, _number(middle.get("NumTasks")) or 1)
    admin_comment = _ADMIN_COMMENT.search(tail) if " AdminComment=" in tail else None
    return Job(
        job_id=job_id,
        states=states,
        name=_AFTER_NAME.sub("", record[head.end() : start.start()], count=1),
        user=start.group(1),
        account=_text(middle.get("Account")),
        qos=_text(middle.get("QOS")),
        partitions=names(middle.get("Partition")),
        reason="" if middle.get("Reason") == "None" else _text(middle.get("Reason")),
        priority=_number(middle.get("Priority")) or 0,
        submit_time=_timestamp(middle.get("SubmitTime")) or 0,
        eligible_time=_timestamp(middle.get("EligibleTime")) or 0,
        start_time=_timestamp(middle.get("StartTime")) if running else None,
        time_limit=minutes(middle.get("TimeLimit")),
        nodes=node_names,
        node_count=node_count,
        cpus=cpus,
        memory_mb=memory_in_all(
            tres,
            parse_memory(middle.get("MinMemoryNode", "")),
            parse_memory(middle.get("MinMemoryCPU", "")),
            node_count,
            cpus,
        ),
        gres=job_gres(parse_gres(middle.get("JOB_GRES")) if running else (), tres, requested),
        features=_text(middle.get("Features")),
        dependency=_text(middle.get("Dependency")),
        # Before 26.05 "NO" is how a job's whole nodes are said.
        exclusive=middle.get("OverSubscribe") == "NO" if "Exclusive" not in middle else middle["Exclusive"] == "NODE",
        array_job_id=int(head.group(2)) if head.group(2) else None,
        array_task=head.group(3),
        tasks=count_tasks(head.group(3)) if head.group(3) and not running else 1,
        admin_comment=_text(admin_comment.group(1).strip()) if admin_comment else "",
        restarts=_number(middle.get("Restarts")) or 0,
    )


def _middles(record: str, start: int) -> Iterator[re.Match[str]]:
    """Wherever the middle of a record could begin."""
    at = record.find("UserId=", start)
    while at >= 0:
        match = _MIDDLE.match(record, at - 1)
        if match is not None:
            yield match
        at = record.find("UserId=", at + 1)


def _text(value: str | None) -> str:
    return "" if value is None or value == "(null)" else value


def _number(value: str | None) -> int | None:
    """The first number of `16`, `1-2`, `2K`; None for UNLIMITED, N/A and the like."""
    return None if value is None else parse_count(value.partition("-")[0])


def minutes(value: str | None) -> int | None:
    """Minutes of `1-00:00:00` or `05:00`, rounded up; None for UNLIMITED, NONE, Partition_Limit."""
    match = _CLOCK.match(value or "")
    if match is None:
        return None
    days, hours, mins, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + mins + (1 if seconds else 0)


def _timestamp(value: str | None) -> int | None:
    """Unix seconds; Slurm is asked for them (SLURM_TIME_FORMAT=%s), recordings made by hand say UTC dates."""
    if not value or not value[0].isdecimal():
        return None
    if value.isdecimal():
        return int(value) if len(value) < 13 else None
    try:
        return int(datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp())
    except (ValueError, OverflowError):
        return None
