"""`advisor simulate`: what policies would have done to a workload."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from advisor.cli.common import fail, json_option, print_json, settings

if TYPE_CHECKING:
    from advisor.sim.cluster import SimCluster
    from advisor.sim.engine import Scheduler
    from advisor.sim.history import History
    from advisor.sim.workload import Workload

NEEDS = ("numpy", "numba", "scipy", "highspy")


@click.command()
@click.argument("trace")
@click.option("--cluster", "text", help="v100=8,p100=8,k80=8 (one-GPU servers; 4x8: 4 nodes of 8), or a YAML file.")
@click.option("--from-slurm", is_flag=True, help="The cluster that Slurm shows now.")
@click.option(
    "--policy",
    "policies",
    default="slurm-default,earliest-start,earliest-finish",
    show_default=True,
    help="Policies, with commas; `list` names them all.",
)
@click.option("--throughputs", type=click.Path(path_type=Path, dir_okay=False), help="Gavel traces: their table.")
@click.option("--format", "form", type=click.Choice(["swf", "gavel", "jsonl", "sacct"]), help="Of TRACE, if not clear.")
@click.option(
    "--levers",
    help="Of the policy `advisor`: place, order, share, requeue, with commas. Adds it to --policy. [place]",
)
@click.option(
    "--objective",
    type=click.Choice(["avg_jct", "makespan", "p99_jct"]),
    default="avg_jct",
    show_default=True,
    help="What the policies `advisor` and `oracle` make least.",
)
@click.option(
    "--knowledge",
    type=click.Choice(["oracle", "learned", "limits"]),
    default="oracle",
    show_default=True,
    help="What policies know of run times: the truth, what was learned so far in this run, or the users' limits.",
)
@click.option(
    "--history",
    metavar="TRACE_OR_LOG",
    help="Earlier jobs that --knowledge learned has learned from: a trace, placed by earliest start (gavel:jobs=200 "
    "makes one from the --throughputs), or the site's log (advisor.db).",
)
@click.option(
    "--backfill",
    type=click.Choice(["easy", "conservative", "slurm", "none"]),
    default="easy",
    show_default=True,
    help="Whether short jobs may overtake: past one reservation, past all, step by step as slurmctld 24.11 with its "
    "default intervals (not with levers), or not at all.",
)
@click.option("--cycle", "cycle_s", default=0.0, show_default=True, help="Least seconds between two scheduler passes.")
@click.option("--launch", "launch_s", default=0.0, show_default=True, help="Seconds that starting a job takes.")
@click.option("--seed", default=0, show_default=True, help="For random policies and synthetic workloads.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the schedules into this SVG file.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    trace: str,
    text: str | None,
    from_slurm: bool,
    policies: str,
    throughputs: Path | None,
    form: str | None,
    levers: str | None,
    objective: Any,
    knowledge: Any,
    history: str | None,
    backfill: Any,
    cycle_s: float,
    launch_s: float,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """What policies would do to the jobs of TRACE.

    TRACE is an SWF log, a Gavel trace, JSON lines, `sacct -P` text, or synthetic:jobs=1000,load=0.8,v100=8,k80=8.
    """
    from rich.console import Console
    from rich.progress import Progress

    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        fail(f"the simulator needs {', '.join(missing)}: pip install 'slurm-advisor[sim]'")
    from advisor.sim.cluster import ClusterError
    from advisor.sim.engine import ImpossibleJobError
    from advisor.sim.simulate import UnknownPolicyError, policy_names, simulate
    from advisor.sim.traces import read_workload
    from advisor.sim.workload import TraceError

    if policies == "list":
        print_json(policy_names()) if as_json else click.echo("\n".join(policy_names()))
        return
    names = _words(policies)
    if levers is not None:
        given = ctx.get_parameter_source("policies") is not ParameterSource.DEFAULT
        names = [*names, *([] if "advisor" in names else ["advisor"])] if given else ["advisor"]
    chosen = _levers(levers)
    if history is not None and knowledge != "learned":
        raise click.UsageError("--history is for --knowledge learned")
    try:
        workload = read_workload(trace, throughputs, form, seed)
        cluster = _cluster(ctx, workload, text, from_slurm)
        earlier = None if history is None else _history(history, cluster, throughputs, "share" in chosen, seed)
        with Progress(console=Console(stderr=True), transient=True, disable=as_json) as progress:
            bar = progress.add_task(f"{len(workload.jobs)} jobs", total=len(names))
            outcomes = simulate(
                workload,
                cluster,
                names,
                _scheduler(backfill, cycle_s, launch_s),
                throughputs,
                knowledge,
                seed,
                on_done=lambda row: progress.update(bar, advance=1, description=f"{row.policy} done"),
                levers=chosen,
                objective=objective,
                history=earlier,
            )
    except (TraceError, ClusterError, UnknownPolicyError, ImpossibleJobError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    if plot is not None:
        from advisor.sim.picture import draw

        runs = [(o.row.policy, o.schedule) for o in outcomes if o.schedule is not None]
        plot.write_text(draw(cluster, workload, runs), encoding="utf-8")
    rows = [outcome.row for outcome in outcomes]
    if as_json:
        print_json(rows)
        return
    _table(rows)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _scheduler(backfill: Any, cycle_s: float, launch_s: float) -> Scheduler:
    from advisor.sim.engine import Scheduler

    # slurmctld looks once a second at what happened, and backfill comes every bf_interval, 30 s by default.
    beat_s, interval_s = (1.0, 30.0) if backfill == "slurm" else (0.0, 0.0)
    return Scheduler(
        backfill=backfill, cycle_s=cycle_s, launch_s=launch_s, beat_s=beat_s, backfill_interval_s=interval_s
    )


def _levers(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ("place",)
    from advisor.sim.planned import LEVERS

    chosen = tuple(_words(text))
    for lever in chosen:
        if lever not in LEVERS:
            raise click.UsageError(f"--levers {text!r}: there is no lever {lever!r}; there are {', '.join(LEVERS)}")
    return chosen


def _cluster(ctx: click.Context, workload: Workload, text: str | None, from_slurm: bool) -> SimCluster:
    from advisor.sim.cluster import from_state, parse_cluster

    if text and from_slurm:
        raise click.UsageError("--cluster and --from-slurm exclude each other")
    if text:
        return parse_cluster(text)
    if from_slurm:
        from advisor.cluster.sources import open_source
        from advisor.cluster.types import SourceError

        slurm = settings(ctx).settings.slurm
        try:
            return from_state(open_source(slurm.source, slurm.command, slurm.timeout_s, slurm.recording).read())
        except SourceError as error:
            fail(str(error))
    if workload.processors:
        from advisor.sim.traces.swf import cluster_of

        return cluster_of(workload)
    raise click.UsageError("name the cluster: --cluster v100=8,p100=8,k80=8, a YAML file, or --from-slurm")


def _history(text: str, cluster: SimCluster, throughputs: Path | None, share: bool, seed: int) -> History:
    """What a site's log says, or what one would say after the jobs of a trace."""
    from advisor.sim.history import History, played
    from advisor.sim.neighbours import PairTable
    from advisor.sim.traces import gavel_like, read_workload
    from advisor.sim.traces.gavel import read_throughputs

    if _is_log(text):
        from advisor.performance.model.observations import Runs
        from advisor.store.database import Database, StoreError
        from advisor.store.learning import run_records

        try:
            with Database(Path(text), read_only=True) as db:
                refused = Runs()
                found = [refused.add_record(**record._asdict()) for record in run_records(db)]
        except StoreError as error:
            fail(str(error))
        return History(tuple(run for run in found if run is not None))
    table = None if throughputs is None else read_throughputs(throughputs)
    if text == "gavel" or text.startswith("gavel:"):
        if table is None:
            raise click.UsageError(f"--history {text} is made from a table: --throughputs FILE.json")
        earlier = gavel_like.from_text(text, table, cluster, seed + 1)
    else:
        earlier = read_workload(text, throughputs, None, seed + 1)
    return played(earlier, cluster, PairTable(table) if share and table is not None else None)


def _is_log(text: str) -> bool:
    try:
        with Path(text).open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def _table(rows: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from advisor.sim.simulate import OracleRow

    table = Table(box=None, header_style="bold")
    table.add_column("policy", no_wrap=True)
    heads = ("avg JCT h", "p99 JCT h", "makespan h", "avg wait h", "utilisation", "jobs", "jobs/s")
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        wait = "–" if row.avg_wait_h != row.avg_wait_h else f"{row.avg_wait_h:.2f}"
        table.add_row(
            row.policy,
            f"{row.avg_jct_h:.2f}",
            f"{row.p99_jct_h:.2f}",
            f"{row.makespan_h:.2f}",
            wait,
            f"{row.utilisation:.0%}",
            str(row.jobs),
            f"{row.jobs_per_s:,.0f}",
        )
    Console().print(table)
    for row in rows:
        if isinstance(row, OracleRow):
            click.echo(f"no schedule without preemption or sharing has a {row.objective} below {row.bound_h:.2f} h")
