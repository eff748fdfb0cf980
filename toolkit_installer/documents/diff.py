"""Unified diffs of configuration files for people: possible secrets are masked, control characters escaped."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from toolkit_installer.documents import log_line
from toolkit_installer.documents.masking import mask

CONTEXT: Final = 3
"""Unchanged lines shown around a change."""

_RESET: Final = "\x1b[0m"
_COLORS: Final = {"---": "\x1b[1m", "+++": "\x1b[1m", "@@ ": "\x1b[36m", "-": "\x1b[31m", "+": "\x1b[32m"}
_CARETS: Final = {code: f"^{chr(code ^ 0x40)}" for code in (*range(0x20), 0x7F) if chr(code) != "\t"}


_Side = list[tuple[bytes, str]]
"""One version of a file by line: the bytes, which are compared, and the text that is shown."""

_Code = tuple[str, int, int, int, int]
"""A difflib opcode: the kind of change, then start and end in the old file and in the new file."""


def format_diff(
    path: str,
    before: bytes | None,
    after: bytes | None,
    *,
    color: bool = False,
    shown: Callable[[str], str] = mask,
) -> str:
    """Return the diff of two versions of the file at `path`, "" if they are equal; None is an absent file.

    `shown` returns a text with possible secrets masked, in as many lines; context lines are masked too. If a line
    changed only in its masked part, the new line is followed by `(changed)`. Invalid UTF-8 and control characters are
    shown escaped. `color` adds ANSI colours.
    """
    if before == after:
        return ""
    old, new = _side(before, shown), _side(after, shown)
    lines = [
        f"--- {'/dev/null' if before is None else _escape_controls(path)}",
        f"+++ {'/dev/null' if after is None else _escape_controls(path)}",
    ]
    for group in _hunks([line for line, _ in old], [line for line, _ in new]):
        _, old_start, _, new_start, _ = group[0]
        _, _, old_stop, _, new_stop = group[-1]
        lines.append(f"@@ -{_span(old_start, old_stop)} +{_span(new_start, new_stop)} @@")
        for tag, a, b, c, d in group:
            lines += _block(tag, old[a:b], new[c:d])
    return "".join(f"{colorize(line) if color else line}\n" for line in lines)


def colorize(line: str) -> str:
    """Return a diff line in the colour of its kind."""
    color = next((color for start, color in _COLORS.items() if line.startswith(start)), "")
    return f"{color}{line}{_RESET}" if color else line


def _hunks(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[list[_Code]]:
    """Yield the changes in groups, with CONTEXT equal lines around each.

    difflib gets only the part between the equal lines at both ends, so that a small edit of a large file is quick.
    """
    short = min(len(old), len(new))
    head = next((n for n in range(short) if old[n] != new[n]), short)
    tail = next((n for n in range(short - head) if old[-1 - n] != new[-1 - n]), short - head)
    start, end = max(0, head - CONTEXT), max(0, tail - CONTEXT)
    matcher = difflib.SequenceMatcher(None, old[start : len(old) - end], new[start : len(new) - end])
    for group in matcher.get_grouped_opcodes(CONTEXT):
        yield [(tag, a + start, b + start, c + start, d + start) for tag, a, b, c, d in group]


def _block(tag: str, old: _Side, new: _Side) -> Iterator[str]:
    """Yield the diff lines of one opcode."""
    for line, shown in old:
        yield from _line(" " if tag == "equal" else "-", shown, line)
    if tag == "equal":
        return
    there, taken = {line for line, _ in old}, {shown for _, shown in old}
    for line, shown in new:
        yield from _line("+", f"{shown}  (changed)" if shown in taken and line not in there else shown, line)


def _line(sign: str, shown: str, line: bytes) -> Iterator[str]:
    yield sign + shown
    if not line.endswith(b"\n"):
        yield r"\ No newline at end of file"


def _side(content: bytes | None, shown: Callable[[str], str]) -> _Side:
    """Return a file's lines. The file is masked as a whole, as a single line does not show which keys it belongs to."""
    lines = (content or b"").split(b"\n")
    safe = map(_escape_controls, shown((content or b"").decode(errors="backslashreplace")).split("\n"))
    *whole, last = zip(lines, safe, strict=True)
    return [*((line + b"\n", words) for line, words in whole), *([last] if last[0] else [])]


def _span(start: int, stop: int) -> str:
    """Return a line range as a unified diff numbers it: an empty range has the number of the line before it."""
    count = stop - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"


def _escape_controls(text: str) -> str:
    """Return text with all characters escaped that a terminal would obey or hide: CR as `^M`, like diff; tabs stay."""
    return log_line.escape_line(text.translate(_CARETS), tabs=True)
