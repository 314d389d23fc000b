"""Slurm's feature expressions (`--constraint`): parsed, and matched against what the nodes of a pool have.

All nodes of a pool have the same features, so `a*2` (two nodes with a) and `[a|b]` (all nodes alike)
come down to plain AND and OR there. What this does not understand is None, and the caller leaves the job alone.
"""

from __future__ import annotations

import re
from collections.abc import Set
from functools import lru_cache

# Any of these sets of features satisfies the expression.
Constraint = tuple[frozenset[str], ...]

_TOKEN = re.compile(r"\s*(?:([A-Za-z0-9_.:=+@/%-]+)(?:\*[0-9]+)?|([()\[\]&|]))\s*")
# a|b|c… multiplied out; a longer one is no expression a person would write.
_MAX_ALTERNATIVES = 64
_MAX_LENGTH = 1024
_CLOSING = {"(": ")", "[": "]"}

ANYTHING: Constraint = (frozenset(),)


@lru_cache(maxsize=4096)
def parse(text: str | None) -> Constraint | None:
    """The expression as alternatives, `ANYTHING` where there is none, None where it is not understood."""
    if text is None or not text.strip():
        return ANYTHING
    if len(text) > _MAX_LENGTH:
        return None
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(match[1] or match[2])
        position = match.end()
    result = _level(tokens, None, 0)
    return result if not tokens else None


def _level(tokens: list[str], closing: str | None, depth: int) -> Constraint | None:
    """Consumes `tokens` up to `closing`. `a&b|c` is refused: Slurm's releases differ on what it means."""
    if depth > 16:
        return None
    operator = ""
    left: Constraint | None = None
    while True:
        if not tokens:
            return None
        word = tokens.pop(0)
        if word in _CLOSING:
            operand = _level(tokens, _CLOSING[word], depth + 1)
        elif len(word) == 1 and word in ")]&|":
            return None
        else:
            operand = (frozenset({word}),)
        if operand is None:
            return None
        left = operand if left is None else _join(left, operand, operator)
        if len(left) > _MAX_ALTERNATIVES:
            return None
        if not tokens:
            return left if closing is None else None
        following = tokens.pop(0)
        if following == closing:
            return left
        if following not in ("&", "|") or (operator and following != operator):
            return None
        operator = following


def _join(left: Constraint, right: Constraint, operator: str) -> Constraint:
    if operator == "|":
        return left + right
    return tuple(a | b for a in left for b in right)


def satisfied(constraint: Constraint, features: Set[str]) -> bool:
    """Whether nodes with these features satisfy the expression."""
    return any(alternative <= features for alternative in constraint)
