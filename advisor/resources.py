"""Finds the folders that ship beside the package: `slurm/`, `models/` and `sql/`.

In a checkout they are top-level folders; in a wheel they are inside the package. Everything that
needs one of them asks here, so that both cases are handled once.
"""

from pathlib import Path
from typing import Literal

Folder = Literal["slurm", "models", "sql"]

_PACKAGE = Path(__file__).resolve().parent


def folder(name: Folder) -> Path:
    """Where the shipped folder `name` is, whether installed from a wheel or run from a checkout."""
    for candidate in (_PACKAGE / "_installed" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"the folder {name}/ that ships with slurm-advisor was found neither in the package ({_PACKAGE}) "
        f"nor beside it; reinstall slurm-advisor"
    )
