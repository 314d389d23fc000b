"""`advisor hook`: puts the hook where slurmctld finds it, and says what is there."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.common import fail, json_option, print_json

_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/etc/slurm"),
    show_default=True,
    help="Slurm's configuration folder, where job_submit.lua stands.",
)


@click.group()
def command() -> None:
    """Install the submit hook, or look at it."""


@command.command("install")
@_directory
@json_option
def install(directory: Path, as_json: bool) -> None:
    """Put advisor.lua beside job_submit.lua.

    A job_submit.lua is written only where there is none; to a site's own nothing is done, and the two
    lines to add are printed.
    """
    from advisor import hook

    try:
        result = hook.install(directory)
    except hook.HookError as error:
        fail(str(error))
    if as_json:
        print_json(result)
        return
    for line in result.text:
        click.echo(line)


@command.command("show")
@_directory
@json_option
@click.pass_context
def show(ctx: click.Context, directory: Path, as_json: bool) -> None:
    """What is installed, and whether it matches this version.

    Exit code 1 when something is missing or does not match.
    """
    from advisor import hook

    try:
        state = hook.show(directory)
    except hook.HookError as error:
        fail(str(error))
    if as_json:
        print_json(state)
    else:
        for line in state.text:
            click.echo(line)
    ctx.exit(0 if state.well else 1)
