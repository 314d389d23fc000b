"""Reads a job script and sbatch options into the request that the hook would have sent.

Only for the dry run (`advisor advise`): a real submission is read by Slurm itself. Options that have no
bearing on placement are recognised, so that their arguments are not mistaken for something else, and
passed over.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from advisor import protocol


class OptionError(Exception):
    """An option that sbatch would not understand either."""


# long name → request field; short options map to long names below.
_TEXT = {
    "account": "account",
    "array": "array",
    "clusters": "clusters",
    "comment": "comment",
    "constraint": "features",
    "cpus-per-gpu": "cpus_per_tres",
    "dependency": "dependency",
    "exclude": "exc_nodes",
    "extra": "extra",
    "job-name": "name",
    "licenses": "licenses",
    "mem-per-gpu": "mem_per_tres",
    "nodelist": "req_nodes",
    "partition": "partition",
    "prefer": "prefer",
    "qos": "qos",
    "reservation": "reservation",
}
_COUNT = {
    "cpus-per-task": "cpus_per_task",
    "ntasks": "num_tasks",
    "ntasks-per-node": "ntasks_per_node",
    "ntasks-per-gpu": "ntasks_per_tres",
}
_GPUS = {
    "gpus": "tres_per_job",
    "gpus-per-node": "tres_per_node",
    "gpus-per-socket": "tres_per_socket",
    "gpus-per-task": "tres_per_task",
}
_OWN = {"gres", "time", "time-min", "mem", "mem-per-cpu", "nodes", "exclusive", "oversubscribe", "wrap"}
_SHORT = {
    "A": "account",
    "a": "array",
    "C": "constraint",
    "c": "cpus-per-task",
    "d": "dependency",
    "G": "gpus",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "n": "ntasks",
    "p": "partition",
    "q": "qos",
    "s": "oversubscribe",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
    "b": "begin",
    "D": "chdir",
    "e": "error",
    "F": "nodefile",
    "i": "input",
    "m": "distribution",
    "o": "output",
    "S": "core-spec",
    "B": "extra-node-info",
    "H": "hold",
    "k": "no-kill",
    "O": "overcommit",
    "Q": "quiet",
    "W": "wait",
    "h": "help",
    "v": "verbose",
    "V": "version",
}
_FLAGS = {
    "contiguous",
    "get-user-env",
    "help",
    "hold",
    "ignore-pbs",
    "kill-on-invalid-dep",
    "no-kill",
    "no-requeue",
    "overcommit",
    "oversubscribe",
    "parsable",
    "propagate",
    "quiet",
    "reboot",
    "requeue",
    "spread-job",
    "test-only",
    "usage",
    "use-min-nodes",
    "verbose",
    "version",
    "wait",
    "wait-all-nodes",
    "x11",
}
_OPTIONAL_ARGUMENT = {"exclusive", "nice", "propagate", "get-user-env", "no-kill"}
_ARGUMENT_ELSEWHERE = {
    "acctg-freq", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint", "container", "container-id",
    "core-spec", "cores-per-socket", "cpu-freq", "deadline", "delay-boot", "distribution", "error", "export",
    "export-file", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gres-flags", "hint", "input", "mail-type",
    "mail-user", "mcs-label", "mem-bind", "mincpus", "network", "nodefile", "ntasks-per-core", "ntasks-per-socket",
    "open-mode", "output", "power", "priority", "profile", "segment", "signal", "sockets-per-node", "switches",
    "thread-spec", "threads-per-core", "tmp", "tres-bind", "tres-per-task", "uid", "wckey",
}  # fmt: skip
_KNOWN = {*_TEXT, *_COUNT, *_GPUS, *_OWN, *_FLAGS, *_OPTIONAL_ARGUMENT, *_ARGUMENT_ELSEWHERE}


def request(
    script: str, options: Sequence[str], environ: Mapping[str, str], user: str, uid: int, name: str
) -> protocol.SubmitRequest:
    """What the hook would send if this script were submitted with these options; they win over the script's."""
    fields: dict[str, Any] = {"name": name}
    for line in _directives(script):
        _apply(fields, line)
    _apply(fields, list(options))
    advisor_variables = {k: v for k, v in environ.items() if k in ("ADVISOR_DFG", "ADVISOR_APP", "ADVISOR")}
    return protocol.SubmitRequest(
        v=protocol.VERSION,
        op="advise",
        uid=uid,
        user=user,
        script_head=_head(script),
        environment=advisor_variables,
        **fields,
    )


def _head(script: str) -> str:
    lines: list[str] = []
    for line in script[: 1 << 16].split("\n"):
        if line and not line.startswith("#"):
            break
        lines.append(line)
    return "\n".join(lines)


def _directives(script: str) -> list[list[str]]:
    found = []
    for number, line in enumerate(script.split("\n"), 1):
        if line.startswith("#SBATCH"):
            try:
                found.append(shlex.split(line[len("#SBATCH") :], comments=True))
            except ValueError as error:
                raise OptionError(f"line {number} of the script: {error} in {line!r}") from None
        elif line.strip() and not line.startswith("#"):
            break  # sbatch, too, stops at the first command
    return found


def _apply(fields: dict[str, Any], words: list[str]) -> None:
    words = list(words)
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            long, equals, value = word[2:].partition("=")
            long = _complete(long)
            argument = value if equals else None
        elif re.match(r"-[A-Za-z]", word):
            long = _SHORT.get(word[1], "")
            if not long:
                raise OptionError(f"unknown sbatch option {word!r}")
            argument = word[2:].removeprefix("=") or None
        else:
            raise OptionError(
                f"{word!r} is not an sbatch option; options stand after the script, as in: advise job.sh -p gpu"
            )
        if long in _FLAGS or long in _OPTIONAL_ARGUMENT:
            pass
        elif argument is None:
            if not words:
                raise OptionError(f"sbatch option --{long} needs a value")
            argument = words.pop(0)
        _set(fields, long, argument)


def _complete(long: str) -> str:
    """sbatch takes any unambiguous beginning of a long option."""
    if long in _KNOWN:
        return long
    matches = sorted(known for known in _KNOWN if known.startswith(long))
    if len(matches) == 1:
        return matches[0]
    hint = f"; did you mean --{' or --'.join(matches[:3])}?" if matches else ""
    raise OptionError(f"unknown sbatch option --{long}{hint}")


def _set(fields: dict[str, Any], long: str, value: str | None) -> None:
    if long == "exclusive":
        fields["shared"] = {None: 0, "user": 2, "mcs": 3}.get(value, 0)
    elif long == "oversubscribe":
        fields["shared"] = 1
    elif value is None:
        return
    elif long in ("cpus-per-gpu", "mem-per-gpu"):
        number = str(_megabytes(value)) if long == "mem-per-gpu" else value
        fields[_TEXT[long]] = f"gres/gpu:{number}"
    elif long in _TEXT:
        fields[_TEXT[long]] = value
    elif long in _COUNT:
        fields[_COUNT[long]] = _count(long, value)
    elif long in _GPUS:
        gpus = ",".join(f"gres/gpu:{part}" for part in value.split(","))
        fields[_GPUS[long]] = gpus
    elif long == "gres":
        if value.lower() != "none":
            fields["tres_per_node"] = ",".join(f"gres/{part}" for part in value.split(","))
    elif long in ("time", "time-min"):
        fields["time_limit" if long == "time" else "time_min"] = minutes(value)
    elif long == "mem":
        fields["min_mem_per_node"] = _megabytes(value)
    elif long == "mem-per-cpu":
        fields["min_mem_per_cpu"] = _megabytes(value)
    elif long == "nodes":
        least, _, most = value.partition("-")
        fields["min_nodes"] = _count(long, least)
        fields["max_nodes"] = _count(long, most) if most else fields["min_nodes"]


def _count(long: str, value: str) -> int:
    scale = {"k": 1024, "m": 1024 * 1024}.get(value[-1:].lower(), 1)
    try:
        return int(value[:-1] if scale > 1 else value) * scale
    except ValueError:
        raise OptionError(f"sbatch option --{long}: {value!r} is not a number") from None


def _megabytes(value: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", value, re.IGNORECASE)
    if not match:
        raise OptionError(f"{value!r} is not a size; write for example 4000, 4G or 512M")
    number = int(match[1])
    return {"K": -(-number // 1024), "": number, "M": number, "G": number << 10, "T": number << 20}[match[2].upper()]


def minutes(value: str) -> int | None:
    """Slurm's time formats (30, 30:00, 4:00:00, 1-12, 1-12:30, 1-12:30:00) in minutes, rounded up as Slurm does."""
    if value.lower() in ("infinite", "unlimited", "-1"):
        return None
    match = re.fullmatch(r"(?:(\d+)-(\d+)(?::(\d+))?(?::(\d+))?|(\d+)(?::(\d+))?(?::(\d+))?)", value)
    if not match:
        raise OptionError(f"{value!r} is not a time; write for example 30, 4:00:00 or 1-12:00:00")
    d, dh, dm, ds, a, b, c = (int(g) if g is not None else None for g in match.groups())
    if d is not None:
        seconds = d * 86400 + (dh or 0) * 3600 + (dm or 0) * 60 + (ds or 0)
    elif c is not None:
        seconds = (a or 0) * 3600 + (b or 0) * 60 + c
    elif b is not None:
        seconds = (a or 0) * 60 + b
    else:
        seconds = (a or 0) * 60
    return -(-seconds // 60)
