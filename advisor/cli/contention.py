"""`advisor contention`: the network from counters to utilisations, for any CPU that perf knows."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.common import fail, json_option, print_json


@click.group()
def command() -> None:
    """Look at the contention model."""


@command.command("show")
@click.option(
    "--cpu",
    help="CPU to show: skx, clx, icx, spr, zen2, zen3, or perf's id (GenuineIntel-6-55-4).  [default: this machine]",
)
@click.option("--perf", default="perf", show_default=True, help="The perf to ask.")
@click.option("--svg", "picture", type=click.Path(path_type=Path, dir_okay=False), help="Write a picture to this file.")
@json_option
def show(cpu: str | None, perf: str, picture: Path | None, as_json: bool) -> None:
    """Resources, the vendor's relations between counters, and which counters must be measured."""
    from advisor.contention import network, vendor

    try:
        built = network.build(vendor.read(cpu, perf))
    except vendor.PerfError as error:
        fail(str(error))
    from advisor.contention import picture as draw
    from advisor.contention.laws import Corrector

    laws = [f"{law.left} = {law.right}" for law in Corrector(built.relations, built.relations.events).laws]
    if picture is not None:
        try:
            picture.write_text(draw.svg(built), encoding="utf-8")
        except OSError as error:
            fail(f"{picture}: cannot be written ({error.strerror}); choose another place for --svg")
    if as_json:
        print_json(
            {
                "cpu": built.cpu,
                "resources": [
                    {
                        "name": resource.name,
                        "sentence": resource.sentence,
                        "views": [{"expression": v.text, "tolerance": v.tolerance} for v in resource.views],
                        "prior": {"mean": resource.prior_mean, "sd": resource.prior_sd},
                    }
                    for resource in built.resources
                ],
                "relations": {metric: built.expression(metric) for metric in built.metrics},
                "laws": laws,
                "counters": network.counters(built),
                "edges": built.edges,
                "constants": network.needed_constants(built),
                "svg": str(picture) if picture else None,
            }
        )
        return
    click.echo(draw.text(built), nl=False)
    if laws:
        click.echo("\nWhat must hold between counters, and corrects their errors:")
        for law in laws:
            click.echo(f"  {law}")
    if picture is not None:
        click.echo(f"\nPicture: {picture}")
