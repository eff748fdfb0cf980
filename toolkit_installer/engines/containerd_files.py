"""The files that containerd reads: its own and those that they import. Reads, never writes."""

from __future__ import annotations

import fnmatch
import posixpath

from toolkit_installer.documents import toml_document
from toolkit_installer.errors import located
from toolkit_installer.node.files import Files

_MAGIC = frozenset("*?[")


def imported(files: Files, root: str, content: bytes, skip: frozenset[str]) -> tuple[tuple[str, bytes], ...]:
    """Return path and content of the files that `content`, the file at `root`, imports, nested ones included.

    In the order in which containerd reads them. Files in `skip` are left out. Literal paths that lead nowhere are
    left out too: containerd says so itself. Raises DocumentError naming the file, NodeError.
    """
    seen = {root, *skip}
    result: list[tuple[str, bytes]] = []
    pending = [(root, content)]
    while pending:
        path, text = pending.pop(0)
        for pattern in imports(text, path):
            for match in expand(files, pattern):
                canonical = files.canonical(match)
                if canonical in seen or match in seen:
                    continue
                seen |= {canonical, match}
                found = files.find(match)
                if found is not None:
                    result.append((match, found.content))
                    pending.append((match, found.content))
    return tuple(result)


def imports(content: bytes, path: str) -> list[str]:
    """Return the patterns that the file at `path` imports, made absolute. Raises DocumentError naming the file."""
    with located(path):
        document = toml_document.parse(content)
    patterns = document.get("imports", [])
    if not isinstance(patterns, list):
        return []
    folder = posixpath.dirname(path)
    return [posixpath.normpath(posixpath.join(folder, pattern)) for pattern in patterns if isinstance(pattern, str)]


def covers(patterns: list[str], path: str) -> bool:
    """Tell whether one of the absolute `patterns` imports `path`: wildcards do not cross folders."""
    return any(
        len(pattern.split("/")) == len(path.split("/"))
        and all(map(fnmatch.fnmatchcase, path.split("/"), pattern.split("/")))
        for pattern in patterns
    )


def expand(files: Files, pattern: str) -> list[str]:
    """Return the paths that an absolute pattern matches on the node, sorted. Raises NodeError."""
    places = ["/"]
    for part in pattern.strip("/").split("/"):
        if _MAGIC.isdisjoint(part):
            places = [posixpath.join(place, part) for place in places]
        else:
            places = [
                posixpath.join(place, name)
                for place in places
                for name in files.list(place)
                if fnmatch.fnmatchcase(name, part)
            ]
    return [place for place in places if files.status(place) is not None]
