"""A file that was named with --config, and that is a distribution's drop-in: by its path, or as it is mounted here."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator

import msgspec

from toolkit_installer.engines.containerd import files as root_file
from toolkit_installer.engines.containerd.distributions.all import DISTRIBUTIONS, layout_of
from toolkit_installer.engines.containerd.inspection import ContainerdInspection
from toolkit_installer.engines.containerd.layouts import Layout, Way
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.disk.reading import Reader
from toolkit_installer.node.disk.root import NodeError, Root
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, root_of

_MADE = {"containerd.d": "containerd.toml", "config.toml.d": "config.toml", "config-v3.toml.d": "config.toml"}
"""Folders for drop-ins, and the distribution's own file that lies beside each."""


class NamedDropIn(msgspec.Struct, frozen=True):
    """The layout of a distribution whose drop-in is at `path`; `files` reads the distribution's own files."""

    layout: Layout
    files: Reader
    path: str


def find_named_drop_in(node: Node, process: Process | None, config: str) -> NamedDropIn | None:
    """Return the distribution of which `config` is a drop-in, None if it is nobody's.

    `process`: the containerd that serves the socket, None where none runs. Raises ConfigurationError for a folder from
    which the distribution reads nothing, and for a distribution whose files cannot be told yet.
    """
    folder, name = posixpath.split(config)
    if not name.endswith(".toml"):
        return None
    for files, made, there in _places(node, process, folder):
        layout = layout_of(files.content, made)
        if layout is None or layout.in_place:
            continue
        read = posixpath.dirname(layout.drop_in)
        if read != there:
            raise ConfigurationError(
                f"lies in {there}, and {layout.name} reads drop-ins of version {layout.version} from {read}",
                path=config,
                hint=f"name a file in {read}, or leave --config out",
            )
        return NamedDropIn(layout, files, config)
    return None


def require_drop_in(named: NamedDropIn, found: ContainerdInspection) -> None:
    """Raise ConfigurationError where the distribution reads no drop-in at all when it starts next."""
    contents = {file.role: file.content for file in found.files}
    there = {path: content for role, path in named.layout.templates.items() if (content := contents.get(role))}
    start = named.layout.next_start(there, found.live.version if found.live is not None else None)
    if start.way is not Way.DROP_IN:
        raise ConfigurationError(
            f"this {named.layout.name} imports no drop-in, so that it would not read this file",
            path=named.path,
            hint="leave --config out: its template is edited then",
        )


def _places(node: Node, process: Process | None, folder: str) -> Iterator[tuple[Reader, str, str]]:
    """Yield which distribution's file may belong to drop-ins in `folder`, and what the node calls that folder.

    First by the folder's own name; then, as in a container that has the folder mounted elsewhere, by its identity.
    """
    beside = _MADE.get(posixpath.basename(folder))
    if beside is not None:
        yield node.files, posixpath.join(posixpath.dirname(folder), beside), folder
    views: list[tuple[Reader, str]] = []
    if process is not None and (started_with := root_file.config_of(process, "")):
        views.append((Reader(root_of(process)), started_with))
    views += [(files, row.started_with) for files in node.readers()[1:] for row in DISTRIBUTIONS]
    for files, made in views:
        for name, own in _MADE.items():
            there = posixpath.join(posixpath.dirname(made), name)
            if posixpath.basename(made) == own and _is_same(files.root, there, node.root, folder):
                yield files, made, there


def _is_same(one: Root, path: str, other: Root, folder: str) -> bool:
    try:
        return os.path.samefile(one.outside(one.canonical(path)), other.outside(other.canonical(folder)))
    except (OSError, NodeError):
        return False  # one of them is not there, or its process ended meanwhile
