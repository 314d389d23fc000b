"""A network for people to read: as text, and as an SVG picture with nothing but plain shapes in it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import pairwise

from advisor.contention.expression import names
from advisor.contention.network import Network, counters, needed_constants

ROW, COLUMN, BOX, MARGIN, HEADING, PASSAGE = 22, 360, 290, 30, 34, 7
SWEEPS = 24
_COLOURS = {"counter": "#e8eef7", "metric": "#fdf3d8", "resource": "#dff2e1"}


def text(network: Network) -> str:
    """Resources with what shows them, then the vendor's relations, then what must be measured."""
    lines = [
        f"{network.cpu}: {len(network.resources)} resources, {len(network.metrics)} of"
        f" {len(network.relations.metrics)} vendor metrics, {len(network.events)} counters,"
        f" {len(network.edges)} edges ({network.surplus_edges} more than a tree)",
        "",
        "Resources",
    ]
    for resource in network.resources:
        lines.append(f"  {resource.name}: {resource.sentence}")
        for view in resource.views:
            lines.append(f"    = {view.text}  (±{view.tolerance:.0%})")
        if not resource.views:
            lines.append(f"    nothing here shows it; believed {resource.prior_mean:.0%} ± {resource.prior_sd:.0%}")
    lines += ["", "Relations"]
    lines += [f"  {metric} = {network.expression(metric)}" for metric in network.metrics] or [
        "  none: perf has no metrics for this CPU"
    ]
    lines += ["", "Counters to measure"]
    for unit, events in counters(network).items():
        lines.append(f"  {unit} ({len(events)})")
        lines += [f"    {event}" for event in events]
    if needed := needed_constants(network):
        lines += ["", "Constants of the machine: " + ", ".join(f"#{name}" for name in needed)]
    return "\n".join(lines) + "\n"


def _columns(network: Network) -> list[list[tuple[str, str]]]:
    """Boxes by column, (name, kind): counters left, each metric one right of what it uses, resources last."""
    depth = dict.fromkeys(network.events, 0)
    for metric in network.metrics:
        used = names(network.relations.metrics[metric].tree)
        depth[metric] = 1 + max((depth[name] for name in used), default=0)
    last = max(depth.values(), default=0) + 1
    columns: list[list[tuple[str, str]]] = [[] for _ in range(last + 1)]
    for event in network.events:
        columns[0].append((event, "counter"))
    for metric in network.metrics:
        columns[depth[metric]].append((metric, "metric"))
    columns[last] = [(resource.name, "resource") for resource in network.resources]
    return columns


def _passages(network: Network, columns: list[list[tuple[str, str]]]) -> dict[tuple[str, str], list[str]]:
    """What each line goes through in the columns between its ends: never a box. Lines from one box share their way.

    Adds the passages to the columns, where they take room like boxes, so that no line seems to come out of a box that
    it only passes behind.
    """
    column_of = {name: index for index, column in enumerate(columns) for name, _ in column}
    ways: dict[tuple[str, str], list[str]] = {}
    for one, other in network.edges:
        through = [f"{one} past {index}" for index in range(column_of[one] + 1, column_of[other])]
        for index, name in enumerate(through, column_of[one] + 1):
            if name not in column_of:
                column_of[name] = index
                columns[index].append((name, "passage"))
        ways[one, other] = [one, *through, other]
    return ways


def _order(
    columns: list[list[tuple[str, str]]], ways: Iterable[list[str]]
) -> tuple[dict[str, tuple[int, float]], float]:
    """Column and height of each box, and of the whole; sweeps of averaging over neighbours untangle the lines."""
    room = {"passage": PASSAGE}
    whole = max(sum(room.get(kind, ROW) for _, kind in column) for column in columns)
    place: dict[str, tuple[int, float]] = {}

    def spread(index: int, column: list[tuple[str, str]]) -> None:
        free = (whole - sum(room.get(kind, ROW) for _, kind in column)) / len(column)
        y = 0.0
        for name, kind in column:
            taken = room.get(kind, ROW) + free
            place[name] = (index, y + taken / 2)
            y += taken

    near: dict[str, set[str]] = {name: set() for column in columns for name, _ in column}
    for way in ways:
        for one, other in pairwise(way):
            near[one].add(other)
            near[other].add(one)
    for index, column in enumerate(columns):
        spread(index, column)
    for turn in range(SWEEPS):
        for index in range(len(columns)) if turn % 2 else reversed(range(len(columns))):
            column = columns[index]
            wish = {
                name: sum(place[n][1] for n in near[name]) / len(near[name]) if near[name] else place[name][1]
                for name, _ in column
            }
            column.sort(key=lambda box: (wish[box[0]], box[0]))
            spread(index, column)
    return place, whole


def _wide(label: str) -> float:
    """About how wide a label is, by the usual widths of letters."""
    return sum(
        3.5 if c in ".,:il" else 5.6 if c == "_" else 7.2 if c.isupper() else 10.5 if c in "@=…" else 6.2 for c in label
    )


def _short(name: str) -> str:
    """A label that fits its box; the middle goes, since the ends tell events apart."""
    label, kept = name, len(name) - 8
    while _wide(label) > BOX - 12 and kept > 8:
        kept -= 1
        label = f"{name[:kept]}…{name[-7:]}"
    return label


def svg(network: Network) -> str:
    """The same as a picture; hovering over a box shows its whole expression."""
    columns = _columns(network)
    ways = _passages(network, columns)
    place, tall = _order(columns, ways.values())
    width = 2 * MARGIN + COLUMN * (len(columns) - 1) + BOX
    height = round(2 * MARGIN + HEADING + tall)

    def at(name: str) -> tuple[float, float]:
        column, y = place[name]
        return MARGIN + COLUMN * column, MARGIN + HEADING + y

    headings = {0: "counters to measure", len(columns) - 1: "resources"}
    if len(columns) > 2:
        headings[1] = "vendor's metrics" + (", each right of what it is made from" if len(columns) > 3 else "")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN}" font-size="14">{escape(network.cpu)}: {len(network.events)} counters,'
        f" {len(network.metrics)} of {len(network.relations.metrics)} vendor metrics,"
        f" {len(network.resources)} resources</text>",
    ]
    parts += [
        f'<text x="{MARGIN + COLUMN * column}" y="{MARGIN + 24}" fill="#556677">{escape(said)}</text>'
        for column, said in headings.items()
    ]
    for way in ways.values():
        parts.append(
            f'<path d="{_line([at(name) for name in way])}" fill="none" stroke="#8899aa" stroke-opacity="0.55"/>'
        )
    sentences = {resource.name: resource.sentence for resource in network.resources}
    for column in columns:
        for name, kind in column:
            if kind == "passage":
                continue
            x, y = at(name)
            hint = sentences.get(name) or (network.expression(name) if kind == "metric" else name)
            parts.append(
                f'<g><title>{escape(hint)}</title><rect x="{x:.0f}" y="{y - 9:.1f}" width="{BOX}" height="18"'
                f' rx="4" fill="{_COLOURS[kind]}" stroke="#667788"/>'
                f'<text x="{x + 6:.0f}" y="{y + 4:.1f}">{escape(_short(name))}</text></g>'
            )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _line(points: list[tuple[float, float]]) -> str:
    """From the right of the first box, straight through each passage, to the left of the last."""
    x, y = points[0]
    path = f"M{x + BOX:.0f},{y:.1f}"
    for next_x, next_y in points[1:]:
        middle = (x + BOX + next_x) / 2
        path += f" C{middle:.0f},{y:.1f} {middle:.0f},{next_y:.1f} {next_x:.0f},{next_y:.1f}"
        if (next_x, next_y) != points[-1]:
            path += f" H{next_x + BOX:.0f}"
        x, y = next_x, next_y
    return path
