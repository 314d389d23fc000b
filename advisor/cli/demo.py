"""`advisor demo`: the whole way of a job, on a mini-cluster made for it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from advisor.cli.common import fail, json_option, print_json


@click.command()
@click.option(
    "--on",
    "where",
    type=click.Choice(["docker", "host", "simulator"]),
    default="docker",
    show_default=True,
    help="Slurm in Docker, Slurm from Debian's packages on this host, or the embedded simulator.",
)
@click.option("--slurm", "release", default="24.11", show_default=True, help="Slurm's release (22.05, 24.11, 26.05).")
@click.option("--name", default="demo", show_default=True, help="What the mini-cluster is called while it is there.")
@click.option("--jobs", "count", default=50, show_default=True, help="How many jobs to submit.")
@click.option("--seed", default=1, show_default=True, help="Another seed is another mix of jobs.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to put settings and log.  [default: a new one]",
)
@click.option("--keep", is_flag=True, help="Leave the cluster and the daemon running to look around.")
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False), help="Also save the end of it as an SVG picture."
)
@json_option
def command(
    where: str,
    release: str,
    name: str,
    count: int,
    seed: int,
    folder: Path | None,
    keep: bool,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Run a mixed workload on a mini-cluster and show the effect.

    The same jobs are submitted twice with plain sbatch: once to Slurm alone, while the advisor watches in
    shadow mode, and once with the advisor enforcing what it has learned.
    """
    from rich.console import Console

    from advisor.demo import show, workload

    console = Console(stderr=as_json, highlight=False)
    jobs = workload.jobs(count, seed)
    if where == "simulator":
        from advisor.demo import simulated

        console.print(
            "[bold]The embedded simulator, not Slurm[/bold]: the advisor's own decision code on simulated nodes."
        )
        alone, advised = simulated.play(jobs, lambda made: show.submission(console, made))
    else:
        from advisor.demo.play import Site
        from advisor.demo.stage import Stage, StageError

        folder = folder or Path(tempfile.mkdtemp(prefix="slurm-advisor-demo-"))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            stage = Stage(name, docker=where == "docker", release=release)
            stage.up()
            site = Site(stage, folder)
            try:
                alone, advised = show.both_passes(console, site, jobs)
            finally:
                if not keep:
                    site.stop_daemon()
                    stage.down()
        except StageError as error:
            fail(str(error))
    if picture is not None:
        show.picture(picture, alone, advised)
    if as_json:
        print_json({"alone": alone, "advised": advised})
        return
    show.effect(console, alone, advised)
    if folder is not None and where != "simulator":
        advisor, sqlite_utils = _typed("advisor"), _typed("sqlite-utils")
        first = advised.submissions[0].job_id
        further = {
            f"{advisor} --config {folder / 'advisor.yaml'} explain {first}": "why a job went where it went",
            f"{sqlite_utils} tables {folder / 'advisor.db'} --counts": "the log",
        }
        if keep:
            further[f"scripts/cluster exec --name {name} --user alice -- bash"] = "a user's shell on the cluster"
            further[f"scripts/cluster down --name {name} --engine"] = "end it"
        console.print("Look further:", style="bold")
        for command_line, what in further.items():
            console.print(f"  {command_line}    [dim]# {what}[/dim]", soft_wrap=True)


def _typed(command: str) -> str:
    """The command as it can be typed here: its name where the shell finds it, else the path beside this Python."""
    if shutil.which(command):
        return command
    beside = Path(sys.executable).parent / command
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)
