"""Inspection of a containerd: its files and imports or a distribution's, and its binary's printed configuration."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.documents import toml_document
from toolkit_installer.engines.api import EngineFile, Inspection
from toolkit_installer.engines.common import command_line, reload_method
from toolkit_installer.engines.common.serving import PROCESS_NAMES, find_process
from toolkit_installer.engines.containerd import config_files, layouts, tables
from toolkit_installer.engines.containerd.config import COMMAND, ContainerdSources
from toolkit_installer.engines.containerd.config_files import ImportedFile, MissingImport
from toolkit_installer.engines.containerd.layouts import Layout
from toolkit_installer.engines.containerd.tables import ConfigFile, find_disabled
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.places import PathTranslator
from toolkit_installer.node.processes import Process
from toolkit_installer.node.reading import Reader
from toolkit_installer.settings import EngineName, EngineSettings

CONFIG = "/etc/containerd/config.toml"
"""The file that a containerd without --config reads."""
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
ROOT_ROLE = "config.toml"
DROP_IN_ROLE = "drop-in"
ENDING = ".toml"
"""Part of the name of each of containerd's files: a file in a receipt without it is not edited."""
_IMPORT = "import"


class DistributionInspection(msgspec.Struct, frozen=True):
    """The inspected files of a distribution that generates its containerd's files."""

    layout: Layout
    content: bytes | None = None
    """The file with the distribution's runtimes."""
    low_level: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    changed: frozenset[str] = frozenset()
    """Templates that were changed after the generated file was made from them."""


class ContainerdInspection(Inspection, frozen=True):
    """An inspected containerd. `files` includes the imported files that can be edited, with roles by their paths."""

    distribution: DistributionInspection | None = None
    """Its files are a distribution's; None: its own."""

    graph: tuple[ImportedFile, ...] = ()
    """All imported files, an existing drop-in included."""
    missing: tuple[MissingImport, ...] = ()
    sources: ContainerdSources = ContainerdSources()
    """Sources of the handlers' settings besides these files."""
    kubelet: int | None = None
    """The PID of a kubelet of this node."""
    detected: bool = False
    """The engine was recognised on the node, not named (`--runtime`)."""
    binary_version: str = ""
    """The version that the binary of a running but silent containerd prints; empty: unknown."""
    drop_in_names: frozenset[str] = frozenset()
    """The paths under which containerd may import our drop-in."""
    drop_in_named: str = ""
    """The path for an import of our drop-in: its path on the node."""

    def role_of(self, imported: ImportedFile) -> str:
        """Return the role of an imported file under any of its names: containerd reads it once for each."""
        known = next((file.role for file in self.files if file.path == imported.file), None)
        return known if known is not None else _role_of(imported)


def _role_of(imported: ImportedFile) -> str:
    return DROP_IN_ROLE if imported.drop_in else import_role(imported.path)


def import_role(path: str) -> str:
    """Return the role of an imported file."""
    return f"{_IMPORT} {path}"


def is_import(role: str) -> bool:
    """Return whether a role is that of an imported file."""
    return role.startswith(f"{_IMPORT} ")


def has_role(role: str) -> bool:
    """Return whether a role is config.toml's, the drop-in's or an import's, or that of a distribution's file."""
    return role in (ROOT_ROLE, DROP_IN_ROLE) or role in layouts.ROLES or is_import(role)


def read_files(files: Reader, root: str) -> tuple[ConfigFile, ...]:
    """Return the root and all of its imports, as a daemon reads them. Raises ConfigurationError, NodeError."""
    content = files.content(root) or b""
    graph, _ = config_files.read_imports(files, root, content, frozenset())
    imported = (tables.parse_file("", each.path, each.content, each.by_relative_pattern) for each in graph)
    return (tables.parse_file("", root, content), *imported)


def disabled_in(inspection: Inspection) -> tuple[str, str] | None:
    """Return the file that disables the CRI plugin, and by which name; None if none does. Raises DocumentError."""
    contents = [(file.path, file.content or b"") for file in inspection.files if file.role == ROOT_ROLE]
    return find_disabled((path, toml_document.parse(content)) for path, content in (*contents, *inspection.imported))


def inspect_distribution(
    node: Node, target: EngineTarget, layout: Layout, answer: Inspection, made: Reader, usual: str
) -> ContainerdInspection:
    """Read a distribution's generated file and its additions; `answer` is the result of querying its containerd.

    `made` reads the distribution's own files; `usual` is its drop-in where --drop-in-config names none. Raises
    ConfigurationError, NodeError.
    """
    live, process = answer.live, answer.process
    drop_in, ignored = layout.drop_in_for(target.settings)
    drop_in = usual if drop_in == layout.drop_in else drop_in
    files = [
        EngineFile(layouts.GENERATED_ROLE, *node.locate_file(layout.generated)),
        EngineFile(layout.drop_in_role, *node.locate_file(drop_in)),
    ]
    files += [EngineFile(role, *node.locate_file(path)) for role, path in layout.templates.items()]
    own = layout.low_level(node, process)
    changed = _modified_after(node, layout.templates.values(), layout.generated)
    distribution = DistributionInspection(layout, made.content(layout.source), own, ignored, changed)
    usual = layout.generated
    place = (config_files.find_config_or(process, usual) or usual) if process is not None else None
    sources = _read_sources(node, process, target.settings, place)
    return ContainerdInspection(
        answer.socket, tuple(files), live, answer.silence, distribution=distribution, sources=sources
    )


def _modified_after(node: Node, paths: Iterable[str], than: str) -> frozenset[str]:
    """Return the files that were modified after the file at `than`. Raises NodeError."""
    times = {path: status.st_mtime for path in (*paths, than) if (status := node.files.status(path)) is not None}
    return frozenset(path for path, time in times.items() if time > times.get(than, time))


def inspect_own(node: Node, target: EngineTarget, answer: Inspection) -> ContainerdInspection:
    """Read all files of a containerd whose files are its own. Raises ConfigurationError, NodeError."""
    process = answer.process
    settings = target.settings
    given = _find_given_config(process, target)
    config = target.config or given or CONFIG
    root = EngineFile(ROOT_ROLE, *node.locate_file(config))
    drop_in_path = settings.drop_in or DROP_IN
    drop_in = EngineFile(DROP_IN_ROLE, *node.locate_file(drop_in_path))
    named = settings.drop_in_host_path or _path_on_node(node, drop_in_path)
    elsewhere = {posixpath.dirname(named): posixpath.dirname(drop_in_path)}
    if given is not None:
        elsewhere[posixpath.dirname(given)] = posixpath.dirname(config)
    names = frozenset({drop_in_path, drop_in.path, named})
    different = {there: here for there, here in elsewhere.items() if there != here}
    graph, missing = config_files.read_imports(node.files, config, root.content or b"", names, different)
    files = (root, drop_in, *_editable_imports(node, graph, {root.path, drop_in.path}))
    place = config_files.find_config_or(process, CONFIG) if process is not None else None
    return ContainerdInspection(
        answer.socket,
        files,
        answer.live,
        answer.silence,
        tuple((each.path, each.content) for each in graph if not each.drop_in),
        graph=graph,
        missing=missing,
        sources=_read_sources(node, process, settings, place),
        kubelet=next(
            (each.pid for each in processes.find_by_name(frozenset({"kubelet"})) if node.is_home_of(each)), None
        ),
        detected=target.detected,
        drop_in_names=names,
        drop_in_named=named,
        elsewhere=_find_other_config(node, process, target),
        binary_version=_binary_version(node, answer),
    )


def _binary_version(node: Node, answer: Inspection) -> str:
    """Return the version of a running containerd whose CRI does not answer: its reading of files depends on it."""
    process = find_process(node, EngineName.CONTAINERD, answer.socket) if answer.live is None else None
    return reload_method.query_containerd_version(node.programs, process.executable) if process is not None else ""


def _path_on_node(node: Node, path: str) -> str:
    """Return the drop-in's path on the node, or its path here if that is unknown."""
    return PathTranslator(node).on_node(path) or path


def _find_given_config(process: Process | None, target: EngineTarget) -> str | None:
    """Return the file that the running containerd was started with, None if it has none or that is hidden.

    Raises NodeError, and HiddenError for a hidden command line if no file was named either.
    """
    if process is None:
        return None
    try:
        return config_files.find_config(process)
    except command_line.HiddenError as error:
        if target.config is None:
            raise
        log.get().warning(
            "Going by the file that was named", key="named-file-used", file=target.config, why=error.reason
        )
        return None


def _find_other_config(node: Node, process: Process | None, target: EngineTarget) -> str:
    """Return the file that the running containerd reads if that is not the named file and does not import it."""
    return "" if process is None or target.config is None else reads_instead(node, process, (target.config,))


def reads_instead(node: Node, process: Process, ours: Sequence[str]) -> str:
    """Return the file that a running containerd reads if it is not ours and imports none of ours.

    Empty if it is or does, or if that cannot be determined. Raises NodeError.
    """
    if process.name not in PROCESS_NAMES[EngineName.CONTAINERD]:
        return ""
    theirs = config_files.find_config_or(process, CONFIG)
    if theirs is None or any(command_line.is_same_file(node, process, theirs, each) is not False for each in ours):
        return ""
    try:
        content = processes.read_as(process, theirs) or b""
        reader = Reader(processes.root_of(process))
        imported, _ = config_files.read_imports(reader, theirs, content, frozenset())
    except ConfigurationError:
        return ""  # it cannot be read, so its imports are unknown
    known = any(
        command_line.is_same_file(node, process, at.place, each) is not False for at in imported for each in ours
    )
    return "" if known else theirs


def _editable_imports(node: Node, imported: tuple[ImportedFile, ...], known: set[str]) -> list[EngineFile]:
    """Return the imported files that are the node's own files under those names, each once."""
    result = []
    for each in imported:
        try:
            path, found = node.locate_file(each.place)
        except ConfigurationError:
            continue  # a symlink out of its mount: we can read it, but must not change it
        if path not in known and ENDING in posixpath.basename(path):
            known.add(path)
            result.append(EngineFile(_role_of(each), path, found))
    return result


def _read_sources(
    node: Node, process: Process | None, settings: EngineSettings, place: str | None
) -> ContainerdSources:
    """Read the sources of the handlers' settings besides the engine's files. Raises NodeError.

    `place`: the path of the live containerd's file in its own view; None if unknown.
    """
    asked = settings.config_sources
    printed = None
    if process is not None and place is not None and (not asked or COMMAND in asked):
        printed, _ = reload_method.dump_containerd_config(node.programs, process.executable, path=place)
    paths = (each.partition("=")[2] for each in asked)
    return ContainerdSources(asked, printed, {path: node.files.content(path) for path in paths if path})
