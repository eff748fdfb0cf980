"""containerd's adapter: its config.toml and drop-in, or a distribution's generated file and its place for additions.

containerd is restarted after a change. desired.py computes the files with and without our handlers, containerd's own
and a distribution's. --config may also name a distribution's drop-in, which is recognised by its path or, where it is
mounted elsewhere, by its folder's identity.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from toolkit_installer import log
from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Path as DocumentPath
from toolkit_installer.documents.changes import Remove, Table, apply_changes, is_same, lookup, merge_tables
from toolkit_installer.engines.api import (
    Adapter,
    DesiredState,
    EngineFile,
    EngineSilentError,
    Inspection,
    LiveState,
    RecordedFile,
    Reload,
    Trials,
    parse_release,
)
from toolkit_installer.engines.common import cri, losses, reload_method, serving
from toolkit_installer.engines.common.serving import EngineBrokenError, NoAnswerError
from toolkit_installer.engines.containerd import config, config_files, faults, layouts, tables, templates, trial
from toolkit_installer.engines.containerd import desired as containerd_desired
from toolkit_installer.engines.containerd import inspection as containerd_inspection
from toolkit_installer.engines.containerd.desired import DistributionEdit
from toolkit_installer.engines.containerd.distributions import DISTRIBUTIONS, layout_of
from toolkit_installer.engines.containerd.inspection import (
    CONFIG,
    DROP_IN_ROLE,
    ENDING,
    ROOT_ROLE,
    ContainerdInspection,
)
from toolkit_installer.engines.containerd.layouts import AdditionMethod, Layout
from toolkit_installer.engines.containerd.own_files import OwnFiles
from toolkit_installer.engines.containerd.tables import (
    CRI_TABLES,
    PLUGINS,
    VERSION,
    build_shape,
    parse_checked,
    read_cgroup_driver,
    read_executable,
    runtimes_in,
)
from toolkit_installer.engines.ownership import (
    BUILT_IN,
    CgroupSetting,
    Fault,
    ListedRuntime,
    Owned,
    Ownership,
    find_dangling_default,
    find_default,
    is_beneath,
)
from toolkit_installer.engines.target import EngineTarget, Request
from toolkit_installer.errors import ConfigurationError, located
from toolkit_installer.node import sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, is_running, read_as, root_of
from toolkit_installer.node.queries import Query
from toolkit_installer.node.reading import Reader
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode

_GENERATED_FILES = {
    "containerd.d": "containerd.toml",
    "config.toml.d": "config.toml",
    "config-v3.toml.d": "config.toml",
}
"""Names of folders for drop-ins, and the distribution's own file next to each."""


class NamedDropIn(msgspec.Struct, frozen=True):
    """The layout of a distribution whose drop-in is at `path`; `files` reads the distribution's own files."""

    layout: Layout
    files: Reader
    path: str


def find_named_drop_in(node: Node, process: Process | None, config: str) -> NamedDropIn | None:
    """Return the distribution whose drop-in `config` is, None if it is no distribution's.

    `process`: the containerd that serves the socket, None if none runs. Raises ConfigurationError for a folder that the
    distribution does not read, and for a distribution whose files cannot be determined yet.
    """
    folder, name = posixpath.split(config)
    if not name.endswith(".toml"):
        return None
    for files, made, there in _candidate_folders(node, process, folder):
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
    """Raise ConfigurationError if the distribution reads no drop-in at its next start."""
    contents = {file.role: file.content for file in found.files}
    there = {path: content for role, path in named.layout.templates.items() if (content := contents.get(role))}
    start = named.layout.next_start(there, found.live.version if found.live is not None else None)
    if start.method is not AdditionMethod.DROP_IN:
        raise ConfigurationError(
            f"this {named.layout.name} imports no drop-in, so that it would not read this file",
            path=named.path,
            hint="leave --config out: its template is edited then",
        )


def _candidate_folders(node: Node, process: Process | None, folder: str) -> Iterator[tuple[Reader, str, str]]:
    """Yield the distribution files that drop-ins in `folder` may belong to, and the folder's path on the node.

    The folder is matched by its own name first; then by its identity, as in a container that mounts it elsewhere.
    """
    beside = _GENERATED_FILES.get(posixpath.basename(folder))
    if beside is not None:
        yield node.files, posixpath.join(posixpath.dirname(folder), beside), folder
    views: list[tuple[Reader, str]] = []
    if process is not None and (started_with := config_files.find_config_or(process, "")):
        views.append((Reader(root_of(process)), started_with))
    views += [(files, row.started_with) for files in node.readers()[1:] for row in DISTRIBUTIONS]
    for files, made in views:
        for name, own in _GENERATED_FILES.items():
            there = posixpath.join(posixpath.dirname(made), name)
            if posixpath.basename(made) == own and _is_same(files.root, there, node.root, folder):
                yield files, made, there


@Query()
def _is_same(one: Root, path: str, other: Root, folder: str) -> bool:
    try:
        return os.path.samefile(one.outside(one.canonical(path)), other.outside(other.canonical(folder)))
    except (OSError, NodeError):
        return False  # one of them is missing, or its process ended meanwhile


SOCKET = "/run/containerd/containerd.sock"
_UNIMPLEMENTED = "UNIMPLEMENTED"
"""The gRPC status for a service that a server does not have."""


class Containerd(Adapter[ContainerdInspection]):
    """containerd's adapter."""

    name = EngineName.CONTAINERD

    has_role = staticmethod(containerd_inspection.has_role)
    find_unrecorded = staticmethod(containerd_desired.find_unrecorded)
    remove_ours = staticmethod(containerd_desired.remove_ours)
    try_out = staticmethod(trial.try_out)
    find_restart_obstacle = staticmethod(trial.find_restart_obstacle)

    def allows_name(self, role: str, name: str) -> bool:
        """Return whether a file of that role may be called `name`."""
        return self.has_role(role) and ENDING in name

    def inspect(self, node: Node, target: EngineTarget) -> ContainerdInspection:
        """Read its own or a distribution's files and imports, and query the CRI. Raises ConfigurationError."""
        socket = target.socket or SOCKET
        named = None
        if target.config is not None:
            process = serving.find_process(node, self.name, socket)
            named = find_named_drop_in(node, process, target.config)
        layout = named.layout if named is not None else self._layout(node, target, socket)
        answer = Inspection(socket, (), *serving.query_engine(self, node, socket, target.settings.answer_timeout))
        if layout is not None:
            files, path = (named.files, named.path) if named is not None else (node.files, layout.drop_in)
            found = containerd_inspection.inspect_distribution(node, target, layout, answer, files, path)
            if named is not None:
                require_drop_in(named, found)
            return found
        return containerd_inspection.inspect_own(node, target, answer)

    def _layout(self, node: Node, target: EngineTarget, socket: str) -> Layout | None:
        """Return the layout of the distribution that has this containerd, None if its files are its own."""
        config = target.config
        if config is None:
            process = serving.find_process(node, self.name, socket)
            config = config_files.find_config(process) if process is not None else None
        layout = layout_of(node.files.content, config) if config is not None else None
        if config is None or layout is None:
            return None
        # a copied file is never generated again, and no containerd serves the socket
        copied = layout.may_be_copied(config, socket, lambda path: node.files.status(path) is not None)
        return None if copied and serving.find_process(node, self.name, socket) is None else layout

    def build_desired_state(
        self, inspection: ContainerdInspection, request: Request, records: Mapping[str, RecordedFile]
    ) -> DesiredState:
        """Return the desired content of all files. Raises ConfigurationError."""
        for one, other in itertools.combinations(inspection.files, 2):
            if one.path == other.path:  # one role's content would end up in the other's file
                raise ConfigurationError(
                    f"is named as {other.role} as well, or a symlink of that name leads here",
                    path=one.path,
                    hint="remove the symlink, or name another file with --drop-in-config",
                )
        drop_in = next((records.get(file.path) for file in inspection.files if file.role == DROP_IN_ROLE), None)
        unknown = containerd_desired.find_unrecorded(inspection, request.toolkit_folder) if drop_in is None else {}
        ours = frozenset(name for recorded in records.values() for name in recorded.handlers)
        defaults = dict(pair for recorded in records.values() for pair in recorded.defaults)
        without = {}
        for file in inspection.files:
            ownership = unknown.get(file.path, Ownership())
            if file.role in defaults and file.content is not None:  # another program made ours the default in its place
                dangling = _find_dangling_defaults(parse_checked(file.content)[0], ours, defaults[file.role])
                ownership = Ownership((*ownership.keys, *dangling), ownership.created)
            recorded = records.get(file.path, RecordedFile(ownership=ownership, handlers=ours))
            without[file.role] = wanted = containerd_desired.remove_ours(file, recorded, request.toolkit_folder)
            if file.role not in layouts.NOT_TOML:
                losses.refuse_replaced(wanted, recorded, toml_document.parse, request.toolkit_folder, CRI_TABLES)
        containerd_desired.refuse_lost_root(inspection, records)
        if inspection.distribution is not None:
            return DistributionEdit(inspection, inspection.distribution, request, without).build_desired_state()
        # an engine that is down for a moment is no reason to move our entries; in a drop-in of another program, our
        # entries are no evidence of how containerd merges files
        there = inspection.file(DROP_IN_ROLE).content is not None
        own = drop_in is not None and bool(drop_in.written) and drop_in.before is None
        kept = inspection.live is None and there and own
        work = OwnFiles(inspection, request, without, deep=kept)
        state = containerd_desired.build_drop_in_state(work) or containerd_desired.build_in_place_state(work)
        return containerd_desired.with_chosen_defaults(state, request, records)

    def read_default(self, file: EngineFile) -> str | None:
        """Return the default runtime that a file of containerd's own names. Raises ConfigurationError."""
        if file.role in layouts.ROLES or file.content is None:
            return None
        document, _ = parse_checked(file.content)
        return find_default(document, *map(build_shape, PLUGINS))

    def find_files_naming(
        self,
        node: Node,
        live: LiveState | None,
        known: Mapping[str, str],
        handlers: Collection[str],
        defaults: Mapping[str, str],
    ) -> Sequence[tuple[EngineFile, Ownership]]:
        """Return the file that imports our drop-in by its own line, if its default runtime is one of `handlers`."""
        process = live.process if live is not None else None
        if process is not None and config_files.find_layout(process) is not None:
            return ()  # a distribution generates it
        if DROP_IN_ROLE not in known:
            return ()
        beside = posixpath.join(posixpath.dirname(posixpath.dirname(known[DROP_IN_ROLE])), posixpath.basename(CONFIG))
        try:
            config = config_files.find_config_or(process, CONFIG) if process is not None else None
            root = EngineFile(ROOT_ROLE, *node.locate_file(config or beside))
            document, _ = parse_checked(root.content or b"")
        except (ConfigurationError, NodeError):
            return ()
        owned = _find_dangling_defaults(document, handlers, defaults.get(ROOT_ROLE))
        return [(root, Ownership(owned))] if owned and root.path not in known.values() else []

    def choose_reload(self, node: Node, inspection: Inspection, settings: EngineSettings) -> Reload:
        """Return a restart by systemd by default: containerd cannot reload its files, and SIGHUP kills it.

        The unit may be a distribution's; k0s restarts its containerd by itself.
        """
        live = inspection.live
        if (
            live is not None
            and live.process is not None
            and (layout := config_files.find_layout(live.process)) is not None
        ):
            if layout.reloads_itself and settings.reload_mode in (None, ReloadMode.SIGNAL):
                return Reload(ReloadMode.SIGNAL, watched_by=layout.name)
            process = msgspec.structs.replace(live.process, unit=layout.unit(node, live.process))
            inspection = msgspec.structs.replace(inspection, live=msgspec.structs.replace(live, process=process))
        if (switch := containerd_inspection.disabled_in(inspection)) is not None:
            log.get().warning(
                "The file disables the CRI plugin: Kubernetes cannot use this containerd, and it is not reloaded",
                key="cri-disabled",
                file=switch[0],
                disabled=switch[1],
            )
            return Reload(ReloadMode.NONE)  # it serves no handler, whatever it reads
        reload = reload_method.choose_reload(node, self.name, inspection, settings.reload_mode, ReloadMode.SYSTEMD)
        return msgspec.structs.replace(reload, restarts=True) if reload.mode is ReloadMode.SIGNAL else reload

    def describe_reload_risks(self, node: Node, inspection: Inspection, reload: Reload) -> tuple[str, ...]:
        """Return a warning about a signal after which nothing starts containerd again."""
        process = inspection.process
        if reload.mode is not ReloadMode.SIGNAL or process is None:
            return ()
        if process.unit is not None and node.services.property(process.unit, "Restart") == "always":
            return ()
        warning = (
            "containerd dies of SIGHUP, and its unit does not say Restart=always: it may stay down; "
            "--restart-mode systemd is safer"
        )
        return (warning,)

    def ask(self, node: Node, socket: str, seconds: float) -> LiveState:
        """Query the CRI for its handlers, and mark those that a distribution registered. Raises EngineSilentError."""
        live = query_cri(node, socket, seconds)
        return msgspec.structs.replace(live, own=_registered_by_itself(live))

    def find_other_config(self, node: Node, live: LiveState, files: Mapping[str, str]) -> str:
        """Return the file that containerd reads if it is not ours and imports none of ours; "" on a distribution."""
        if live.process is None or config_files.find_layout(live.process) is not None:
            return ""
        return containerd_inspection.reads_instead(node, live.process, tuple(files.values()))

    def find_faults(
        self, node: Node, socket: str, live: LiveState | None, files: Mapping[str, str], *, as_written: bool
    ) -> tuple[Fault, ...]:
        """Return why the CRI would not start or ignores a file; on a distribution, which files are not TOML."""
        if not files.keys().isdisjoint(layouts.ROLES):
            return () if as_written else tuple(_find_invalid_toml(node, files))
        if as_written and (own := files.get(containerd_inspection.ROOT_ROLE)) is not None:
            with contextlib.suppress(ConfigurationError):
                if b"imports" not in (node.files.content(own) or b""):
                    return ()  # no other file can contradict what a run checked
        process = live.process if live is not None else serving.find_process(node, self.name, socket)
        if process is not None:
            found = _check_current_files(node, process, live, files)
            if is_running(process):
                return found
        return _check_current_files(node, None, live, files)  # the root of an ended process has no files

    def find_other_files(
        self,
        node: Node,
        asked: EngineSettings,
        files: Mapping[str, str],
        toolkit_folder: str,
        defaults: Mapping[str, str],
    ) -> Sequence[tuple[EngineFile, Ownership]]:
        """Return the imports of config.toml, besides `files`, that name our toolkit folder; none on a distribution.

        Raises ConfigurationError.
        """
        if not files or not files.keys().isdisjoint(layouts.ROLES):
            return ()
        root = files.get(containerd_inspection.ROOT_ROLE)
        target = EngineTarget(self.name, asked, found_config=root)
        found = containerd_inspection.inspect_own(node, target, Inspection("", (), None))
        root_found = found.file(containerd_inspection.ROOT_ROLE)
        known = {*files.values(), root_found.path}
        prior = defaults.get(containerd_inspection.ROOT_ROLE)
        others = []
        for file in found.files:
            if file.path in known or file.content is None or toolkit_folder.encode() not in file.content:
                continue
            role = containerd_inspection.import_role(file.path)
            if file.role == DROP_IN_ROLE and DROP_IN_ROLE not in files:
                role = DROP_IN_ROLE if _is_copy(file, root_found, found.drop_in_names, toolkit_folder) else role
            owned = _find_copied_defaults(file.content, toolkit_folder, prior)
            others.append((msgspec.structs.replace(file, role=role), Ownership(owned)))
        return others

    def list_runtimes(self, files: Sequence[tuple[str, bytes]], version: str) -> Sequence[ListedRuntime]:
        """Return the runtimes of config.toml and its imports. Raises ConfigurationError."""
        read = [tables.parse_file("", path, content) for path, content in files]
        return tuple(tables.list_runtimes(read, parse_release(version))) if read else ()

    def read_cgroup_driver(self, files: Sequence[tuple[str, bytes]], version: str) -> CgroupSetting | None:
        """Return the cgroup driver of the default runtime. Raises ConfigurationError."""
        default = next((each for each in self.list_runtimes(files, version) if each.default), None)
        if default is None or default.systemd is None:
            return None
        return CgroupSetting("systemd" if default.systemd else "cgroupfs", default.path, default.line)

    def describe_cgroup_edit(self, driver: str) -> str:
        """Return how to change containerd's cgroup driver, in words: each runtime has its own."""
        return f"write SystemdCgroup = {str(driver == 'systemd').lower()} into the options of each runtime"

    def describe_cdi_edit(self) -> str:
        """Return how to turn on CDI in containerd's CRI, in words."""
        return "write enable_cdi = true into the CRI plugin's table"

    def find_serving_files(self, node: Node, live: LiveState, toolkit_folder: str) -> str:  # noqa: ARG002  # the process's own files
        """Return the files that keep our handlers served after a restart; "" for none, and on a distribution."""
        process = live.process
        try:
            if process is None or config_files.find_layout(process) is not None:
                return ""
            root = config_files.find_config_or(process, containerd_inspection.CONFIG)
            if root is None:
                return ""
            read = containerd_inspection.read_files(Reader(root_of(process)), root)
        except ConfigurationError:
            return ""  # unknown then
        serving_ours = faults.find_served_in(read, live.release, toolkit_folder)
        return "; ".join(f"{fault.path}:{fault.line} {fault.reason}" for fault in serving_ours)

    def try_handlers(self, node: Node, socket: str, seconds: float, handlers: Mapping[str, bool]) -> Trials:
        """Start a short container through each handler. Raises EngineSilentError."""
        try:
            return cri.try_handlers(node.root, socket, seconds, handlers)
        except NoAnswerError as error:
            raise EngineSilentError(f"the CRI of containerd does not answer: {error.reason}", path=socket) from error

    def signal(self, node: Node, process: Process) -> None:
        """Send SIGHUP, which kills containerd; its unit starts it again. Raises ConfigurationError.

        No signal is sent where the distribution restarts its containerd by itself.
        """
        layout = config_files.find_layout(process)
        if layout is not None and layout.reloads_itself:
            log.get().info(
                "Waiting for the distribution to restart its containerd",
                key="waiting-for-distribution",
                distribution=layout.name,
            )
            return
        serving.send_sighup(node, self.name, process)


def query_cri(node: Node, socket: str, seconds: float) -> LiveState:
    """Query the CRI for its handlers. Raises EngineSilentError."""
    try:
        status = cri.query_status(node.root, socket, seconds)
        process = sockets.find_responding_process(node.root, socket, b"")
    except (NoAnswerError, sockets.UntrustedProcessError) as error:
        # containerd serves once its plugins are loaded: a missing plugin failed, or is disabled
        kind = EngineBrokenError if error.reason.startswith(_UNIMPLEMENTED) else EngineSilentError
        raise kind(f"the CRI of containerd does not answer: {error.reason}", path=socket) from error
    table = status.config.get("containerd") or {}
    handlers = {name: read_executable(entry) for name, entry in (table.get("runtimes") or {}).items()}
    for name in status.handlers - handlers.keys() - {""}:
        handlers[name] = None
    default = table.get("defaultRuntimeName")
    folders, on = _parse_cdi(status.config)
    looks, would = (folders, ()) if on else ((), folders or ())
    entries = table.get("runtimes") or {}
    drivers = {name: driver for name, entry in entries.items() if (driver := read_cgroup_driver(entry)) is not None}
    return LiveState(
        status.version,
        handlers,
        default,
        process,
        cdi_folders=looks,
        cdi_folders_if_on=would,
        cgroup_drivers=drivers,
    )


def _parse_cdi(told: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, bool]:
    """Return the folders of CDI specifications in a CRI configuration (None if unknown), and whether CDI is on.

    Source: containerd's CRI configuration. 1.6 has neither key, and from 2.2 on CDI cannot be turned off.
    """
    folders = told.get("cdiSpecDirs")
    if not told:
        return None, True
    known = tuple(map(str, folders)) if isinstance(folders, list) else ()
    return known, bool(known) and told.get("enableCDI", True) is True


def _check_current_files(
    node: Node, process: Process | None, live: LiveState | None, files: Mapping[str, str]
) -> tuple[Fault, ...]:
    """Return the faults of the files that the engine's process reads; None: those of the node."""
    called = live.version if live is not None else ""
    if process is not None and not called:
        called = reload_method.query_containerd_version(node.programs, process.executable)
    try:
        if process is not None and config_files.find_layout(process) is not None:
            return ()
        place = config_files.find_config_or(process, containerd_inspection.CONFIG) if process is not None else None
        reader = Reader(root_of(process)) if process is not None and place is not None else node.files
        root = place or files.get(containerd_inspection.ROOT_ROLE, containerd_inspection.CONFIG)
        read = containerd_inspection.read_files(reader, root)
    except ConfigurationError as error:
        # an unreadable file is reported where it is to be changed, and may be valid for containerd
        broken = error.path is not None and not isinstance(error, NodeError)
        return (Fault.of(error, stops=True),) if broken else ()
    return tuple(faults.check_files(read, called))


def _find_invalid_toml(node: Node, files: Mapping[str, str]) -> Iterator[Fault]:
    """Yield a fault for each managed file of a distribution that containerd could not parse; templates are skipped."""
    for role, path in files.items():
        if role in layouts.NOT_TOML:
            continue
        try:
            with located(path):
                parse_checked(node.files.content(path) or b"")
        except NodeError:
            continue
        except ConfigurationError as error:
            yield Fault.of(error, stops=True)


def _find_dangling_defaults(document: Table, handlers: Collection[str], prior: str | None) -> tuple[Owned, ...]:
    """Return the defaults that name one of `handlers`, to be removed, or replaced by `prior` if containerd knows it."""
    found: list[Owned] = []
    for place in map(build_shape, PLUGINS):
        known = prior if prior in (*place.entries(document), BUILT_IN) else None
        found += find_dangling_default(document, place, handlers, known).keys
    return tuple(found)


def _find_copied_defaults(content: bytes, toolkit_folder: str, prior: str | None) -> tuple[Owned, ...]:
    """Return the dangling defaults of another program's file: those that name a handler in our toolkit folder."""
    document, _ = parse_checked(content)
    copied = _find_our_handlers(document, toolkit_folder)
    return _find_dangling_defaults(
        apply_changes(document, tuple(map(Remove, copied))), {path[-1] for path in copied}, prior
    )


def _find_our_handlers(document: Table, toolkit_folder: str) -> list[DocumentPath]:
    """Return the paths of a document's handlers whose executable lies in our toolkit folder."""
    return [
        (*place.runtimes, name)
        for place in map(build_shape, PLUGINS)
        for name, entry in place.entries(document).items()
        if is_beneath(read_executable(entry), toolkit_folder)
    ]


def _is_copy(drop_in: EngineFile, root: EngineFile, names: Collection[str], toolkit_folder: str) -> bool:
    """Return whether a drop-in contains only handlers in our toolkit folder and settings that the root has as well.

    NVIDIA's installer writes such a drop-in. False if the root imports it by name: containerd would not start without
    it.
    """
    content, root_content = drop_in.content or b"", root.content or b""
    if config.find_imports(root_content, sorted({*names, drop_in.path})).keys:
        return False
    document, _ = parse_checked(content)
    ours = _find_our_handlers(document, toolkit_folder)
    gone = {path[-1] for path in ours}
    defaults = [place.default for place in map(build_shape, PLUGINS) if lookup(document, place.default) in gone]
    rest = apply_changes(document, tuple(map(Remove, [*ours, *defaults, VERSION])))
    known, _ = parse_checked(root_content)
    return is_same(merge_tables(known, rest), known)


def _registered_by_itself(live: LiveState) -> frozenset[str]:
    """Return the handlers that a distribution registered itself because it detected the toolkit when it started.

    A handler whose executable differs from the distribution's file is another program's by now, and is omitted.
    """
    process = live.process
    layout = config_files.find_layout(process) if process is not None else None
    if process is None or layout is None or layout.detection is None:
        return frozenset()
    try:
        # our block in a template also appears in the generated file, and is not the distribution's
        document = layout.document(templates.remove_block(read_as(process, layout.source) or b""), "")
    except ConfigurationError:
        return frozenset()  # unknown then
    made = runtimes_in(document, layout.plugin)
    return frozenset(
        name
        for name in layout.detection.handlers & made.keys() & live.handlers.keys()
        if live.handlers[name] in (None, read_executable(made[name]))
    )
