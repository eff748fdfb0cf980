"""A figure: what was measured of ours and of the peer, and the goal that it has. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

STEEPEST = 1.2
"""A curve whose power of the size is at most this counts as straight: the rest is the noise of a shared machine."""
NOISE = 0.1
"""What has grown by less than this part of the smallest size's cost may not have grown at all."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """One row. `goal` is the most that is allowed: of the ratio where `of_ratio`, else of ours; None where none is."""

    name: str
    unit: str
    ours: float
    peer: float | None = None
    goal: float | None = None
    of_ratio: bool = False
    curve: str = ""
    """The curve that it is a point of; `size` is where on it."""
    size: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Ours as a multiple of the peer's."""
        return self.ours / self.peer if self.peer else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met by what is shown; None where there is none, or no peer to compare with."""
        value, digits = (self.ratio, _RATIO_DIGITS) if self.of_ratio else (self.ours, _digits(self.unit))
        return None if self.goal is None or value is None else round(value, digits) <= self.goal

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The columns of the table after the name."""
        goal = "-" if self.goal is None else f"<= {self.goal:g}{' x' if self.of_ratio else ''}"
        verdict = {None: "", True: " met", False: " MISSED"}[self.met]
        return (self.name, shown(self.ours, self.unit), shown(self.peer, self.unit), times(self.ratio), goal + verdict)


def shown(value: float | None, unit: str) -> str:
    """Return a value with its unit, "-" for none."""
    if value is None:
        return "-"
    return f"{value:.{_digits(unit)}f} {unit}"


def times(ratio: float | None) -> str:
    """Return a ratio in words, "-" for none."""
    return "-" if ratio is None else f"{ratio:.{_RATIO_DIGITS}f} x"


_RATIO_DIGITS = 2


def _digits(unit: str) -> int:
    return 3 if unit == "s" else 1


def loaded(rows: Sequence[dict[str, Any]]) -> list[Figure]:
    """Return the figures of a data file."""
    return [Figure(**row) for row in rows]


def power(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the power of the size by which a curve grows between its two largest sizes: 1 is a straight line.

    What the smallest size costs is paid at every size and taken away first. None where so little is left at the second
    largest that it may be noise: nothing can be said of the curve's form then.
    """
    (_, always), (before, less), (end, most) = points[0], points[-2], points[-1]
    if less - always < always * NOISE:
        return None
    return max(0.0, math.log((most - always) / (less - always)) / math.log(end / before)) if most > always else 0.0


def curves(figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    """Return the curves by name, each with its points in the order of their size."""
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure.curve:
            found.setdefault(figure.curve, []).append(figure)
    return {name: sorted(points, key=lambda point: point.size) for name, points in found.items()}
