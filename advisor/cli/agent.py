"""`advisor agent`: the node agent with the site's settings, in the foreground, as systemd runs it."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from advisor.cli.common import json_option, print_json, settings


@click.command()
@click.option("--once", is_flag=True, help="Measure one period, print it and deliver nothing.")
@click.option("--node", help="This node's name in Slurm.  [default: agent.node, or the host's short name]")
@json_option
@click.pass_context
def command(ctx: click.Context, once: bool, node: str | None, as_json: bool) -> None:
    """Measure the jobs of this node for the daemon.

    Stays in the foreground, as root: CPU, memory, IO, GPU and perf counters of each job go to
    agent.daemon every minute, or wait on disk while it is away. SIGTERM delivers what is left and
    ends. --json is for --once.
    """
    chosen = settings(ctx).settings
    from advisor.cli.event_needs import of_model
    from advisor.telemetry import agent
    from advisor.telemetry.events import events_wanted

    try:
        daemon = agent.address(chosen.agent.daemon) if chosen.agent.daemon else None
    except ValueError as error:
        raise click.UsageError(f"agent.daemon: {error}") from None
    if as_json and not once:
        raise click.UsageError("--json prints one period: give --once as well")
    options = agent.Options(
        daemon=daemon,
        node=node or chosen.agent.node or agent.this_node(),
        period_s=chosen.agent.period_s,
        deliver_s=chosen.agent.deliver_s,
        spool=Path(chosen.agent.spool),
        spool_mb=chosen.agent.spool_mb,
        perf=chosen.agent.perf,
        events=chosen.agent.events,
        munge_socket=chosen.telemetry.munge_socket,
        scontrol=(*chosen.slurm.command, "scontrol"),
    )
    wanted = of_model(chosen.agent.perf) if chosen.agent.perf else events_wanted
    logging.basicConfig(level=logging.ERROR if once else logging.INFO, format="%(levelname)-7s %(message)s")
    if not once:
        if daemon is None:
            raise click.UsageError("agent.daemon is not set: say where the daemon takes batches, as host:port")
        ctx.exit(agent.serve(options, wanted))
    sample = agent.Agent(options, wanted).once()
    if as_json:
        print_json(sample)
        return
    for job in sample.get("jobs", []):
        _show(f"job {job['job']}", job["m"])
    _show(f"node {options.node}", sample.get("node", {}))
    for note in sample["notes"]:
        click.echo(f"not measured: {note['subject']}: {note['what']} ({note['text']})")


def _show(whose: str, metrics: dict[str, float | list[float]]) -> None:
    click.echo(whose)
    for name, value in sorted(metrics.items()):
        if isinstance(value, list):
            rate, enabled_s, running_s = value
            click.echo(f"  {name:<32} {rate:>14.6g}   counted {running_s:.3g} s of {enabled_s:.3g} s")
        else:
            click.echo(f"  {name:<32} {value:>14.6g}")
