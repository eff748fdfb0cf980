"""CRI-O's adapter: a drop-in next to crio.conf, loaded by a restart through systemd; or an OCI hook, without a restart.

desired.py computes its files with us and without us.

CRI-O's own binary checks the new configuration before the daemon reads it, without writing a file. `crio config` reads
and checks the daemon's configuration without changing anything, prints it and ends. The root file reaches it through
its standard input, the drop-ins through a memory file: it reads a --config-dir that is a file as one drop-in. The
configuration without us, given the same way, shows whether the binary supports that at all.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.documents import log_line, toml_document
from toolkit_installer.documents.changes import DocumentError, Table
from toolkit_installer.engines.api import (
    HOOK_ROLE,
    Adapter,
    DesiredFile,
    DesiredState,
    EngineFile,
    EngineSilentError,
    Inspection,
    LiveState,
    Reload,
    Trials,
    parse_release,
)
from toolkit_installer.engines.common import command_line, cri, reload_method, serving
from toolkit_installer.engines.common.cri import Pod
from toolkit_installer.engines.common.serving import NoAnswerError
from toolkit_installer.engines.crio import config as crio_config
from toolkit_installer.engines.crio import desired as crio_desired
from toolkit_installer.engines.crio import places as crio_places
from toolkit_installer.engines.crio.desired import CrioInspection
from toolkit_installer.engines.crio.places import CONFIG, DROP_INS, CrioLiveState
from toolkit_installer.engines.crio.places import CrioPaths as CrioPlaces
from toolkit_installer.engines.ownership import (
    CgroupSetting,
    Fault,
    ListedRuntime,
    Ownership,
    find_dangling_default,
    find_default,
)
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError, located
from toolkit_installer.node import sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.places import PathTranslator
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import CompletedProgram, ProgramError, Programs
from toolkit_installer.node.queries import Query
from toolkit_installer.node.root import NodeError
from toolkit_installer.settings import ConfigMode, EngineName, EngineSettings, ReloadMode

SOCKET = "/var/run/crio/crio.sock"
_NAME = "cri-o"
"""The name that CRI-O reports over the CRI."""
_GREETING = b"GET /info HTTP/1.0\r\nHost: localhost\r\n\r\n"
"""CRI-O sends nothing unasked; its response carries the credentials of the responding process."""
_QUERY_SECONDS = 5.0
_PODS_SECONDS = 30.0
"""For the responses about all pods: a node has 110 of them, or some hundreds."""
_HANDLER = "io.kubernetes.cri-o.RuntimeHandler"
"""Source: CRI-O's internal/annotations."""


class Crio(Adapter[CrioInspection]):
    """CRI-O's adapter."""

    name = EngineName.CRIO
    folders = (DROP_INS,)
    build_desired_state = staticmethod(crio_desired.build_desired_state)
    find_unrecorded = staticmethod(crio_desired.find_unrecorded)
    remove_ours = staticmethod(crio_desired.remove_ours)

    def list_runtimes(self, files: Sequence[tuple[str, bytes]], version: str) -> Sequence[ListedRuntime]:
        """Return the runtimes of CRI-O's files. Raises ConfigurationError."""
        return crio_config.list_runtimes(files, parse_release(version))

    def read_cgroup_driver(self, files: Sequence[tuple[str, bytes]], version: str) -> CgroupSetting | None:  # noqa: ARG002
        """Return CRI-O's cgroup manager. Raises ConfigurationError."""
        return crio_config.read_cgroup_driver(files)

    def describe_cgroup_edit(self, driver: str) -> str:
        """Return the edit that makes CRI-O use a cgroup driver."""
        return f'write cgroup_manager = "{driver}" below [crio.runtime]'

    def describe_cdi_edit(self) -> str:
        """Return the edit that makes CRI-O read CDI specifications."""
        return 'write cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"] below [crio.runtime]'

    def has_role(self, role: str) -> bool:
        """Tell whether CRI-O has files with that role."""
        known = (crio_desired.ROOT_ROLE, crio_desired.DROP_IN_ROLE, HOOK_ROLE)
        return role in known or role.startswith(crio_desired.OTHER_ROLE)

    def allows_name(self, role: str, name: str) -> bool:
        """Tell whether a file with that role may be called `name`: CRI-O reads hooks only from `.json` files."""
        return name.endswith(".json") if role == HOOK_ROLE else ".conf" in name or ".toml" in name

    def inspect(self, node: Node, target: EngineTarget) -> CrioInspection:
        """Read all of CRI-O's files and the hook's file, and query CRI-O. Raises ConfigurationError."""
        settings = target.settings
        socket = target.socket or usual_socket(node)
        live, silence = serving.query_engine(self, node, socket, settings.answer_timeout)
        command_line.refuse_hidden(live.process if live is not None else None, target)
        places = crio_places.locate_files(node, target, live)
        hook = posixpath.join(settings.hooks_dir, settings.hook_filename)
        files = (
            EngineFile(crio_desired.ROOT_ROLE, *node.locate_file(places.config)),
            *_drop_ins(node, places),
            EngineFile(HOOK_ROLE, *node.locate_file(hook)),
        )
        # only paths that differ from the program's defaults
        status = [] if target.socket in (None, SOCKET) else ["--socket", target.socket]
        config = [] if places.config == CONFIG else ["--config", places.config]
        config += [] if places.folder == DROP_INS else ["--config-dir", places.folder]
        sources = crio_places.read_first_source(node, settings, live, status, config)
        return CrioInspection(
            socket,
            files,
            live,
            silence,
            sources=sources,
            unread=places.unread,
            elsewhere=places.elsewhere,
            hooks_dir=_hooks_dir(node, settings),
        )

    def choose_reload(self, node: Node, inspection: Inspection, settings: EngineSettings) -> Reload:
        """Restart by systemd by default, unless no change needs to be loaded.

        CRI-O watches the folders of its hooks, and also reads them when it starts. After a signal it lists new
        handlers, but does not serve them.
        """
        if settings.reload_mode is ReloadMode.SIGNAL:
            raise ConfigurationError(
                "CRI-O takes no handler over on a signal: it lists them, and no pod with one starts",
                hint="use --restart-mode systemd or none",
            )
        hooks_dir = _hooks_dir(node, settings)
        if isinstance(inspection.live, CrioLiveState) and not crio_places.serves_our_handlers(inspection.live):
            watched = settings.config_mode is ConfigMode.HOOK and hooks_dir in inspection.live.hooks_dirs
            # an inspection without files is for removing our handlers, and CRI-O has none
            if watched or not inspection.files:
                return Reload(ReloadMode.NONE, by_itself=True)
        decided = reload_method.choose_reload(node, self.name, inspection, settings.reload_mode, ReloadMode.SYSTEMD)
        # its gRPC server stops only after answering every call
        decided = msgspec.structs.replace(decided, ends_after_calls=decided.restarts)
        if settings.config_mode is ConfigMode.HOOK and decided.mode is ReloadMode.NONE and inspection.live is None:
            return msgspec.structs.replace(
                decided, by_itself=_hooks_dir(node, settings) == crio_config.DEFAULT_HOOKS_DIR
            )
        return decided

    def try_out(self, node: Node, inspection: CrioInspection, desired: DesiredState) -> None:
        """Compare CRI-O's own output for the files with and without us. Raises ConfigurationError."""
        process = inspection.process
        if process is None or not desired.served:
            return
        root, drop_in = (
            crio_desired.find_by_role(desired.files, role)
            for role in (crio_desired.ROOT_ROLE, crio_desired.DROP_IN_ROLE)
        )
        roles = [file.role for file in inspection.files]
        ordered = sorted(desired.files, key=lambda wanted: roles.index(wanted.role))
        bases = [msgspec.structs.replace(wanted, target=wanted.base) for wanted in ordered]
        before, after = (
            crio_config.extract_runtimes(crio_desired.merge_targets(inspection.live, each)) for each in (bases, ordered)
        )
        wrong = find_trial_faults(node.programs, process.executable, root.base or b"", (before, after), desired)
        if wrong:
            from toolkit_installer import foreign_words  # noqa: PLC0415  # for errors only

            raise ConfigurationError(
                f"CRI-O's own binary ({process.executable}) would not serve the new configuration: "
                f"{foreign_words.mask_program_text('; '.join(wrong))}",
                path=drop_in.path,
                hint="nothing was changed; look at what `crio config` says",
            )

    def find_restart_obstacle(self, node: Node, process: Process) -> str | None:
        """Return why CRI-O's binary refuses the current files, None if it accepts them or they are unknown."""
        if process.hidden:
            return None  # its files are unknown
        given = crio_places.read_variables(process)
        # only explicit values: a root file that is named must exist, the usual one need not
        values = ((flag, crio_places.read_process_flag(process, given, flag)) for flag in ("--config", "--config-dir"))
        try:
            flags = [word for flag, value in values if value for word in (flag, command_line.place(process, value))]
        except NodeError as error:
            return str(error)
        return find_trial_refusal(node.programs, process.executable, flags)

    def describe_reload_risks(self, node: Node, inspection: Inspection, reload: Reload) -> tuple[str, ...]:
        """Warn of a restart that ends containers: under cgroupfs their monitors are in the unit's own cgroup.

        systemd ends all processes in it, unless the unit says otherwise. Source: cri-o issue 2745, systemd.kill(5).
        """
        if not reload.restarts or reload.unit is None or not crio_places.uses_cgroupfs(inspection.live):
            return ()
        if node.services.property(reload.unit, "KillMode") == "process":
            return ()
        warning = (
            "CRI-O manages cgroups by cgroupfs, so that its restart may end running containers; cgroup_manager = "
            '"systemd" is safer, and --restart-mode none leaves the restart to you'
        )
        return (warning,)

    def ask(self, node: Node, socket: str, seconds: float) -> CrioLiveState:
        """Query the CRI for its status and handlers, and CRI-O itself for its configuration.

        Both report CRI-O's memory, which a signal changes without effect: they prove something only for a process that
        started after the change. Such a process lists a handler if its executable exists. Raises EngineSilentError.
        """
        try:
            status = cri.query_status(node.root, socket, seconds)
            process = sockets.find_responding_process(node.root, socket, _GREETING)
        except (NoAnswerError, sockets.UntrustedProcessError) as error:
            raise EngineSilentError(f"the CRI of CRI-O does not answer: {error.reason}", path=socket) from error
        if status.name != _NAME:
            raise EngineSilentError(f"{status.name} answers there, not CRI-O", path=socket)
        config: bytes | None = None
        try:
            config = crio_places.query_configuration(node.root, socket, seconds)
            runtime = crio_places.parse_runtime_table(config)
        except NoAnswerError as error:
            if not status.handlers:
                raise EngineSilentError(f"CRI-O does not say its handlers: {error.reason}", path=socket) from error
            config, runtime = None, {"runtimes": {name: {} for name in status.handlers - {""}}}
        listed = status.handlers or runtime["runtimes"].keys()
        handlers = {
            name: entry.get("runtime_path") or None for name, entry in runtime["runtimes"].items() if name in listed
        }
        hooks = tuple(runtime.get("hooks_dir") or ())
        given = crio_places.read_variables(process) if process is not None else {}
        return CrioLiveState(
            status.version,
            handlers,
            runtime.get("default_runtime") or None,
            process,
            hooks_dirs=hooks,
            config=config,
            variables=given,
            cdi_folders=crio_places.list_cdi_folders(runtime) if config is not None else None,
            cgroup_drivers=dict.fromkeys(handlers, manager) if (manager := runtime.get("cgroup_manager")) else {},
        )

    def stranded(
        self,
        node: Node,
        inspection: Inspection,
        desired: Sequence[DesiredFile],
        is_ours: Callable[[LiveState], set[str]],
    ) -> tuple[str, ...]:
        """Return the pods of handlers that CRI-O would no longer know. Raises EngineSilentError.

        This includes a CRI-O that another program restarts; a CRI-O that does not run cannot be queried.
        """
        try:
            live = inspection.live or self.ask(node, inspection.socket, _QUERY_SECONDS)
        except EngineSilentError:
            return ()
        names = is_ours(live)
        try:
            # the handlers that are in neither the `desired` files nor its unchanged others
            places = crio_places.locate_files(node, EngineTarget(EngineName.CRIO), live)
            to_be = {wanted.path: wanted for wanted in desired}
            root = EngineFile(crio_desired.ROOT_ROLE, *node.locate_file(places.config))
            for file in (root, *_drop_ins(node, places)):
                to_be.setdefault(file.path, DesiredFile(file, base=file.content, target=file.content))
            known = crio_config.runtimes_in(crio_desired.merge_targets(live, list(to_be.values())))
            names &= live.handlers.keys() - known
        except (ConfigurationError, NodeError) as error:
            # a broken file is no reason to refuse a cleanup: assume that all our handlers are lost
            log.get().debug("What CRI-O would read cannot be told: all handlers of ours count as lost", why=str(error))
        return _find_pods_needing(node, inspection.socket, names)

    def read_default(self, file: EngineFile) -> str | None:
        """Return the default runtime that a file names. Raises ConfigurationError."""
        if file.role == HOOK_ROLE or file.content is None:
            return None
        return find_default(crio_config.parse_checked(file.content), crio_config.SHAPE)

    def find_files_naming(
        self,
        node: Node,
        live: LiveState | None,
        known: Mapping[str, str],
        handlers: Collection[str],
        defaults: Mapping[str, str],
    ) -> Sequence[tuple[EngineFile, Ownership]]:
        """Return CRI-O's other files whose default runtime is one of `handlers`."""
        try:
            files = _files_beside(node, live, known)
        except (ConfigurationError, NodeError):
            return ()
        documents = {}
        for file in files:
            with contextlib.suppress(ConfigurationError):
                documents[file.path] = file, crio_config.parse_checked(file.content or b"")
        others = [pair for path, pair in documents.items() if path not in known.values()]
        # CRI-O still knows a handler that another file defines as well
        gone = set(handlers).difference(*(crio_config.runtimes_in(document) for _, document in others))
        stay = set(crio_config.LOW_LEVEL).union(*(crio_config.runtimes_in(each) for _, each in documents.values()))
        priors = {role: name for role, name in defaults.items() if name in stay - set(handlers)}
        found = [
            (file, find_dangling_default(document, crio_config.SHAPE, gone, priors.get(file.role)))
            for file, document in others
        ]
        return [(file, ownership) for file, ownership in found if ownership.keys]

    def find_other_config(self, node: Node, live: LiveState, files: Mapping[str, str]) -> str:
        """Return the folder of drop-ins that CRI-O reads, if ours is not in it."""
        drop_in = files.get(crio_desired.DROP_IN_ROLE)
        return "" if drop_in is None else crio_places.reads_instead(node, live, drop_in)

    def find_faults(
        self,
        node: Node,
        socket: str,  # noqa: ARG002  # only the files matter
        live: LiveState | None,
        files: Mapping[str, str],
        *,
        as_written: bool,  # noqa: ARG002  # another file may name the default, or have its table
    ) -> tuple[Fault, ...]:
        """Return why CRI-O would not start again: a file is not TOML, or its default runtime has no table."""
        if crio_desired.DROP_IN_ROLE not in files:
            return ()  # a hook alone cannot cause it
        try:
            found = _files_beside(node, live, files)
            for file in found:
                with located(file.path):
                    crio_config.parse_checked(file.content or b"")
            bases = [DesiredFile(file, base=file.content, target=file.content) for file in found]
            missing = crio_desired.find_missing_default(bases, live)
        except NodeError:
            return ()  # the change itself reports unreadable files
        except ConfigurationError as error:
            return (Fault.of(error, stops=True),) if error.path is not None else ()
        return () if missing is None else (Fault.of(missing, stops=True),)

    def try_handlers(self, node: Node, socket: str, seconds: float, handlers: Mapping[str, bool]) -> Trials:
        """Start a short container through each handler. Raises EngineSilentError."""
        try:
            return cri.try_handlers(node.root, socket, seconds, handlers)
        except NoAnswerError as error:
            raise EngineSilentError(f"the CRI of CRI-O does not answer: {error.reason}", path=socket) from error

    def signal(self, node: Node, process: Process) -> None:  # noqa: ARG002  # for engines that are signalled
        """Refuse: see `reload`. Raises ConfigurationError."""
        raise ConfigurationError("CRI-O is not signalled", hint="use --restart-mode systemd or none")


@Query()
def usual_socket(node: Node) -> str:
    """Return the usual socket's path as seen from here: below the node's mounted / if its own folder is not mounted.

    The GPU Operator mounts the sockets of docker and containerd into its container, but not CRI-O's.
    """
    below = node.programs.root.outside(node.programs.root.canonical(SOCKET))
    mounted = node.whole or node.files.status(posixpath.dirname(SOCKET)) is not None
    return SOCKET if mounted or not os.path.exists(below) else below


def _hooks_dir(node: Node, settings: EngineSettings) -> str:
    """Return the node's path of the hooks folder; its path here if the former is unknown or not needed."""
    if settings.config_mode is not ConfigMode.HOOK:
        return settings.hooks_dir
    return PathTranslator(node).on_node(settings.hooks_dir) or settings.hooks_dir


def _files_beside(node: Node, live: LiveState | None, known: Mapping[str, str]) -> list[EngineFile]:
    """Return all files that CRI-O reads, in its order; `known` are the managed ones, role to path.

    Raises ConfigurationError, NodeError.
    """
    asked = EngineSettings(drop_in=known.get(crio_desired.DROP_IN_ROLE))
    places = crio_places.locate_files(node, EngineTarget(EngineName.CRIO, asked), live)
    beside = posixpath.join(posixpath.dirname(places.folder), posixpath.basename(CONFIG))
    config = places.config if live is not None else beside
    return [EngineFile(crio_desired.ROOT_ROLE, *node.locate_file(config)), *_drop_ins(node, places)]


def _drop_ins(node: Node, places: CrioPlaces) -> list[EngineFile]:
    """Return the files of the drop-ins' folder in CRI-O's order, including ours even if it does not exist."""
    folder, drop_in = places.folder, places.drop_in
    ours = EngineFile(crio_desired.DROP_IN_ROLE, *node.locate_file(drop_in))
    paths = {path for path in crio_places.list_drop_ins(node.files, folder) if path != drop_in}
    found = []
    for path in sorted({*paths, drop_in}, key=lambda path: crio_places.build_sort_key(path, folder)):
        role = f"{crio_desired.OTHER_ROLE}{posixpath.relpath(path, folder)}"
        try:
            file = ours if path == drop_in else EngineFile(role, *node.locate_file(path))
        except ConfigurationError:
            file = EngineFile(role, path, None)  # unreadable from here: a note says so
        if path == drop_in or file.path != ours.path:
            found.append(file)
    return found


def _find_pods_needing(node: Node, socket: str, handlers: Collection[str]) -> tuple[str, ...]:
    """Return, as NAMESPACE/NAME, the pods that were started through one of these handlers. Raises EngineSilentError.

    CRI-O stores the name of each pod's handler, and looks it up again after a restart, also for a pod that has ended.
    If the name is unknown, the pod stays in Terminating. Source: CRI-O's internal/oci/oci.go (`RuntimeImpl`), seen with
    1.34. A pod of the default runtime has no stored name, and gets the new default.
    """
    if not handlers:
        return ()
    try:
        pods = cri.query_pods(node.root, socket, _PODS_SECONDS)
    except NoAnswerError as error:
        raise EngineSilentError(f"CRI-O does not say which pods it has: {error.reason}", path=socket) from error
    if silent := [pod for pod in pods if pod.annotations is None]:
        log.get().warning(
            "CRI-O does not say through which handlers these pods were started: one that needs a handler that goes can "
            "neither be stopped nor deleted afterwards",
            key="pods-may-be-stranded",
            pods=", ".join(map(_named, silent)),
            handlers=", ".join(sorted(handlers)),
        )
    return tuple(sorted(_named(pod) for pod in pods if (pod.annotations or {}).get(_HANDLER) in handlers))


def _named(pod: Pod) -> str:
    return log_line.escape_line(f"{pod.namespace}/{pod.name}")


_SECONDS = 20.0


def find_trial_faults(
    programs: Programs, binary: str, root: bytes, drop_ins: tuple[bytes, bytes], desired: DesiredState
) -> list[str]:
    """Return in words CRI-O's objections to a change of the drop-ins; empty if its binary cannot check it.

    `drop_ins` are the merged drop-ins before the change and after it.
    """
    before, after = drop_ins
    old, _ = _dump_config(programs, binary, root, before)
    if old is None:
        return []
    new, words = _dump_config(programs, binary, root, after)
    if new is None:
        return [words]
    return crio_config.find_losses(old, new, desired.served, desired.default)


def find_trial_refusal(programs: Programs, binary: str, flags: Sequence[str]) -> str | None:
    """Return CRI-O's last message about its current files, None if it accepts them or cannot check them.

    `flags` name the files that are not the usual ones.
    """
    try:
        done = programs.run([binary, *flags, "config"], seconds=_SECONDS)
    except ProgramError:
        return None
    return None if done.status == 0 else _last_words(done)


def _last_words(done: CompletedProgram) -> str:
    last = done.errors.splitlines()[-1:]  # the lines before it are its log
    return last[0] if last else f"it ended with {done.status}"


def _dump_config(programs: Programs, binary: str, root: bytes, drop_in: bytes) -> tuple[Table | None, str]:
    """Return CRI-O's configuration from a root file and a drop-in; None, with its last message, if it refuses them."""
    try:
        with reload_method.open_memory_file(drop_in) as fd:
            command = [binary, "--config", "/dev/stdin", "--config-dir", f"/proc/self/fd/{fd}", "config"]
            done = programs.run(command, seconds=_SECONDS, given=root, keep=(fd,))
        return (toml_document.parse(done.output), "") if done.status == 0 else (None, _last_words(done))
    except (ProgramError, DocumentError) as error:
        return None, str(error)
