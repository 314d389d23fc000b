"""Slurm's range notation: node lists such as `gpu[01-03,7],login` and array task lists such as `0-9:2%4`.

Both come from outside and both can ask for a great deal with few characters (`a[1-999999999]`), so
node lists are expanded under a limit and array tasks are only counted, never listed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product

# Far above the largest clusters there are; a longer list is a mistake or an attack.
MAX_HOSTS = 100_000
MAX_TEXT = 4 << 20

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?\Z")
_TASKS = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?\Z")


class HostlistError(ValueError):
    """A node list that is not in Slurm's notation, or names too many nodes."""


@lru_cache(maxsize=4096)
def expand_hostlist(text: str, limit: int = MAX_HOSTS) -> tuple[str, ...]:
    """The node names a Slurm node list stands for, in its order: `a[1-2]b,c` gives a1b, a2b, c."""
    if len(text) > MAX_TEXT:
        raise HostlistError(f"node list of {len(text)} characters is longer than {MAX_TEXT}")
    names: list[str] = []
    for item in _split_outside_brackets(text):
        names.extend(_expand_item(item, limit - len(names)))
    return tuple(names)


def _split_outside_brackets(text: str) -> list[str]:
    items: list[str] = []
    start = depth = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
        if depth not in (0, 1):
            raise HostlistError(f"unbalanced brackets in node list {_shown(text)}")
    if depth:
        raise HostlistError(f"unbalanced brackets in node list {_shown(text)}")
    items.append(text[start:])
    # Slurm lets empty items pass: "a,,b" is a and b.
    return [item.strip() for item in items if item.strip()]


def _expand_item(item: str, room: int) -> list[str]:
    """One item without commas outside brackets; `room` is how many names may still be added."""
    if "[" not in item:
        if room < 1:
            raise HostlistError(f"node list names more than the allowed number of nodes at {_shown(item)}")
        return [item]
    parts: list[list[str]] = []
    total = 1
    for index, piece in enumerate(re.split(r"\[([^\]]*)\]", item)):
        if index % 2 == 0:
            parts.append([piece])
            continue
        numbers = _expand_ranges(piece, item, room)
        total *= len(numbers)
        if total > room:
            raise HostlistError(f"node list names more than the allowed number of nodes at {_shown(item)}")
        parts.append(numbers)
    return ["".join(choice) for choice in product(*parts)]


def _expand_ranges(piece: str, item: str, room: int) -> list[str]:
    numbers: list[str] = []
    for token in piece.split(","):
        match = _RANGE.match(token.strip())
        if match is None:
            raise HostlistError(f"{_shown(token)} is not a number or a range in node list {_shown(item)}")
        low, high = match.group(1), match.group(2) or match.group(1)
        first, last = int(low), int(high)
        if last < first:
            raise HostlistError(f"range {_shown(token)} runs backwards in node list {_shown(item)}")
        if last - first >= room - len(numbers):
            raise HostlistError(f"node list names more than the allowed number of nodes at {_shown(item)}")
        width = len(low)
        numbers.extend(str(number).zfill(width) for number in range(first, last + 1))
    return numbers


def count_tasks(text: str) -> int:
    """How many array tasks a task list stands for: `0-9%2` is 10, `1,3,5-7` is 5; at least 1.

    Slurm cuts long lists (`1,3,5,...`): what is left is counted, which is then a lower bound; the
    number that the cut went through is not trusted.
    """
    tasks, _, _ = text.partition("%")
    cut = tasks.find("...")
    if cut >= 0:
        tasks = tasks[:cut].rpartition(",")[0]
    count = 0
    for token in tasks.split(","):
        match = _TASKS.match(token.strip())
        if match is None:
            continue
        first = int(match.group(1))
        last = int(match.group(2) or first)
        step = int(match.group(3) or 1)
        if last >= first and step > 0:
            count += (last - first) // step + 1
    return max(count, 1)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
