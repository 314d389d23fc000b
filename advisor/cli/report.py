"""`advisor report`: what the advisor did to the site, with the evidence."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from advisor.cli.common import fail, json_option, print_json, settings, there_is

_DAYS = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])


@click.command()
@click.option(
    "--log", type=click.Path(path_type=Path, dir_okay=False), help="Log to report on.  [default: paths.database]"
)
@click.option("--since", type=_DAYS, help="Only decisions from then on.")
@click.option("--until", type=_DAYS, help="Only decisions until then.")
@click.option(
    "--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with plots to this file."
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    log: Path | None,
    since: datetime | None,
    until: datetime | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """What the advisor changed, and what that did: the effect against the control group.

    Also how good predictions were, GPU hours saved, and drift. Only reads the log.
    """
    loaded = settings(ctx).settings
    from advisor.store.database import Database, StoreError
    from advisor.store.experience import experiences

    try:
        from advisor.training import report, report_html, report_text
        from advisor.training.versions import VersionError, Versions
    except ImportError as error:
        fail(f"a report needs what the extra `sim` brings ({error}); pip install 'slurm-advisor[sim]'")
    path = log or Path(loaded.paths.database)
    if not there_is(path):
        fail(f"there is no log at {path}; the daemon (advisor serve) begins one")
    try:
        with Database(path, read_only=True) as db:
            rows = list(
                experiences(
                    db,
                    since.timestamp() if since else 0.0,
                    until.timestamp() if until else float("inf"),
                    everything=True,
                )
            )
    except StoreError as error:
        fail(str(error))
    try:
        promotions = Versions.of(loaded).pointer().promotions
    except VersionError:
        promotions = ()
    found = report.make(rows, loaded.drift, promotions)
    if page is not None:
        try:
            page.write_text(report_html.page(found), encoding="utf-8")
        except OSError as error:
            fail(f"{page}: cannot be written ({error.strerror}); choose another place for --html")
    if as_json:
        print_json(found)
        return
    for line in report_text.lines(found):
        click.echo(line)
    if page is not None:
        click.echo(f"\nPage: {page}")
