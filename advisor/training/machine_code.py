"""Training's compiler: its inner loop contains the network's forward pass, so that names the machine code too."""

from __future__ import annotations

from pathlib import Path

from advisor.machine_code import Compiler

_ADVISOR = Path(__file__).resolve().parent.parent
_SOURCES = (
    "policy/learned/shapes.py",
    "sim/expecting.py",
    "training/compiled_forward.py",
    "training/observed.py",
    "training/rollout.py",
    "training/world.py",
)
_compiler = Compiler("training", (_ADVISOR / source for source in _SOURCES))
inner, machine_code = _compiler.inner, _compiler.entry
