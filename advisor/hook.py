"""Installs the hook into Slurm's configuration folder, and tells what is installed there.

`advisor.lua` is ours and is replaced; `job_submit.lua` is the site's and is written only where there is
none. Where there is one, the caller is told which two lines to add and where. Results carry all the text that
`advisor hook` and `advisor check` show.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from advisor import __version__, resources

MODULE = "advisor.lua"
SCRIPT = "job_submit.lua"
SAMPLE_FOLDER = "/etc/slurm"  # as the shipped job_submit.lua spells it
LUA = "5.1"  # what job_submit/lua of Debian's packages links
# The files of each package that Lua loads, under /usr or /usr/local.
LUA_MODULES = {
    "lua-socket": (f"lib/*/lua/{LUA}/socket/unix.so", f"lib/lua/{LUA}/socket/unix.so"),
    "lua-cjson": (f"lib/*/lua/{LUA}/cjson.so", f"lib/lua/{LUA}/cjson.so"),
}
_VERSION_LINE = re.compile(r'\bVERSION = "([^"]+)"')
# In the order Lua's lexer tries them: long comment, comment, long string, quoted string.
_TOKEN = re.compile(
    r"""--\[(?P<comment>=*)\[.*?(?:\](?P=comment)\]|\Z)
      | --[^\n]*
      | (?P<long>\[(?P<level>=*)\[.*?(?:\](?P=level)\]|\Z))
      | (?P<quoted>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    re.DOTALL | re.VERBOSE,
)
_REQUIRE = re.compile(
    r"""\b(?:require\s*\(?|pcall\s*\(\s*require\s*,)\s*["']advisor["']|\bdofile\b.*\badvisor\.lua\b"""
)
_SUBMIT = re.compile(r"\badvisor\s*\.\s*submit\b")
_FUNCTION = re.compile(r"\bfunction\s+slurm_job_submit\s*\(([^)]*)\)|\bslurm_job_submit\s*=\s*function\s*\(([^)]*)\)")


class HookError(Exception):
    """The hook could not be installed or read; the text says what to do."""


class LinesToAdd(msgspec.Struct, frozen=True):
    """The two lines for a site's own job_submit.lua, and where they go."""

    first: str
    first_where: str
    second: str
    second_where: str


class InstallResult(msgspec.Struct, frozen=True):
    """What `install` did, and what is left to the admin."""

    directory: str
    module: Literal["installed", "updated", "unchanged"]
    script: Literal["written", "calls the advisor", "needs two lines"]
    add: LinesToAdd | None
    text: list[str]  # for the admin, one line each


class HookState(msgspec.Struct, frozen=True):
    """What is installed in a configuration folder. None: could not be found out."""

    directory: str
    installed: bool
    version: str | None
    shipped_version: str
    module: Literal["same as shipped", "other version", "modified", "missing"]
    script: Literal["calls the advisor", "does not call the advisor", "missing"]
    job_submit_plugins: str | None  # of slurm.conf
    plugin_enabled: bool | None
    lua_modules: dict[str, bool]  # Debian package: found for Lua 5.1
    well: bool
    add: LinesToAdd | None
    text: list[str]


def install(directory: Path, seen_as: Path | None = None) -> InstallResult:
    """Puts advisor.lua into `directory`, and job_submit.lua if there is none.

    `seen_as` is the same folder as slurmctld sees it, where that differs (a container's mount).
    """
    if not directory.is_dir():
        raise HookError(f"{directory} is not a folder; give Slurm's configuration folder with --dir")
    folder = str(seen_as or directory.resolve())
    if any(letter in folder for letter in '"\\;?\n'):
        raise HookError(f'{folder}: Lua cannot search a folder with one of " \\ ; ? in its name; choose another')
    shipped = _shipped(MODULE)
    before = _read(directory / MODULE)
    module: Literal["installed", "updated", "unchanged"]
    module = "installed" if before is None else "unchanged" if before == shipped else "updated"
    if module != "unchanged":
        _write(directory / MODULE, shipped)
    text = [f"{directory / MODULE}: {module} (version {__version__})"]

    site = _read(directory / SCRIPT)
    if site is None:
        sample = _shipped(SCRIPT).decode().replace(f'"{SAMPLE_FOLDER}/?.lua;"', f'"{folder}/?.lua;"')
        _write(directory / SCRIPT, sample.encode())
        text.append(f"{directory / SCRIPT}: written, it only calls the advisor")
        text.append("enable it: JobSubmitPlugins=lua in slurm.conf, then restart slurmctld")
        return InstallResult(str(directory), module, "written", None, text)
    if calls_advisor(site.decode(errors="replace")):
        text.append(f"{directory / SCRIPT}: already calls the advisor, left alone")
        if module != "unchanged":
            text.append(f"slurmctld loads the new version after: touch {directory / SCRIPT}")
        return InstallResult(str(directory), module, "calls the advisor", None, text)
    add = _lines_to_add(site.decode(errors="replace"), folder)
    text.append(f"{directory / SCRIPT}: is the site's own, left alone; add these two lines")
    text += _add_text(add)
    return InstallResult(str(directory), module, "needs two lines", add, text)


def show(directory: Path, root: Path = Path("/")) -> HookState:
    """What is installed in `directory`; Lua modules are looked for under `root`."""
    module_bytes, script_bytes = _read(directory / MODULE), _read(directory / SCRIPT)
    shipped = _shipped(MODULE)
    version = None
    module: Literal["same as shipped", "other version", "modified", "missing"] = "missing"
    if module_bytes is not None:
        found = _VERSION_LINE.search(module_bytes.decode(errors="replace"))
        version = found.group(1) if found else None
        if module_bytes == shipped:
            module = "same as shipped"
        else:
            module = "modified" if version == __version__ else "other version"
    add = None
    script: Literal["calls the advisor", "does not call the advisor", "missing"] = "missing"
    if script_bytes is not None:
        source = script_bytes.decode(errors="replace")
        calls = calls_advisor(source)
        script = "calls the advisor" if calls else "does not call the advisor"
        add = None if calls else _lines_to_add(source, str(directory.resolve()))
    plugins = _job_submit_plugins(directory / "slurm.conf")
    enabled = None if plugins is None else "lua" in _plugin_names(plugins)
    modules = {package: _found(root, patterns) for package, patterns in LUA_MODULES.items()}
    well = module == "same as shipped" and script == "calls the advisor" and enabled is not False
    state = HookState(
        directory=str(directory),
        installed=module_bytes is not None and script == "calls the advisor",
        version=version,
        shipped_version=__version__,
        module=module,
        script=script,
        job_submit_plugins=plugins,
        plugin_enabled=enabled,
        lua_modules=modules,
        well=well and all(modules.values()),
        add=add,
        text=[],
    )
    return msgspec.structs.replace(state, text=_state_text(state))


def _without_comments(source: str) -> str:
    """The source with each comment replaced by a space; strings stay."""
    return _TOKEN.sub(lambda token: token.group("long") or token.group("quoted") or " ", source)


def calls_advisor(source: str) -> bool:
    """Whether the script loads the module and calls `advisor.submit`."""
    code = _without_comments(source)
    return bool(_REQUIRE.search(code) and _SUBMIT.search(code))


def _submit_parameters(source: str) -> tuple[str, str, str] | None:
    """What the script calls the three parameters of slurm_job_submit; None if it cannot be told."""
    found = _FUNCTION.search(_without_comments(source))
    if not found:
        return None
    names = [name.strip() for name in (found.group(1) or found.group(2) or "").split(",")]
    if len(names) != 3 or not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in names):
        return None
    return names[0], names[1], names[2]


def _state_text(state: HookState) -> list[str]:
    """One line for each thing looked at: how it is, and what to do where it is not well."""
    fix = f"advisor hook install --dir {state.directory}"
    module = {
        "same as shipped": f"version {state.version}, as shipped",
        "other version": f"version {state.version or 'unknown'}, this is {__version__}: {fix}",
        "modified": f"version {state.version}, but not as shipped (changed by hand, or damaged): {fix}",
        "missing": f"not installed: {fix}",
    }[state.module]
    script = {
        "calls the advisor": "calls the advisor",
        "does not call the advisor": "the site's own, does not call the advisor; add these two lines",
        "missing": f"not there: {fix}",
    }[state.script]
    text = [f"{state.directory}/{MODULE}: {module}", f"{state.directory}/{SCRIPT}: {script}"]
    if state.add:
        text += _add_text(state.add)
    if state.plugin_enabled is None:
        text.append(f"{state.directory}/slurm.conf: could not be read, JobSubmitPlugins is unknown")
    elif state.plugin_enabled:
        text.append(f"slurm.conf: JobSubmitPlugins={state.job_submit_plugins}")
    else:
        wanted = ",".join([*_plugin_names(state.job_submit_plugins or ""), "lua"])
        text.append(f"slurm.conf: JobSubmitPlugins has no lua; set JobSubmitPlugins={wanted} and restart slurmctld")
    for package, found in state.lua_modules.items():
        text.append(f"{package}: " + ("found" if found else f"not found for Lua {LUA}: apt-get install {package}"))
    return text


def _lines_to_add(site: str, folder: str) -> LinesToAdd:
    """The lines as the sample has them, with the names that the site's own function gives its parameters."""
    names = _submit_parameters(site)
    job_desc, part_list, submit_uid = names or ("job_desc", "part_list", "submit_uid")
    first = f'package.path = "{folder}/?.lua;" .. package.path; local _, advisor = pcall(require, "advisor")'
    second = f'if type(advisor) == "table" then advisor.submit({job_desc}, {part_list}, {submit_uid}) end'
    where = "in slurm_job_submit, before each `return slurm.SUCCESS` of a job that the advisor may place"
    return LinesToAdd(first, "at the top of the file", second, where)


def _add_text(add: LinesToAdd) -> list[str]:
    return [f"  {add.first_where}:", f"    {add.first}", f"  {add.second_where}:", f"    {add.second}"]


def _job_submit_plugins(slurm_conf: Path) -> str | None:
    """The last JobSubmitPlugins of slurm.conf and the files it includes; "" if unset, None if unreadable."""
    lines = _conf_lines(slurm_conf, depth=0)
    if lines is None:
        return None
    value = ""
    for line in lines:
        found = re.match(r"\s*JobSubmitPlugins\s*=\s*(\S+)", line, re.IGNORECASE)
        value = found.group(1) if found else value
    return value


def _conf_lines(path: Path, depth: int) -> list[str] | None:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    lines: list[str] = []
    for line in text.splitlines():
        line = line.split("#", 1)[0]
        include = re.match(r"\s*Include\s+(\S+)", line, re.IGNORECASE)
        if include and depth < 5:
            lines += _conf_lines(path.parent / include.group(1), depth + 1) or []
        else:
            lines.append(line)
    return lines


def _plugin_names(plugins: str) -> list[str]:
    names = (name.strip().lower().removeprefix("job_submit/") for name in plugins.strip('"').split(","))
    return [name for name in names if name]


def _found(root: Path, patterns: tuple[str, ...]) -> bool:
    folders = (root / "usr", root / "usr/local")
    return any(any(folder.glob(pattern)) for folder in folders for pattern in patterns)


def _shipped(name: str) -> bytes:
    return (resources.folder("slurm") / name).read_bytes()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HookError(f"{path} cannot be read: {error.strerror}; run as root or as Slurm's user") from error


def _write(path: Path, content: bytes) -> None:
    """Replaces the file at once: slurmctld may load it at any moment and must never see half of it."""
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)  # slurmctld reads it as its own user
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise HookError(f"{path} cannot be written: {error.strerror}; run as root, or give another --dir") from error
