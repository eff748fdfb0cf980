"""Where in which file an engine's log line says that something is wrong: what masking must not take away. Pure.

A line of logrus (github.com/sirupsen/logrus, text_formatter.go) is `time="…" level=… msg="…"` and more pairs. A name
that sounds like a secret in one of them (`msg="Ignoring unknown key in TOML"`) hides all that follows on the line, and
with it the row, the column and the file, which are no secrets and are what a person needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from toolkit_installer import patterns

_HEAD: Final = patterns.lazy(r'time="[^"\n]*" level=[a-z]+ msg=')
_PAIR: Final = patterns.lazy(r'([A-Za-z0-9_.-]+)=("(?:[^"\\\n]|\\.)*"|[^\s"=]*)(?:[ ]|$)')
_PLACES: Final = {
    "row": patterns.lazy(r"[0-9]{1,7}"),
    "line": patterns.lazy(r"[0-9]{1,7}"),
    "column": patterns.lazy(r"[0-9]{1,7}"),
    "file": patterns.lazy(r"/[A-Za-z0-9_./-]{1,250}\.(?:toml|tmpl|json|conf)"),
}


def kept(text: str, masked: str, is_shown: Callable[[str], bool]) -> str:
    """Return `masked`, each of whose log lines ends with the places that `text` says there and masking took.

    `is_shown` tells whether a value by itself is no secret by its looks.
    """
    if not _HEAD.search(text):
        return masked
    before, after = text.split("\n"), masked.split("\n")
    if len(before) != len(after):
        return masked
    for number, line in enumerate(before):
        lost = [pair for pair in _places(line) if pair not in after[number] and is_shown(pair.partition("=")[2])]
        after[number] += f" ({' '.join(lost)})" if lost else ""
    return "\n".join(after)


def _places(line: str) -> list[str]:
    """Return the pairs that name a place, none where the line is not made of pairs alone."""
    if _HEAD.match(line) is None:
        return []
    found, at = [], 0
    while at < len(line):
        pair = _PAIR.match(line, at)
        if pair is None:
            return []
        if (allowed := _PLACES.get(pair[1])) is not None and allowed.fullmatch(pair[2]):
            found.append(f"{pair[1]}={pair[2]}")
        at = pair.end()
    return found
