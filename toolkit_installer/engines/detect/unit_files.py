"""The table of distributions, and a parser for the systemd units that start their engines, running or not.

A row is found by its probes. Rows of the same engine that share a socket are distinguished by their `marks`; earlier
rows are probed first. Sources: the distributions' own documentation and code (docs/detection.md).

The parser returns a unit's command and environment. Source: systemd.syntax(7), systemd.service(5) ("Command lines") and
systemd.exec(5) ("Environment"). Specifiers stay unexpanded, and so do variables that no file sets.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from toolkit_installer.engines.containerd.distributions import DISTRIBUTIONS
from toolkit_installer.engines.registry import ENGINES, Distribution, normalize_socket
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName

TABLE: tuple[Distribution, ...] = (
    *DISTRIBUTIONS,
    # docker's packages include a containerd, so docker comes after all others
    *(row for each in sorted(ENGINES, key=lambda each: each.name is EngineName.DOCKER) for row in each.distributions),
)

BY_NAME = {row.name: row for row in TABLE}

UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
"""The folders of unit files (systemd.unit(5), "Unit File Load Path")."""


def find_marked_row(words: str, engine: EngineName | None = None) -> Distribution | None:
    """Return the row whose marks a process's executable and arguments contain, None if there is none."""
    rows = (row for row in TABLE if engine in (None, row.engine))
    return next((row for row in rows if any(mark in words for mark in row.marks)), None)


def find_socket_rows(socket: str) -> tuple[Distribution, ...]:
    """Return the rows with this socket, in the table's order; without refused ones, unless all are refused."""
    rows = tuple(row for row in TABLE if row.serves(socket))
    return tuple(row for row in rows if row.refused is None) or rows


def find_engine_by_socket(socket: str) -> EngineName | None:
    """Return the engine that a socket is usually named after, in any folder; None if the name is unknown."""
    name = normalize_socket(socket).rpartition("/")[2]
    return next((each.name for each in ENGINES if name in each.socket_names), None)


_PREFIXES = "@-:+!|"
"""Prefixes of an executable's path that change how it is started."""
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<word>\w+)\Z)")


class UnitCommand(msgspec.Struct, frozen=True):
    """The words of a unit's ExecStart, with variables expanded, and the variables that its files set."""

    arguments: tuple[str, ...]
    environment: dict[str, str]


def read_unit_commands(node: Node, units: Iterable[str]) -> dict[str, UnitCommand]:
    """Return the units' commands, by unit name; units without files here or without a command are omitted."""
    folders = {folder: frozenset(_listed(node, folder)) for folder in UNIT_FOLDERS}
    found = {unit: _command(node, unit, folders) for unit in units}
    return {unit: command for unit, command in found.items() if command is not None}


def _command(node: Node, unit: str, folders: Mapping[str, frozenset[str]]) -> UnitCommand | None:
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
        UnitCommand(tuple(each for word in words for each in _expand_variables(word, environment)), environment)
        if words
        else None
    )


def _settings(node: Node, unit: str, folders: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, str]]:
    """Yield the assignments of a unit's file and then of its drop-ins, in systemd's reading order."""
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


def _expand_variables(word: str, environment: dict[str, str]) -> list[str]:
    """Return a word with its variables expanded: `$NAME` alone is split at blanks, `${NAME}` never is."""
    found = _VARIABLE.fullmatch(word)
    if found is not None and found["word"] in environment:
        return environment[found["word"]].split()
    return [_VARIABLE.sub(lambda each: environment.get(each["braced"] or "", each[0]), word)]


def _assignments(words: Iterator[str] | list[str]) -> dict[str, str]:
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}


def _words(text: str, *, comments: bool = False) -> list[str]:
    """Return the words of a line as systemd splits them; none for an unterminated quote."""
    import shlex  # noqa: PLC0415  # most nodes have none of these units

    try:
        return shlex.split(text, comments=comments)
    except ValueError:
        return []


def _text(node: Node, path: str) -> str:
    """Return a file's text, "" if it cannot be read."""
    try:
        return (node.files.content(path) or b"").decode(errors="replace") if posixpath.isabs(path) else ""
    except ConfigurationError:
        return ""


def _listed(node: Node, folder: str) -> list[str]:
    try:
        return node.files.list(folder)
    except ConfigurationError:
        return []
