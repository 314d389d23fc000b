"""The report as lines for a terminal."""

from __future__ import annotations

import time

from advisor.training.drift import EVERYTHING, Alarm
from advisor.training.off_policy import Interval
from advisor.training.report import Effect, Report


def hours(seconds: float) -> str:
    """A mean as people compare them."""
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.1f} min"
        if seconds < 7200
        else f"{seconds / 3600:.2f} h"
    )


def day(at: float) -> str:
    """A date; the same everywhere, so that two people mean the same day."""
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def gain_words(gain: Interval | None) -> str:
    """An effect with its interval: a minus is shorter, as on a clock."""
    if gain is None:
        return "too few jobs"
    return f"{-gain.value:+.1%} (95 %: {-gain.high:+.1%} to {-gain.low:+.1%})"


def alarm_words(alarm: Alarm) -> str:
    """One line about a change."""
    who = "all apps" if alarm.app == EVERYTHING else alarm.app
    what = "waits" if alarm.what == "wait" else "run times"
    return (
        f"{day(alarm.at)}  {what} of {who} are {alarm.direction} than predicted since about {day(alarm.since)} "
        f"(×{alarm.factor:.2f}, {alarm.jobs} jobs)"
    )


def lines(report: Report) -> list[str]:
    """All of it."""
    counts = report.decisions
    text = [report.verdict]
    if not counts["submissions"]:
        return text
    text += [
        "",
        f"{day(report.begins)} to {day(report.until)}: {counts['submissions']} submissions, {counts['eligible']} could "
        f"go elsewhere, {counts['would change']} would be better elsewhere, {counts['changed']} changed, "
        f"{counts['moved later']} moved by rounds later, {counts['control']} left as the control group",
        "",
        _header("effect on jobs that would be better elsewhere"),
        *(_line(effect) for effect in report.effects),
    ]
    for title, rows in (
        ("turnaround by partition", report.by_partition),
        ("turnaround by app", report.by_app),
        ("turnaround by account", report.by_account),
    ):
        if rows:
            text += ["", _header(title), *(_line(effect) for effect in rows)]
    text += ["", *_saved(report)]
    if any(share for pair in report.unhappy.values() for share in pair):
        text += ["", "how they ended                 changed  control"]
        text += [f"  {state:<28} {a:>7.1%}  {b:>7.1%}" for state, (a, b) in report.unhappy.items()]
    if report.calibration:
        text += ["", "predictions                       jobs  real/predicted  off by   in 50 %   in 90 %"]
    for found in report.calibration:
        half, nine = (
            f"{share:>8.0%}" if share is not None else "       –" for share in (found.within_half, found.within_nine)
        )
        text.append(
            f"  {found.what:<28} {found.jobs:>7} {found.middle_ratio:>15.2f} {found.off_by:>7.2f}× {half}  {nine}"
        )
    if report.changes:
        text += ["", "what was changed (as submitted → where it was sent)"]
        text += [f"  {count:>6} × {change}" for change, count in report.changes.items()]
    text += ["", f"drift: {len(report.drift)} found" if report.drift else "drift: none found"]
    text += [f"  {alarm_words(alarm)}" for alarm in report.drift]
    if report.promotions:
        text += ["", "model versions"]
        text += [f"  {day(p.at)}  {p.version or 'none'}: {p.why}" for p in report.promotions]
    if report.left_out:
        text += ["", "not compared"]
        text += [f"  {count:>6} × {why}" for why, count in report.left_out.items()]
    return text


def _header(title: str) -> str:
    return f"{title:<46} changed   control   mean changed  mean control  effect"


def _line(effect: Effect) -> str:
    return (
        f"  {effect.name[:43]:<44} {effect.changed:>7}  {effect.control:>8}   {hours(effect.changed_mean):>12}  "
        f"{hours(effect.control_mean):>12}  {gain_words(effect.gain)}"
    )


def _saved(report: Report) -> list[str]:
    saved = report.saved

    def words(found: Interval | None) -> str:
        return (
            "too few jobs to tell"
            if found is None
            else f"{found.value:,.1f} (95 %: {found.low:,.1f} to {found.high:,.1f})"
        )

    return [
        f"GPU hours saved        {words(saved.gpu_hours)} of {saved.gpu_hours_used:,.1f} used",
        f"hours saved by users   {words(saved.job_hours)}",
        f"control group          used {saved.control_gpu_hours:,.1f} GPU hours as submitted",
    ]
