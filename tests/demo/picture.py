"""The picture of `make demo` for the README: what a terminal shows of its first half, as an SVG, light and dark.

    python -m tests.demo.picture        writes docs/demo.svg anew

What differs each time (the time, the process, the scratch folder) is always the same in the picture.
"""

from __future__ import annotations

import errno
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PICTURE = PROJECT / "docs" / "demo.svg"
_DEMO = Path(__file__).with_name("demo.py")
_END = "── containerd: install"
"""Where the second half begins, which is much like the first."""
_COLUMNS = 118
_TAB = 8
_WIDTH, _HEIGHT = 7.25, 16
"""Of a character, in pixels."""
_MARGIN = 16
_SAME = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "2026-01-31T12:00:00Z"),
    (r"/\S*/toolkit-installer-demo-\w+/", "/scratch/"),
    (r"\bPID \d+", "PID 4711"),
)
_CLASSES = dict(
    zip(
        ("1", "2", "31", "32", "33", "34", "35", "36"),
        ("bold", "dim", "red", "green", "yellow", "blue", "magenta", "cyan"),
        strict=True,
    )
)
_STYLE = """\
    rect { fill: #ffffff; stroke: #d0d7de; }
    text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre; }
    .bold { font-weight: 600; } .dim { fill: #6e7781; } .red { fill: #cf222e; } .green { fill: #116329; }
    .yellow { fill: #7d4e00; } .blue { fill: #0550ae; } .magenta { fill: #8250df; } .cyan { fill: #1b7c83; }
    @media (prefers-color-scheme: dark) {
      rect { fill: #0d1117; stroke: #30363d; }
      text { fill: #e6edf3; } .dim { fill: #8b949e; } .red { fill: #ff7b72; } .green { fill: #7ee787; }
      .yellow { fill: #e3b341; } .blue { fill: #79c0ff; } .magenta { fill: #d2a8ff; } .cyan { fill: #76e3ea; }
    }
"""


class DemoError(Exception):
    """The demo failed; the message is what it showed."""


def recorded() -> list[str]:
    """Run the demo on a terminal and return the lines of its first half, colours included. Raises DemoError."""
    reading, writing = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen([sys.executable, _DEMO], stdout=writing, stderr=writing, env=environment) as demo:
        os.close(writing)
        said = b"".join(_read(reading)).decode().replace("\r\n", "\n")
    os.close(reading)
    if demo.returncode:
        raise DemoError(said)
    for pattern, always in _SAME:
        said = re.sub(pattern, always, said)
    lines = said.split("\n")
    end = next(number for number, line in enumerate(lines) if _END in line)
    return lines[: end - 1]


def _read(descriptor: int) -> Iterator[bytes]:
    try:
        while part := os.read(descriptor, 65536):
            yield part
    except OSError as error:
        if error.errno != errno.EIO:  # that is how a terminal tells that nobody writes any more
            raise


def drawn(lines: list[str]) -> str:
    """Return the picture. Pure."""
    height = 2 * _MARGIN + _HEIGHT * len(lines)
    width = round(2 * _MARGIN + _WIDTH * _COLUMNS)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" xml:space="preserve"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="make demo on a terminal">',
        f"  <style>\n{_STYLE}  </style>",
        f'  <rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
    ]
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f'x="{_MARGIN}" y="{_MARGIN + _HEIGHT * number - 4}"'
            parts.append(f"  <text {place}>{''.join(_spans(line))}</text>")
    return "\n".join([*parts, "</svg>", ""])


def _spans(line: str) -> Iterator[str]:
    """Yield a line's stretches of one colour; a line that is too long for the terminal ends in an ellipsis."""
    column, style = 0, ""
    parts = re.split(r"(\x1b\[[\d;]*m)", line)
    for part in parts:
        if part.startswith("\x1b"):
            style = " ".join(_CLASSES[code] for code in part[2:-1].split(";") if code in _CLASSES)
            continue
        expanded = f"{' ' * (column % _TAB)}{part}".expandtabs(_TAB)[column % _TAB :]
        text = expanded[: _COLUMNS - column]
        column += len(expanded)
        if column > _COLUMNS and text:
            text = f"{text[:-1]}…"
        if text:
            shown = escape(text, quote=False).replace(" ", "\xa0")  # of other blanks most programs show one alone
            yield f'<tspan class="{style}">{shown}</tspan>' if style else shown
        if column > _COLUMNS:
            return


if __name__ == "__main__":
    PICTURE.write_text(drawn(recorded()))
