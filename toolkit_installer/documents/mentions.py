"""Where a text names a path: by line, whatever kind of configuration it is, parsed or not. Pure."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(/))")
_PATH = re.compile(r"""/[^\s"'`,;:=\[\]{}()<>|*?]*""")
_BROKEN_BY = re.compile(r"^\s*(#|//)")


@dataclasses.dataclass(frozen=True)
class Mention:
    """A path as a text names it, and the line on which it does; 1 where that cannot be told."""

    path: str
    line: int


def of(content: bytes, wanted: Callable[[str], bool]) -> tuple[Mention, ...]:
    """Return the paths in the text that are wanted, in the order of their lines, each once. Never raises.

    What JSON or TOML has in comments names nothing; of any other text only whole lines of comment are left out.
    """
    text = content.decode(errors="surrogateescape")
    values = _values(text)
    lines = text.splitlines()
    if values is not None:
        found = [Mention(path, _line_of(path, lines)) for value in values for path in _paths(value) if wanted(path)]
    else:
        found = [
            Mention(path, number)
            for number, line in enumerate(lines, 1)
            if not _BROKEN_BY.match(line)
            for path in _paths(_plain(line))
            if wanted(path)
        ]
    return tuple(sorted(dict.fromkeys(found), key=lambda mention: mention.line))


def pairs(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the texts that a JSON or TOML document has, alone or in lists, each with its key. Never raises."""
    for parse in (json.loads, tomllib.loads):
        try:
            yield from _pairs("", parse(content.decode(errors="surrogateescape")))
        except (ValueError, RecursionError):
            continue
        else:
            return


def _pairs(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _pairs(name, each)
    elif isinstance(value, list):
        for each in value:
            yield from _pairs(key, each)


def _paths(text: str) -> Iterator[str]:
    """Yield what may be a path, or a program's name, in a text: the text itself, and each part that begins like one."""
    if text.startswith("/") or "/" not in text:
        yield text
    yield from (match[0] for match in _PATH.finditer(text) if match[0] != text)


def _values(text: str) -> list[str] | None:
    """Return the strings that a JSON or TOML document has as keys and values, None where the text is neither."""
    for parse in (json.loads, tomllib.loads):
        try:
            return list(_strings(parse(text)))
        except (ValueError, RecursionError):
            continue
    return None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _line_of(path: str, lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines, 1) if path in _plain(line)), 1)


def _plain(line: str) -> str:
    """Return a line without the escapes in which JSON may hide a path."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[2], line)
