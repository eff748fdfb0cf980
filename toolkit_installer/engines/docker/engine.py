"""docker's adapter: one JSON file, which config.py edits, reloaded by SIGHUP on explicit values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from toolkit_installer.documents import json_document
from toolkit_installer.documents.changes import Set, Table
from toolkit_installer.engines import ownership as ownership_of
from toolkit_installer.engines.api import (
    Adapter,
    DesiredFile,
    DesiredState,
    EngineFile,
    EngineSilentError,
    Inspection,
    LiveState,
    RecordedFile,
    Reload,
    Trials,
)
from toolkit_installer.engines.common import command_line, losses, reload_method, serving
from toolkit_installer.engines.common.serving import PROCESS_NAMES, NoAnswerError
from toolkit_installer.engines.docker import client
from toolkit_installer.engines.docker import config as docker_config
from toolkit_installer.engines.docker.config import DockerLiveState
from toolkit_installer.engines.ownership import CgroupSetting, Fault, ListedRuntime
from toolkit_installer.engines.target import EngineTarget, Request
from toolkit_installer.errors import ConfigurationError, located
from toolkit_installer.node import processes, sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode

CONFIG = "/etc/docker/daemon.json"
SOCKET = "/var/run/docker.sock"
ROLE = "daemon.json"
_GREETING = b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n"
_VALUE = "value"
_CONFIG_FLAG = "--config-file"


class Docker(Adapter[Inspection]):
    """docker's adapter."""

    name = EngineName.DOCKER

    def has_role(self, role: str) -> bool:
        """Tell whether docker has a file with that role."""
        return role == ROLE

    def allows_name(self, role: str, name: str) -> bool:
        """Tell whether a file with that role usually has a name like `name`."""
        return self.has_role(role) and ".json" in name

    def inspect(self, node: Node, target: EngineTarget) -> Inspection:
        """Read daemon.json and query dockerd. Raises ConfigurationError."""
        socket = target.socket or SOCKET
        live, silence = serving.query_engine(self, node, socket, target.settings.answer_timeout)
        process = live.process if live is not None else None
        command_line.refuse_hidden(process, target)
        config = target.config or _find_config(live) or CONFIG
        client.refuse_foreign_docker(node, target, socket, config, live)
        if process is not None and (flags := docker_config.find_flag_conflicts(process.arguments)):
            why = "; ".join(docker_config.CONFLICTING_FLAGS[flag] for flag in flags)
            raise ConfigurationError(
                f"dockerd (PID {process.pid}) was started with {', '.join(flags)}: {why}",
                path=config,
                hint="move these flags from dockerd's command line into the file, and restart dockerd",
            )
        file = EngineFile(ROLE, *node.locate_file(config))
        return Inspection(socket, (file,), live, silence, elsewhere=_elsewhere(node, target, live))

    def build_desired_state(
        self, inspection: Inspection, request: Request, records: Mapping[str, RecordedFile]
    ) -> DesiredState:
        """Return the desired daemon.json. Raises ConfigurationError."""
        file = inspection.file(ROLE)
        losses.refuse_lost_link(file, records)
        recorded = records.get(file.path)
        if recorded is None:
            recorded = RecordedFile(ownership=self.find_unrecorded(inspection, request.toolkit_folder)[file.path])
        without = self.remove_ours(file, recorded, request.toolkit_folder)
        settings = request.settings
        with located(file.path):
            restarts = settings.reload_mode is ReloadMode.SYSTEMD
            cdi = docker_config.decide_cdi_switch(inspection.live, asked=request.enable_cdi, restarts=restarts)
            base = without.base or b""
            losses.refuse_replaced(without, recorded, json_document.parse, request.toolkit_folder)
            target, ownership = docker_config.add_handlers(base, request.handlers, request.default, cdi=cdi.write)
            if request.default is None and recorded.written:
                present = file.content or b""
                target = docker_config.apply_chosen_default(target, present, recorded.ownership, request.served)
            wanted = msgspec.structs.replace(without, notes=()).with_target(target, json_document.parse, ownership)
            target = wanted.target or b""
            for content in (base, target):  # dockerd must accept the file that cleanup leaves, too
                docker_config.refuse(content, file.content)
        paths, default = docker_config.read_served(target)
        served = {handler.name: paths[handler.name] for handler in request.handlers}
        low_level = ownership_of.list_low_level_runtimes(docker_config.parse_checked(base), docker_config.SHAPE)
        others = ",".join(source for source in settings.config_sources if source != "file")
        ignored = (f"--config-source {others}: not for docker, whose own file is the one source",) if others else ()
        notes = (*ignored, *cdi.notes, *_warn_of_signals(inspection.live, target))
        served_default = default if request.default is not None else None
        return DesiredState((wanted,), served, served_default, low_level, notes, cdi.restart_why)

    def list_runtimes(self, files: Sequence[tuple[str, bytes]], version: str) -> Sequence[ListedRuntime]:  # noqa: ARG002
        """Return the runtimes of daemon.json. Raises ConfigurationError."""
        return docker_config.list_runtimes(files)

    def read_cgroup_driver(self, files: Sequence[tuple[str, bytes]], version: str) -> CgroupSetting | None:  # noqa: ARG002
        """Return the cgroup driver that daemon.json names. Raises ConfigurationError."""
        return docker_config.read_cgroup_driver(files)

    def describe_cgroup_edit(self, driver: str) -> str:
        """Return the edit that makes dockerd use a cgroup driver."""
        return f'write "exec-opts": ["native.cgroupdriver={driver}"] into daemon.json'

    def describe_cdi_edit(self) -> str:
        """Return the edit that turns CDI on in dockerd."""
        return 'write "features": {"cdi": true} into daemon.json'

    def find_unrecorded(self, inspection: Inspection, toolkit_folder: str) -> Mapping[str, ownership_of.Ownership]:
        """Return our values in daemon.json that are identified without a receipt. Raises ConfigurationError."""
        file = inspection.file(ROLE)
        with located(file.path):
            return {file.path: docker_config.find_unrecorded(file.content or b"", toolkit_folder)}

    def remove_ours(self, file: EngineFile, recorded: RecordedFile, toolkit_folder: str) -> DesiredFile:
        """Return daemon.json without our values. Raises ConfigurationError."""

        def without_ours(content: bytes) -> tuple[bytes | None, tuple[str, ...]]:
            text, left = docker_config.without_us(
                content, recorded.ownership, toolkit_folder, recorded.before, recorded.handlers
            )
            if recorded.before is None and recorded.written and json_document.parse(text) == {}:
                return None, left  # it was created for us, and holds nothing else
            return text, left

        with located(file.path):
            base, left = ownership_of.revert_content(file.content, recorded.before, recorded.written, without_ours)
            notes = docker_config.describe_removal(file.content or b"", base or b"")
        return DesiredFile(file, base=base, target=base, left=left, notes=notes, metadata=recorded.metadata)

    def choose_reload(self, node: Node, inspection: Inspection, settings: EngineSettings) -> Reload:
        """Reload by signal by default; a restart kills containers if live-restore is off."""
        reload = reload_method.choose_reload(node, self.name, inspection, settings.reload_mode, ReloadMode.SIGNAL)
        if reload.mode is ReloadMode.SYSTEMD and not settings.allow_restart:
            raise ConfigurationError(
                "docker is restarted only with --allow-restart: running containers die unless live-restore is set",
                hint="--restart-mode signal needs no restart",
            )
        return reload

    def try_out(self, node: Node, inspection: Inspection, desired: DesiredState) -> None:
        """Check the file against dockerd's flags; from 23.0 on, dockerd validates it. Raises ConfigurationError."""
        # only before a change
        from toolkit_installer import foreign_words  # noqa: PLC0415
        from toolkit_installer.engines.common import reload_method  # noqa: PLC0415

        (wanted,) = desired.files
        live, process = inspection.live, inspection.process
        if live is None or process is None or wanted.target is None:
            return
        with located(wanted.path):
            docker_config.refuse_byte_order_mark(wanted.target, live.version)
            docker_config.refuse_flag_conflicts(wanted.target, process.arguments, inspection.file(ROLE).content)
        flags = docker_config.list_other_flags(process.arguments)
        words = reload_method.validate_docker_config(node.programs, process.executable, flags, wanted.target)
        if words is not None:
            raise ConfigurationError(
                f"dockerd itself would refuse the new file: {foreign_words.mask_program_text(words)}",
                path=wanted.path,
                hint="nothing was changed; correct what it names",
            )

    def find_restart_obstacle(self, node: Node, process: Process) -> str | None:
        """Check the current daemon.json against dockerd's flags; from 23.0 on, dockerd validates it."""
        from toolkit_installer.engines.common import reload_method  # noqa: PLC0415  # as above

        if process.hidden:
            return None  # its file is unknown
        content = processes.read_as(process, command_line.path(process, _CONFIG_FLAG) or CONFIG)
        if content is None:
            return None
        try:
            docker_config.refuse(content)
            docker_config.refuse_flag_conflicts(content, process.arguments)
        except ConfigurationError as error:
            return error.reason
        flags = docker_config.list_other_flags(process.arguments)
        return reload_method.validate_docker_config(node.programs, process.executable, flags, content)

    def build_transitional_content(self, content: bytes | None) -> bytes | None:
        """Return daemon.json with both keys present, for the moment of a signal."""
        if content is not None and docker_config.is_explicit(content):
            return None
        return docker_config.make_explicit(content or b"")

    def ask(self, node: Node, socket: str, seconds: float) -> LiveState:
        """Query dockerd for its runtimes. Raises EngineSilentError."""
        try:
            info = client.query_info(node.root, socket, seconds)
            process = sockets.find_responding_process(node.root, socket, _GREETING)
        except (NoAnswerError, sockets.UntrustedProcessError) as error:
            raise EngineSilentError(f"dockerd does not answer: {error.reason}", path=socket) from error
        runtimes = _told_as(dict, info.get("Runtimes")) or {}
        handlers = {
            name: _told_as(str, entry.get("path")) for name, entry in runtimes.items() if isinstance(entry, dict)
        }
        folders = _told_as(list, info.get("CDISpecDirs")) or []
        driver = _told_as(str, info.get("CgroupDriver"))
        return DockerLiveState(
            version=str(info.get("ServerVersion", "")),
            handlers=handlers,
            default=_told_as(str, info.get("DefaultRuntime")),
            process=process,
            containers_outlive_it=_told_as(bool, info.get("LiveRestoreEnabled")),
            running=_told_as(int, info.get("ContainersRunning")),
            cdi=bool(folders),
            cdi_folders=tuple(map(str, folders)),
            cgroup_drivers=dict.fromkeys(handlers, driver) if driver else {},
            rootless="name=rootless" in (_told_as(list, info.get("SecurityOptions")) or ()),
            system=str(info.get("OperatingSystem", "")),
        )

    def find_other_config(self, node: Node, live: LiveState, files: Mapping[str, str]) -> str:
        """Return the file that dockerd reads, if it is not ours."""
        return _reads_instead(node, live, files[ROLE]) if ROLE in files else ""

    def find_faults(
        self,
        node: Node,
        socket: str,  # noqa: ARG002  # only the file matters
        live: LiveState | None,  # noqa: ARG002
        files: Mapping[str, str],
        *,
        as_written: bool,
    ) -> tuple[Fault, ...]:
        """Return why dockerd would refuse the current daemon.json, or serve something else than it seems to say."""
        path = files.get(ROLE)
        if path is None or as_written:
            return ()
        try:
            content = node.files.content(path) or b""
        except ConfigurationError:
            return ()  # the file's status says why
        try:
            with located(path):
                docker_config.parse_checked(content)
                docker_config.refuse(content)
        except ConfigurationError as error:
            return (Fault.of(error, stops=not docker_config.is_accepted(content)),)
        return ()

    def try_handlers(self, node: Node, socket: str, seconds: float, handlers: Mapping[str, bool]) -> Trials:
        """Start a short container through each handler. Raises EngineSilentError."""
        from toolkit_installer.engines.docker import canary  # noqa: PLC0415  # rarely requested

        try:
            return canary.try_handlers(node.root, socket, seconds, handlers)
        except NoAnswerError as error:
            raise EngineSilentError(f"dockerd does not answer: {error.reason}", path=socket) from error

    def signal(self, node: Node, process: Process) -> None:
        """Send SIGHUP, which makes dockerd read daemon.json in place. Raises ConfigurationError."""
        serving.send_sighup(node, self.name, process)

    def parse(self, content: bytes) -> Table:
        """Parse daemon.json. Raises DocumentError."""
        return json_document.parse(content)

    def write_value(self, value: Any) -> str:
        """Return a value as JSON."""
        return json_document.edit(b"{}", [Set((_VALUE,), value)]).decode()

    def read_value(self, text: str) -> Any:
        """Return the value that was written. Raises DocumentError."""
        return json_document.parse(text.encode())[_VALUE]


_Value = TypeVar("_Value")


def _told_as(kind: type[_Value], value: Any) -> _Value | None:
    """Return a value of dockerd's response, None if it is missing or of another type."""
    return value if type(value) is kind else None


def _find_config(live: LiveState | None) -> str | None:
    """Return the file that a running dockerd was told to read, None if it is the usual one."""
    process = live.process if live is not None else None
    if process is None:
        return None
    rootless = isinstance(live, DockerLiveState) and live.rootless
    return command_line.path(process, _CONFIG_FLAG) or (client.find_rootless_config(process) if rootless else None)


def _elsewhere(node: Node, target: EngineTarget, live: LiveState | None) -> str:
    """Return the file that the running dockerd reads, if it is not the one that the user named."""
    return "" if live is None or target.config is None else _reads_instead(node, live, target.config)


def _reads_instead(node: Node, live: LiveState, ours: str) -> str:
    process = live.process
    if process is None or process.name not in PROCESS_NAMES[EngineName.DOCKER]:
        return ""
    rootless = isinstance(live, DockerLiveState) and live.rootless
    theirs = _find_config(live) or ("" if rootless else CONFIG)
    unseen = process.hidden or not theirs or command_line.is_same_file(node, process, theirs, ours) is not False
    return "" if unseen else theirs


def _warn_of_signals(live: LiveState | None, target: bytes) -> tuple[str, ...]:
    """Return a warning if another program's signal would kill dockerd once the file holds `target`."""
    default = docker_config.find_deadly_default(target, live.release) if live is not None else None
    if live is None or default is None:
        return ()
    note = (
        f"dockerd {live.version} dies of a SIGHUP (`systemctl reload docker`) with `runtimes` in this file and its own "
        f"{default} as the default runtime: restart it instead"
    )
    return (note,)
