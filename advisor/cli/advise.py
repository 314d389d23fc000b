"""`advisor advise`: a dry run of one submission against the running daemon."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import click

from advisor.cli.common import duration, fail, json_option, plain, print_json, settings


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@json_option
@click.option("--user", help="Ask as this user; only root and the daemon's user may connect at all.")
@click.argument("script", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[SBATCH OPTIONS]...")
@click.pass_context
def command(ctx: click.Context, as_json: bool, user: str | None, script: Path, options: tuple[str, ...]) -> None:
    """What would be advised for SCRIPT, without submitting it.

    SBATCH OPTIONS stand after the script and win over its #SBATCH lines, as on sbatch's command
    line. Nothing is submitted, logged or reserved.
    """
    from advisor import protocol
    from advisor.cli import sbatch
    from advisor.server import client

    try:
        account = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
        asked, uid = account.pw_name, account.pw_uid
    except KeyError:
        if user is None:
            asked, uid = str(os.geteuid()), os.geteuid()
        else:
            # A containerised controller may know users that this host does not.
            asked, uid = user, 65534
    text = script.read_bytes().decode("utf-8", "replace")
    try:
        request = sbatch.request(text, options, os.environ, asked, uid, script.name)
    except sbatch.OptionError as error:
        raise click.UsageError(str(error)) from None
    loaded = settings(ctx)
    try:
        reply = client.ask(loaded.settings.paths.socket, request, protocol.Reply)
    except client.ClientError as error:
        fail(str(error))
    if as_json:
        print_json(reply)
        return
    _show(reply.decision or {}, reply.message)


def _show(decision: dict[str, Any], message: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    predictions = {p["candidate"]: p for p in decision.get("predictions", [])}
    candidates = decision.get("candidates", [])
    if predictions:
        table = Table(box=None, pad_edge=False)
        for heading in ("", "place", "wait", "run", "done in", "known from"):
            table.add_column(heading, justify="right" if heading in ("wait", "run", "done in") else "left")
        for index, candidate in enumerate(candidates):
            p = predictions.get(index)
            if p is None:
                continue
            run = p["run_s"] * p.get("slowdown", 1.0)
            name = candidate["name"]
            if name == "keep":
                name = f"as submitted ({candidate.get('partition') or 'default partition'})"
            table.add_row(
                "→" if index == decision.get("preferred", 0) else "",
                plain(name),
                duration(p["wait_s"]),
                duration(run),
                duration(p["wait_s"] + run),
                p.get("run_source", ""),
            )
        console.print(table)
    console.print(
        f"[bold]{decision.get('action', 'keep')}[/bold] ({decision.get('mode', '')}): {plain(decision.get('why', ''))}"
    )
    if message:
        console.print(plain(message), highlight=False)
    if decision.get("annotation_error") and decision["annotation_error"] not in (message or ""):
        console.print(plain(decision["annotation_error"]), highlight=False)
