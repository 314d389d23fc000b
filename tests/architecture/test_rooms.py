"""Imports go in one direction, as docs/architecture.md says."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "advisor"

# Anyone may import these: they import nothing of ours but each other.
LEAVES = {"protocol", "settings", "config", "resources", "machine_code", "__init__"}

MAY_USE = {
    "dfg": set(),
    "cluster": set(),
    "store": set(),
    "telemetry": {"cluster", "store"},
    "contention": {"cluster"},
    "performance": {"dfg", "cluster"},
    "policy": {"dfg", "cluster", "contention", "performance"},
    "sim": {"policy", "dfg", "cluster", "contention", "performance"},
    "training": {"sim", "policy", "store", "dfg", "cluster", "contention", "performance"},
    "server": {"policy", "store", "telemetry", "dfg", "cluster", "contention", "performance", "training"},
    "hook": set(),
    "demo": {"server", "sim", "policy", "dfg", "cluster", "performance"},
    "doctor": {"hook", "cluster", "server", "store"},
    "cli": None,  # everything
    "__main__": {"cli"},
}


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which room is used"
            if node.module == "advisor":
                rooms |= {alias.name for alias in node.names}
            elif node.module and node.module.startswith("advisor."):
                rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("advisor.")}
    return rooms


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_uses_only_the_rooms_below_it(path: Path) -> None:
    room = room_of(path)
    used = {r for r in imported_rooms(path) if not r.startswith("__")} - LEAVES - {room}
    if room in LEAVES:
        assert not used, f"{path.name} is imported by everyone and may import nothing of ours"
        return
    assert room in MAY_USE, f"advisor/{room} is a new room: say in docs/architecture.md and here what it may use"
    allowed = MAY_USE[room]
    assert allowed is None or used <= allowed, f"advisor/{room} may not import {sorted(used - allowed)}"


def test_every_room_says_what_it_is_for() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring and len(docstring) > 20, path
