"""containerd: config.toml and a drop-in, reloaded by a restart through systemd."""

from __future__ import annotations

import dataclasses
import hashlib
import posixpath
import re
import signal
from collections.abc import Mapping
from typing import Any

from toolkit_installer.documents import toml_document, toml_values
from toolkit_installer.documents.changes import Table, same
from toolkit_installer.engines import (
    answering,
    containerd_config,
    containerd_files,
    containerd_trial,
    reloading,
    serving,
)
from toolkit_installer.engines.base import (
    EngineFile,
    EngineSilentError,
    Goal,
    Goals,
    Live,
    Memory,
    Reload,
    Request,
    Survey,
)
from toolkit_installer.engines.ownership import Ownership, low_level
from toolkit_installer.errors import ConfigurationError, located
from toolkit_installer.node import processes
from toolkit_installer.node.cri import client
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode

CONFIG = containerd_trial.DEFAULT_CONFIG
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
SOCKET = "/run/containerd/containerd.sock"
ROOT_ROLE = "config.toml"
DROP_IN_ROLE = "drop-in"

MERGES_DEEPLY = (2, 1)
"""The first containerd that merges a drop-in's tables into the root's; older ones replace whole plugin tables."""
READS_VERSION_3 = (2, 0)
IMPORTS_BY_DEFAULT = (2, 2)
"""The first containerd that imports /etc/containerd/conf.d/*.toml where there is no config.toml."""
_NO_CRI = "UNIMPLEMENTED"
"""What gRPC says of a service that a server does not have."""
_VALUE = "value"


class Containerd:
    """containerd's room."""

    name = EngineName.CONTAINERD
    config = CONFIG
    socket = SOCKET
    folders = ()

    def may_be(self, role: str, name: str) -> bool:
        """Tell whether a file of that role may be called `name`."""
        return role in (ROOT_ROLE, DROP_IN_ROLE) and ".toml" in name

    def survey(self, node: Node, settings: EngineSettings) -> Survey:
        """Read config.toml, the drop-in and what they import, and ask the CRI. Raises ConfigurationError."""
        socket = settings.socket or SOCKET
        try:
            live = answering.wait(self, node, socket, settings.answer_timeout)
            silence = ""
        except EngineSilentError as error:
            live, silence = None, error.reason
        process = live.process if live is not None else None
        told = containerd_trial.told_config(process) if process is not None else None
        config = settings.config or told or CONFIG
        root = EngineFile(ROOT_ROLE, *node.find(config))
        drop_in_path = settings.drop_in or DROP_IN
        drop_in = EngineFile(DROP_IN_ROLE, *node.find(drop_in_path))
        skip = frozenset({drop_in_path, drop_in.path})
        imported = containerd_files.imported(node.files, config, root.content or b"", skip)
        return Survey(socket, (root, drop_in), live, silence, imported)

    def goals(self, survey: Survey, request: Request, memories: Mapping[str, Memory]) -> Goals:
        """Return what config.toml and the drop-in should be. Raises ConfigurationError."""
        root, drop_in = survey.file(ROOT_ROLE), survey.file(DROP_IN_ROLE)
        release = _release(survey.live)
        unknown: Mapping[str, Ownership] = {}
        if drop_in.path not in memories:
            unknown = self.recognised(survey, request.settings, request.toolkit_folder)
        root_goal, drop_in_goal = (
            self.without_us(
                file,
                memories.get(file.path, Memory(ownership=unknown.get(file.path, Ownership()))),
                request.toolkit_folder,
            )
            for file in (root, drop_in)
        )
        known_deep = release is not None and release >= MERGES_DEEPLY
        # an engine that is down for a moment is no reason to move what is there
        kept = survey.live is None and bool(memories.get(drop_in.path, Memory()).written)
        if (known_deep or kept) and _mergeable(root_goal.base, drop_in_goal.base):
            return _by_drop_in(survey, request, root_goal, drop_in_goal)
        return _in_place(survey, request, root_goal, drop_in_goal, release)

    def recognised(self, survey: Survey, settings: EngineSettings, toolkit_folder: str) -> Mapping[str, Ownership]:
        """Return what stands in our blocks, and the import of a drop-in that goes with us.

        containerd refuses to start with a literal import that leads nowhere. Raises ConfigurationError.
        """
        root, drop_in = survey.file(ROOT_ROLE), survey.file(DROP_IN_ROLE)
        found = {}
        for file in (root, drop_in):
            with located(file.path):
                content = file.content or b""
                found[file.path] = containerd_config.recognised(content, whole=file is drop_in)
        goes = self.without_us(drop_in, Memory(ownership=found[drop_in.path]), toolkit_folder).base is None
        if goes and drop_in.content is not None:
            paths = [path for path in (settings.drop_in_host_path, settings.drop_in, drop_in.path) if path]
            imports = containerd_config.imports_of(root.content or b"", paths)
            known = found[root.path]
            found[root.path] = Ownership((*known.keys, *imports.keys), known.created)
        return found

    def without_us(self, file: EngineFile, memory: Memory, toolkit_folder: str) -> Goal:
        """Return a file without us. Raises ConfigurationError."""
        with located(file.path):
            base, left = _base(file, memory, toolkit_folder)
        return Goal(file.role, file.path, base, base, left=left)

    def reload(self, node: Node, survey: Survey, settings: EngineSettings) -> Reload:
        """Restart by systemd, unless asked otherwise: containerd has no reload, it dies of SIGHUP."""
        reload = reloading.decide(node, self.name, survey, settings.reload_mode, ReloadMode.SYSTEMD)
        if reload.mode is ReloadMode.SIGNAL:
            return dataclasses.replace(reload, restarts=True)
        return reload

    def try_out(self, node: Node, survey: Survey, goals: Goals) -> None:
        """Let containerd print what it makes of the files, and compare. Raises ConfigurationError."""
        process = survey.live.process if survey.live is not None else None
        if process is None:
            return
        root, drop_in = (next(goal for goal in goals.files if goal.role == role) for role in (ROOT_ROLE, DROP_IN_ROLE))
        containerd_trial.try_out(node, process, root, drop_in, goals)

    def refusal(self, node: Node, process: Process) -> str | None:
        """Let containerd print what it makes of its files as they are."""
        return containerd_trial.refusal(node, process)

    def dangers(self, node: Node, survey: Survey, reload: Reload) -> tuple[str, ...]:
        """Warn of a signal after which nothing starts containerd again."""
        process = survey.live.process if survey.live is not None else None
        if reload.mode is not ReloadMode.SIGNAL or process is None:
            return ()
        policy = node.services.property(process.unit, "Restart") if process.unit is not None else None
        if policy == "always":
            return ()
        warning = (
            "containerd dies of SIGHUP, and its unit does not say Restart=always: it may stay down; "
            "--restart-mode systemd is safer"
        )
        return (warning,)

    def transitional(self, content: bytes | None) -> bytes | None:  # noqa: ARG002  # what docker needs, not containerd
        """Return None: a restart reads whatever is there."""
        return None

    def ask(self, node: Node, socket: str, seconds: float) -> Live:
        """Ask the CRI for its handlers. Raises EngineSilentError."""
        try:
            status = client.status(node.root, socket, seconds)
        except client.CriError as error:
            # containerd serves once its plugins are loaded: one that is missing then failed, or is switched off
            kind = answering.EngineBrokenError if error.reason.startswith(_NO_CRI) else EngineSilentError
            raise kind(f"the CRI of containerd does not answer: {error.reason}", path=socket) from error
        table = status.config.get("containerd") or {}
        handlers = {name: _binary(entry) for name, entry in (table.get("runtimes") or {}).items()}
        for name in status.handlers - handlers.keys() - {""}:
            handlers[name] = None
        pid = processes.behind(node.root, socket, b"")
        process = processes.look(pid) if pid else None
        return Live(status.version, handlers, table.get("defaultRuntimeName"), process)

    def signal(self, node: Node, process: Process) -> None:
        """Send SIGHUP, of which containerd dies; its unit starts it again. Raises ConfigurationError."""
        if process.name not in serving.PROCESS_NAMES[self.name]:
            raise ConfigurationError(
                f"the process behind the socket is {process.name!r} (PID {process.pid}), not containerd: not signalled",
                hint="check --socket",
            )
        processes.send(node.calls, process, signal.SIGHUP)

    def write_value(self, value: Any) -> str:
        """Return a value as TOML."""
        return f"{_VALUE} = {toml_values.write(value)}"

    def read_value(self, text: str) -> Any:
        """Return the value that was written. Raises DocumentError."""
        return toml_document.parse(text.encode())[_VALUE]


def _base(file: EngineFile, memory: Memory, toolkit_folder: str) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the file without us: the very bytes from before if nobody touched ours, else ours taken out."""
    content = file.content
    if content is None or content == memory.before:
        return content, ()
    if hashlib.sha256(content).hexdigest() in memory.written:
        return memory.before, ()
    dropped = file.role == DROP_IN_ROLE
    foreign = dropped and not memory.written and not containerd_config.is_marked(content)
    if foreign and containerd_config.ours(content, toolkit_folder):
        return None, ()  # an older installer's, whole: it wrote nothing of anybody else's into this file
    base, left = containerd_config.without_us(content, memory.ownership, toolkit_folder, memory.before)
    if memory.before is None and (memory.written or dropped) and not base.strip():
        return None, left  # it was created for us, and nobody else put anything in
    if dropped and memory.before is None and base != content:
        left = (*left, "the rest is somebody else's and stays; it counts only if config.toml imports it by itself")
    return base, left


def _mergeable(root: bytes | None, drop_in: bytes | None) -> bool:
    """Tell whether a drop-in would have the root's version, which containerd insists on."""
    if root is None or not toml_document.parse(root):
        return False
    version = toml_document.parse(root).get("version")
    return drop_in is None or toml_document.parse(drop_in).get("version") == version


def _by_drop_in(survey: Survey, request: Request, root: Goal, drop_in: Goal) -> Goals:
    """Put the handlers into a file of our own that the root imports; the root changes by one import at most."""
    base = root.base or b""
    with located(root.path):
        document, version = containerd_config.check(base, 2)
    effective: Table = document
    for path, content in survey.imported:
        with located(path):
            effective = containerd_config.merged(effective, toml_document.parse(content))
    made = _entries(effective, version, request)
    text, ownership = containerd_config.with_us(drop_in.base or b"", version, made, request.default, effective)
    host_path = request.settings.drop_in_host_path or request.settings.drop_in or DROP_IN
    patterns = containerd_files.imports(base, root.path)
    if containerd_files.covers(patterns, posixpath.normpath(host_path)):
        root_text, root_ownership = base, Ownership()
    else:
        root_text, root_ownership = containerd_config.with_import(base, version, host_path)
    goals = (
        _goal(survey, drop_in, text, ownership),
        _goal(survey, root, root_text, root_ownership),
    )
    return Goals(goals, _served(request), request.default, _low_level(effective, version))


def _entries(effective: Table, version: int, request: Request) -> list[tuple[str, Table]]:
    settings = request.settings
    return containerd_config.entries(
        effective, version, request.handlers, settings.runtime_type, settings.container_annotations
    )


def _low_level(effective: Table, version: int) -> tuple[str, ...]:
    return low_level(effective, containerd_config.shape(version))


def _goal(survey: Survey, without: Goal, text: bytes, ownership: Ownership) -> Goal:
    """Return the goal for a file; one that says all this already, in somebody's own order, stays as it is."""
    present = survey.file(without.role).content
    if present is not None and same(toml_document.parse(present), toml_document.parse(text)):
        text = present
    return dataclasses.replace(without, target=text, ownership=ownership)


def _in_place(survey: Survey, request: Request, root: Goal, drop_in: Goal, release: tuple[int, int] | None) -> Goals:
    """Put the handlers into config.toml itself: right for every containerd that reads the file."""
    for path, content in survey.imported:
        with located(path):
            conflicting = containerd_config.defines_cri(content)
        if conflicting:
            raise ConfigurationError(
                "this imported file configures the CRI plugin, and containerd before 2.1 lets it replace what "
                "config.toml says there",
                path=path,
                hint=f"move its CRI settings into {root.path}",
            )
    unset = 3 if release is not None and release >= READS_VERSION_3 else 2
    base = root.base or b""
    with located(root.path):
        document, version = containerd_config.check(base, unset)
    made = _entries(document, version, request)
    text, ownership = containerd_config.with_us(base, version, made, request.default, document)
    if root.base is None and release is not None and release >= IMPORTS_BY_DEFAULT:
        text = containerd_config.with_default_imports(text)
    notes = (f"{drop_in.path} is not used: containerd is not known to be 2.1 or later, so config.toml is edited",)
    goals = (
        _goal(survey, root, text, ownership),
        drop_in,
    )
    own = _low_level(document, version)
    return Goals(goals, _served(request), request.default, own, notes if release is None else ())


def _served(request: Request) -> dict[str, str]:
    return {handler.name: handler.executable for handler in request.handlers}


def _release(live: Live | None) -> tuple[int, int] | None:
    """Return major and minor of a version such as "v2.1.4" or "1.6.20~ds1", None where it is not known."""
    match = re.match(r"v?(\d+)\.(\d+)", live.version) if live is not None else None
    return (int(match[1]), int(match[2])) if match else None


def _binary(entry: Any) -> str | None:
    options = entry.get("options") if isinstance(entry, dict) else None
    path = options.get("BinaryName") if isinstance(options, dict) else None
    return path if isinstance(path, str) else None
