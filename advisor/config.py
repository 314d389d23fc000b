"""Reads the settings, and remembers where each value came from, which is what `advisor config show` prints.

They come from `/etc/slurm-advisor/advisor.yaml` (or `--config`, or `$ADVISOR_CONFIG`), and each can be overridden by an
environment variable (`ADVISOR_SLURM__POLL_S=5`). Of what cannot be used the message names place and choices.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from advisor.settings import Settings

DEFAULT_FILE = Path("/etc/slurm-advisor/advisor.yaml")


class ConfigError(Exception):
    """The settings cannot be used; the text says which one, where it stands and what is allowed."""


class Origin(msgspec.Struct, frozen=True):
    """One setting, its value and where the value came from."""

    key: str
    value: Any
    default: Any
    origin: str  # "default", "/etc/…/advisor.yaml", "$ADVISOR_…"
    sentence: str


class Loaded(msgspec.Struct, frozen=True):
    """Settings together with their origins."""

    settings: Settings
    origins: tuple[Origin, ...]
    file: str | None


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Loaded:
    """Reads the settings; a file that was named must exist, the default one need not."""
    env = os.environ if environ is None else environ
    named = path or (Path(env["ADVISOR_CONFIG"]) if env.get("ADVISOR_CONFIG") else None)
    file = named or DEFAULT_FILE
    tree: dict[str, Any] = {}
    there = named is not None or _is_there(file)
    if there:
        tree = _read_yaml(file)
    from_file = {key for key, _ in _leaves(tree)}
    from_env: dict[str, str] = {}
    for key, hint, _ in _schema(Settings):
        variable = "ADVISOR_" + key.upper().replace(".", "__")
        if variable in env and "__" in variable:
            _put(tree, key, _parse_variable(variable, env[variable], hint))
            from_env[key] = variable
    _meant(tree)
    try:
        settings = msgspec.convert(tree, Settings, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(error, file, from_env)) from None
    origins = []
    for key, _, sentence in _schema(Settings):
        if key in from_env:
            origin = "$" + from_env[key]
        elif any(k == key or k.startswith(key + ".") for k in from_file):
            origin = str(file)
        else:
            origin = "default"
        origins.append(Origin(key, _get(settings, key), _get(Settings(), key), origin, sentence))
    return Loaded(settings, tuple(origins), str(file) if there else None)


def example() -> str:
    """An `advisor.yaml` with every key commented out at its default, beside its sentence."""
    lines = ["# slurm-advisor settings. Every key is shown at its default; uncomment what differs here."]
    section = ""
    for key, _, sentence in _schema(Settings):
        head, _, leaf = key.rpartition(".")
        if head != section and head:
            lines += ["", f"#{head}:"]
            section = head
        elif not head:
            lines.append("")
        value = yaml.safe_dump(msgspec.to_builtins(_get(Settings(), key)), default_flow_style=True, width=200)
        indent = "  " if head else ""
        lines += [
            f"{'#' + indent}# {sentence}",
            f"#{indent}{leaf}: {value.removesuffix(chr(10)).removesuffix(chr(10) + '...')}",
        ]
    return "\n".join(lines) + "\n"


def _is_there(file: Path) -> bool:
    try:
        return file.exists()
    except PermissionError:
        return True  # reading it will say so


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}); create it, or name another with --config"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid YAML: {str(error).replace(chr(10), ' ')}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: must be a map of sections, for example `modes: {{default: shadow}}`")
    return tree


def _parse_variable(variable: str, text: str, hint: Any) -> Any:
    if hint is str:
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"${variable}: {text!r} is not valid YAML") from None


def _explain(error: msgspec.ValidationError, file: Path, from_env: Mapping[str, str]) -> str:
    text = str(error)
    where = str(file)
    for key, variable in from_env.items():
        if f"$.{key}" in text:
            where = f"${variable} or {file}"
    text = text.replace("`$.", "`")
    if found := re.search(r"unknown field `([^`]*)`(?: - at `([\w.]+)`)?", text):
        names = [key for key, _, _ in _schema(Settings)]
        asked = f"{found[2]}.{found[1]}" if found[2] else found[1]
        near = difflib.get_close_matches(asked, {*names, *(key.split(".")[0] for key in names)}, 1)
        text += f"; did you mean {near[0]}?" if near else ""
    elif found := re.search(r"`([\w.]+)[^`]*`$", text):
        allowed = next((_words(hint) for key, hint, _ in _schema(Settings) if key == found[1]), ())
        text += f", which is one of: {', '.join(allowed)}" if allowed else ""
    return f"{where}: {text}; `advisor config example` prints every setting"


def _meant(tree: dict[str, Any]) -> None:
    """Undoes what YAML makes of plain words: `off` is a mode, 1000 may be a user, and `modes:` alone says nothing."""
    for section in [name for name, value in tree.items() if value is None and name in Settings.__struct_fields__]:
        if isinstance(getattr(Settings(), section), msgspec.Struct):
            del tree[section]
    for key, hint, _ in _schema(Settings):
        head, _, leaf = key.rpartition(".")
        inner = tree.get(head) if head else tree
        if isinstance(inner, dict) and leaf in inner:
            inner[leaf] = _as_text(inner[leaf], hint)


def _as_text(value: Any, hint: Any) -> Any:
    args = get_args(hint)
    if isinstance(value, list):
        return [_as_text(one, args[0]) if args else one for one in value]
    if isinstance(value, dict):
        return {_as_text(k, args[0]): _as_text(v, args[1]) for k, v in value.items()} if len(args) == 2 else value
    if value is False and "off" in args:
        return "off"
    if type(value) is int and (hint is str or args == (str, type(None))):
        return str(value)
    return value


def _words(hint: Any) -> tuple[str, ...]:
    """The words that a setting takes, where it takes only some."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next((words for inner in get_args(hint) if (words := _words(inner))), ())


def _schema(section: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Every leaf setting: key, plain type, sentence."""
    for name, hint in get_type_hints(section, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _schema(hint, f"{prefix}{name}.")
            continue
        plain, sentence = hint, ""
        for extra in getattr(hint, "__metadata__", ()):
            if isinstance(extra, Meta) and extra.description:
                sentence = extra.description
        if hasattr(hint, "__metadata__"):
            plain = get_args(hint)[0]
        yield f"{prefix}{name}", plain, sentence


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *heads, leaf = key.split(".")
    for head in heads:
        inner = tree.get(head)
        if not isinstance(inner, dict):
            inner = tree[head] = {}
        tree = inner
    tree[leaf] = value


def _get(settings: Any, key: str) -> Any:
    for part in key.split("."):
        settings = getattr(settings, part)
    return settings
