"""Lets a benchmark run as it is typed: with the checkout it stands in, and a Python that has what it needs.

That is the one it was started with, where it has the project's packages; else the checkout's own `.venv`, made on the
first use.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AGAIN = "ADVISOR_BENCH_AGAIN"  # set where the benchmark was started again in `.venv`
NEEDED = ("msgspec", "torch", "sklearn")  # the package's own, and of the extras `learn` and `bench`


def use() -> None:
    """Makes the checkout importable; goes on in `.venv` where this Python cannot."""
    sys.path.insert(0, str(ROOT))
    if all(importlib.util.find_spec(name) for name in NEEDED):
        return
    venv = Path(os.environ.get("ADVISOR_VENV", ROOT / ".venv"))
    if os.environ.get(AGAIN):
        sys.exit(f"{venv} still lacks one of {', '.join(NEEDED)}; remove the folder, and it is made anew")
    made = subprocess.run(["bash", "-c", ". scripts/_setup && setup_python test,learn,bench"], cwd=ROOT, check=False)
    if made.returncode:
        sys.exit("the benchmark's Python packages could not be installed; its words stand above")
    python = venv / "bin" / "python"
    os.execve(python, [str(python), *sys.argv], {**os.environ, AGAIN: "1"})
