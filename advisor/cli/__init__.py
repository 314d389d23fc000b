"""The `advisor` command. Each subcommand is a small module; heavy imports happen inside the command.

Exit codes: 0 done, 1 the thing asked about is not well, 2 wrong use.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from advisor import __version__

# Subcommand → (module, one line for `advisor --help`). The line stands here so that help does not have to
# import thirteen modules; a test checks that it equals the command's own first sentence.
COMMANDS: dict[str, tuple[str, str]] = {
    "advise": ("advisor.cli.advise", "What would be advised for SCRIPT, without submitting it."),
    "agent": ("advisor.cli.agent", "Measure the jobs of this node for the daemon."),
    "check": ("advisor.cli.check", "Check each requirement: ok, or how to fix it."),
    "collect": ("advisor.cli.collect", "Read how jobs ended from sacct into the log."),
    "config": ("advisor.cli.config", "Look at the settings."),
    "contention": ("advisor.cli.contention", "Look at the contention model."),
    "demo": ("advisor.cli.demo", "Run a mixed workload on a mini-cluster and show the effect."),
    "explain": ("advisor.cli.explain", "Why JOB was placed where it was, and what happened."),
    "hook": ("advisor.cli.hook", "Install the submit hook, or look at it."),
    "models": ("advisor.cli.models", "Look at model versions, and choose the one that decides."),
    "report": (
        "advisor.cli.report",
        "What the advisor changed, and what that did: the effect against the control group.",
    ),
    "retrain": (
        "advisor.cli.retrain",
        "Learn a new model version from the log, and put it in force if it is shown to be no worse.",
    ),
    "serve": ("advisor.cli.serve", "Run the daemon that answers the hook."),
    "simulate": ("advisor.cli.simulate", "What policies would do to the jobs of TRACE."),
    "status": ("advisor.cli.status", "How the running daemon is doing."),
    "train": (
        "advisor.cli.train",
        "Train the policy that RECIPE describes: a YAML file, or the name of one of the shipped recipes.",
    ),
}


class LazyGroup(click.Group):
    """Imports a subcommand only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="slurm-advisor")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file.  [default: $ADVISOR_CONFIG or /etc/slurm-advisor/advisor.yaml]",
)
@click.pass_context
def cli(ctx: click.Context, config_file: Path | None) -> None:
    """Advice on partition and gres at submission, for an unmodified Slurm."""
    ctx.obj = config_file


def main() -> None:
    """Entry point: runs the command and turns what the user can mend into one clear line."""
    sys.exit(cli(standalone_mode=True))
