"""`advisor check`: a doctor for the whole installation."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.common import json_option, print_json, settings

_MARKS = {"ok": ("ok  ", "green"), "warning": ("warn", "yellow"), "wrong": ("FAIL", "red")}


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/etc/slurm"),
    show_default=True,
    help="Slurm's configuration folder.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, directory: Path, as_json: bool) -> None:
    """Check each requirement: ok, or how to fix it.

    Exit code 1 when a requirement is not met. Run it on the host of slurmctld, as root or as the
    daemon's user.
    """
    loaded = settings(ctx)
    from advisor import doctor

    found = []
    for finding in doctor.examine(loaded, directory):
        found.append(finding)
        if not as_json:
            mark, colour = _MARKS[finding.verdict]
            click.echo(f"{click.style(mark, fg=colour)}  {finding.what}: {finding.seen}")
            if finding.fix:
                click.echo(f"      {finding.fix}")
    if as_json:
        print_json(found)
    ctx.exit(1 if any(f.verdict == "wrong" for f in found) else 0)
