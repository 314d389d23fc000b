"""`advisor status`: one look at the running daemon."""

from __future__ import annotations

import os

import click

from advisor.cli.common import fail, json_option, print_json, settings


@click.command()
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """How the running daemon is doing.

    Exit code 1 when it does not answer or something in it is not well.
    """
    loaded = settings(ctx)
    from advisor.server import client

    try:
        status = client.status(loaded.settings.paths.socket)
    except client.ClientError as error:
        fail(str(error))
    if as_json:
        print_json(status)
    else:
        for line in status.lines():
            click.echo(line)
        disable = loaded.settings.paths.disable
        if os.path.exists(disable):  # noqa: PTH110 - false, not an error, in a folder that may not be looked into
            click.echo(f"disabled   {disable} is there: every job passes unchanged and none is moved; rm {disable}")
    ctx.exit(0 if status.well() else 1)
