"""The one screen: a plain table of the figures, at most 100 columns wide. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.figures import Figure

HEAD = ("figure", "ours", "peer", "ratio", "goal")
_WIDTHS = (28, 14, 14, 10, 18)


def lines(figures: Sequence[Figure]) -> list[str]:
    """Return the table's lines; numbers stand to the right."""
    rows = [HEAD, *(figure.cells for figure in figures)]
    return [
        "  ".join(
            text.rjust(width) if 0 < place < 4 else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, _WIDTHS, strict=True))
        ).rstrip()
        for row in rows
    ]
