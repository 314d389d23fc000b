"""The report's plots, as SVG that takes its colours from the page; names of users' things are escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from advisor.training.off_policy import Interval
from advisor.training.report import Calibration, Report, Week
from advisor.training.report_text import day, hours

# Times that people have a feeling for, about three times as long each.
_MARKS = (1.0, 3.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 10_800.0, 36_000.0, 86_400.0, 259_200.0, 864_000.0)


def _short(seconds: float) -> str:
    """A mark's own name: 30 s, 10 min, 3 h, 1 d."""
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def effects(report: Report) -> str:
    """Every effect with its interval on one scale; left of the middle is shorter."""
    rows: list[tuple[str, Interval]] = []
    for group, effects in (
        ("", report.effects),
        ("partition ", report.by_partition),
        ("app ", report.by_app),
        ("account ", report.by_account),
    ):
        rows += [(f"{group}{effect.name}", effect.gain) for effect in effects if effect.gain]
    # No change is always in sight, with some room on either side.
    low = max(min(-g.high for _, g in rows), -1.0)
    high = min(max(-g.low for _, g in rows), 1.5)
    reach = max(high, 0.0) - min(low, 0.0)
    low, high = min(low, 0.0) - 0.08 * reach - 0.01, max(high, 0.0) + 0.08 * reach + 0.01
    left, width, step = 230.0, 560.0, 22.0
    height = step * len(rows) + 40

    def x(change: float) -> float:
        return left + width * (max(low, min(change, high)) - low) / (high - low)

    parts = [f'<line x1="{x(0):.1f}" y1="8" x2="{x(0):.1f}" y2="{height - 24:.0f}" stroke="var(--soft)"/>']
    for tick in _ticks(low, high):
        parts.append(
            f'<line x1="{x(tick):.1f}" y1="8" x2="{x(tick):.1f}" y2="{height - 24:.0f}" stroke="var(--line)"/>'
        )
        label = f"{tick:+.0%}" if abs(tick) > 1e-9 else "no change"
        parts.append(f'<text class="soft" x="{x(tick):.1f}" y="{height - 8:.0f}" text-anchor="middle">{label}</text>')
    for number, (name, gain) in enumerate(rows):
        y = 20 + step * number
        colour = "var(--good)" if gain.low > 0 else "var(--bad)" if gain.high < 0 else "var(--flat)"
        short = name if len(name) <= 32 else name[:31] + "…"
        parts.append(f'<text x="{left - 10:.0f}" y="{y + 4:.0f}" text-anchor="end">{escape(short)}</text>')
        parts.append(
            f'<line x1="{x(-gain.high):.1f}" y1="{y:.0f}" x2="{x(-gain.low):.1f}" y2="{y:.0f}" stroke="{colour}" '
            f'stroke-width="3"/><circle cx="{x(-gain.value):.1f}" cy="{y:.0f}" r="5" fill="{colour}"/>'
        )
    return _figure(left + width, height, parts, "Change of the mean with its 95 % interval; to the left is shorter.")


def _ticks(low: float, high: float) -> list[float]:
    size = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if (high - low) / s <= 8)
    return [size * k for k in range(math.ceil(low / size), math.floor(high / size) + 1)]


def by_week(weeks: Sequence[Week]) -> str:
    left, width, height = 70.0, 710.0, 240.0
    top = max([w.changed_h or 0.0 for w in weeks] + [w.control_h or 0.0 for w in weeks] + [1e-9])

    def at(number: int, value: float) -> tuple[float, float]:
        return left + width * number / max(len(weeks) - 1, 1), 16 + (height - 66) * (1 - value / top)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = at(0, share * top)[1]
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" stroke="var(--line)"/>')
        parts.append(
            f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{hours(share * top * 3600)}</text>'
        )
    for name, colour, values in (
        ("changed", "var(--changed)", [w.changed_h for w in weeks]),
        ("control", "var(--control)", [w.control_h for w in weeks]),
    ):
        points = [at(number, value) for number, value in enumerate(values) if value is not None]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
            + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            + '"/>'
        )
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        offset = 0 if name == "changed" else 110
        parts.append(f'<rect x="{left + offset}" y="{height - 14}" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + offset + 18}" y="{height - 8}">{name}</text>')
    every = -(-len(weeks) // 7)  # labels that do not run into each other
    for number in range(0, len(weeks), every):
        x = at(number, 0.0)[0]
        anchor = "start" if number == 0 else "end" if number == len(weeks) - 1 else "middle"
        text = day(weeks[number].begins)
        parts.append(f'<text class="soft" x="{x:.1f}" y="{height - 32}" text-anchor="{anchor}">{text}</text>')
    return _figure(
        left + width + 20,
        height,
        parts,
        "Mean turnaround, by week of submission, of jobs that would be better elsewhere.",
    )


def calibration(found: Calibration) -> str:
    values = [v for b in found.bins for v in (b.predicted, b.low, b.high)]
    least, most = max(min(values), 1.0), max(*values, 10.0)
    first = max((k for k, mark in enumerate(_MARKS) if mark <= least), default=0)
    last = min((k for k, mark in enumerate(_MARKS) if mark >= most), default=len(_MARKS) - 1)
    marks = _MARKS[first : max(last, first + 1) + 1]
    low, high = math.log10(marks[0]), math.log10(marks[-1])
    left, size = 70.0, 300.0

    def at(value: float) -> float:
        return size * max(0.0, min((math.log10(max(value, 1.0)) - low) / (high - low), 1.0))

    parts = []
    for mark in marks:
        place, label = at(mark), _short(mark)
        parts.append(
            f'<line x1="{left + place:.1f}" y1="10" x2="{left + place:.1f}" y2="{10 + size}" stroke="var(--line)"/>'
        )
        y = f"{10 + size - place:.1f}"
        parts.append(f'<line x1="{left}" y1="{y}" x2="{left + size}" y2="{y}" stroke="var(--line)"/>')
        parts.append(f'<text class="soft" x="{left + place:.1f}" y="{size + 28}" text-anchor="middle">{label}</text>')
        parts.append(f'<text class="soft" x="{left - 6}" y="{14 + size - place:.1f}" text-anchor="end">{label}</text>')
    parts.append(
        f'<line x1="{left}" y1="{10 + size}" x2="{left + size}" y2="10" stroke="var(--soft)" stroke-dasharray="4 4"/>'
    )
    for each in found.bins:
        x = left + at(each.predicted)
        parts.append(
            f'<line x1="{x:.1f}" y1="{10 + size - at(each.low):.1f}" x2="{x:.1f}" y2="{10 + size - at(each.high):.1f}" '
            f'stroke="var(--changed)" stroke-width="2"/>'
            f'<circle cx="{x:.1f}" cy="{10 + size - at(each.middle):.1f}" r="4.5" fill="var(--changed)"/>'
        )
    shares = ""
    if found.within_half is not None and found.within_nine is not None:
        shares = (
            f" {found.within_half:.0%} lie within the predicted 50 % interval, {found.within_nine:.0%} within 90 %."
        )
    parts.append(
        f'<text class="soft" x="{left + size / 2}" y="{size + 46}" text-anchor="middle">predicted</text>'
        f'<text class="soft" x="14" y="{10 + size / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {10 + size / 2})">real</text>'
    )
    caption = (
        f"{found.what[:1].upper() + found.what[1:]}: predicted (across) and real (up, quartiles), {found.jobs:,} jobs; "
        f"real / predicted is {found.middle_ratio:.2f} in the middle.{shares}"
    )
    return _figure(left + size + 30, size + 54, parts, caption)


def _figure(width: float, height: float, parts: Sequence[str], caption: str) -> str:
    return (
        f'<figure><svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(caption)}">'
        + "".join(parts)
        + f'</svg><figcaption class="soft">{escape(caption)}</figcaption></figure>'
    )
