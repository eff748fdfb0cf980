"""What the files of a systemd unit say of the command that it starts and of its environment, also while it is down.

Source: systemd.syntax(7), systemd.service(5) ("Command lines") and systemd.exec(5) ("Environment"). Specifiers are left
as they are, and so are variables that no file sets.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from toolkit_installer import patterns
from toolkit_installer.engines.detect.table import UNIT_FOLDERS
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node

_PREFIXES = "@-:+!|"
"""Before an executable's path they change how it is started."""
_VARIABLE = patterns.lazy(r"\$(?:\{(?P<braced>\w+)\}|(?P<word>\w+)\Z)")


class Command(msgspec.Struct, frozen=True):
    """The words of a unit's ExecStart, variables filled in, and the variables that its files set."""

    arguments: tuple[str, ...]
    environment: dict[str, str]


def commands(node: Node, units: Iterable[str]) -> dict[str, Command]:
    """Return what units start, by their names; without those that have no files here or start nothing."""
    folders = {folder: frozenset(_listed(node, folder)) for folder in UNIT_FOLDERS}
    found = {unit: _command(node, unit, folders) for unit in units}
    return {unit: command for unit, command in found.items() if command is not None}


def _command(node: Node, unit: str, folders: Mapping[str, frozenset[str]]) -> Command | None:
    started = ""
    environment: dict[str, str] = {}
    for key, value in _settings(node, unit, folders):
        if key == "ExecStart":
            started = value
        elif key == "Environment":
            environment |= _assignments(_words(value))
        elif key == "EnvironmentFile":
            text = _text(node, value.removeprefix("-"))
            environment |= _assignments(word for line in text.splitlines() for word in _words(line, comments=True))
    words = _words(started.lstrip(_PREFIXES)) if started else []
    return (
        Command(tuple(each for word in words for each in _filled_in(word, environment)), environment) if words else None
    )


def _settings(node: Node, unit: str, folders: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, str]]:
    """Yield the assignments of a unit's file and then of its drop-ins, in the order in which systemd reads them."""
    main = [posixpath.join(folder, unit) for folder, names in folders.items() if unit in names][:1]
    dropped: dict[str, str] = {}
    for place in (f"{folder}/{unit}.d" for folder, names in folders.items() if f"{unit}.d" in names):
        for name in _listed(node, place):
            if name.endswith(".conf"):
                dropped.setdefault(name, f"{place}/{name}")
    for path in (*main, *(dropped[name] for name in sorted(dropped))):
        lines = [line for line in _text(node, path).splitlines() if not line.lstrip().startswith(("#", ";"))]
        for line in re.sub(r"\\\n", " ", "".join(f"{line}\n" for line in lines)).splitlines():
            key, equals, value = line.partition("=")
            if equals:
                yield key.strip(), value.strip()


def _filled_in(word: str, environment: dict[str, str]) -> list[str]:
    """Return a word with its variables filled in: `$NAME` alone is split at its blanks, `${NAME}` never is."""
    found = _VARIABLE.fullmatch(word)
    if found is not None and found["word"] in environment:
        return environment[found["word"]].split()
    return [_VARIABLE.sub(lambda each: environment.get(each["braced"] or "", each[0]), word)]


def _assignments(words: Iterator[str] | list[str]) -> dict[str, str]:
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}


def _words(text: str, *, comments: bool = False) -> list[str]:
    """Return the words of a line as systemd splits them; none of one with a quote that does not end."""
    import shlex  # noqa: PLC0415  # most nodes have none of these units

    try:
        return shlex.split(text, comments=comments)
    except ValueError:
        return []


def _text(node: Node, path: str) -> str:
    """Return a file's text, nothing where it cannot be read: then it says nothing."""
    try:
        return (node.files.content(path) or b"").decode(errors="replace") if posixpath.isabs(path) else ""
    except ConfigurationError:
        return ""


def _listed(node: Node, folder: str) -> list[str]:
    try:
        return node.files.list(folder)
    except ConfigurationError:
        return []
