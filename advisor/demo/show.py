"""How the demonstration looks in a terminal."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from advisor.demo.play import Pass, Site, Submission
from advisor.demo.workload import DemoJob


def both_passes(console: Console, site: Site, jobs: list[DemoJob]) -> tuple[Pass, Pass]:
    """Slurm alone with the advisor watching, then the same jobs advised; each submission is shown as it happens."""
    site.configure("shadow")
    site.start_daemon()
    site.stage.enable_hook()
    alone = _one_pass(console, site, jobs, "Slurm alone", "shadow")
    site.configure("enforce")
    return alone, _one_pass(console, site, jobs, "advised", "enforce")


def _one_pass(console: Console, site: Site, jobs: list[DemoJob], name: str, mode: str) -> Pass:
    console.rule(f"{name}: {len(jobs)} jobs with plain sbatch (mode: {mode})", align="left")
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("jobs done", total=len(jobs))
        return site.play(
            name,
            jobs,
            lambda made: submission(console, made),
            lambda done: progress.update(bar, completed=done),
        )


def submission(console: Console, made: Submission) -> None:
    """One submission as it happens, and what the user was told."""
    options = made.job.options
    command = " ".join(("sbatch", *options[: options.index("-t")], f"{made.job.app}.sh"))
    console.print(
        f"[dim]{made.at_s:5.1f} s[/dim]  {made.job.user:<5}  [bold]{command}[/bold]  [dim]job {made.job_id}[/dim]"
    )
    for line in made.told.splitlines():
        console.print(Padding(Text(line.removeprefix("sbatch: "), style="green"), (0, 0, 0, 16)))


def picture(path: Path, alone: Pass, advised: Pass, submissions: int = 10) -> None:
    """The last submissions of the advised pass and the effect, as an SVG of a terminal."""
    console = Console(record=True, file=io.StringIO(), width=132, highlight=False)
    console.print("[dim]…[/dim]")
    for made in advised.submissions[-submissions:]:
        submission(console, made)
    console.print()
    effect(console, alone, advised)
    # Any monospaced font will do: a picture in a README must not fetch one from elsewhere.
    svg = re.sub(r"@font-face \{[^}]*\}|<!-- Generated.*?-->", "", console.export_svg(title="scripts/demo"))
    path.write_text(svg, encoding="utf-8")


def effect(console: Console, alone: Pass, advised: Pass) -> None:
    """The closing tables: what changed for users, and where each app ran."""
    table = Table(title="The effect (seconds stand for hours)", title_justify="left")
    for heading in ("", alone.name, advised.name, "change"):
        table.add_column(heading, justify="left" if not heading else "right")
    for label, before, after in (
        ("average time from sbatch to end", mean_turnaround_s(alone), mean_turnaround_s(advised)),
        ("nine in ten done within", _percentile(alone, 0.9), _percentile(advised, 0.9)),
        ("all done after (makespan)", alone.makespan_s, advised.makespan_s),
        ("processor time used", _used(alone), _used(advised)),
    ):
        table.add_row(label, f"{before:.1f} s", f"{after:.1f} s", f"{100 * (after / before - 1):+.0f} %")
    console.print(table)

    where = Table(title="Where each app ran (Slurm alone → advised)", title_justify="left")
    processors = sorted({job.processor for run in (alone, advised) for job in run.jobs}, key=lambda p: (p == "cpu", p))
    where.add_column("app")
    for processor in processors:
        where.add_column(processor, justify="right")
    counts = [Counter((job.app, job.processor) for job in run.jobs) for run in (alone, advised)]
    for app in sorted({job.app for job in alone.jobs}):
        where.add_row(app, *(" → ".join(str(count[app, p] or "·") for count in counts) for p in processors))
    console.print(where)


def mean_turnaround_s(run: Pass) -> float:
    """Average seconds from sbatch to end."""
    return sum(job.turnaround_s for job in run.jobs) / len(run.jobs)


def _used(run: Pass) -> float:
    return sum(job.run_s for job in run.jobs)


def _percentile(run: Pass, share: float) -> float:
    ordered = sorted(job.turnaround_s for job in run.jobs)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
