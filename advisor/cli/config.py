"""`advisor config`: every setting, its value and where the value came from."""

from __future__ import annotations

import click

from advisor.cli.common import json_option, print_json, settings


@click.group()
def command() -> None:
    """Look at the settings."""


@command.command("show")
@json_option
@click.pass_context
def show(ctx: click.Context, as_json: bool) -> None:
    """Every setting, its value and where it came from."""
    loaded = settings(ctx)
    if as_json:
        print_json(loaded.origins)
        return
    import yaml
    from msgspec import to_builtins

    width = max(len(o.key) for o in loaded.origins)
    for o in loaded.origins:
        value = yaml.safe_dump(to_builtins(o.value), default_flow_style=True, width=200).split("\n...")[0].strip()
        click.echo(f"{o.key:<{width}}  {click.style(value, bold=True)}  ({o.origin})")
        click.echo(f"{'':<{width}}  {click.style(o.sentence, dim=True)}")


@command.command("example")
def example() -> None:
    """Print an advisor.yaml with every key commented."""
    from advisor import config

    click.echo(config.example(), nl=False)
