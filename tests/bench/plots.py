"""Plots of the curves as SVG, readable on a light page and on a dark one. Pure.

They are drawn here: a few dozen lines, and no package more to lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.figures import Figure

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 480, 260, 64, 40, 40, 24
_STYLE = """\
    text { font: 12px system-ui, sans-serif; fill: #24292f }
    .title { font-weight: 600; font-size: 14px }
    .axis { stroke: #8c959f; fill: none }
    .ours { stroke: #0969da; fill: none; stroke-width: 2 }
    .peer { stroke: #bc4c00; fill: none; stroke-width: 2; stroke-dasharray: 6 4 }
    @media (prefers-color-scheme: dark) {
      text { fill: #d7dee6 }
      .axis { stroke: #6e7681 }
      .ours { stroke: #58a6ff }
      .peer { stroke: #f0883e }
    }
"""


def drawn(title: str, unit: str, points: Sequence[Figure]) -> str:
    """Return the plot of a curve: processor seconds over the size, both from 0, ours and the peer's."""
    most = max(value for point in points for value in (point.ours, point.peer or 0.0)) or 1.0
    widest = points[-1].size

    def place(size: float, value: float) -> str:
        across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * size / widest
        return f"{across:.1f},{_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / most:.1f}"

    lines = [("ours", [(point.size, point.ours) for point in points])]
    theirs = [(point.size, point.peer) for point in points if point.peer is not None]
    lines += [("peer", theirs)] if theirs else []
    ground = _HEIGHT - _BOTTOM
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        f"  <style>\n{_STYLE}  </style>",
        f'  <text class="title" x="{_LEFT}" y="22">{title}</text>',
        f'  <path class="axis" d="M{_LEFT} {_TOP}V{ground}H{_WIDTH - _RIGHT}"/>',
        f'  <text x="{_LEFT - 8}" y="{_TOP + 4}" text-anchor="end">{most:.2f} s</text>',
        f'  <text x="{_LEFT - 8}" y="{ground + 4}" text-anchor="end">0</text>',
        f'  <text x="{_WIDTH - _RIGHT}" y="{ground + 18}" text-anchor="end">{widest:,.0f} {unit}</text>',
    ]
    for number, (name, values) in enumerate(lines):
        parts.append(f'  <polyline class="{name}" points="{" ".join(place(*value) for value in values)}"/>')
        left = _LEFT + 90 * number
        parts.append(f'  <path class="{name}" d="M{left} {ground + 24}h24"/>')
        parts.append(f'  <text x="{left + 30}" y="{ground + 28}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
