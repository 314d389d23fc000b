"""The report as one HTML page that needs nothing else: styles inside, plots as SVG, no scripts.

Everything that came from users (names of apps, partitions, accounts) is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from advisor.training.off_policy import Interval
from advisor.training.report import Calibration, Effect, Report, Week
from advisor.training.report_text import alarm_words, day, gain_words, hours

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5d6875; --line: #d5dbe2; --paper: #ffffff; --card: #f6f8fa;
        --good: #1a7f5a; --bad: #b3412f; --flat: #5d6875; --changed: #2563a8; --control: #b0752b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaef; --soft: #9aa6b2; --line: #39424d; --paper: #14181d;
        --card: #1c2229; --good: #4cc38a; --bad: #ef8573; --flat: #9aa6b2; --changed: #6aa9ee; --control: #e0a659; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       margin: 0 auto; padding: 2rem 1.5rem; max-width: 64rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.verdict { font-size: 1.15rem; padding: .8rem 1rem; background: var(--card); border-left: 4px solid var(--flat); }
p.good { border-color: var(--good); } p.bad { border-color: var(--bad); }
.soft { color: var(--soft); } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; margin: 1rem 0; }
dl div { background: var(--card); padding: .6rem .8rem; } dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.25rem; } svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
svg .soft { fill: var(--soft); } figure { margin: 0 0 1rem; } .two { display: grid; gap: 1.5rem;
grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); }
"""


def page(report: Report) -> str:
    """The whole page."""
    effect = report.effects[0].gain
    mood = "" if effect is None else " good" if effect.low > 0 else " bad" if effect.high < 0 else ""
    body = [
        "<h1>slurm-advisor report</h1>",
        f'<p class="soft">{day(report.begins)} to {day(report.until)}</p>',
        f'<p class="verdict{mood}">{escape(report.verdict)}</p>',
        _tiles(report),
    ]
    told = [e for e in (*report.effects, *report.by_partition, *report.by_app, *report.by_account) if e.gain]
    if told:
        body += ["<h2>Effect on jobs that would be better elsewhere</h2>", _effects(report)]
    body.append(_table("Turnaround, wait, run time", report.effects))
    for title, rows in (
        ("By partition, as submitted", report.by_partition),
        ("By app", report.by_app),
        ("By account", report.by_account),
    ):
        if rows:
            body.append(_table(title, rows))
    if len(report.weeks) > 1:
        body += ["<h2>Week by week</h2>", _weeks(report.weeks)]
    if report.calibration:
        body += ["<h2>What was predicted, and what came</h2>", '<div class="two">']
        body += [_calibration(found) for found in report.calibration]
        body.append("</div>")
    body += _lists(report)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><title>slurm-advisor report</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _tiles(report: Report) -> str:
    saved, counts = report.saved, report.decisions

    def span(found: Interval | None) -> str:
        return (
            "–"
            if found is None
            else f"{found.value:,.0f} <span class=soft>({found.low:,.0f} … {found.high:,.0f})</span>"
        )

    tiles = [(name, f"{count:,}") for name, count in counts.items()]
    tiles += [
        ("GPU hours saved", span(saved.gpu_hours)),
        ("users' hours saved", span(saved.job_hours)),
        ("GPU hours used", f"{saved.gpu_hours_used:,.0f}"),
    ]
    return "<dl>" + "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in tiles) + "</dl>"


def _table(title: str, rows: Sequence[Effect]) -> str:
    lines = "".join(
        f"<tr><td>{escape(e.name)}</td><td>{e.changed:,}</td><td>{e.control:,}</td><td>{hours(e.changed_mean)}</td>"
        f"<td>{hours(e.control_mean)}</td><td>{escape(gain_words(e.gain))}</td></tr>"
        for e in rows
    )
    return (
        f"<h2>{escape(title)}</h2><table><tr><th></th><th>changed</th><th>control</th><th>mean changed</th>"
        f"<th>mean control</th><th>effect</th></tr>{lines}</table>"
    )


def _effects(report: Report) -> str:
    """Every effect with its interval on one scale; left of the middle is shorter."""
    rows: list[tuple[str, Interval]] = []
    for group, effects in (
        ("", report.effects),
        ("partition ", report.by_partition),
        ("app ", report.by_app),
        ("account ", report.by_account),
    ):
        rows += [(f"{group}{effect.name}", effect.gain) for effect in effects if effect.gain]
    reach = min(max(max(abs(g.low), abs(g.high)) for _, g in rows), 1.5)
    left, width, step = 230.0, 560.0, 22.0
    height = step * len(rows) + 40

    def x(change: float) -> float:
        return left + width * (0.5 + 0.48 * max(-1.0, min(change / reach, 1.0)))

    parts = [f'<line x1="{x(0):.1f}" y1="8" x2="{x(0):.1f}" y2="{height - 24:.0f}" stroke="var(--soft)"/>']
    for tick in _ticks(reach):
        parts.append(
            f'<line x1="{x(tick):.1f}" y1="8" x2="{x(tick):.1f}" y2="{height - 24:.0f}" stroke="var(--line)"/>'
        )
        parts.append(
            f'<text class="soft" x="{x(tick):.1f}" y="{height - 8:.0f}" text-anchor="middle">{tick:+.0%}</text>'
        )
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


def _ticks(reach: float) -> list[float]:
    size = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if reach / s <= 5)
    count = math.floor(reach / size)
    return [size * k for k in range(-count, count + 1) if k]


def _weeks(weeks: Sequence[Week]) -> str:
    left, width, height = 60.0, 720.0, 220.0
    top = max([w.changed_h or 0.0 for w in weeks] + [w.control_h or 0.0 for w in weeks] + [1e-9])

    def at(number: int, value: float) -> tuple[float, float]:
        return left + width * number / max(len(weeks) - 1, 1), 16 + (height - 50) * (1 - value / top)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = at(0, share * top)[1]
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" stroke="var(--line)"/>')
        parts.append(f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{share * top:.1f} h</text>')
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
    parts.append(
        f'<text class="soft" x="{left + width}" y="{height - 8}" text-anchor="end">'
        f"{day(weeks[0].begins)} to {day(weeks[-1].begins)}, by week</text>"
    )
    return _figure(left + width + 20, height, parts, "Mean turnaround of jobs that would be better elsewhere.")


def _calibration(found: Calibration) -> str:
    values = [v for b in found.bins for v in (b.predicted, b.low, b.high)]
    low, high = math.log10(max(min(values), 1.0)), math.log10(max(max(values), 10.0))
    low, high = math.floor(low), max(math.ceil(high), math.floor(low) + 1)
    left, size = 60.0, 300.0

    def at(value: float) -> float:
        return size * (math.log10(max(value, 1.0)) - low) / (high - low)

    parts = []
    for power in range(low, high + 1):
        place = at(10.0**power)
        label = hours(10.0**power)
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
    caption = (
        f"{found.what[:1].upper() + found.what[1:]}: predicted (across) and real (up, quartiles), {found.jobs:,} jobs; "
        f"real / predicted is {found.middle_ratio:.2f} in the middle.{shares}"
    )
    return _figure(left + size + 30, size + 40, parts, caption)


def _figure(width: float, height: float, parts: Sequence[str], caption: str) -> str:
    return (
        f'<figure><svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(caption)}">'
        + "".join(parts)
        + f'</svg><figcaption class="soft">{escape(caption)}</figcaption></figure>'
    )


def _lists(report: Report) -> list[str]:
    found = []
    if report.changes:
        found.append("<h2>What was changed</h2><table><tr><th>as submitted → where it was sent</th><th>jobs</th></tr>")
        found += [f"<tr><td>{escape(name)}</td><td>{count:,}</td></tr>" for name, count in report.changes.items()]
        found.append("</table>")
    found.append("<h2>How they ended</h2><table><tr><th></th><th>changed</th><th>control</th></tr>")
    found += [f"<tr><td>{s}</td><td>{a:.1%}</td><td>{b:.1%}</td></tr>" for s, (a, b) in report.unhappy.items()]
    found.append("</table><h2>Drift</h2>")
    alarms = "".join(f"<li>{escape(alarm_words(alarm))}</li>" for alarm in report.drift)
    found.append(f"<ul>{alarms}</ul>" if alarms else '<p class="soft">None found.</p>')
    if report.promotions:
        found.append("<h2>Model versions</h2><ul>")
        found += [f"<li>{day(p.at)}: {escape(p.version or 'none')} ({escape(p.why)})</li>" for p in report.promotions]
        found.append("</ul>")
    if report.left_out:
        found.append("<h2>Not compared</h2><table><tr><th>why</th><th>jobs</th></tr>")
        found += [f"<tr><td>{escape(why)}</td><td>{count:,}</td></tr>" for why, count in report.left_out.items()]
        found.append("</table>")
    return found
