"""The words of an annotation: numbers, sizes and names, and how a user's text may stand in a message."""

from __future__ import annotations

import math
import re
from functools import lru_cache

MAX_NAME = 128
_NUMBER = re.compile(r"\+?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d*)?(?:[eE]\+?\d{1,2})?) ?(?:([KMGTP])(?:i?B)?|B)?", re.ASCII | re.IGNORECASE)
_UNIT = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_MAX_SIZE = 1 << 60


def shown(text: str) -> str:
    """A user's text as it may stand in a message: quoted, on one line, printable and short."""
    if len(text) > 40:
        text = text[:37] + "…"
    if text.isprintable():
        return f'"{text}"'
    return '"' + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text) + '"'


def name_problem(what: str, text: str) -> str | None:
    """Why `text` cannot be the name of an app, a workflow or a kernel; None if it can."""
    if not text:
        return f"{what}: the name is empty"
    if len(text) > MAX_NAME:
        return f"{what}: the name is longer than {MAX_NAME} characters"
    if not text.isprintable():
        return f"{what}: the name {shown(text)} holds a character that cannot be printed"
    return None


def number(text: str) -> float:
    """A count of operations, as people write large ones (8.0e15); raises `ValueError`."""
    if len(text) <= 64 and _NUMBER.fullmatch(text):
        value = float(text.replace("_", ""))
        if math.isfinite(value):
            return value
    raise ValueError(f"{shown(text)} is not a number")


@lru_cache(maxsize=256)
def size(text: str | None) -> int:
    """A size as Slurm spells it, in powers of 1024; a plain number is bytes. Raises `ValueError`."""
    if text is not None and len(text) <= 64 and (match := _SIZE.fullmatch(text)):
        shift = _UNIT[(match[2] or "").upper()]
        if float(match[1]) * (1 << shift) > _MAX_SIZE:
            raise ValueError(f"{shown(text)} is more than any machine has")
        # Whole numbers are kept exactly: a float would round bytes above 2**53.
        return int(match[1]) << shift if match[1].isdigit() else int(float(match[1]) * (1 << shift))
    spelled = "a list or a map" if text is None else shown(text) if text else "nothing"
    raise ValueError(f"expected bytes, such as 512M, 4G or 1.5T, not {spelled}")
