"""The report as one HTML page that needs nothing else: styles inside, plots as SVG, no scripts.

Everything that came from users (names of apps, partitions, accounts) is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from advisor.training.off_policy import Interval
from advisor.training.report import Effect, Report
from advisor.training.report_plots import by_week, calibration, effects
from advisor.training.report_text import alarm_words, day, gain_words, hours

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5d6875; --line: #d5dbe2; --paper: #ffffff; --card: #f6f8fa;
        --good: #1a7f5a; --bad: #b3412f; --flat: #5d6875; --changed: #2563a8; --control: #b0752b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaef; --soft: #9aa6b2; --line: #39424d; --paper: #14181d;
        --card: #1c2229; --good: #4cc38a; --bad: #ef8573; --flat: #9aa6b2; --changed: #6aa9ee; --control: #e0a659; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       margin: 0 auto; padding: 2rem 1.5rem; max-width: 64rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .4rem 0 1rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h1.verdict { padding: .8rem 1.1rem; background: var(--card); border-left: 5px solid var(--flat); }
h1.good { border-color: var(--good); } h1.bad { border-color: var(--bad); }
@media print { body { max-width: none; padding: 0; } h2, figure, tr { break-inside: avoid; } }
.soft { color: var(--soft); } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem; margin: 1rem 0; }
dl div { background: var(--card); padding: .6rem .8rem; } dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.7rem; font-weight: 600; line-height: 1.3; }
dd small { display: block; font-size: .82rem; font-weight: 400; color: var(--soft); }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
svg .soft { fill: var(--soft); } figure { margin: 0 0 1rem; } .two { display: grid; gap: 1.5rem;
grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); }
"""


def page(report: Report) -> str:
    """The whole page."""
    effect = report.effects[0].gain
    mood = "" if effect is None else " good" if effect.low > 0 else " bad" if effect.high < 0 else ""
    body = [
        f'<p class="soft">slurm-advisor, {day(report.begins)} to {day(report.until)}</p>',
        f'<h1 class="verdict{mood}">{escape(report.verdict)}</h1>',
        f"<p>{escape(_how(report))}</p>",
        _tiles(report),
        _counts(report),
    ]
    told = [e for e in (*report.effects, *report.by_partition, *report.by_app, *report.by_account) if e.gain]
    if told:
        body += ["<h2>Effect on jobs that would be better elsewhere</h2>", effects(report)]
    body.append(_table("Turnaround, wait, run time", report.effects))
    for title, rows in (
        ("By partition, as submitted", report.by_partition),
        ("By app", report.by_app),
        ("By account", report.by_account),
    ):
        if rows:
            body.append(_table(title, rows))
    if len(report.weeks) > 1:
        body += ["<h2>Week by week</h2>", by_week(report.weeks)]
    if report.calibration:
        body += ["<h2>What was predicted, and what came</h2>", '<div class="two">']
        body += [calibration(found) for found in report.calibration]
        body.append("</div>")
    body += _lists(report)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><title>slurm-advisor report</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _how(report: Report) -> str:
    """In a sentence or two, why the figure above can be believed, or why there is none yet."""
    counts = report.decisions
    if not counts.get("control") or not counts.get("changed"):
        return (
            "An effect is told from two groups of jobs that would be better elsewhere: those that were sent there, and "
            "those that chance left as they were submitted (experiment.holdout). So far there are not both."
        )
    return (
        f"Of {counts['would change']:,} jobs that would be better elsewhere, {counts['changed']:,} were sent there and "
        f"chance left {counts['control']:,} as they were submitted. Nothing else sets the two groups apart, so the "
        "difference between them is the advisor's doing; the interval is what chance may have added or taken."
    )


def _tiles(report: Report) -> str:
    """What somebody would ask first: how much sooner, and what that is in hours."""

    def span(found: Interval | None, unit: str, scale: float = 1.0) -> str:
        if found is None:
            return "–<small>too few jobs to tell</small>"
        value, low, high = (f"{scale * v:,.0f}{unit}" for v in (found.value, found.low, found.high))
        return f"{value}<small>95 %: {low} to {high}</small>"

    saved = report.saved
    used = f"{saved.gpu_hours_used:,.0f}<small>by all {report.decisions.get('ended', 0):,} jobs that have ended</small>"
    tiles = [
        ("shorter turnaround", span(report.effects[0].gain, " %", 100.0)),
        ("GPU hours saved", span(saved.gpu_hours, "")),
        ("hours saved by users", span(saved.job_hours, "")),
        ("GPU hours used", used),
    ]
    return "<dl>" + "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in tiles) + "</dl>"


def _counts(report: Report) -> str:
    told = ", ".join(f"{count:,} {name}" for name, count in report.decisions.items())
    return f'<p class="soft">{escape(told)}.</p>'


def _words(effect: Effect) -> str:
    if effect.gain is None and not effect.changed_mean and not effect.control_mean and effect.changed:
        return "none in either group"
    return gain_words(effect.gain)


def _table(title: str, rows: Sequence[Effect]) -> str:
    lines = "".join(
        f"<tr><td>{escape(e.name)}</td><td>{e.changed:,}</td><td>{e.control:,}</td><td>{hours(e.changed_mean)}</td>"
        f"<td>{hours(e.control_mean)}</td><td>{escape(_words(e))}</td></tr>"
        for e in rows
    )
    return (
        f"<h2>{escape(title)}</h2><table><tr><th></th><th>changed</th><th>control</th><th>mean changed</th>"
        f"<th>mean control</th><th>effect</th></tr>{lines}</table>"
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
