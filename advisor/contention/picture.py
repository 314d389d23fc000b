"""A network for people to read: as text, and as an SVG picture with nothing but plain shapes in it."""

from __future__ import annotations

from html import escape

from advisor.contention.expression import names
from advisor.contention.network import Network, counters, needed_constants

ROW, COLUMN, BOX, MARGIN = 22, 360, 290, 30
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


def _order(network: Network, columns: list[list[tuple[str, str]]]) -> dict[str, tuple[int, float]]:
    """Column and height of each box; a few sweeps of averaging over neighbours untangle the lines."""
    tallest = max(len(column) for column in columns)
    place: dict[str, tuple[int, float]] = {}
    for index, column in enumerate(columns):
        for row, (name, _) in enumerate(column):
            place[name] = (index, (row + 0.5) * tallest / len(column))
    near: dict[str, list[str]] = {name: [] for name in place}
    for one, other in network.edges:
        near[one].append(other)
        near[other].append(one)
    for _ in range(8):
        for index, column in enumerate(columns):
            wish = {
                name: sum(place[n][1] for n in near[name]) / len(near[name]) if near[name] else float(place[name][1])
                for name, _ in column
            }
            column.sort(key=lambda box: (wish[box[0]], box[0]))
            for row, (name, _) in enumerate(column):
                place[name] = (index, (row + 0.5) * tallest / len(column))
    return place


def svg(network: Network) -> str:
    """The same as a picture; hovering over a box shows its whole expression."""
    columns = _columns(network)
    place = _order(network, columns)
    width = 2 * MARGIN + COLUMN * (len(columns) - 1) + BOX
    height = 2 * MARGIN + ROW * max(len(column) for column in columns) + 20

    def at(name: str) -> tuple[float, float]:
        column, row = place[name]
        return MARGIN + COLUMN * column, MARGIN + 20 + ROW * row

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN}" font-size="14">{escape(network.cpu)}</text>',
    ]
    for one, other in network.edges:
        (x1, y1), (x2, y2) = at(one), at(other)
        x1 += BOX
        bend = (x2 - x1) / 2
        parts.append(
            f'<path d="M{x1:.0f},{y1:.1f} C{x1 + bend:.0f},{y1:.1f} {x2 - bend:.0f},{y2:.1f}'
            f' {x2:.0f},{y2:.1f}" fill="none" stroke="#8899aa" stroke-opacity="0.5"/>'
        )
    sentences = {resource.name: resource.sentence for resource in network.resources}
    for column in columns:
        for name, kind in column:
            x, y = at(name)
            hint = sentences.get(name) or (network.expression(name) if kind == "metric" else name)
            label = name if len(name) <= 46 else name[:45] + "…"
            parts.append(
                f'<g><title>{escape(hint)}</title><rect x="{x:.0f}" y="{y - 9:.1f}" width="{BOX}" height="18"'
                f' rx="4" fill="{_COLOURS[kind]}" stroke="#667788"/>'
                f'<text x="{x + 6:.0f}" y="{y + 4:.1f}">{escape(label)}</text></g>'
            )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
