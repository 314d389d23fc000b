"""Durations in words that people use, for reasons and for the one line that a user is told."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h`, `2 d`: one figure, since it is an estimate."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} h".replace(".0 h", " h")
    return f"{seconds / 86400:.1f} d".replace(".0 d", " d")


def starts(wait_s: float) -> str:
    """`starts now`, `starts in ~12 min`."""
    return "starts now" if wait_s < 1 else f"starts in ~{duration(wait_s)}"
