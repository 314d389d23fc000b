"""`advisor retrain`: a new model version from the log, judged before it decides anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor.cli.common import as_owner_of, fail, json_option, print_json, settings

if TYPE_CHECKING:
    from advisor.training.retrain import Retrained


@click.command()
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Log to learn from; may be given several times, the first is this site's.  [default: paths.database]",
)
@click.option("--cluster", help="Whose decisions and queue to judge by.  [default: the first log's]")
@click.option("--seed", type=int, default=0, show_default=True, help="Same log, same seed: same weights.")
@click.option("--resume", is_flag=True, help="Go on with a run that was interrupted.")
@click.option("--promote/--no-promote", default=True, help="Whether a version that passes the gate comes into force.")
@click.option(
    "--if-drifted", is_flag=True, help="Do nothing unless drift was found since the version in force was made."
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    logs: tuple[Path, ...],
    cluster: str | None,
    seed: int,
    resume: bool,
    promote: bool,
    if_drifted: bool,
    as_json: bool,
) -> None:
    """Learn a new model version from the log, and put it in force if it is shown to be no worse.

    Works on a copy: the daemon writes on and answers meanwhile, and the log is never changed. Under srun the ranks
    share simulation and the policy's tuning; the first alone reads the log and writes, to the result of one process.
    """
    loaded = settings(ctx).settings
    as_owner_of(Path(loaded.paths.database))
    try:
        from advisor.training.crew import Crew
        from advisor.training.ranks import RankLost
        from advisor.training.retrain import RetrainError, retrain
    except ImportError as error:
        fail(f"retraining needs what the extra `learn` brings ({error}); pip install 'slurm-advisor[learn]'")
    try:
        with Crew() as crew:
            if not crew.first:
                ctx.exit(0 if crew.assist() else 1)
            found = None
            if not if_drifted or _drifted(ctx, loaded.paths.database):
                found = retrain(
                    loaded, logs, seed=seed, resume=resume, promote=promote, cluster=cluster, say=_say(), crew=crew
                )
    except (RetrainError, RankLost) as error:
        fail(str(error))
    if as_json:
        print_json({"drifted": False} if found is None else found)
    elif found is None:
        click.echo("no drift since the version in force was made: nothing to do")
    else:
        _print(found)


def _say() -> Callable[[str], None]:
    began = time.monotonic()
    return lambda what: click.echo(f"{time.monotonic() - began:6.1f} s  {what}", err=True)


def _print(found: Retrained) -> None:
    for copied in found.sources.logs:
        left = "".join(f"; left out {count}: {why}" for why, count in copied.left_out.items())
        click.echo(f"{copied.source}: {copied.decisions} decisions, {copied.outcomes} ended jobs{left}")
    models = found.models
    click.echo(f"run times: {models.runs} runs of {models.apps} apps; waits: {models.wait_records} jobs")
    evidence = found.judged.evidence
    if evidence is not None:
        click.echo(f"log: {evidence.used} of {evidence.decisions} decisions can be weighed")
        if evidence.moved:
            click.echo(
                f"  {evidence.moved} of them were moved by a round later, and speak for the policy with its rounds"
            )
        for why, count in evidence.left_out.items():
            click.echo(f"  left out {count}: {why}")
    for reason in found.judgement.reasons:
        click.echo(reason)
    if found.promoted:
        click.echo(f"gate: {found.judgement.verdict}; {found.version} is in force")
    else:
        kept = f"{found.before} stays in force" if found.before else "no version is in force"
        click.echo(f"gate: {found.judgement.verdict}; {found.version} stays beside, {kept}")


def _drifted(ctx: click.Context, database: str) -> bool:
    from advisor.store.database import Database, StoreError
    from advisor.training.drift import detect
    from advisor.training.versions import VersionError, Versions

    loaded = settings(ctx).settings
    try:
        version = Versions.of(loaded).current()
        since = version.manifest.decided_until if version is not None else 0.0
        with Database(database, read_only=True) as db:
            return bool(detect(db, loaded.drift, since=since).alarms)
    except (StoreError, VersionError) as error:
        fail(str(error))
