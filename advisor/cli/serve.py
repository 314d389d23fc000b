"""`advisor serve`: the daemon, in the foreground, as systemd or a terminal runs it."""

from __future__ import annotations

import click

from advisor.cli.common import settings


@click.command()
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="How much to say on standard error.",
)
@click.pass_context
def command(ctx: click.Context, log_level: str) -> None:
    """Run the daemon that answers the hook.

    Stays in the foreground. SIGHUP rereads the settings; SIGTERM answers what is in flight, writes
    the log out and ends.
    """
    loaded = settings(ctx)
    from advisor.server.daemon import run

    ctx.exit(run(loaded, ctx.find_root().obj, log_level=log_level))
