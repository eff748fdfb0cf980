"""What is found of a containerd: its files, what they import or a distribution made, and what its binary prints."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.documents import toml_document
from toolkit_installer.engines.api import EngineFile, Inspection
from toolkit_installer.engines.common import command_line, reload_method
from toolkit_installer.engines.common.serving import PROCESS_NAMES, process_of
from toolkit_installer.engines.containerd import effective, layouts
from toolkit_installer.engines.containerd import files as containerd_files
from toolkit_installer.engines.containerd import files as root_file
from toolkit_installer.engines.containerd.config import COMMAND, Sources
from toolkit_installer.engines.containerd.files import Imported, Missing
from toolkit_installer.engines.containerd.layouts import Layout
from toolkit_installer.engines.containerd.tables import Read, disabled
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.places import Places
from toolkit_installer.node.processes import Process
from toolkit_installer.node.reading import Reader
from toolkit_installer.settings import EngineName, EngineSettings

CONFIG = "/etc/containerd/config.toml"
"""What a containerd without --config reads."""
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
ROOT_ROLE = "config.toml"
DROP_IN_ROLE = "drop-in"
ENDING = ".toml"
"""What the names of containerd's files have in them: what a receipt may name, and nothing else, is edited."""
_IMPORT = "import"


class Placed(msgspec.Struct, frozen=True):
    """What is found of a distribution that makes its containerd's files."""

    layout: Layout
    content: bytes | None = None
    """What it made, with the runtimes in it."""
    low_level: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    changed: frozenset[str] = frozenset()
    """The templates that somebody changed after the generated file was made of them."""


class ContainerdInspection(Inspection, frozen=True):
    """A containerd as it was found. Imported files that could be edited are among `files`, under their paths' names."""

    placed: Placed | None = None
    """Its files are a distribution's; None: its own."""

    graph: tuple[Imported, ...] = ()
    """All that is imported, the drop-in included where it is there."""
    missing: tuple[Missing, ...] = ()
    sources: Sources = Sources()
    """What the handlers' settings may come from, beside these files."""
    kubelet: int | None = None
    """The PID of a kubelet of this node."""
    recognised: bool = False
    """The engine was recognised on the node, not named (`--runtime`)."""
    binary_version: str = ""
    """What the binary of a containerd that runs and does not answer says of its version; empty: unknown."""
    drop_in_names: frozenset[str] = frozenset()
    """The paths under which containerd may import our drop-in."""
    drop_in_named: str = ""
    """What an import of our drop-in says: the node's path of it."""

    def role_of(self, imported: Imported) -> str:
        """Return the role of the file that is imported under whatever name: containerd reads it for each."""
        known = next((file.role for file in self.files if file.path == imported.file), None)
        return known if known is not None else _role_of(imported)


def _role_of(imported: Imported) -> str:
    return DROP_IN_ROLE if imported.drop_in else import_role(imported.path)


def import_role(path: str) -> str:
    """Return the role of an imported file."""
    return f"{_IMPORT} {path}"


def is_import(role: str) -> bool:
    """Tell whether a role is that of an imported file."""
    return role.startswith(f"{_IMPORT} ")


def has_role(role: str) -> bool:
    """Tell whether a role is config.toml's, the drop-in's or an import's, or that of a distribution's file."""
    return role in (ROOT_ROLE, DROP_IN_ROLE) or role in layouts.ROLES or is_import(role)


def read_files(files: Reader, root: str) -> tuple[Read, ...]:
    """Return the root and all that it imports, as a daemon reads them. Raises ConfigurationError, NodeError."""
    content = files.content(root) or b""
    graph, _ = containerd_files.read_imports(files, root, content, frozenset())
    imported = (effective.parsed("", each.path, each.content, each.by_relative_pattern) for each in graph)
    return (effective.parsed("", root, content), *imported)


def disabled_in(inspection: Inspection) -> tuple[str, str] | None:
    """Return which file switches the CRI plugin off, and by which name; None if none does. Raises DocumentError."""
    contents = [(file.path, file.content or b"") for file in inspection.files if file.role == ROOT_ROLE]
    return disabled((path, toml_document.parse(content)) for path, content in (*contents, *inspection.imported))


def inspect_distribution(
    node: Node, target: EngineTarget, layout: Layout, answer: Inspection, made: Reader, usual: str
) -> ContainerdInspection:
    """Read what a distribution made, and what is added to it; `answer` is what its containerd said.

    `made` reads the distribution's own files; `usual` is its drop-in where --drop-in-config names none.
    Raises ConfigurationError, NodeError.
    """
    live, process = answer.live, answer.process
    drop_in, ignored = layout.drop_in_for(target.asked)
    drop_in = usual if drop_in == layout.drop_in else drop_in
    files = [
        EngineFile(layouts.GENERATED_ROLE, *node.locate_file(layout.generated)),
        EngineFile(layout.drop_in_role, *node.locate_file(drop_in)),
    ]
    files += [EngineFile(role, *node.locate_file(path)) for role, path in layout.templates.items()]
    own = layout.low_level(node, process)
    changed = _newer(node, layout.templates.values(), layout.generated)
    placed = Placed(layout, made.content(layout.source), own, ignored, changed)
    usual = layout.generated
    place = (root_file.config_of(process, usual) or usual) if process is not None else None
    sources = _sources(node, process, target.asked, place)
    return ContainerdInspection(answer.socket, tuple(files), live, answer.silence, placed=placed, sources=sources)


def _newer(node: Node, paths: Iterable[str], than: str) -> frozenset[str]:
    """Return which of the files were changed after the one at `than`. Raises NodeError."""
    times = {path: status.st_mtime for path in (*paths, than) if (status := node.files.status(path)) is not None}
    return frozenset(path for path, time in times.items() if time > times.get(than, time))


def inspect_own(node: Node, target: EngineTarget, answer: Inspection) -> ContainerdInspection:
    """Read everything of a containerd whose files are its own. Raises ConfigurationError, NodeError."""
    process = answer.process
    settings = target.asked
    given = _given(process, target)
    config = target.config or given or CONFIG
    root = EngineFile(ROOT_ROLE, *node.locate_file(config))
    drop_in_path = settings.drop_in or DROP_IN
    drop_in = EngineFile(DROP_IN_ROLE, *node.locate_file(drop_in_path))
    named = settings.drop_in_host_path or _on_node(node, drop_in_path)
    elsewhere = {posixpath.dirname(named): posixpath.dirname(drop_in_path)}
    if given is not None:
        elsewhere[posixpath.dirname(given)] = posixpath.dirname(config)
    names = frozenset({drop_in_path, drop_in.path, named})
    different = {there: here for there, here in elsewhere.items() if there != here}
    graph, missing = containerd_files.read_imports(node.files, config, root.content or b"", names, different)
    files = (root, drop_in, *_editable(node, graph, {root.path, drop_in.path}))
    place = root_file.config_of(process, CONFIG) if process is not None else None
    return ContainerdInspection(
        answer.socket,
        files,
        answer.live,
        answer.silence,
        tuple((each.path, each.content) for each in graph if not each.drop_in),
        graph=graph,
        missing=missing,
        sources=_sources(node, process, settings, place),
        kubelet=next((each.pid for each in processes.named(frozenset({"kubelet"})) if node.is_home_of(each)), None),
        recognised=target.recognised,
        drop_in_names=names,
        drop_in_named=named,
        elsewhere=_elsewhere(node, process, target),
        binary_version=_binary_version(node, answer),
    )


def _binary_version(node: Node, answer: Inspection) -> str:
    """Return the version of a containerd that runs and whose CRI does not answer: how it reads files depends on it."""
    process = process_of(node, EngineName.CONTAINERD, answer.socket) if answer.live is None else None
    return reload_method.containerd_version(node.programs, process.executable) if process is not None else ""


def _on_node(node: Node, path: str) -> str:
    """Return what the node calls the drop-in, or its path here where that is not known."""
    return Places(node).on_node(path) or path


def _given(process: Process | None, target: EngineTarget) -> str | None:
    """Return the file that the running containerd was started with; None: none, or that cannot be seen.

    Raises NodeError, and HiddenError for what cannot be seen where nobody named the file.
    """
    if process is None:
        return None
    try:
        return root_file.told_config(process)
    except command_line.HiddenError as error:
        if target.config is None:
            raise
        log.get().warning(
            "Going by the file that was named", key="named-file-used", file=target.config, why=error.reason
        )
        return None


def _elsewhere(node: Node, process: Process | None, target: EngineTarget) -> str:
    """Return what the running containerd reads where that is neither the file that was named nor imports it."""
    return "" if process is None or target.config is None else reads_instead(node, process, (target.config,))


def reads_instead(node: Node, process: Process, ours: Sequence[str]) -> str:
    """Return the file that a running containerd reads where that is none of ours, and imports none of them.

    Empty where it does, or that cannot be told. Raises NodeError.
    """
    if process.name not in PROCESS_NAMES[EngineName.CONTAINERD]:
        return ""
    theirs = root_file.config_of(process, CONFIG)
    if theirs is None or any(command_line.reads(node, process, theirs, each) is not False for each in ours):
        return ""
    try:
        content = processes.read_as(process, theirs) or b""
        reader = Reader(processes.root_of(process))
        imported, _ = containerd_files.read_imports(reader, theirs, content, frozenset())
    except ConfigurationError:
        return ""  # it cannot be read, so it is not known what it imports
    known = any(command_line.reads(node, process, at.place, each) is not False for at in imported for each in ours)
    return "" if known else theirs


def _editable(node: Node, imported: tuple[Imported, ...], known: set[str]) -> list[EngineFile]:
    """Return the imported files that are what the node has under that name, each once."""
    result = []
    for each in imported:
        try:
            path, found = node.locate_file(each.place)
        except ConfigurationError:
            continue  # a symlink out of its mount: it can be looked at, and is not ours to change
        if path not in known and ENDING in posixpath.basename(path):
            known.add(path)
            result.append(EngineFile(_role_of(each), path, found))
    return result


def _sources(node: Node, process: Process | None, settings: EngineSettings, place: str | None) -> Sources:
    """Look into what the handlers' settings may come from, beside the engine's files. Raises NodeError.

    `place`: where its file is for the live containerd; None where that cannot be told.
    """
    asked = settings.config_sources
    printed = None
    if process is not None and place is not None and (not asked or COMMAND in asked):
        printed, _ = reload_method.containerd_dump(node.programs, process.executable, path=place)
    paths = (each.partition("=")[2] for each in asked)
    return Sources(asked, printed, {path: node.files.content(path) for path in paths if path})
