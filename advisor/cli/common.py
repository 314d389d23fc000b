"""What every subcommand shares: `--json`, the settings, and errors as one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from advisor.config import Loaded

Function = TypeVar("Function", bound=Callable[..., Any])


def json_option(function: Function) -> Function:
    """Adds `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")(function)


def settings(ctx: click.Context) -> Loaded:
    """The settings that `--config` (or the default place) names; wrong settings are wrong use."""
    from advisor import config

    path: Path | None = ctx.find_root().obj
    try:
        return config.load(path)
    except config.ConfigError as error:
        raise click.UsageError(str(error)) from None


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def fail(message: str) -> NoReturn:
    """The thing asked about is not well: exit code 1 and one line that says what to do."""
    raise click.ClickException(message)


def plain(text: object) -> str:
    """Text that somebody else wrote (a job's name, what Slurm said) for a rich console: no markup, no escape codes."""
    from rich.markup import escape

    shown = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(text))
    # A backslash at the end would undo the markup that follows.
    return escape(shown) + ("\u200b" if shown.endswith("\\") else "")


def there_is(path: Path) -> bool:
    """Whether a file is there; one in a folder that this user may not look into is an error in one line."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        fail(f"{path}: {error.strerror}; run this as root or as the daemon's user")
    return True


def as_owner_of(path: Path) -> None:
    """Root goes on as the user whose log this is: the daemon must be able to read and replace what is written."""
    import os

    try:
        owner = path.stat()
    except OSError:
        return
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)


def duration(seconds: float) -> str:
    """A time span as people say it: 45 s, 3 min, 2 h 10 min, 3 d 4 h."""
    seconds = max(0, round(seconds))
    if seconds < 90:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
