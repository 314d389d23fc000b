"""Replanning's compiler: only a daemon or a simulation that replans pays for loading numba."""

from __future__ import annotations

from pathlib import Path

from advisor.machine_code import Compiler

_compiler = Compiler("replan", Path(__file__).parent.glob("*.py"))
compiled, entry = _compiler.inner, _compiler.entry
