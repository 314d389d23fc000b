"""The status page: how the daemon is, what it has done so far and what it decided last. One page, no scripts.

It asks for nothing from anywhere and loads itself again every few seconds. All that came from users is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

import msgspec

from advisor.server.status import Status

AGAIN_S = 15

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5d6875; --line: #d5dbe2; --paper: #ffffff; --card: #f6f8fa;
        --good: #1a7f5a; --bad: #b3412f; --flat: #5d6875; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaef; --soft: #9aa6b2; --line: #39424d; --paper: #14181d;
        --card: #1c2229; --good: #4cc38a; --bad: #ef8573; --flat: #9aa6b2; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       margin: 0 auto; padding: 1.5rem; max-width: 72rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
.soft { color: var(--soft); } .say { padding: .7rem 1rem; background: var(--card); border-left: 5px solid var(--flat);
margin: .8rem 0; font-size: 1.1rem; } .good { border-color: var(--good); } .bad { border-color: var(--bad); }
ul.say { padding-left: 2rem; font-size: 1rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .7rem; margin: 1rem 0; }
dl div { background: var(--card); padding: .5rem .8rem; } dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.35rem; font-weight: 600; line-height: 1.3; }
dd small { display: block; font-size: .8rem; font-weight: 400; color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
.why { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; overflow: hidden; }
th { color: var(--soft); font-weight: 600; } td.n, th.n { text-align: right; white-space: nowrap; }
"""


class Decided(msgspec.Struct, frozen=True):
    """One line of the list of decisions."""

    at: float
    user: str
    app: str
    asked: str  # partition as submitted
    to: str  # where it was, or would have been, sent
    mode: str
    action: str
    applied: bool
    holdout: bool
    why: str


class Effect(msgspec.Struct, frozen=True):
    """What the log says of the advisor so far."""

    verdict: str
    value: float | None = None  # share by which changed jobs finish sooner
    low: float | None = None
    high: float | None = None
    at: float = 0.0  # when it was worked out


def page(status: Status | None, trouble: str, decisions: Sequence[Decided], effect: Effect | None, now: float) -> str:
    """The whole page; `trouble`: why there is no status."""
    body = ["<h1>slurm-advisor</h1>"]
    if status is None:
        body.append(f'<p class="say bad">The daemon does not answer: {escape(trouble)}</p>')
    else:
        body += _health(status)
    if effect is not None:
        body.append(_effect(effect))
    if status is not None:
        body += [_tiles(status), _modes(status)]
    body.append(_decisions(decisions))
    if status is not None and status.decisions.reasons:
        body.append(_reasons(status))
    at = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    body.append(
        f'<p class="soft">{at}; loads itself again every {AGAIN_S} s. For Prometheus: <code>/metrics</code>.</p>'
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><meta http-equiv="refresh" content="{AGAIN_S}">'
        f"<title>slurm-advisor</title><style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _health(status: Status) -> list[str]:
    snapshot = status.snapshot
    where = f"cluster {snapshot.cluster}, Slurm {snapshot.release}" if snapshot.taken_at else "no cluster known yet"
    line = f"{where}; {status.version}, up {_span(status.uptime_s)}; policy {status.policy} {status.policy_version}"
    found = [f'<p class="soft">{escape(line.rstrip())}</p>']
    problems = status.problems()
    if problems:
        found.append('<ul class="say bad">' + "".join(f"<li>{escape(each)}</li>" for each in problems) + "</ul>")
    else:
        found.append(f'<p class="say good">All is well; mode {escape(status.mode)}.</p>')
    return found


def _effect(effect: Effect) -> str:
    mood = ""
    if effect.low is not None and effect.high is not None:
        mood = " good" if effect.low > 0 else " bad" if effect.high < 0 else ""
    at = time.strftime("%H:%M", time.localtime(effect.at))
    return f'<p class="say{mood}">{escape(effect.verdict)} <span class="soft">(as of {at}; advisor report)</span></p>'


def _tiles(status: Status) -> str:
    counts, latency, snapshot = status.decisions, status.latency, status.snapshot
    tiles = [
        ("submissions", f"{counts.submissions:,}", f"{counts.eligible:,} could go elsewhere"),
        ("rewritten", f"{counts.rewritten:,}", f"{counts.kept:,} kept"),
        ("control group", f"{counts.holdout:,}", f"{status.holdout:.0%} of eligible jobs"),
        ("answer, p99", f"{latency.p99_us / 1000:.2f} ms", f"p50 {latency.p50_us / 1000:.2f} ms"),
        ("queue", f"{snapshot.queued:,}", f"{snapshot.running:,} running"),
        ("log", f"{status.log.written:,}", f"{status.log.buffered:,} waiting, {status.log.dropped:,} dropped"),
    ]
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for name, value, more in tiles
    )
    return f"<dl>{cells}</dl><p class='soft'>Counted since the daemon started.</p>"


def _modes(status: Status) -> str:
    rows = [("everybody else" if status.mode_exceptions else "everybody", status.mode)]
    rows = [*sorted(status.mode_exceptions.items()), *rows]
    lines = "".join(f"<tr><td>{escape(who)}</td><td>{escape(mode)}</td></tr>" for who, mode in rows)
    return f"<h2>Modes</h2><table><tr><th>for</th><th>mode</th></tr>{lines}</table>"


def _decisions(decisions: Sequence[Decided]) -> str:
    if not decisions:
        return '<h2>Last decisions</h2><p class="soft">None yet.</p>'
    lines = []
    for each in decisions:
        became = "control group" if each.holdout else "sent there" if each.applied else f"{each.action} ({each.mode})"
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(each.at))
        cells = "".join(
            f"<td>{escape(cell)}</td>" for cell in (each.user, each.app, each.asked or "(default)", each.to, became)
        )
        # Two lines of it; the rest shows where the pointer rests, and in `advisor explain`.
        why = f'<td title="{escape(each.why)}"><div class="why">{escape(each.why)}</div></td>'
        lines.append(f'<tr><td class="n">{at}</td>{cells}{why}</tr>')
    return (
        '<h2>Last decisions</h2><div class="wide"><table><tr><th class="n">at</th><th>user</th><th>app</th>'
        f"<th>asked for</th><th>advice</th><th>became</th><th>why</th></tr>{''.join(lines)}</table></div>"
    )


def _reasons(status: Status) -> str:
    rows = sorted(status.decisions.reasons.items(), key=lambda item: -item[1])[:12]
    lines = "".join(f'<tr><td class="n">{count:,}</td><td>{escape(reason)}</td></tr>' for reason, count in rows)
    return f'<h2>Reasons</h2><table><tr><th class="n">answers</th><th>why</th></tr>{lines}</table>'


def _span(seconds: float) -> str:
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
