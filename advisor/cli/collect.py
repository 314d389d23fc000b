"""`advisor collect`: reads outcomes from sacct now, instead of waiting for the daemon to do it."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import click

from advisor.cli.common import fail, json_option, print_json, settings


@click.command()
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]),
    help="Where the very first collection begins.  [default: log.since_days ago]",
)
@json_option
@click.pass_context
def command(ctx: click.Context, since: datetime | None, as_json: bool) -> None:
    """Read how jobs ended from sacct into the log.

    Safe to run at any time and as often as you like, also while the daemon does the same: it
    continues where the last collection ended and never loses or doubles a job.
    """
    loaded = settings(ctx)
    from advisor.cluster.command import SlurmCommand
    from advisor.cluster.types import SourceError
    from advisor.store.database import Database, StoreError
    from advisor.telemetry import sacct

    now = time.time()
    begin = since.timestamp() if since else now - loaded.settings.log.since_days * 86400
    slurm = SlurmCommand(loaded.settings.slurm.command, loaded.settings.slurm.timeout_s)
    try:
        with Database(Path(loaded.settings.paths.database)) as db:
            result = sacct.collect(db, slurm.run, begin, now, progress=_progress)
    except (SourceError, StoreError) as error:
        fail(str(error))
    if as_json:
        print_json(result)
        return
    span = f"{_time(result.since)} to {_time(result.until)}"
    click.echo(f"{result.read} finished jobs read from sacct ({span}), {result.new} of them new")
    if result.lost:
        click.echo(f"{result.lost} carry a token whose decision is not in the log: the daemon died before writing it")
    if result.unreadable:
        click.echo(f"{result.unreadable} records were not understood and left out")


def _progress(until: int, read: int) -> None:
    """A site's first collection may take minutes."""
    click.echo(f"up to {_time(until)}: {read} jobs", err=True)


def _time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
