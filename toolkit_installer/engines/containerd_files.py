"""The files that containerd reads: its own and those that they import. Reads, never writes."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Iterable, Mapping

from toolkit_installer.documents import toml_document
from toolkit_installer.errors import located
from toolkit_installer.node.files import Files

_WILDCARD = "*"
"""containerd takes a path for a pattern only if it has this; then `?` and `[...]` count too, as in Go's path.Match."""


@dataclasses.dataclass(frozen=True)
class Imported:
    """A file that another one imports. `path` is as containerd names it, `place` where it is found here.

    `by_relative_pattern`: it is reached only through a relative path with a wildcard, which 1.6 looks up elsewhere.
    `drop_in`: it lies where our own drop-in goes.
    """

    path: str
    place: str
    content: bytes
    by_relative_pattern: bool = False
    drop_in: bool = False


@dataclasses.dataclass(frozen=True)
class Missing:
    """A file that the one at `importer` names by a literal path, and that is not there."""

    importer: str
    path: str


@dataclasses.dataclass(frozen=True)
class Graph:
    """All that is imported, in the order in which containerd reads it: level by level, nothing twice."""

    imported: tuple[Imported, ...]
    missing: tuple[Missing, ...] = ()


def read(
    files: Files, root: str, content: bytes, drop_in: frozenset[str], elsewhere: Mapping[str, str] | None = None
) -> Graph:
    """Return what `content`, the file at `root`, imports, nested files included, and what is not there.

    `drop_in` has the names of our drop-in. `elsewhere` maps folders as containerd names them to where they are found
    here.
    Raises DocumentError naming the file, NodeError.
    """
    seen = {root}
    imported: list[Imported] = []
    missing: list[Missing] = []
    pending = [(root, content, False)]
    while pending:
        path, text, relative = pending.pop(0)
        for pattern, is_relative in _patterns(text, path):
            by_pattern = relative or (is_relative and _WILDCARD in pattern)
            places = expand(files, _here(pattern, elsewhere or {}))
            names = [_named(place, pattern, elsewhere or {}) for place in places]
            if not names and _WILDCARD not in pattern and pattern not in drop_in:
                missing.append(Missing(path, pattern))
            for place, name in zip(places, names, strict=True):
                ours = not drop_in.isdisjoint((name, place, files.canonical(place)))
                names_of_it = drop_in if ours else {name, place}
                found = files.find(place) if seen.isdisjoint(names_of_it) else None
                if found is not None:
                    seen |= names_of_it
                    imported.append(Imported(name, place, found.content, by_pattern, ours))
                    pending.append((name, found.content, by_pattern))
    return Graph(tuple(imported), tuple(missing))


def _here(path: str, elsewhere: Mapping[str, str]) -> str:
    folder, name = posixpath.split(path)
    return posixpath.join(elsewhere.get(folder, folder), name)


def _named(place: str, pattern: str, elsewhere: Mapping[str, str]) -> str:
    """Return a found file's name as containerd has it."""
    folder = posixpath.dirname(pattern)
    return posixpath.join(folder, posixpath.basename(place)) if folder in elsewhere else place


def imports(content: bytes, path: str) -> list[str]:
    """Return the patterns that the file at `path` imports, made absolute. Raises DocumentError naming the file."""
    return [pattern for pattern, _ in _patterns(content, path)]


def _patterns(content: bytes, path: str) -> list[tuple[str, bool]]:
    """Return the same, each with whether it was relative."""
    with located(path):
        document = toml_document.parse(content)
    patterns = document.get("imports", [])
    if not isinstance(patterns, list):
        return []
    folder = posixpath.dirname(path)
    texts = [pattern for pattern in patterns if isinstance(pattern, str)]
    return [(posixpath.normpath(posixpath.join(folder, text)), not text.startswith("/")) for text in texts]


def covers(patterns: Iterable[str], path: str) -> bool:
    """Tell whether one of the absolute `patterns` imports `path`: wildcards do not cross folders."""
    return any(pattern == path or (_WILDCARD in pattern and _covers(pattern, path)) for pattern in patterns)


def _covers(pattern: str, path: str) -> bool:
    parts, names = pattern.split("/"), path.split("/")
    return len(parts) == len(names) and all(
        matcher(part).fullmatch(name) is not None for part, name in zip(parts, names, strict=True)
    )


def is_pattern(path: str) -> bool:
    """Tell whether containerd takes an import for a pattern, which may match nothing."""
    return _WILDCARD in path


def expand(files: Files, pattern: str) -> list[str]:
    """Return the paths that an absolute pattern matches on the node, sorted. Raises NodeError."""
    if _WILDCARD not in pattern:
        return [pattern] if files.status(pattern) is not None else []
    places = ["/"]
    for part in pattern.strip("/").split("/"):
        if re.search(r"[*?\[\\]", part) is None:
            places = [posixpath.join(place, part) for place in places]
        else:
            matching = matcher(part)
            places = [
                posixpath.join(place, name)
                for place in places
                for name in sorted(files.list(place))
                if matching.fullmatch(name)
            ]
    return [place for place in places if files.status(place) is not None]


_PART = re.compile(r"(?P<any>\*)|(?P<one>\?)|\[(?P<set>\^?(?:\\.|[^\]\\])+)\]|\\(?P<escaped>.)|(?P<plain>[^*?\[\\])")


def matcher(part: str) -> re.Pattern[str]:
    """Return what one part of a pattern matches, by the rules of Go's path.Match; a malformed one matches nothing."""
    text = ""
    at = 0
    while at < len(part):
        found = _PART.match(part, at)
        if found is None:
            return re.compile(r"(?!)")
        if found["any"]:
            text += ".*"
        elif found["one"]:
            text += "."
        elif found["set"]:
            text += f"[{_set(found['set'])}]"
        else:
            text += re.escape(found["escaped"] or found["plain"])
        at = found.end()
    try:
        return re.compile(text, re.DOTALL)
    except re.error:
        return re.compile(r"(?!)")


def _set(body: str) -> str:
    """Return the inside of a set of characters for re: Go knows ranges, `^` at the start, and escapes."""
    negated, rest = ("^", body[1:]) if body.startswith("^") else ("", body)
    return negated + re.sub(r"\\(.)|([^\\-])", lambda each: re.escape(each[1] or each[2]), rest)
