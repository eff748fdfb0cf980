"""The picture of the package's layers, made from the import contract.

    python -m tests.support.layers        writes docs/layers.svg anew

What a box says is the first sentence of the docstring of its package or module.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

PROJECT = Path(__file__).parents[2]
PICTURE = PROJECT / "docs" / "layers.svg"
_CONTRACT = "One direction"
_WIDTH, _HEAD, _GAP, _MARGIN = 960, 34, 12, 12
_LINE = 15
_LETTER = 6.6
"""Pixels that a letter of the small text takes, on average."""
_STYLE = """\
    text { font: 12px system-ui, sans-serif; fill: #24292f }
    .name { font: 600 14px ui-monospace, monospace }
    rect { fill: #eef4fb; stroke: #8aa6c4 }
    path { stroke: #8aa6c4; fill: none }
    @media (prefers-color-scheme: dark) {
      text { fill: #d7dee6 }
      rect { fill: #1d2733; stroke: #54708c }
      path { stroke: #54708c }
    }
"""


def layers() -> list[list[str]]:
    """Return the contract's layers, the uppermost first, each with the names of its members."""
    table = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (each for each in table["contracts"] if each["name"].startswith(_CONTRACT))
    rows = [re.split(r"\s*[|:]\s*", layer) for layer in contract["layers"]]
    return [[name.removeprefix(f"{table['root_package']}.") for name in row] for row in rows]


def described(name: str) -> str:
    """Return the first sentence of the docstring of a member."""
    place = PROJECT / "toolkit_installer" / name
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.split(r"(?<=\.)\s|\n\n", docstring, maxsplit=1)[0].replace("\n", " ")


def drawn() -> str:
    """Return the picture as SVG. It is readable on a light page and on a dark one."""
    parts: list[str] = []
    top = _MARGIN
    for row in layers():
        width = (_WIDTH - 2 * _MARGIN - (len(row) - 1) * _GAP) / len(row)
        texts = [textwrap.wrap(described(name), int((width - 20) / _LETTER)) for name in row]
        height = _HEAD + _LINE * max(map(len, texts))
        if parts:
            parts.append(f'  <path d="M{_WIDTH // 2} {top - _GAP}v{_GAP - 2}m-4 -4l4 4l4 -4"/>')
        for place, (name, lines) in enumerate(zip(row, texts, strict=True)):
            left = _MARGIN + place * (width + _GAP)
            parts.append(f'  <rect x="{left:g}" y="{top}" width="{width:g}" height="{height}" rx="6"/>')
            parts += _words(name, lines, left + 10, top)
        top += height + _GAP
    return "\n".join([*_head(top - _GAP + _MARGIN), *parts, "</svg>", ""])


def _head(height: int) -> list[str]:
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    words = "The layers of toolkit_installer: each uses only what is below it"
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{words}">',
        f"  <style>\n{_STYLE}  </style>",
    ]


def _words(name: str, lines: list[str], left: float, top: int) -> list[str]:
    """Return a member's name, and the lines below it."""
    ending = "/" if (PROJECT / "toolkit_installer" / name).is_dir() else ".py"
    texts = [
        f'  <text x="{left:g}" y="{top + 38 + index * _LINE}">{escape(line)}</text>' for index, line in enumerate(lines)
    ]
    return [f'  <text class="name" x="{left:g}" y="{top + 20}">{name}{ending}</text>', *texts]


if __name__ == "__main__":
    PICTURE.write_text(drawn())
