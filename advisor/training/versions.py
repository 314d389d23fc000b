"""Model versions: folders of weights with checksums and a card, and the pointer to the one that decides.

A version is written once and never changed. `current.json` beside the versions names the one in force; it is replaced
in one step, so that a reader sees the old or the new one and nothing between. Files hold numbers and names only
(msgpack, JSON, safetensors): nothing in them is ever executed, and what does not match its checksum is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from advisor.resources import folder
from advisor.settings import Settings

FORMAT = 1
MANIFEST, CARD, POINTER = "manifest.json", "card.yaml", "current.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What may stand in a version: each ending is read by a parser that makes numbers and names, nothing else.
_READABLE = (".msgpack", ".json", ".safetensors")
_LARGEST = 2 * 2**30
_REMEMBERED = 50  # promotions, so that `rollback` can go back step by step

Origin = Literal["site", "shipped"]


class VersionError(Exception):
    """A version that cannot be used; the text says which, why, and what to do."""


class File(msgspec.Struct, frozen=True):
    """One file of a version."""

    sha256: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """What a version consists of, for programs; the card says the same to people."""

    format: int
    name: str
    created_at: float
    cluster: str  # whose log it was learned from; empty: none
    policy: str  # the policy that its figures are for
    files: dict[str, File]
    ended_until: int = 0  # jobs that ended later are news to it
    decided_until: float = 0.0


class Version(msgspec.Struct, frozen=True):
    """A version that has been looked through."""

    name: str
    path: Path
    origin: Origin
    manifest: Manifest
    card: dict[str, Any]

    def file(self, name: str) -> Path | None:
        """Where one of its files is; None where it has none of that name."""
        return self.path / name if name in self.manifest.files else None


class Promotion(msgspec.Struct, frozen=True):
    """One turn of the pointer."""

    version: str | None  # None: back to no version at all
    at: float
    why: str = ""


class Pointer(msgspec.Struct, frozen=True):
    """Which version is in force, and which were before, the newest last."""

    format: int = FORMAT
    promotions: tuple[Promotion, ...] = ()

    @property
    def version(self) -> str | None:
        """The one in force."""
        return self.promotions[-1].version if self.promotions else None


class Versions:
    """The versions of a site (`paths.models`) and, read-only, those that ship."""

    def __init__(self, models: Path | str, shipped: Path | None = None) -> None:
        self.models = Path(models)
        self._shipped = shipped

    @classmethod
    def of(cls, settings: Settings) -> Versions:
        """Those of the site that these settings are for."""
        return cls(settings.paths.models or Path(settings.paths.database).parent / "models")

    @property
    def shipped(self) -> Path:
        """Where versions that came with the package are."""
        return folder("models") if self._shipped is None else self._shipped

    def names(self) -> list[tuple[str, Origin]]:
        """Every version there is, whether or not it is sound; the site's own in the order of their names first."""
        found: list[tuple[str, Origin]] = []
        for place, origin in ((self.models, "site"), (self.shipped, "shipped")):
            if place.is_dir():
                found += [(p.parent.name, origin) for p in sorted(place.glob(f"*/{MANIFEST}"))]  # type: ignore[misc]
        return found

    def find(self, name: str) -> tuple[Path, Origin]:
        """The folder of a version; raises `VersionError`."""
        if not _NAME.fullmatch(name):
            raise VersionError(f"{name!r} is no name of a version; `advisor models list` shows those there are")
        places: tuple[tuple[Path, Origin], ...] = ((self.models / name, "site"), (self.shipped / name, "shipped"))
        for path, origin in places:
            if (path / MANIFEST).is_file():
                return path, origin
        raise VersionError(f"there is no version {name!r} in {self.models}; `advisor models list` shows what there is")

    def load(self, name: str) -> Version:
        """The version, every file of it checked; raises `VersionError`."""
        path, origin = self.find(name)
        manifest = _manifest(path)
        for file, known in manifest.files.items():
            _check(path / file, known)
        return Version(name, path, origin, manifest, _card(path))

    def write(self, name: str, files: Mapping[str, bytes], card: Mapping[str, Any], **about: Any) -> Version:
        """Writes a new version, whole or not at all; the same content gives the same files. Raises `VersionError`."""
        if not _NAME.fullmatch(name):
            raise VersionError(f"{name!r} is no name for a version: letters, digits, dot, dash and underscore only")
        wrong = [file for file in files if Path(file).name != file or not file.endswith(_READABLE)]
        if wrong:
            raise VersionError(f"{wrong[0]!r} may not stand in a version; it holds {', '.join(_READABLE)} files only")
        manifest = Manifest(
            FORMAT,
            name,
            files={file: File(hashlib.sha256(content).hexdigest(), len(content)) for file, content in files.items()},
            **about,
        )
        final, part = self.models / name, self.models / f".{name}.part"
        if final.exists():
            raise VersionError(f"{final} is there already, and a version never changes; choose another name")
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            for file, content in files.items():
                (part / file).write_bytes(content)
            (part / CARD).write_text(yaml.safe_dump(dict(card), sort_keys=False, allow_unicode=True), encoding="utf-8")
            body = msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1)
            (part / MANIFEST).write_bytes(body + b"\n")
            part.rename(final)
        except OSError as error:
            raise VersionError(f"{final}: {error.strerror or error}; check that its folder may be written") from error
        return self.load(name)

    def add_to_card(self, name: str, lines: Mapping[str, Any]) -> None:
        """Adds what became known after a version was written (the gate's verdict) to its card."""
        path, origin = self.find(name)
        if origin == "shipped":
            raise VersionError(f"{name} came with the package and is never changed")
        page = {**_card(path), **lines}
        try:
            _replace(path / CARD, yaml.safe_dump(page, sort_keys=False, allow_unicode=True).encode())
        except OSError as error:
            raise VersionError(f"{path / CARD}: {error.strerror or error}; check that it may be written") from error

    def pointer(self) -> Pointer:
        """Which version is in force; raises `VersionError` where the pointer cannot be read."""
        path = self.models / POINTER
        try:
            pointer = msgspec.json.decode(path.read_bytes(), type=Pointer)
        except (FileNotFoundError, NotADirectoryError):
            return Pointer()
        except OSError as error:
            raise VersionError(f"{path}: {error.strerror or error}; check that it may be read") from error
        except msgspec.DecodeError as error:
            raise VersionError(
                f"{path} is damaged ({error}); choose a version again with `advisor models promote VERSION`"
            ) from error
        if pointer.format != FORMAT:
            raise VersionError(f"{path} is of format {pointer.format}, this slurm-advisor reads {FORMAT}")
        return pointer

    def promote(self, name: str, why: str, now: float | None = None) -> Promotion:
        """Puts a version in force, if it is sound; raises `VersionError`."""
        self.load(name)
        return self._turn(name, why, now)

    def rollback(self, why: str = "rolled back", now: float | None = None) -> Promotion:
        """Puts the version in force that was before this one; raises `VersionError` where there was none."""
        past = [p.version for p in self.pointer().promotions]
        if not past or past[-1] is None:
            raise VersionError("no version is in force, so there is nothing to go back from")
        before = _before(past)
        if before is not None:
            self.load(before)
        return self._turn(before, why, now)

    def current(self) -> Version | None:
        """The version in force, checked; None where none was ever promoted. Raises `VersionError`."""
        name = self.pointer().version
        return None if name is None else self.load(name)

    def stamp(self) -> tuple[int, int]:
        """Changes whenever the pointer does; one look at the file system."""
        try:
            status = (self.models / POINTER).stat()
        except OSError:
            return (0, 0)
        return status.st_mtime_ns, status.st_ino

    def _turn(self, name: str | None, why: str, now: float | None) -> Promotion:
        try:
            before = self.pointer().promotions
        except VersionError:  # a damaged pointer is mended by turning it
            before = ()
        promotion = Promotion(name, time.time() if now is None else now, why)
        pointer = Pointer(FORMAT, (*before, promotion)[-_REMEMBERED:])
        try:
            self.models.mkdir(parents=True, exist_ok=True)
            _replace(self.models / POINTER, msgspec.json.encode(pointer) + b"\n")
        except OSError as error:
            raise VersionError(
                f"{self.models / POINTER}: {error.strerror or error}; check that it may be written"
            ) from error
        return promotion


def _before(past: list[str | None]) -> str | None:
    """What was in force before the last of `past`, where going back twice goes back two steps."""
    # A rollback is written as a turn to an earlier version: walking the turns as a stack gives what lies below.
    stack: list[str | None] = [None]
    for version in past:
        if version in stack:
            del stack[stack.index(version) + 1 :]
        else:
            stack.append(version)
    return stack[-2] if len(stack) > 1 else None


def _manifest(path: Path) -> Manifest:
    where = path / MANIFEST
    try:
        text = where.read_bytes()
        number = json.loads(text).get("format")
        if number != FORMAT:
            raise VersionError(f"{where} is of format {number}, this slurm-advisor reads {FORMAT}; retrain it")
        manifest = msgspec.json.decode(text, type=Manifest)
    except OSError as error:
        raise VersionError(f"{where}: {error.strerror or error}; retrain it, or roll back") from error
    except (msgspec.DecodeError, ValueError, AttributeError) as error:
        raise VersionError(f"{where} is damaged ({error}); retrain it, or roll back") from error
    if manifest.name != path.name:
        raise VersionError(f"{path} holds the version {manifest.name!r}: mixed up; name the folder as the version is")
    wrong = [name for name in manifest.files if Path(name).name != name or not name.endswith(_READABLE)]
    if wrong:
        raise VersionError(f"{where} names {wrong[0]!r}, which no version holds; it is not one of slurm-advisor's")
    return manifest


def _check(path: Path, known: File) -> None:
    try:
        size = path.stat().st_size
        if size != known.bytes or size > _LARGEST:
            raise VersionError(f"{path} has {size} bytes, {MANIFEST} says {known.bytes}: damaged; retrain or roll back")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise VersionError(f"{path}: {error.strerror or error}; retrain it, or roll back") from error
    if digest != known.sha256:
        raise VersionError(f"{path} is not the file that {MANIFEST} tells of; damaged: retrain, or roll back")


def _card(path: Path) -> dict[str, Any]:
    try:
        page = yaml.safe_load((path / CARD).read_text(encoding="utf-8"))
    except OSError as error:
        raise VersionError(f"{path / CARD}: {error.strerror or error}; retrain it, or roll back") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise VersionError(f"{path / CARD} is no YAML ({str(error).splitlines()[0]}); retrain it") from error
    if not isinstance(page, dict):
        raise VersionError(f"{path / CARD} is no card: it must be a map of words; retrain it")
    return page


def _replace(path: Path, content: bytes) -> None:
    """The whole file or the one before it, also after a power cut."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
