"""Turns typed Python functions into machine code with numba, keeping their types for readers and checkers.

Only rooms with an inner loop import this, so that no other part of the advisor pays for loading numba. The machine code
is kept in the user's cache folder under a name made from all the sources it rests on: numba itself would not notice
that a function which another one calls has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


class Compiler:
    """Compiles for one room; the order of floating-point operations is kept, so the same seed gives the same bytes."""

    def __init__(self, name: str, sources: Iterable[Path]) -> None:
        """`sources`: all that is compiled, or that compiled code takes its constants from."""
        self._name, self._sources = name, sorted(sources)

    def inner(self, function: F) -> F:
        """The function as machine code for other compiled functions."""
        return self._compile(function, wrapped=False)

    def entry(self, function: F) -> F:
        """The same for a function that Python calls: only these need the code that unpacks Python's objects."""
        return self._compile(function, wrapped=True)

    def _compile(self, function: F, wrapped: bool) -> F:
        options: Any = {"no_cpython_wrapper": not wrapped, "no_cfunc_wrapper": True}
        if self._folder is None:
            return cast(F, cast(Any, numba.njit)(function, **options))
        settings = cast(Any, numba.config)
        before = settings.CACHE_DIR
        settings.CACHE_DIR = self._folder
        try:
            return cast(F, cast(Any, numba.njit)(cache=True, **options)(function))
        finally:
            settings.CACHE_DIR = before

    @cached_property
    def _folder(self) -> str | None:
        """Where machine code of exactly these sources is kept; None where nothing can be written."""
        digest = hashlib.sha256()
        for source in self._sources:
            digest.update(source.read_bytes())
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "slurm-advisor" / f"{self._name}-{digest.hexdigest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        return str(folder) if os.access(folder, os.W_OK) else None
