"""Search for paths in configuration text of any syntax, parseable or not, with their lines. Pure."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U000([0-9a-fA-F]{5})|x([0-9a-fA-F]{2})|([0-3][0-7]{2})|([/ \\]))")
"""A character of a path, escaped as in JSON, TOML, YAML, shell files or systemd units (systemd.syntax(7))."""
_CONTINUED = re.compile(r"\\[ \t]*$")
_PATH = re.compile(r"""/[^\s"'`,;:=\[\]{}()<>|*?]*""")
_LAST = 0x10FFFF
"""The highest Unicode code point."""
_COMMENT_LINE = re.compile(r"^\s*(#|//)")


class Mention(msgspec.Struct, frozen=True):
    """A path in a text, and its 1-based line; 1 if the line is unknown."""

    path: str
    line: int


def find_mentions(content: bytes, wanted: Callable[[str], bool]) -> tuple[Mention, ...]:
    """Return the paths in the text for which `wanted` is true, each once, ordered by line. Never raises.

    Paths in comments of JSON or TOML are ignored; in other texts only whole lines of comment are.
    """
    text = content.decode(errors="surrogateescape")
    texts = _texts(text)
    lines = text.splitlines()
    if texts is not None:
        found = [Mention(path, _line_of(path, lines)) for _, said in texts for path in _paths(said) if wanted(path)]
    else:
        found = _in_lines(enumerate(lines, 1), wanted)
        seen = {mention.path for mention in found}
        found += [mention for mention in _in_lines(_joined(lines), wanted) if mention.path not in seen]
    return tuple(sorted(dict.fromkeys(found), key=lambda mention: mention.line))


def _in_lines(lines: Iterable[tuple[int, str]], wanted: Callable[[str], bool]) -> list[Mention]:
    """Return the wanted paths in numbered lines, each with its line."""
    return [
        Mention(path, number)
        for number, line in lines
        if not _COMMENT_LINE.match(line)
        for path in _paths(_plain(line))
        if wanted(path)
    ]


def _joined(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield lines joined where a backslash ends them, as YAML and shells do, with the number of the first."""
    parts: list[str] = []
    first = 1
    for number, line in enumerate(lines, 1):
        first = first if parts else number
        parts.append(line.lstrip() if parts else line)
        if _CONTINUED.search(line) and not _COMMENT_LINE.match(line):
            parts[-1] = _CONTINUED.sub("", parts[-1])
            continue
        if len(parts) > 1:
            yield first, "".join(parts)
        parts = []
    if len(parts) > 1:
        yield first, "".join(parts)


class _Members(list[tuple[str, Any]]):
    """All members of a JSON object, duplicate keys included: Go's parser merges the values of duplicates."""


def find_strings(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the strings of a JSON or TOML document, those in lists included, each after its key. Never raises."""
    texts = _texts(content.decode(errors="surrogateescape")) or []
    yield from ((key, text) for key, text in texts if key is not None)


def _paths(text: str) -> Iterator[str]:
    """Yield possible paths and program names in a text: the text itself, and each part that begins like a path."""
    if text.startswith("/") or "/" not in text:
        yield text
    yield from (match[0] for match in _PATH.finditer(text) if match[0] != text)


def _texts(text: str) -> list[tuple[str | None, str]] | None:
    """Return the strings of a JSON or TOML document: (key, value), and (None, key). None if it is neither format."""
    for parse in (functools.partial(json.loads, object_pairs_hook=_Members), tomllib.loads):
        with contextlib.suppress(ValueError, RecursionError):
            return list(_strings("", parse(text)))
    return None


def _strings(key: str, value: Any) -> Iterator[tuple[str | None, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict | _Members):
        for name, each in value.items() if isinstance(value, dict) else value:
            yield None, name
            yield from _strings(name, each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(key, each)


def _line_of(path: str, lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines, 1) if path in _plain(line)), 1)


def _plain(line: str) -> str:
    """Return a line with the escapes of path characters decoded."""
    return _ESCAPED.sub(_character, line)


def _character(match: re.Match[str]) -> str:
    number = match[1] or match[2] or match[3]
    if number:
        code = int(number, 16)
        return chr(code) if code <= _LAST else match[0]
    return chr(int(match[4], 8)) if match[4] else match[5]
