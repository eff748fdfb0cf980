"""CRI-O: a drop-in beside its crio.conf, taken over by a restart through systemd; or an OCI hook, without one."""

from __future__ import annotations

import dataclasses
import posixpath
import tomllib
from collections.abc import Mapping
from typing import Any

from toolkit_installer.documents import secrets, toml_document, toml_values
from toolkit_installer.documents.changes import lookup
from toolkit_installer.engines import answering, crio_config, crio_files, crio_goals, crio_trial, reloading
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
from toolkit_installer.engines.ownership import Ownership
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import crio_api, processes
from toolkit_installer.node.cri import client
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.settings import ConfigMode, EngineName, EngineSettings, ReloadMode
from toolkit_installer.toolkit.payload import RUNTIMES

CONFIG = "/etc/crio/crio.conf"
DROP_INS = "/etc/crio/crio.conf.d"
DROP_IN_NAME = "99-nvidia.toml"
SOCKET = "/var/run/crio/crio.sock"

_RUNTIME_NAME = "cri-o"
_GREETING = b"GET /info HTTP/1.0\r\nHost: localhost\r\n\r\n"
"""CRI-O says nothing unasked; with its answer come the credentials of the process that gives it."""
_VALUE = "value"


@dataclasses.dataclass(frozen=True)
class CrioLive(Live):
    """What the running CRI-O says of itself. `hooks_dirs` are the folders whose hooks it watches."""

    hooks_dirs: tuple[str, ...] = ()


class Crio:
    """CRI-O's room."""

    name = EngineName.CRIO
    config = CONFIG
    socket = SOCKET
    folders = (DROP_INS,)

    def may_be(self, role: str, name: str) -> bool:
        """Tell whether a file of that role may be called `name`: a hook elsewhere than in a `.json` is never read."""
        return name.endswith(".json") if role == crio_goals.HOOK_ROLE else ".conf" in name or ".toml" in name

    def survey(self, node: Node, settings: EngineSettings) -> Survey:
        """Read all that CRI-O reads, and the hook's file, and ask CRI-O. Raises ConfigurationError."""
        socket = settings.socket or SOCKET
        try:
            live: Live | None = answering.wait(self, node, socket, settings.answer_timeout)
            silence = ""
        except EngineSilentError as error:
            live, silence = None, error.reason
        config = settings.config or crio_goals.flag(live, "--config", "-c") or CONFIG
        folder = crio_goals.flag(live, "--config-dir", "-d") or DROP_INS
        drop_in = settings.drop_in or posixpath.join(folder, DROP_IN_NAME)
        hook = posixpath.join(settings.hooks_dir, settings.hook_filename)
        files = (
            EngineFile(crio_goals.ROOT_ROLE, *node.find(config)),
            *_drop_ins(node, drop_in),
            EngineFile(crio_goals.HOOK_ROLE, *node.find(hook)),
        )
        return Survey(socket, files, live, silence)

    def goals(self, survey: Survey, request: Request, memories: Mapping[str, Memory]) -> Goals:
        """Return what the drop-in, the hook's file and the others should be. Raises ConfigurationError, UsageError."""
        return crio_goals.goals_of(survey, request, memories)

    def recognised(
        self,
        survey: Survey,
        settings: EngineSettings,  # noqa: ARG002  # containerd's room needs it
        toolkit_folder: str,
    ) -> Mapping[str, Ownership]:
        """Return what is ours by path though no receipt says so. Raises ConfigurationError."""
        return crio_goals.recognised(survey, toolkit_folder)

    def without_us(self, file: EngineFile, memory: Memory, toolkit_folder: str) -> Goal:
        """Return a file without us. Raises ConfigurationError."""
        return crio_goals.without_us(file, memory, toolkit_folder)

    def reload(self, node: Node, survey: Survey, settings: EngineSettings) -> Reload:
        """Restart by systemd, unless asked otherwise or nothing is to be taken over.

        CRI-O watches the folders of its hooks, and reads them when it starts. On a signal it lists new handlers and
        does not serve them.
        """
        if settings.reload_mode is ReloadMode.SIGNAL:
            raise ConfigurationError(
                "CRI-O takes no handler over on a signal: it lists them, and no pod with one starts",
                hint="use --restart-mode systemd or none",
            )
        if isinstance(survey.live, CrioLive) and not _serves_ours(survey.live):
            watched = settings.config_mode is ConfigMode.HOOK and settings.hooks_dir in survey.live.hooks_dirs
            # without files it is asked to forget what it knows of us: nothing
            if watched or not survey.files:
                return Reload(ReloadMode.NONE, by_itself=True)
        decided = reloading.decide(node, self.name, survey, settings.reload_mode, ReloadMode.SYSTEMD)
        if settings.config_mode is ConfigMode.HOOK and decided.mode is ReloadMode.NONE and survey.live is None:
            return dataclasses.replace(decided, by_itself=settings.hooks_dir == crio_config.DEFAULT_HOOKS_DIR)
        return decided

    def try_out(self, node: Node, survey: Survey, goals: Goals) -> None:
        """Let CRI-O print what it makes of the files, and compare. Raises ConfigurationError."""
        process = survey.live.process if survey.live is not None else None
        if process is None or not goals.served:
            return
        root, drop_in = (
            crio_goals.by_role(goals.files, role) for role in (crio_goals.ROOT_ROLE, crio_goals.DROP_IN_ROLE)
        )
        roles = [file.role for file in survey.files]
        ordered = sorted(goals.files, key=lambda goal: roles.index(goal.role))
        bases = [dataclasses.replace(goal, target=goal.base) for goal in ordered]
        before, after = (crio_config.runtime_part(crio_goals.effective(survey.live, each)) for each in (bases, ordered))
        wrong = crio_trial.wrong(
            node.programs, process.executable, root.base or b"", (before, after), goals.served, goals.default
        )
        if wrong:
            raise ConfigurationError(
                f"CRI-O's own binary ({process.executable}) would not serve the new configuration: "
                f"{secrets.mask('; '.join(wrong))}",
                path=drop_in.path,
                hint="nothing was changed; look at what `crio config` says",
            )

    def refusal(self, node: Node, process: Process) -> str | None:
        """Let CRI-O read its files as they are."""
        config = processes.flag_value(process.arguments, "--config", "-c") or CONFIG
        folder = processes.flag_value(process.arguments, "--config-dir", "-d") or DROP_INS
        return crio_trial.refusal(node.programs, process.executable, config, folder)

    def dangers(self, node: Node, survey: Survey, reload: Reload) -> tuple[str, ...]:  # noqa: ARG002  # containerd has some
        """Return nothing: containers survive a restart of CRI-O."""
        return ()

    def transitional(self, content: bytes | None) -> bytes | None:  # noqa: ARG002  # what docker needs, not CRI-O
        """Return None: a restart reads whatever is there."""
        return None

    def ask(self, node: Node, socket: str, seconds: float) -> Live:
        """Ask the CRI whether it answers and what it lists, and CRI-O itself what it runs with.

        Both speak of CRI-O's memory, which a signal changes without effect: they are proof only of a process that was
        started after the change. Such a one lists a handler if its executable is there. Raises EngineSilentError.
        """
        try:
            status = client.status(node.root, socket, seconds)
        except client.CriError as error:
            raise EngineSilentError(f"the CRI of CRI-O does not answer: {error.reason}", path=socket) from error
        if status.name != _RUNTIME_NAME:
            raise EngineSilentError(f"{status.name} answers there, not CRI-O", path=socket)
        try:
            runtime = _runtime(crio_api.config(node.root, socket, seconds))
        except crio_api.CrioApiError as error:
            if not status.handlers:
                raise EngineSilentError(f"CRI-O does not say its handlers: {error.reason}", path=socket) from error
            runtime = {"runtimes": {name: {} for name in status.handlers - {""}}}
        listed = status.handlers or runtime["runtimes"].keys()
        handlers = {
            name: entry.get("runtime_path") or None for name, entry in runtime["runtimes"].items() if name in listed
        }
        pid = processes.behind(node.root, socket, _GREETING)
        process = processes.look(pid) if pid else None
        hooks = tuple(runtime.get("hooks_dir") or ())
        return CrioLive(status.version, handlers, runtime.get("default_runtime") or None, process, hooks)

    def signal(self, node: Node, process: Process) -> None:  # noqa: ARG002  # for engines that are signalled
        """Refuse: see `reload`. Raises ConfigurationError."""
        raise ConfigurationError("CRI-O is not signalled", hint="use --restart-mode systemd or none")

    def write_value(self, value: Any) -> str:
        """Return a value as TOML."""
        return f"{_VALUE} = {toml_values.write(value)}"

    def read_value(self, text: str) -> Any:
        """Return the value that was written. Raises DocumentError."""
        return toml_document.parse(text.encode())[_VALUE]


def _drop_ins(node: Node, drop_in: str) -> list[EngineFile]:
    """Return the files of the drop-in's folder in CRI-O's order, ours among them whether it is there or not."""
    folder = posixpath.dirname(drop_in)
    ours = EngineFile(crio_goals.DROP_IN_ROLE, *node.find(drop_in))
    paths = {path for path in crio_files.drop_ins(node.files, folder) if path != drop_in}
    found = []
    for path in sorted({*paths, drop_in}, key=lambda path: crio_files.order(path, folder)):
        file = (
            ours if path == drop_in else _other(node, path, f"{crio_goals.OTHER_ROLE}{posixpath.relpath(path, folder)}")
        )
        if path == drop_in or file.path != ours.path:
            found.append(file)
    return found


def _other(node: Node, path: str, role: str) -> EngineFile:
    """Return somebody else's drop-in; one that cannot be read from here counts as absent, and a note says so."""
    try:
        return EngineFile(role, *node.find(path))
    except ConfigurationError:
        return EngineFile(role, path, None)


def _serves_ours(live: Live) -> bool:
    return any(path is None or posixpath.basename(path) in RUNTIMES for path in live.handlers.values())


def _runtime(content: bytes) -> dict[str, Any]:
    """Return the `crio.runtime` table of what CRI-O says that it runs with. Raises CrioApiError."""
    try:
        runtime = lookup(tomllib.loads(content.decode()), crio_config.RUNTIME)
    except ValueError as error:
        raise crio_api.CrioApiError(f"no TOML: {error}") from error
    if not isinstance(runtime, dict) or not isinstance(runtime.get("runtimes"), dict):
        raise crio_api.CrioApiError("it names no runtimes")
    return runtime
