"""`advisor models`: the versions there are, what each was shown to do, and which one decides."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli.common import as_owner_of, fail, json_option, print_json, settings

if TYPE_CHECKING:
    from advisor.training.versions import Versions


@click.group()
def command() -> None:
    """Look at model versions, and choose the one that decides."""


@command.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """Every version, sound or not, and which one is in force."""
    from advisor.training.versions import VersionError

    versions = _versions(ctx)
    try:
        current = versions.pointer().version
    except VersionError as error:
        fail(str(error))
    rows: list[dict[str, Any]] = []
    for name, origin in versions.names():
        row: dict[str, Any] = {"version": name, "origin": origin, "current": name == current}
        try:
            found = versions.load(name)
        except VersionError as error:
            row["damaged"] = str(error)
        else:
            row |= {
                "created_at": found.manifest.created_at,
                "cluster": found.manifest.cluster,
                "policy": found.manifest.policy,
                "files": sorted(found.manifest.files),
                "gate": (found.card.get("gate") or {}).get("verdict"),
            }
        rows.append(row)
    if as_json:
        print_json({"current": current, "versions": rows})
        return
    if not rows:
        click.echo(f"no versions in {versions.models}; `advisor retrain` makes one from the log")
        return
    for row in rows:
        mark = "*" if row["current"] else " "
        if "damaged" in row:
            click.echo(f"{mark} {row['version']:<24} damaged: {row['damaged']}")
            continue
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created_at"]))
        click.echo(f"{mark} {row['version']:<24} {made}  {row['policy']:<16} {row['gate'] or row['origin']}")
    if current is None:
        click.echo("no version is in force: the daemon learns from the log by itself")


@command.command("show")
@click.argument("version", required=False)
@json_option
@click.pass_context
def show(ctx: click.Context, version: str | None, as_json: bool) -> None:
    """The card of VERSION (default: the one in force): how it was made, what it scored, what the gate said."""
    import yaml

    from advisor.training.versions import VersionError

    versions = _versions(ctx)
    try:
        name = version or versions.pointer().version
        if name is None:
            fail("no version is in force; name one of `advisor models list`")
        found = versions.load(name)
    except VersionError as error:
        fail(str(error))
    if as_json:
        print_json({"version": name, "path": str(found.path), "manifest": found.manifest, "card": found.card})
        return
    click.echo(f"{name} ({found.path})\n")
    click.echo(yaml.safe_dump(found.card, sort_keys=False, allow_unicode=True), nl=False)


@command.command("promote")
@click.argument("version")
@click.option("--why", default="by hand", show_default=True, help="What to remember this by.")
@json_option
@click.pass_context
def promote(ctx: click.Context, version: str, why: str, as_json: bool) -> None:
    """Put VERSION in force, whatever the gate said of it; the daemon takes it up within a second or two."""
    _turned(ctx, version, why, as_json)


@command.command("rollback")
@click.option("--why", default="rolled back", show_default=True, help="What to remember this by.")
@json_option
@click.pass_context
def rollback(ctx: click.Context, why: str, as_json: bool) -> None:
    """Put the version in force that was before; going back from the first leaves none."""
    _turned(ctx, None, why, as_json)


def _turned(ctx: click.Context, version: str | None, why: str, as_json: bool) -> None:
    from advisor.training.versions import VersionError

    as_owner_of(Path(settings(ctx).settings.paths.database))
    versions = _versions(ctx)
    try:
        before = versions.pointer().version if version is None else None
        promotion = versions.rollback(why) if version is None else versions.promote(version, why)
    except VersionError as error:
        fail(str(error))
    if as_json:
        print_json(promotion)
        return
    now = promotion.version or "no version (the daemon learns from the log by itself)"
    click.echo(f"in force: {now}" + (f"; it was {before}" if before else ""))


def _versions(ctx: click.Context) -> Versions:
    from advisor.training.versions import Versions

    return Versions.of(settings(ctx).settings)
