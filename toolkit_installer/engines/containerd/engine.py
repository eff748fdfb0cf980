"""containerd: config.toml and a drop-in, reloaded by a restart through systemd."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit_installer import log
from toolkit_installer.documents import toml_document, toml_values
from toolkit_installer.engines.api import (
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
from toolkit_installer.engines.common import answering, reloading, serving
from toolkit_installer.engines.common.cri import client
from toolkit_installer.engines.containerd import back, links, trial
from toolkit_installer.engines.containerd import config as containerd_config
from toolkit_installer.engines.containerd import goals as containerd_goals
from toolkit_installer.engines.containerd import survey as containerd_survey
from toolkit_installer.engines.containerd.survey import DROP_IN_ROLE, ROOT_ROLE
from toolkit_installer.engines.containerd.tables import executable
from toolkit_installer.engines.containerd.work import Work
from toolkit_installer.engines.ownership import OurHandlers, Ownership
from toolkit_installer.errors import located
from toolkit_installer.node import sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode

SOCKET = "/run/containerd/containerd.sock"
_NO_CRI = "UNIMPLEMENTED"
"""What gRPC says of a service that a server does not have."""
_VALUE = "value"


class Containerd:
    """containerd's room."""

    name = EngineName.CONTAINERD
    config = containerd_survey.CONFIG
    socket = SOCKET
    folders = ()

    def has_role(self, role: str) -> bool:
        """Tell whether containerd has a file of that role."""
        return containerd_survey.has_role(role)

    def may_be(self, role: str, name: str) -> bool:
        """Tell whether a file of that role may be called `name`."""
        return containerd_survey.may_be(role, name)

    def survey(self, node: Node, settings: EngineSettings) -> Survey:
        """Read config.toml, the drop-in and what they import, and ask the CRI. Raises ConfigurationError."""
        socket = settings.socket or SOCKET
        try:
            live = answering.wait(self, node, socket, settings.answer_timeout)
            silence = ""
        except EngineSilentError as error:
            live, silence = None, error.reason
        return containerd_survey.look(node, settings, socket, live, silence)

    def goals(self, survey: Survey, request: Request, memories: Mapping[str, Memory]) -> Goals:
        """Return what config.toml, the drop-in and the imported files should be. Raises ConfigurationError."""
        found = containerd_survey.of(survey)
        links.refuse_one_for_two(survey.files)
        drop_in = survey.file(DROP_IN_ROLE)
        unknown: Mapping[str, Ownership] = {}
        if drop_in.path not in memories:
            unknown = self.recognised(survey, request.settings, request.toolkit_folder)
        without = {}
        for file in survey.files:
            memory = memories.get(file.path, Memory(ownership=unknown.get(file.path, Ownership())))
            without[file.role] = self.without_us(file, memory, request.toolkit_folder)
        # an engine that is down for a moment is no reason to move what is there
        kept = survey.live is None and bool(memories.get(drop_in.path, Memory()).written)
        work = Work(found, request, without, deep=kept)
        return containerd_goals.by_drop_in(work) or containerd_goals.in_place(work)

    def recognised(self, survey: Survey, settings: EngineSettings, toolkit_folder: str) -> Mapping[str, Ownership]:
        """Return what stands in our blocks, and the import of a drop-in that goes with us.

        containerd refuses to start with a literal import that leads nowhere. Raises ConfigurationError.
        """
        root, drop_in = survey.file(ROOT_ROLE), survey.file(DROP_IN_ROLE)
        found = {}
        for file in survey.files:
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
        if (switch := containerd_survey.disabled_in(survey)) is not None:
            log.get().warning(
                "The file disables the CRI plugin: Kubernetes cannot use this containerd, and it is not reloaded",
                file=switch[0],
                disabled=switch[1],
            )
            return Reload(ReloadMode.NONE)  # whatever it reads, it serves no handler
        reload = reloading.decide(node, self.name, survey, settings.reload_mode, ReloadMode.SYSTEMD)
        if reload.mode is ReloadMode.SIGNAL:
            return dataclasses.replace(reload, restarts=True)
        return reload

    def try_out(self, node: Node, survey: Survey, goals: Goals) -> None:
        """Let containerd print what it makes of the files, and compare. Raises ConfigurationError."""
        process = survey.live.process if survey.live is not None else None
        if process is None:
            return
        by_role = {goal.role: goal for goal in goals.files}
        imported = []
        for each in containerd_survey.of(survey).graph:
            role = links.role_of(survey, each)
            goal = by_role.get(role)
            texts = (goal.base or b"", goal.target or b"") if goal is not None else (each.content,) * 2
            imported.append((texts[1],) * 2 if role == ROOT_ROLE else texts)
        trial.try_out(node, process, by_role[ROOT_ROLE], by_role[DROP_IN_ROLE], goals, imported)

    def refusal(self, node: Node, process: Process) -> str | None:
        """Let containerd print what it makes of its files as they are."""
        return trial.refusal(node, process)

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
            process = sockets.speaker(node.root, socket, b"")
        except (client.CriError, sockets.StrangerError) as error:
            # containerd serves once its plugins are loaded: one that is missing then failed, or is switched off
            kind = answering.EngineBrokenError if error.reason.startswith(_NO_CRI) else EngineSilentError
            raise kind(f"the CRI of containerd does not answer: {error.reason}", path=socket) from error
        table = status.config.get("containerd") or {}
        handlers = {name: executable(entry) for name, entry in (table.get("runtimes") or {}).items()}
        for name in status.handlers - handlers.keys() - {""}:
            handlers[name] = None
        return Live(status.version, handlers, table.get("defaultRuntimeName"), process)

    def stranded(
        self,
        node: Node,  # noqa: ARG002  # for CRI-O
        socket: str,  # noqa: ARG002
        live: Live | None,  # noqa: ARG002
        goals: Sequence[Goal],  # noqa: ARG002
        ours: OurHandlers,  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Return nothing: each container has a shim, which knows its runtime."""
        return ()

    def signal(self, node: Node, process: Process) -> None:
        """Send SIGHUP, of which containerd dies; its unit starts it again. Raises ConfigurationError."""
        serving.hang_up(node, self.name, process)

    def write_value(self, value: Any) -> str:
        """Return a value as TOML."""
        return f"{_VALUE} = {toml_values.write(value)}"

    def read_value(self, text: str) -> Any:
        """Return the value that was written. Raises DocumentError."""
        return toml_document.parse(text.encode())[_VALUE]


def _base(file: EngineFile, memory: Memory, toolkit_folder: str) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the file without us, and what there is to say of it."""
    dropped = file.role == DROP_IN_ROLE
    base, left = back.without_us(file.content, memory, toolkit_folder, whole=dropped)
    if dropped and memory.before is None and base is not None and base != file.content:
        left = (*left, "the rest is somebody else's and stays; it counts only if config.toml imports it by itself")
    return base, left
