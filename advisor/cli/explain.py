"""`advisor explain`: the whole story of one job, from the log."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli.common import duration, fail, json_option, plain, print_json, settings, there_is

if TYPE_CHECKING:
    from advisor.store.decisions import DecisionRow
    from advisor.store.moves import MoveRow
    from advisor.store.outcomes import OutcomeRow


_MOST_ROWS = 30  # of an array's tasks; more would push the decision off the screen


@click.command()
@json_option
@click.argument("job", metavar="JOB")
@click.pass_context
def command(ctx: click.Context, as_json: bool, job: str) -> None:
    """Why JOB was placed where it was, and what happened.

    JOB is a job id (an array's or one of its tasks'), or the token in its AdminComment.
    """
    loaded = settings(ctx)
    from advisor.store import decisions, moves, outcomes
    from advisor.store.database import Database, StoreError

    path = Path(loaded.settings.paths.database)
    if not there_is(path):
        fail(f"there is no log at {path}; the daemon makes it at its first decision (paths.database)")
    number = job.split("_")[0].split("+")[0]
    try:
        with Database(path, read_only=True) as db:
            if number.isdecimal():
                found = decisions.by_job(db, int(number))
                ended = outcomes.by_job(db, int(number))
            else:
                decision = decisions.by_token(db, job)
                found = [decision] if decision else []
                ended = outcomes.by_token(db, job)
            moved = moves.of_token(db, found[0].token) if found else []
    except StoreError as error:
        fail(str(error))
    if not found and not ended:
        fail(
            f"nothing is known of job {job}: it was submitted without the hook, its decision was lost, or the daemon "
            "has not yet seen it (it looks every slurm.poll_s seconds)"
        )
    if as_json:
        print_json({"decision": found[0] if found else None, "moves": moved, "outcomes": ended})
        return
    if found:
        _decision(found[0])
        _moves(moved)
    else:
        click.echo(f"No decision of the advisor is in the log for job {job}.")
    _outcomes(ended)


def _decision(row: DecisionRow) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.decided_at))
    asked = row.partition or "the default partition"
    console.print(f"[bold]{plain(row.app)}[/bold] of {plain(row.user or row.uid)}, submitted {when} to {plain(asked)}")
    console.print(f"{row.mode}: [bold]{row.action}[/bold]{'' if row.applied else ' (not changed)'}. {plain(row.why)}")
    if row.annotation_error:
        console.print(plain(row.annotation_error))
    predictions = {p["candidate"]: p for p in row.predictions}
    if predictions:
        table = Table(box=None, pad_edge=False, title="what was expected", title_justify="left")
        shared = any(p.get("slowdown", 1.0) != 1.0 for p in row.predictions)
        headings = (
            "",
            "place",
            "wait",
            "run",
            "done in",
            *(("slowed down",) if shared else ()),
            "known from",
            "probability",
        )
        for heading in headings:
            right = heading in ("wait", "run", "done in", "slowed down", "probability")
            table.add_column(heading, justify="right" if right else "left")
        for index, candidate in enumerate(row.candidates):
            p = predictions.get(index)
            if p is None:
                continue
            run = p["run_s"] * p.get("slowdown", 1.0)
            marks = ("→" if index == row.chosen else "") + ("*" if index == row.preferred else "")
            probability = row.probabilities[index] if index < len(row.probabilities) else 0.0
            name = "as submitted" if candidate.get("keep") else candidate["name"]
            table.add_row(
                marks,
                plain(name),
                duration(p["wait_s"]),
                duration(run),
                duration(p["wait_s"] + run),
                *((plain(_slowed_down(p)),) if shared else ()),
                p.get("run_source", ""),
                f"{probability:.2f}",
            )
        console.print(table)
        console.print("→ chosen   * what the policy likes best", style="dim")
    if row.latency_us is not None:
        age = "" if row.snapshot_age_s is None else f", on facts {duration(row.snapshot_age_s)} old"
        console.print(f"decided by {row.policy} {row.policy_version} in {row.latency_us:.0f} µs{age}", style="dim")


_DONE = {"place": "moved", "order": "turn exchanged", "requeue": "requeued"}
_BECAME = {
    "ok": "{}",
    "refused": "not {}",
    "undone": "not {}, taken back",
    "half done": "half {}",
    "would": "would have been {}",
    "sent": "to be {}, its end was not seen",
}


def _moves(rows: list[MoveRow]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for row in rows:
        when = time.strftime("%H:%M:%S", time.localtime(row.moved_at))
        places = ("as submitted" if place == "keep" else place for place in (row.from_place, row.to_place))
        became = _BECAME.get(row.outcome, row.outcome + " {}").format(_DONE.get(row.lever, row.lever))
        console.print(f"{when} [bold]{became}[/bold]: {plain(' → '.join(places))}. {plain(row.why)}")
        if row.said:
            console.print(f"         {plain(row.said)}", style="dim")


def _slowed_down(prediction: dict[str, Any]) -> str:
    """`1.80 ± 0.20 times, beside stream`; empty where nobody is in the way."""
    slowdown = prediction.get("slowdown", 1.0)
    if slowdown == 1.0:
        return ""
    beside = prediction.get("beside") or ()
    return f"{slowdown:.2f} ± {prediction.get('slowdown_sd', 0.0):.2f} times" + (
        f", beside {', '.join(beside)}" if beside else ""
    )


def _outcomes(rows: list[OutcomeRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not rows:
        console.print("It has not ended yet, or its end has not been collected (advisor collect).")
        return
    table = Table(box=None, pad_edge=False, title="what happened", title_justify="left")
    for heading in ("job", "state", "partition", "nodes", "on", "waited", "ran"):
        table.add_column(heading, justify="right" if heading in ("waited", "ran") else "left")
    for row in rows[:_MOST_ROWS]:
        waited = row.start - row.submit if row.start is not None and row.submit is not None else None
        table.add_row(
            plain(row.job),
            plain(row.state),
            plain(row.partition or ""),
            plain(row.nodes or ""),
            plain(row.processor),
            "never started" if waited is None else duration(waited),
            duration(row.elapsed),
        )
    console.print(table)
    rest = rows[_MOST_ROWS:]
    if rest:
        states = Counter(row.state.split()[0] for row in rows)
        told = ", ".join(f"{count} {state}" for state, count in states.most_common())
        console.print(f"and {len(rest)} more tasks (--json tells each); of all {len(rows)}: {plain(told)}")
