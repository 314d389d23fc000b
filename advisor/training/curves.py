"""Curves as SVG pictures: of training (gain over the arithmetic, the tail against it), and of gains after a shift."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 320, 56, 40, 28
SERIES = (("gain", "#1f77b4", "average time: arithmetic / learned"), ("p99", "#d62728", "p99: learned / arithmetic"))


def draw_curves(points: Sequence[dict[str, float]]) -> str:
    """One line for each figure; 1 is the arithmetic."""
    values = [point[name] for point in points for name, _, _ in SERIES] + [1.0]
    low, high = min(values), max(values)
    margin = max(0.05 * (high - low), 0.005)
    low, high = low - margin, high + margin
    last = max(max((point["iteration"] for point in points), default=1.0), 1.0)

    def place(iteration: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 16) * iteration / last
        return x, TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    x1, y1 = place(last, 1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<line x1="{LEFT}" y1="{y1:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="#999" stroke-dasharray="4 3"/>',
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">iterations, {last:.0f} in all</text>',
    ]
    for step in range(5):
        value = low + (high - low) * step / 4
        _, y = place(0, value)
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3f}</text>')
    for number, (name, colour, words) in enumerate(SERIES):
        line = " ".join("{:.1f},{:.1f}".format(*place(point["iteration"], point[name])) for point in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 8 + 270 * number}" y="18" fill="{colour}">{words}</text>')
    return "\n".join([*parts, "</svg>", ""])


_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def draw_gains(lines: Mapping[str, Sequence[tuple[float, float]]], along: str) -> str:
    """A line for each name through (number of jobs, gain), the jobs on a logarithmic scale; 1 is no gain."""
    counts = sorted({count for points in lines.values() for count, _ in points})
    gains = [gain for points in lines.values() for _, gain in points]
    low, high = min(1.0, *gains), 1.05 * max(1.0, *gains)
    first, last = math.log(counts[0]), math.log(counts[-1])

    def place(count: float, gain: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 24) * (math.log(count) - first) / max(last - first, 1e-9)
        return x, TOP + (HEIGHT - TOP - BOTTOM) * (high - gain) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{along}</text>',
    ]
    for count in counts:
        x, _ = place(count, low)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 24}" text-anchor="middle">{count:.0f}</text>')
    for step in range(5):
        gain = low + (high - low) * step / 4
        _, y = place(counts[0], gain)
        parts.append(f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{gain:.2f}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 8 + 140 * number}" y="18" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
