"""Draws schedules as plain SVG: who ran where and when, or, for large runs, how many ran and waited.

One panel for each policy under the same time axis, so that they can be compared at a glance. No drawing library: the
pictures are rectangles, lines and text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from html import escape

import numpy as np

from advisor.sim.cluster import SimCluster
from advisor.sim.engine import Schedule
from advisor.sim.state import Floats
from advisor.sim.workload import Workload

WIDTH, LEFT, RIGHT, TOP, GAP = 1000, 110, 20, 28, 34
# Beyond these a bar is thinner than a pixel, and a line says more.
MOST_NODES, MOST_JOBS = 80, 3000
QUEUE_HEIGHT, BAR = 140, 9
POINTS = 500


def draw(cluster: SimCluster, workload: Workload, runs: Sequence[tuple[str, Schedule]]) -> str:
    """The picture of some runs of one workload: (name, schedule) each."""
    last = max((float(schedule.end.max(initial=0.0)) for _, schedule in runs), default=0.0) or 1.0
    bars = len(cluster.nodes) <= MOST_NODES and len(workload.jobs) <= MOST_JOBS
    parts: list[str] = []
    y = TOP
    for name, schedule in runs:
        parts.append(f'<text x="{LEFT}" y="{y - 8}" class="name">{escape(name)}</text>')
        if bars:
            body, height = _bars(cluster, workload, schedule, y, last)
        else:
            body, height = _lines(workload, schedule, y, last)
        parts += body
        parts += _axis(y, height, last)
        y += height + GAP
    style = (
        "text{font:11px sans-serif;fill:#333}.name{font-weight:bold;font-size:13px}.axis{stroke:#bbb;stroke-width:1}"
        ".running{fill:none;stroke:#2b6cb0;stroke-width:1.5}.waiting{fill:none;stroke:#c05621;stroke-width:1.5}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">'
    return "\n".join(
        [head, f"<style>{style}</style>", '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>", ""]
    )


def _x(time: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * time / last


def _bars(cluster: SimCluster, workload: Workload, schedule: Schedule, y: int, last: float) -> tuple[list[str], int]:
    """A row for each node; jobs that share a node share the height of its row."""
    parts = []
    for n, node in enumerate(cluster.nodes):
        parts.append(f'<text x="4" y="{y + n * (BAR + 1) + BAR}">{escape(node.name[:16])}</text>')
    for j, job in enumerate(workload.jobs):
        x = _x(float(schedule.start[j]), last)
        width = max(_x(float(schedule.end[j]), last) - x, 0.5)
        fill = colour(job.app or job.user or job.id)
        words = f"{job.id} {job.app}: waited {schedule.start[j] - job.submit:.0f} s"
        words += f", ran {schedule.end[j] - schedule.start[j]:.0f} s"
        for n in schedule.nodes_of(j):
            # A job on a part of the node is drawn lighter, so that several on one node show through.
            share = 1.0 if not cluster.nodes[n].gpus else min(1.0, job.gpus / job.nodes / cluster.nodes[n].gpus)
            parts.append(
                f'<rect x="{x:.1f}" y="{y + n * (BAR + 1)}" width="{width:.1f}" height="{BAR}" fill="{fill}" '
                f'opacity="{0.35 + 0.6 * share:.2f}"><title>{escape(words)}</title></rect>'
            )
    return parts, len(cluster.nodes) * (BAR + 1)


def _lines(workload: Workload, schedule: Schedule, y: int, last: float) -> tuple[list[str], int]:
    """How many jobs run and wait over time."""
    times = np.linspace(0.0, last, POINTS)
    submit = np.sort(np.asarray([job.submit for job in workload.jobs]))
    begun = np.searchsorted(np.sort(schedule.start), times, side="right")
    running = begun - np.searchsorted(np.sort(schedule.end), times, side="right")
    waiting = np.searchsorted(submit, times, side="right") - begun
    most = float(max(running.max(initial=1), waiting.max(initial=1), 1))

    def path(values: Floats) -> str:
        points = (
            f"{_x(float(t), last):.1f},{y + QUEUE_HEIGHT * (1 - v / most):.1f}"
            for t, v in zip(times, values, strict=True)
        )
        return " ".join(points)

    parts = [
        f'<polyline class="waiting" points="{path(waiting.astype(np.float64))}"/>',
        f'<polyline class="running" points="{path(running.astype(np.float64))}"/>',
        f'<text x="4" y="{y + 10}">{most:.0f} jobs</text>',
        f'<text x="4" y="{y + 26}" style="fill:#2b6cb0">running</text>',
        f'<text x="4" y="{y + 42}" style="fill:#c05621">waiting</text>',
    ]
    return parts, QUEUE_HEIGHT


def _axis(y: int, height: int, last: float) -> list[str]:
    unit, name = (86400.0, "d") if last > 4 * 86400 else (3600.0, "h") if last > 4 * 3600 else (60.0, "min")
    step = _round_step(last / unit / 8) * unit
    base = y + height
    parts = [f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>']
    for k in range(int(last / step) + 1):
        x = _x(k * step, last)
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{base}" opacity="0.4"/>')
        parts.append(f'<text x="{x:.1f}" y="{base + 13}" text-anchor="middle">{k * step / unit:g} {name}</text>')
    return parts


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, … that is not smaller."""
    scale = 1.0
    while scale * 5 < step:
        scale *= 10
    return next(scale * k for k in (1, 2, 5, 10) if scale * k >= step or k == 10)


def colour(word: str) -> str:
    """A colour that is always the same for a word."""
    hue = int.from_bytes(hashlib.sha256(word.encode()).digest()[:2]) % 360
    return f"hsl({hue},60%,50%)"
