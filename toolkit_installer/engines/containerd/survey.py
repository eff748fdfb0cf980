"""What is found of a containerd: its files and those that they import, what its own binary prints, the kubelet."""

from __future__ import annotations

import dataclasses
import posixpath

from toolkit_installer import log
from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Table
from toolkit_installer.engines.api import EngineFile, Live, Survey
from toolkit_installer.engines.common import told, trial
from toolkit_installer.engines.common.serving import PROCESS_NAMES
from toolkit_installer.engines.containerd import files as containerd_files
from toolkit_installer.engines.containerd import started
from toolkit_installer.engines.containerd import trial as containerd_trial
from toolkit_installer.engines.containerd.files import Imported, Missing
from toolkit_installer.engines.containerd.tables import switched_off
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.disk.reading import Reader
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.settings import EngineName, EngineSettings

CONFIG = containerd_trial.DEFAULT_CONFIG
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
ROOT_ROLE = "config.toml"
DROP_IN_ROLE = "drop-in"
ENDING = ".toml"
"""What the names of containerd's files have in them: what a receipt may name, and nothing else, is edited."""
_FILE = "file="
_IMPORT = "import"


@dataclasses.dataclass(frozen=True)
class ContainerdSurvey(Survey):
    """A containerd as it was found. Imported files that could be edited are among `files`, under their paths' names."""

    graph: tuple[Imported, ...] = ()
    """All that is imported, the drop-in included where it is there."""
    missing: tuple[Missing, ...] = ()
    dump: Table | None = None
    """What the live daemon's own binary prints of its configuration; None if it was not asked, or does not say."""
    sources: tuple[tuple[str, bytes | None], ...] = ()
    """The files that `--config-source file=PATH` names, None for one that is not there."""
    kubelet: int | None = None
    """The PID of a kubelet of this node."""


def of(survey: Survey) -> ContainerdSurvey:
    """Return a survey as one of containerd's."""
    if isinstance(survey, ContainerdSurvey):
        return survey
    graph = tuple(Imported(path, path, content) for path, content in survey.imported)
    return ContainerdSurvey(survey.socket, survey.files, survey.live, survey.silence, survey.imported, graph)


def role_of(imported: Imported) -> str:
    """Return the role of an imported file."""
    return DROP_IN_ROLE if imported.drop_in else f"{_IMPORT} {imported.path}"


def has_role(role: str) -> bool:
    """Tell whether a role is config.toml's, the drop-in's or an import's."""
    return role in (ROOT_ROLE, DROP_IN_ROLE) or role.startswith(f"{_IMPORT} ")


def may_be(role: str, name: str) -> bool:
    """Tell whether a file of that role may be called `name`."""
    return has_role(role) and ENDING in name


def disabled_in(survey: Survey) -> tuple[str, str] | None:
    """Return which file switches the CRI plugin off, and by which name; None if none does. Raises DocumentError."""
    contents = [(file.path, file.content or b"") for file in survey.files if file.role == ROOT_ROLE]
    for path, content in (*contents, *survey.imported):
        name = switched_off(toml_document.parse(content))
        if name is not None:
            return path, name
    return None


def look(node: Node, settings: EngineSettings, socket: str, live: Live | None, silence: str) -> ContainerdSurvey:
    """Read everything. Raises ConfigurationError, NodeError."""
    process = live.process if live is not None else None
    given = _given(process, settings)
    config = settings.config or given or CONFIG
    root = EngineFile(ROOT_ROLE, *node.find(config))
    drop_in_path = settings.drop_in or DROP_IN
    drop_in = EngineFile(DROP_IN_ROLE, *node.find(drop_in_path))
    named = settings.drop_in_host_path or drop_in_path
    elsewhere = {posixpath.dirname(named): posixpath.dirname(drop_in_path)}
    if given is not None:
        elsewhere[posixpath.dirname(given)] = posixpath.dirname(config)
    names = frozenset({drop_in_path, drop_in.path, named})
    different = {there: here for there, here in elsewhere.items() if there != here}
    graph = containerd_files.read(node.files, config, root.content or b"", names, different)
    files = (root, drop_in, *_editable(node, graph.imported, {root.path, drop_in.path}))
    sources = tuple(
        (path, found.content if (found := node.files.find(path)) is not None else None)
        for path in (word.removeprefix(_FILE) for word in settings.config_sources if word.startswith(_FILE))
    )
    return ContainerdSurvey(
        socket,
        files,
        live,
        silence,
        tuple((each.path, each.content) for each in graph.imported if not each.drop_in),
        graph=graph.imported,
        missing=graph.missing,
        dump=_dump(node, process, settings),
        sources=sources,
        kubelet=_kubelet(node),
        elsewhere=_elsewhere(node, process, settings),
    )


def _given(process: Process | None, settings: EngineSettings) -> str | None:
    """Return the file that the running containerd was started with; None: none, or that cannot be seen.

    Raises NodeError, and HiddenError for what cannot be seen where nobody named the file.
    """
    if process is None:
        return None
    try:
        return started.told_config(process)
    except told.HiddenError as error:
        if settings.config is None:
            raise
        log.get().warning("Going by the file that was named", file=settings.config, why=error.reason)
        return None


def _elsewhere(node: Node, process: Process | None, settings: EngineSettings) -> str:
    """Return what the running containerd reads where that is neither the file that was named nor imports it."""
    if process is None or process.name not in PROCESS_NAMES[EngineName.CONTAINERD] or settings.config is None:
        return ""
    if not started.is_known(process):
        return ""
    theirs = started.config_or(process, CONFIG)
    if told.reads(node, process, theirs, settings.config) is not False:
        return ""
    try:
        content = processes.read_as(process, theirs) or b""
        imported = containerd_files.read(Reader(processes.root_of(process)), theirs, content, frozenset()).imported
    except ConfigurationError:
        return ""  # it cannot be read, so it is not known what it imports
    known = any(told.reads(node, process, each.place, settings.config) is not False for each in imported)
    return "" if known else theirs


def _editable(node: Node, imported: tuple[Imported, ...], known: set[str]) -> list[EngineFile]:
    """Return the imported files that are what the node has under that name, each once."""
    result = []
    for each in imported:
        try:
            path, found = node.find(each.place)
        except ConfigurationError:
            continue  # a symlink out of its mount: it can be looked at, and is not ours to change
        if path not in known and ENDING in posixpath.basename(path):
            known.add(path)
            result.append(EngineFile(role_of(each), path, found))
    return result


def _dump(node: Node, process: Process | None, settings: EngineSettings) -> Table | None:
    """Return what the live daemon's binary prints of the daemon's own file, if that is a source of settings."""
    if process is None or (settings.config_sources and "command" not in settings.config_sources):
        return None
    if not started.is_known(process):
        return None
    place = started.config_or(process, CONFIG)
    return trial.containerd_dump_of(node.programs, process.executable, place)[0]


def _kubelet(node: Node) -> int | None:
    """Return the PID of a kubelet that lives on this node, None if there is none."""
    kubelets = (process for process in processes.named(frozenset({"kubelet"})) if node.is_home_of(process))
    return next((process.pid for process in kubelets), None)
