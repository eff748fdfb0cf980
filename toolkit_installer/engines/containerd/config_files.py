"""The files that containerd reads: its own and its imports. This module reads, and never writes.

It also finds the file that a running containerd was started with, and its distribution: from the command line, else
from what the kernel shows of the process.

k3s links a library that wipes the arguments of every program in its binary, its containerd among them: only
`containerd` is left. Such a process is identified by its executable, its open database, its bound sockets and its unit.
A file counts only if the process can see it; without evidence HiddenError is raised, and nothing is assumed.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from toolkit_installer.documents import toml_document
from toolkit_installer.engines.common import command_line
from toolkit_installer.engines.containerd.distributions import DISTRIBUTIONS, layout_of
from toolkit_installer.engines.containerd.layouts import Layout
from toolkit_installer.errors import ConfigurationError, located
from toolkit_installer.node import processes, signals
from toolkit_installer.node.processes import Process, read_as
from toolkit_installer.node.reading import Reader

_WILDCARD = "*"
"""containerd treats a path as a pattern, which may match nothing, only if it contains this.

Then `?` and `[...]` count too, as in Go's path.Match.
"""


class ImportedFile(msgspec.Struct, frozen=True):
    """A file that another one imports. `path`: its name for containerd. `place`: its path here.

    `file`: the path with symlinks resolved, "" if unresolved. containerd reads a file once for each name.
    `by_relative_pattern`: it is reached only through a relative path with a wildcard, which 1.6 looks up elsewhere.
    `drop_in`: it is at our drop-in's path.
    """

    path: str
    place: str
    content: bytes
    by_relative_pattern: bool = False
    drop_in: bool = False
    file: str = ""


class MissingImport(msgspec.Struct, frozen=True):
    """A missing file that the file at `importer` imports: containerd does not start without it.

    It is named by a literal path, or it is a dangling symlink that matches a pattern.
    """

    importer: str
    path: str


def read_imports(
    files: Reader, root: str, content: bytes, drop_in: frozenset[str], elsewhere: Mapping[str, str] | None = None
) -> tuple[tuple[ImportedFile, ...], tuple[MissingImport, ...]]:
    """Return the files that `content`, the file at `root`, imports, nested imports included, and the missing ones.

    They are in the order in which containerd reads them: level by level, each once. `drop_in` has the names of our
    drop-in. `elsewhere` maps folders by containerd's names to their paths here. Raises DocumentError naming the file,
    NodeError.
    """
    seen = {root}
    imported: list[ImportedFile] = []
    missing: list[MissingImport] = []
    pending = [(root, content, False)]
    while pending:
        path, text, relative = pending.pop(0)
        for pattern, is_relative in _list_patterns(text, path):
            by_pattern = relative or (is_relative and _WILDCARD in pattern)
            folder, last = posixpath.split(pattern)
            here = (elsewhere or {}).get(folder)
            for place in expand_pattern(files, pattern if here is None else posixpath.join(here, last)):
                name = place if here is None else posixpath.join(folder, posixpath.basename(place))
                if files.status(place) is None:
                    if _WILDCARD in pattern or name not in drop_in:
                        missing.append(MissingImport(path, name))
                    continue
                found = files.read_file(place) if seen.isdisjoint({name, place}) else None
                if found is not None:
                    seen |= {name, place}
                    ours = not drop_in.isdisjoint((name, place, found.path))
                    imported.append(ImportedFile(name, place, found.content, by_pattern, ours, found.path))
                    pending.append((name, found.content, by_pattern))
    return tuple(imported), tuple(missing)


def list_imports(content: bytes, path: str) -> list[str]:
    """Return the patterns that the file at `path` imports, made absolute. Raises DocumentError naming the file."""
    return [pattern for pattern, _ in _list_patterns(content, path)]


def _list_patterns(content: bytes, path: str) -> list[tuple[str, bool]]:
    """Return the patterns that the file at `path` imports, made absolute, each with whether it was relative."""
    with located(path):
        document = toml_document.parse(content)
    patterns = document.get("imports", [])
    if not isinstance(patterns, list):
        return []
    folder = posixpath.dirname(path)
    texts = [pattern for pattern in patterns if isinstance(pattern, str)]
    return [(posixpath.normpath(posixpath.join(folder, text)), not text.startswith("/")) for text in texts]


def covers(patterns: Iterable[str], path: str) -> bool:
    """Return whether one of the absolute `patterns` imports `path`; wildcards do not cross folders."""
    return any(
        pattern == path
        or (
            _WILDCARD in pattern
            and pattern.count("/") == path.count("/")
            and all(map(matches, pattern.split("/"), path.split("/")))
        )
        for pattern in patterns
    )


def expand_pattern(files: Reader, pattern: str) -> list[str]:
    """Return the paths that an absolute pattern matches on the node, sorted; a literal path is returned as it is.

    As with Go's filepath.Glob, dangling symlinks are included. Raises NodeError.
    """
    if _WILDCARD not in pattern:
        return [pattern]
    places = ["/"]
    for part in pattern.strip("/").split("/"):
        signals.raise_if_pending()
        if re.search(r"[*?\[\\]", part) is None:
            places = [posixpath.join(place, part) for place in places]
        else:
            places = [
                posixpath.join(place, name)
                for place in places
                for name in sorted(files.list(place))
                if matches(part, name)
            ]
    return [place for place in places if files.own_status(place) is not None]


_PART = re.compile(r"(?P<any>\*)|(?P<one>\?)|\[(?P<set>\^?(?:\\.|[^\]\\])+)\]|\\(?P<escaped>.)|(?P<plain>[^*?\[\\])")
_LONGEST_NAME = 255
"""Bytes of a file's name on Linux."""


def matches(part: str, name: str) -> bool:
    """Return whether one part of a pattern matches a name, as in Go's path.Match; a malformed part matches nothing."""
    pieces = _compile_pieces(part)
    if pieces is None:
        return False
    (first, width), *middle = pieces
    if not middle:
        return first.fullmatch(name) is not None
    last, last_width = middle.pop()
    at = width if first.match(name) else len(name) + 1
    for piece, width in middle:  # the leftmost match leaves the most text for the pieces after it
        found = piece.search(name, at)
        at = len(name) + 1 if found is None else found.start() + width
    return at + last_width <= len(name) and last.match(name, len(name) - last_width) is not None


@functools.lru_cache(maxsize=64)
def _compile_pieces(part: str) -> list[tuple[re.Pattern[str], int]] | None:
    """Return the pieces between the stars of a part, each with its width in characters; None: malformed.

    A part wider than the longest name counts as malformed as well.
    """
    texts, widths, at = [""], [0], 0
    while at < len(part):
        found = _PART.match(part, at)
        if found is None or sum(widths) > _LONGEST_NAME:
            return None
        at = found.end()
        if found["any"]:
            if texts[-1] or len(texts) == 1:
                texts.append("")
                widths.append(0)
            continue
        if found["one"]:
            texts[-1] += "."
        elif found["set"]:
            texts[-1] += f"[{_translate_set(found['set'])}]"
        else:
            texts[-1] += re.escape(found["escaped"] or found["plain"])
        widths[-1] += 1
    try:
        return [(re.compile(text, re.DOTALL), width) for text, width in zip(texts, widths, strict=True)]
    except re.error:
        return None


def _translate_set(body: str) -> str:
    """Return the inside of a character set for re: Go knows ranges, `^` at the start, and escapes."""
    negated, rest = ("^", body[1:]) if body.startswith("^") else ("", body)
    return negated + re.sub(r"\\(.)|([^\\-])", lambda each: re.escape(each[1] or each[2]), rest)


CONFIG_FLAGS = ("--config", "-config", "-c")
_DATABASE = "/io.containerd.metadata.v1.bolt/meta.db"
"""Path below a containerd's root folder; open as long as containerd runs."""


def find_layout(process: Process) -> Layout | None:
    """Return the layout of a running containerd's distribution, with the process's own paths; None if unknown."""
    try:
        config = find_config(process)
        return layout_of(lambda path: read_as(process, path), config) if config is not None else None
    except ConfigurationError:
        return None  # the process ended meanwhile, or hides its command line


def find_config(process: Process) -> str | None:
    """Return the file that a containerd was started with, None if it was given none.

    Raises NodeError, and HiddenError if its command line is wiped and nothing else shows the file.
    """
    given = command_line.last_flag_value(process.arguments, *CONFIG_FLAGS)
    if given:
        return command_line.place(process, given)
    if not process.hidden:
        return None
    for candidates in _candidates(process):
        there = [path for path in dict.fromkeys(candidates) if path is not None and read_as(process, path) is not None]
        if len(there) == 1:
            return there[0]
    raise command_line.hidden_error(process, "which configuration it reads")


def find_config_or(process: Process, usual: str) -> str | None:
    """Return the file that a containerd was started with, `usual` if it was given none; None if that is hidden.

    Raises NodeError.
    """
    try:
        return find_config(process) or usual
    except command_line.HiddenError:
        return None


def _candidates(process: Process) -> Iterator[Iterable[str | None]]:
    """Yield the files that a containerd may have been started with, by each kind of evidence, the strongest first.

    If the evidence fits two distributions, the one whose file exists counts; if both exist, none does.
    """
    yield [each.started_by(process.executable) for each in DISTRIBUTIONS]
    roots = [name.removesuffix(_DATABASE) for name in processes.list_open_files(process) if name.endswith(_DATABASE)]
    yield [each.started_in(root) for root in roots for each in DISTRIBUTIONS]
    yield [each.started_with for each in DISTRIBUTIONS if process.unit in each.units]
    for socket in processes.list_bound_sockets(process.pid) or ():
        yield [each.started_with for each in DISTRIBUTIONS if each.serves(socket)]
