"""Every spelling of generic resources that Slurm uses, read into `Gres` and written back.

Nodes say `gpu:v100:2(S:0-1)`, accounting says `gres/gpu:v100=2` (and `gres/gpu=2` beside it, the same two
GPUs), submissions say `gres:gpu:1` before 23.11 and `gres/gpu:1` after, or `gres/gpu=1` for
`--gpus-per-task`. A request that is given a type keeps its spelling and everything else in the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from advisor.cluster.types import Gres

_COUNT = re.compile(r"([0-9]{1,15})([kKmMgGtTpP]?)\Z")
_MEMORY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kKmMgGtTpP]?)(?:i?[bB])?(?:[nc])?\Z")
_FACTOR = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "none", "None"})

# What else may stand in a tres_per_* field or a TRES string beside gres.
_NOT_GRES = frozenset({"cpu", "mem", "node", "billing", "energy", "fs", "vmem", "pages", "bb", "license"})

# "gres:gpu:1", "gres/gpu:v100=2", "gpu": what precedes the name, and what follows it.
_GPU = re.compile(r"(?P<head>\s*(?:gres[:/])?gpu)(?P<tail>[:=].*)?\Z", re.DOTALL)


# The GPU type of a job that has some shards of one, and others may have the rest: `k80/shard`.
PART = "/shard"


class Tres(msgspec.Struct, frozen=True):
    """A TRES string (`cpu=4,mem=8G,node=1,gres/gpu=2`), read. What it does not name is None."""

    cpus: int | None = None
    memory_mb: int | None = None
    nodes: int | None = None
    gres: tuple[Gres, ...] = ()


def parse_count(text: str) -> int | None:
    """A count as Slurm writes it (`2`, `4K`), or None where it is not one (then it is a type)."""
    match = _COUNT.match(text)
    if match is None:
        return None
    return int(match.group(1)) * _FACTOR[match.group(2).upper()]


def parse_memory(text: str) -> int | None:
    """MB of a memory size as Slurm writes it: `8G`, `1500M`, `1.5T`; without a unit it is MB."""
    match = _MEMORY.match(text)
    if match is None:
        return None
    scale = _FACTOR[match.group(2).upper() or "M"]
    return int(float(match.group(1)) * scale) >> 20


# Thousands of jobs ask for the same few things.
@lru_cache(maxsize=4096)
def parse_gres(text: str | None) -> tuple[Gres, ...]:
    """Gres of a node (`Gres`, `GresUsed`), of an allocation, or of a request (`tres_per_*`)."""
    return merge(gres for token in _tokens(text) if (gres := _read_token(token)) is not None)


@lru_cache(maxsize=4096)
def parse_tres(text: str | None) -> Tres:
    """Read a TRES string. `gres/gpu=2,gres/gpu:v100=2` are two GPUs, not four."""
    cpus = memory = nodes = None
    totals: dict[str, int] = {}
    typed: list[Gres] = []
    for token in _tokens(text):
        name, _, value = token.partition("=")
        if name == "cpu":
            cpus = parse_count(value)
        elif name == "mem":
            memory = parse_memory(value)
        elif name == "node":
            nodes = parse_count(value)
        elif name.startswith("gres/"):
            gres = _read_token(token)
            if gres is None:
                continue
            if gres.type is None:
                totals[gres.name] = gres.count
            else:
                typed.append(gres)
    return Tres(cpus, memory, nodes, _without_double_counting(totals, merge(typed)))


def _without_double_counting(totals: dict[str, int], typed: tuple[Gres, ...]) -> tuple[Gres, ...]:
    """A total and its typed parts: keep the parts, and what the total has beyond them as untyped.

    Slurm lists a type only where AccountingStorageTRES names it, so the parts may be incomplete.
    """
    found = list(typed)
    for name, total in totals.items():
        rest = total - sum(gres.count for gres in typed if gres.name == name)
        if rest > 0:
            found.append(Gres(name, rest))
    return merge(found)


def merge(entries: Iterable[Gres]) -> tuple[Gres, ...]:
    """Entries of the same name and type added up, none with a count of zero, in a fixed order."""
    counts: dict[tuple[str, str], int] = {}
    for gres in entries:
        key = (gres.name, gres.type or "")
        counts[key] = counts.get(key, 0) + gres.count
    return tuple(Gres(name, count, kind or None) for (name, kind), count in sorted(counts.items()) if count > 0)


def scale(entries: Iterable[Gres], factor: int) -> tuple[Gres, ...]:
    """Each count times `factor`: what is asked for each node, in all."""
    return tuple(Gres(gres.name, gres.count * factor, gres.type) for gres in entries)


def gpu_request(field_value: str | None) -> tuple[int, str | None]:
    """How many GPUs a tres_per_* field asks for, and of which type; None: the type is left open.

    A request for several types at once gives them joined by commas, which is no type of any node.
    """
    found = [gres for gres in parse_gres(field_value) if gres.name == "gpu"]
    types = sorted({gres.type for gres in found if gres.type is not None})
    return sum(gres.count for gres in found), ",".join(types) or None


def with_type(field_value: str, gpu_type: str) -> str:
    """The same request with the GPU type set (or replaced), in the same spelling.

    `gres:gpu:1` → `gres:gpu:v100:1`, `gres/gpu:2` → `gres/gpu:v100:2`, `cpu=2,gres/gpu=1` →
    `cpu=2,gres/gpu:v100=1`. Everything that is not a GPU stays as it is, byte for byte.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.+-]+", gpu_type) or parse_count(gpu_type) is not None:
        raise ValueError(f"{gpu_type!r} is not a GPU type that Slurm could tell from a count")
    tokens = field_value.split(",")
    places = [index for index, token in enumerate(tokens) if _GPU.match(token)]
    if len(places) > 1:
        raise ValueError(f"{field_value!r} asks for GPUs more than once; a single type would change the request")
    for index in places:
        tokens[index] = _token_with_type(tokens[index], gpu_type)
    return ",".join(tokens)


def part_of(gpu_type: str) -> str:
    """What a GPU type is called for a job that has a part of one."""
    return gpu_type + PART


def whole(processor: str) -> str:
    """The GPU type of which this is a part, or the processor itself."""
    return processor.removesuffix(PART)


def with_shards(field_value: str, shards: int) -> str:
    """The same request with so many shards in place of its one GPU: `gres:gpu:1` → `gres:shard:2`.

    Shards have no type: which GPUs they are of, the partition says.
    """
    tokens = field_value.split(",")
    places = [index for index, token in enumerate(tokens) if _GPU.match(token)]
    if len(places) != 1 or gpu_request(field_value)[0] != 1:
        raise ValueError(f"{field_value!r} does not ask for one GPU")
    match = _GPU.match(tokens[places[0]])
    assert match is not None
    mark = "=" if "=" in (match.group("tail") or "") else ":"
    tokens[places[0]] = f"{match.group('head').removesuffix('gpu')}shard{mark}{shards}"
    return ",".join(tokens)


def _token_with_type(token: str, gpu_type: str) -> str:
    match = _GPU.match(token)
    if match is None:
        raise ValueError(f"{token!r} is not a GPU request")
    head, tail = match.group("head"), match.group("tail") or ""
    # The count and the mark before it; a type without a count ("gpu:v100") leaves nothing to keep.
    mark = max(tail.rfind("="), tail.rfind(":"))
    if mark < 0 or (tail[mark] == ":" and parse_count(tail[mark + 1 :]) is None):
        return f"{head}:{gpu_type}"
    return f"{head}:{gpu_type}{tail[mark:]}"


def _tokens(text: str | None) -> list[str]:
    """Split at the commas outside parentheses: `gpu:2(IDX:0,3),shard:4` has two entries."""
    if text is None or text in _NOTHING:
        return []
    if "(" not in text:
        return [token.strip() for token in text.split(",") if token.strip()]
    tokens: list[str] = []
    depth = start = 0
    for position, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth = max(depth - 1, 0)
        elif character == "," and depth == 0:
            tokens.append(text[start:position].strip())
            start = position + 1
    tokens.append(text[start:].strip())
    return [token for token in tokens if token]


def _read_token(token: str) -> Gres | None:
    """One entry of any spelling; None where it is something else (`cpu=2`) or nothing."""
    token = token.partition("(")[0]
    prefixed = token.startswith(("gres:", "gres/"))
    if prefixed:
        token = token[5:]
    body, equals, amount = token.rpartition("=")
    if equals:
        count = parse_count(amount)
        if count is None:
            return None
        parts = body.split(":")
    else:
        parts = token.split(":")
        count = parse_count(parts[-1]) if len(parts) > 1 else None
        if count is not None:
            parts.pop()
        else:
            count = 1  # "gpu", "gpu:v100": one is meant
    name = parts[0]
    if not name or "/" in name or name in _NOTHING or (not prefixed and name in _NOT_GRES):
        return None
    kind = ":".join(part for part in parts[1:] if part and part != "no_consume")
    return Gres(name, count, kind or None)
