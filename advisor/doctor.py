"""Looks at each thing the advisor needs, in the order in which an admin would mend them.

Each finding says what was looked at, what was seen and, unless it is ok, what to do. A warning is something
that works but deserves a look.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from advisor import hook
from advisor.config import Loaded


class Finding(msgspec.Struct, frozen=True):
    """One requirement."""

    what: str
    verdict: Literal["ok", "warning", "wrong"]
    seen: str
    fix: str = ""


def examine(loaded: Loaded, slurm_folder: Path) -> Iterator[Finding]:
    """Every requirement in turn; each is reported as soon as it is known."""
    yield Finding("settings", "ok", loaded.file or "no file: every setting at its default")
    yield from _slurm(loaded)
    yield from _accounting(loaded)
    yield from _hook(slurm_folder)
    yield _disable_file()
    yield _database(Path(loaded.settings.paths.database))
    yield from _daemon(loaded)


def _slurm(loaded: Loaded) -> Iterator[Finding]:
    from advisor.cluster.sources import open_source
    from advisor.cluster.types import SourceError

    slurm = loaded.settings.slurm
    try:
        source = open_source(slurm.source, slurm.command, slurm.timeout_s, slurm.recording)
        state = source.read()
    except SourceError as error:
        yield Finding("Slurm answers", "wrong", str(error), "the daemon cannot advise before this works")
        return
    release = f"{state.release[0]}.{state.release[1]:02d}"
    yield Finding("Slurm answers", "ok", f"cluster {state.cluster}, release {release}, through {source.name}")
    usable = sum(node.usable for node in state.nodes)
    types = sorted({g.type or "untyped" for node in state.nodes for g in node.gres if g.name == "gpu"})
    yield Finding(
        "nodes and partitions",
        "ok" if usable else "warning",
        f"{usable} of {len(state.nodes)} nodes usable, {len(state.partitions)} partitions, "
        f"GPU types: {', '.join(types) or 'none'}",
        "" if usable else "no node could take a job; see sinfo -R",
    )
    if "untyped" in types:
        yield Finding(
            "GPU types",
            "warning",
            "some nodes have GPUs without a type",
            "give each a type in gres.conf (Name=gpu Type=a100 …); without one they cannot be told apart",
        )


def _accounting(loaded: Loaded) -> Iterator[Finding]:
    from advisor.cluster.command import SlurmCommand
    from advisor.cluster.types import SourceError

    if loaded.settings.slurm.source == "recorded":
        return
    slurm = SlurmCommand(loaded.settings.slurm.command, loaded.settings.slurm.timeout_s)
    try:
        slurm.run("sacct", "--noheader", "--allocations", "--starttime", "now-1minute")
    except SourceError as error:
        yield Finding(
            "accounting (sacct)",
            "wrong",
            str(error),
            "outcomes come from sacct, which needs slurmdbd (AccountingStorageType=accounting_storage/slurmdbd)",
        )
        return
    yield Finding("accounting (sacct)", "ok", "answers")


def _hook(folder: Path) -> Iterator[Finding]:
    try:
        state = hook.show(folder)
    except hook.HookError as error:
        yield Finding("hook", "wrong", str(error), "run this where slurmctld runs, or give --dir")
        return
    yield Finding(
        f"hook in {folder}",
        "ok" if state.module == "same as shipped" else "wrong",
        f"advisor.lua: {state.module}",
        "" if state.module == "same as shipped" else f"advisor hook install --dir {folder}",
    )
    if state.script != "calls the advisor":
        fix = f"advisor hook install --dir {folder}"
        if state.add is not None:
            fix = f"add to it: {state.add.first}   and, in slurm_job_submit: {state.add.second}"
        yield Finding("job_submit.lua", "wrong", state.script, fix)
    else:
        yield Finding("job_submit.lua", "ok", state.script)
    if state.plugin_enabled is not True:
        yield Finding(
            "slurm.conf",
            "wrong" if state.plugin_enabled is False else "warning",
            f"JobSubmitPlugins={state.job_submit_plugins or ''}",
            "add lua to JobSubmitPlugins, then restart slurmctld",
        )
    else:
        yield Finding("slurm.conf", "ok", f"JobSubmitPlugins={state.job_submit_plugins}")
    for package, there in state.lua_modules.items():
        yield Finding(
            f"Lua module {package}",
            "ok" if there else "wrong",
            "found for Lua 5.1" if there else "not found for Lua 5.1",
            "" if there else f"apt-get install {package}; without it the hook leaves every job alone",
        )


def _disable_file() -> Finding:
    path = Path("/etc/slurm-advisor/disable")
    if os.path.exists(path):  # noqa: PTH110 - false, not an error, in a folder that may not be looked into
        return Finding("disable file", "warning", f"{path} exists: the hook is off", f"rm {path}")
    return Finding("disable file", "ok", "not there")


def _database(path: Path) -> Finding:
    from advisor.store.database import StoreError, explained, migrate

    try:
        path.stat()
    except FileNotFoundError:
        folder = path.parent
        if folder.is_dir() and os.access(folder, os.W_OK):
            return Finding("log", "ok", f"{path} will be made by the daemon")
        return Finding("log", "wrong", f"{folder} is not there or cannot be written", f"mkdir -p {folder}")
    except OSError as error:
        return Finding("log", "wrong", f"{path}: {error.strerror}", "run this as root or as the daemon's user")
    try:
        with explained(path), sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=2) as database:
            (verdict,) = database.execute("pragma quick_check").fetchone()
            migrate(database, path, apply=False)
            decisions = database.execute("select count(*) from decisions").fetchone()[0]
    except StoreError as error:
        return Finding("log", "wrong", *_cut(str(error)))
    if verdict != "ok":
        return Finding("log", "wrong", f"{path}: {verdict}", "stop the daemon, keep a copy, and let it start a new one")
    return Finding("log", "ok", f"{path}: {decisions} decisions")


def _cut(sentence: str) -> tuple[str, str]:
    """What was seen, and what to do: the two halves of an error of the log."""
    seen, _, fix = sentence.partition("; ")
    return seen, fix


def _daemon(loaded: Loaded) -> Iterator[Finding]:
    from advisor.server import client

    path = loaded.settings.paths.socket
    try:
        status = client.status(path)
    except client.ClientError as error:
        yield Finding("daemon", "wrong", str(error), "systemctl enable --now slurm-advisor")
        return
    yield Finding(
        "daemon",
        "ok" if status.well() else "wrong",
        "answers" if status.well() else "answers, but something in it is not well",
        "" if status.well() else "see advisor status",
    )
    yield from _reachable(loaded, Path(path))


def _reachable(loaded: Loaded, socket: Path) -> Iterator[Finding]:
    """Whether slurmctld's user may open the socket: root, who runs this, always may."""
    from advisor.cluster.command import SlurmCommand
    from advisor.cluster.types import SourceError
    from advisor.server.peers import kept_out

    if loaded.settings.slurm.command or loaded.settings.slurm.source == "recorded":
        return  # the controller's users are not this host's
    try:
        shown = SlurmCommand((), loaded.settings.slurm.timeout_s).run("scontrol", "show", "config")
    except SourceError:
        return  # "Slurm answers" has said so
    found = re.search(r"^SlurmUser\s*=\s*([^(\s]+)\(", shown.decode("utf-8", "replace"), re.MULTILINE)
    user = found[1] if found else "slurm"
    why = kept_out(user, socket, loaded.settings.server.allowed_users)
    if why is None:
        yield Finding("slurmctld may ask", "ok", f"{user} may open {socket}")
    else:
        yield Finding("slurmctld may ask", "wrong", *_cut(why))
