"""The simulator's compiler: a change of any of its files makes all of it be compiled anew."""

from __future__ import annotations

from pathlib import Path

from advisor.machine_code import Compiler

_compiler = Compiler("simulator", Path(__file__).parent.glob("*.py"))
compiled, entry = _compiler.inner, _compiler.entry
