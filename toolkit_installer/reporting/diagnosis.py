"""Reads a node for `diagnose`. Writes nothing, and queries no engine that a request would start."""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, ParamSpec, TypeVar

import msgspec

from toolkit_installer import __version__, foreign_words, log
from toolkit_installer.documents import shown
from toolkit_installer.driver import gpus, roots
from toolkit_installer.engines import registry
from toolkit_installer.engines.api import HOOK_ROLE, DesiredState, Inspection, get_adapter
from toolkit_installer.engines.common import serving
from toolkit_installer.engines.containerd import config_files
from toolkit_installer.engines.containerd import inspection as containerd_inspection
from toolkit_installer.engines.containerd.inspection import ContainerdInspection
from toolkit_installer.engines.detect import decide, kubelet, own_container
from toolkit_installer.engines.detect.decide import EvidenceKind
from toolkit_installer.engines.ownership import CgroupSetting, Fault
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node import processes, sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import is_running, root_of
from toolkit_installer.node.programs import PATH
from toolkit_installer.node.queries import Query
from toolkit_installer.node.reading import Reader
from toolkit_installer.node.root import NodeError, device_number, head, leads_to_file
from toolkit_installer.planning import other_installer
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting import diagnosis_form, engine_faults, findings
from toolkit_installer.reporting.diagnosis_form import (
    SCHEMA,
    Diagnosis,
    DriverSeen,
    EngineSeen,
    HookSeen,
    KubeletSeen,
    NodeFacts,
    ProgramSeen,
    ReadFile,
    SpecificationSeen,
)
from toolkit_installer.reporting.support_bundle import explain_blocked_queries
from toolkit_installer.settings import EngineName, Settings
from toolkit_installer.toolkit.payload import LIBRARY_FOLDERS

_Read = TypeVar("_Read")
_Other = TypeVar("_Other")
_Given = ParamSpec("_Given")

_WAIT_SECONDS: Final = 5.0
_KUBELETS_FILE: Final = "/var/lib/kubelet/config.yaml"
"""kubeadm's file, read if no kubelet runs."""
_CRICTL: Final = "/etc/crictl.yaml"
_HOOK_FOLDERS: Final = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
_CDI_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
_SPECIFICATIONS: Final = (".yaml", ".json")
_LIBRARIES: Final = ("libnvidia-ml.so.1", "libcuda.so.1")
_MORE_LIBRARY_FOLDERS: Final = (
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/nvidia",
    "/usr/local/lib",
    "/lib64",
    "/lib",
)
_MORE_PROGRAM_FOLDERS: Final = ("/opt/bin", "/usr/libexec/crio", "/run/current-system/sw/bin")
"""Further program folders of engines that do not run now: those of Flatcar, CRI-O's packages and NixOS."""
_DRIVER_SIGNS: Final = ("/usr/bin/nvidia-smi", "/dev/nvidiactl")
_DEVICES: Final = re.compile(r"nvidia(?:[0-9]+|ctl|-uvm|-uvm-tools|-modeset)")
_HEAD: Final = 4096
"""The first bytes of a program, which name its loader: all compilers put it there."""
_AT_WORK: Final = (EvidenceKind.KUBELET, EvidenceKind.OPTIONS, EvidenceKind.LIVE)
_LOOKS_LIKE_CRI: Final = (b"nvidia", b"runtimes", b"grpc.v1.cri", b"cri.v1.runtime")


@Query(ignored=("settings",))
def diagnose(node: Node, settings: Settings) -> Diagnosis:
    """Return the node's faults, and what could not be inspected."""
    with log.suppress_lines():
        inspection = _NodeInspection(node, settings)
        found = findings.diagnose(inspection.read_facts())
    return Diagnosis(SCHEMA, __version__, found, tuple(dict.fromkeys(inspection.unseen)))


class _NodeInspection:
    """One inspection of a node; failed reads are recorded in `unseen`, and the rest is read all the same."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self._node = node
        # an engine that takes longer to start is reported as it is now
        self._settings = msgspec.structs.replace(settings, reload_timeout=min(settings.reload_timeout, _WAIT_SECONDS))
        self._whole = node.readers()[-1]
        """The reader of the whole node, where its root is mounted."""
        self._sees_node = own_container.sees_node(node)
        self.unseen: list[str] = []
        if not self._sees_node:
            self.unseen.append("programs, devices, libraries, CDI specifications: the node's / is not mounted here")

    def read_facts(self) -> NodeFacts:
        """Return everything that was read."""
        node, settings = self._node, self._settings
        store = ReceiptStore(node, settings.toolkit.install_dir)
        receipt = trust.load_if_usable(node, store)
        engines = self._inspect_engines(receipt)
        folder = receipt.toolkit_folder if receipt is not None else settings.toolkit.folder
        files = self._try("the toolkit's folder", (), node.files.list, folder)
        paths = {engine.name: self._list_program_folders(engine) for engine in engines}
        runtimes = {
            each.executable: paths[engine.name]
            for engine in engines
            for each in findings.list_runtimes(engine)
            if each.executable is not None and self._sees_node
        }
        own = {f"{folder}/{name}" for name in files if not name.startswith(".")}
        no_answer = self._try(
            "other installers", None, other_installer.find_running, node, settings.toolkit.install_dir
        )
        return NodeFacts(
            engines=tuple(engines),
            kubelets=tuple(self._read_kubelets()),
            programs={
                name: self._inspect_program(name, folders)
                for name, folders in sorted({**dict.fromkeys(own, ()), **runtimes}.items())
            },
            toolkit_folder=folder,
            installed=receipt is not None,
            toolkit_files=len(files),
            toolkit_engines=tuple((str(each.name), each.socket) for each in receipt.served_engines())
            if receipt
            else (),
            other_installer=no_answer is not None,
            hooks=tuple(self._read_hooks()) if self._sees_node else (),
            no_low_level=self._find_missing_runtimes(receipt, engines),
            crictl=self._read_crictl(),
            unlinked=tuple(self._find_unlinked_devices()) if self._sees_node else (),
            driver=self._find_driver_root(folder) if self._sees_node else None,
            specifications=tuple(self._read_specifications(engines, receipt)) if self._sees_node else (),
            os_release=self._read_text("/etc/os-release") or self._read_text("/usr/lib/os-release"),
            signs=frozenset(path for path in diagnosis_form.SIGNS if self._is_there(path)),
        )

    # --- engines ---

    def _inspect_engines(self, receipt: Receipt | None) -> list[EngineSeen]:
        node, settings = self._node, self._settings
        stopped = self._try("the engines", "they cannot be told", explain_blocked_queries, node, settings, receipt)
        if stopped is not None:
            self.unseen.append(f"the engines: {stopped}")
            return []
        return [each for target in self._find_targets(receipt) if (each := self._inspect_engine(target)) is not None]

    def _find_targets(self, receipt: Receipt | None) -> Iterator[EngineTarget]:
        """Yield each engine that works on the node or is configured by this program, else all that are installed."""
        node, settings = self._node, self._settings
        evidence = self._try("the engines", (), decide.gather_evidence, node, settings)
        at_work = [each.row.engine for each in evidence if each.row is not None and each.kind in _AT_WORK]
        known = [record.name for record in receipt.served_engines()] if receipt is not None else []
        names = tuple(dict.fromkeys([*settings.runtimes, *at_work, *known]))
        for name in names:
            found = self._try(str(name), (), decide.locate_engines, node, settings, (name,))
            yield from found
        if not names:
            yield from decide.list_installed_engines(settings, tuple(evidence))

    def _inspect_engine(self, target: EngineTarget) -> EngineSeen | None:
        node = self._node
        settings = msgspec.structs.replace(
            target.settings, answer_timeout=min(target.settings.answer_timeout, _WAIT_SECONDS)
        )
        target = msgspec.structs.replace(target, settings=settings)
        row = target.distribution or registry.find_usual_distribution(target.name)
        usual = target.config or row.config
        try:
            inspection = get_adapter(target.name).inspect(node, target)
        except InstallerError as error:
            if isinstance(error, ConfigurationError) and error.path is not None and not isinstance(error, NodeError):
                return EngineSeen(
                    name=target.name,
                    distribution=row.name,
                    socket=target.socket or row.socket,
                    faults=(_convert_error(error, usual),),
                )
            self.unseen.append(f"{target.name}: {error}")
            return None
        live = inspection.live
        distribution = inspection.distribution if isinstance(inspection, ContainerdInspection) else None
        files, besides, faults = self._read_files(target, inspection, usual)
        checked = self._check_files(target, inspection, usual)
        version = inspection.binary_version if isinstance(inspection, ContainerdInspection) else ""
        return EngineSeen(
            name=target.name,
            distribution=row.name,
            socket=inspection.socket,
            version=live.version if live is not None else version,
            generated=distribution is not None,
            files=files,
            besides=besides,
            handlers=dict(live.handlers) if live is not None else {},
            default=live.default if live is not None else None,
            cdi_folders=live.cdi_folders if live is not None else None,
            cgroup_driver=live.cgroup_drivers.get(live.default or "") if live is not None else None,
            faults=(*faults, *(checked if distribution is None else ())),
            template_faults=checked if distribution is not None else (),
        )

    def _read_files(
        self, target: EngineTarget, inspection: Inspection, usual: str
    ) -> tuple[tuple[ReadFile, ...], tuple[ReadFile, ...], list[Fault]]:
        """Return the files that the engine reads, similar files that it does not read, and their faults."""
        if target.name is EngineName.CONTAINERD:
            return self._read_containerd_files(inspection, usual)
        files = [
            ReadFile(file.path, file.content)
            for file in inspection.files
            if file.content is not None and file.role != HOOK_ROLE
        ]
        reads = {file.path for file in inspection.files}
        own = registry.find_usual_distribution(target.name).config
        besides = self._find_unread_files([own], reads, lambda content: bool(content.strip()))
        faults = []
        for file in files:
            try:
                get_adapter(target.name).list_runtimes([(file.path, file.content)], "")
            except ConfigurationError as error:
                faults.append(_convert_error(error, file.path))
        return tuple(files), besides, faults

    def _read_containerd_files(
        self, inspection: Inspection, usual: str
    ) -> tuple[tuple[ReadFile, ...], tuple[ReadFile, ...], list[Fault]]:
        node = self._node
        assert isinstance(inspection, ContainerdInspection)  # noqa: S101  # it is containerd's
        process = serving.find_process(node, EngineName.CONTAINERD, inspection.socket)
        place = None
        if process is not None:
            place = self._try("containerd's file", None, config_files.find_config_or, process, usual)
        views = (Reader(root_of(process)), node.files) if process is not None and place is not None else (node.files,)
        root = place or (inspection.distribution.layout.generated if inspection.distribution is not None else usual)
        faults: list[Fault] = []
        read: Sequence[ReadFile] = ()
        for reader in views:
            read, faults = (), []
            try:
                found = containerd_inspection.read_files(reader, root)
                read = [ReadFile(file.path, file.content, file.by_relative_pattern) for file in found]
            except ConfigurationError as error:
                faults.append(_convert_error(error, root))
            if process is not None and is_running(process):
                break  # the root of an ended process has no files
        for missing in inspection.missing:
            why = f"imports {missing.path}, which is not there"
            faults.append(Fault(missing.importer, None, why, "create that file, or take the import out"))
        reads = {each.path for each in read} | {each.file for each in inspection.graph} | {root}
        drop_ins = posixpath.dirname(containerd_inspection.DROP_IN)
        there = self._try(drop_ins, (), node.files.list, drop_ins)
        candidates = [containerd_inspection.CONFIG]
        candidates += [f"{drop_ins}/{name}" for name in there if name.endswith(containerd_inspection.ENDING)]
        besides = self._find_unread_files(
            candidates, reads, lambda content: any(word in content for word in _LOOKS_LIKE_CRI)
        )
        if inspection.distribution is not None:
            # a node of a distribution may have a plain containerd as well, which reads these files
            plain = registry.find_usual_distribution(EngineName.CONTAINERD).socket
            if serving.find_process(node, EngineName.CONTAINERD, plain) is not None or not _names_nvidia(besides):
                besides = ()
        return tuple(read), (*besides, *self._find_unread_templates(inspection)), faults

    def _find_unread_templates(self, inspection: ContainerdInspection) -> Iterator[ReadFile]:
        """Yield the templates that the distribution ignores, as it has a newer one."""
        if inspection.distribution is None:
            return
        layout = inspection.distribution.layout
        roles = {path: role for role, path in layout.templates.items()}
        there = {file.role: file for file in inspection.files if file.content is not None}
        texts = {path: there[role].content or b"" for path, role in roles.items() if role in there}
        try:
            start = layout.next_start(texts, inspection.live.version if inspection.live is not None else None)
        except ConfigurationError:
            return  # reported by `_check`
        for path, content in texts.items():
            if start.template is not None and path != start.template:
                yield ReadFile(path, content)

    def _find_unread_files(
        self, paths: Sequence[str], reads: set[str], counts: Callable[[bytes], bool]
    ) -> tuple[ReadFile, ...]:
        """Return the files that exist, match `counts`, and are none of those that the engine reads."""
        found = []
        for path in paths:
            canonical = self._try(path, path, self._node.files.canonical, path)
            content = self._read_content(path)
            if content is not None and counts(content) and reads.isdisjoint({path, canonical}):
                found.append(ReadFile(path, content))
        return tuple(found)

    def _check_files(self, target: EngineTarget, inspection: Inspection, usual: str) -> tuple[Fault, ...]:
        """Return the faults that the engine's own binary finds in its files, and why a template cannot be used."""
        node, adapter = self._node, get_adapter(target.name)
        distribution = inspection.distribution if isinstance(inspection, ContainerdInspection) else None
        try:
            if distribution is not None:
                adapter.try_out(node, inspection, DesiredState((), {}, None))
            elif inspection.process is not None and (why := adapter.find_restart_obstacle(node, inspection.process)):
                reason = f"{target.name} would not start again with its files: {foreign_words.mask_program_text(why)}"
                return (Fault(usual, None, reason, f"correct the file, then restart {target.name}"),)
        except ConfigurationError as error:
            return (_convert_error(error, usual),)
        except InstallerError as error:
            self.unseen.append(f"{target.name}: {error}")
        return ()

    # --- the kubelet ---

    def _read_kubelets(self) -> Iterator[KubeletSeen]:
        node = self._node
        running = self._try("the kubelets", (), kubelet.find_running_kubelets, node)
        for each in running:
            setting = kubelet.read_cgroup_setting(each)
            listens = None if each.socket is None else self._is_listening(each.socket)
            yield KubeletSeen(each.socket, each.told_by, listens, *_list_cgroup_fields(setting))
        if running:
            return
        for row in self._try("the kubelets", (), kubelet.find_configured_kubelets, node):
            yield KubeletSeen(row.socket, row.told_by)
        text = self._read_text(_KUBELETS_FILE)
        if text:
            socket = kubelet.parse_plain_value(text, "containerRuntimeEndpoint")
            setting = kubelet.parse_cgroup_setting(_KUBELETS_FILE, text)
            said_by = f"containerRuntimeEndpoint in {_KUBELETS_FILE}"
            yield KubeletSeen(
                registry.normalize_socket(socket) if socket else None, said_by, None, *_list_cgroup_fields(setting)
            )

    def _is_listening(self, socket: str) -> bool | None:
        try:
            return sockets.is_listening(self._node.root, socket)
        except (InstallerError, OSError):
            return None

    def _read_crictl(self) -> tuple[str, int, str] | None:
        text = self._read_text(_CRICTL)
        socket = kubelet.parse_plain_value(text, "runtime-endpoint")
        if socket is None or not shown.is_place(registry.normalize_socket(socket)):
            return None
        line = next(number for number, each in enumerate(text.splitlines(), 1) if "runtime-endpoint" in each)
        return _CRICTL, line, registry.normalize_socket(socket)

    # --- programs, hooks, devices, specifications ---

    def _list_program_folders(self, engine: EngineSeen) -> tuple[str, ...]:
        """Return the folders in which an engine looks for a runtime by its name, as far as they are known."""
        process = serving.find_process(self._node, engine.name, engine.socket)
        if process is None:
            return (*PATH.split(":"), *_MORE_PROGRAM_FOLDERS)
        own = processes.environment(process).get("PATH", PATH)
        return (*own.split(":"), posixpath.dirname(process.executable))

    def _inspect_program(self, name: str, folders: Sequence[str]) -> ProgramSeen:
        """Return whether the node has a program, given by path or name, and whether its loader exists."""
        programs = self._node.programs
        try:
            named = [name] if posixpath.isabs(name) else [posixpath.join(folder, name) for folder in folders]
            path = next(filter(self._is_on_root, named), None)
            if path is None:
                return ProgramSeen(exists=False)
            outside = programs.root.outside(programs.root.canonical(path))
        except NodeError:
            return ProgramSeen(exists=False)
        start = head(outside, _HEAD)
        if start is None:
            return ProgramSeen(exists=leads_to_file(outside))
        loader = parse_loader(start)
        if loader is None or not shown.is_harmless(loader):
            return ProgramSeen(exists=True)
        return ProgramSeen(exists=True, loader=loader, loader_exists=self._is_on_root(loader))

    def _is_on_root(self, path: str) -> bool:
        root = self._node.programs.root
        try:
            return leads_to_file(root.outside(root.canonical(path)))
        except NodeError:
            return False

    def _find_missing_runtimes(self, receipt: Receipt | None, engines: Sequence[EngineSeen]) -> str | None:
        if receipt is None:
            return None
        processes = (serving.find_process(self._node, each.name, each.socket) for each in engines)
        pids = [process.pid for process in processes if process is not None]
        return engine_faults.describe_missing_runtimes(
            self._node, engine_faults.read_runtime_settings(self._node, receipt), pids
        )

    def _read_hooks(self) -> Iterator[HookSeen]:
        for folder in _HOOK_FOLDERS:
            for name in self._try(folder, (), self._whole.list, folder):
                path = f"{folder}/{name}"
                content = self._read_content(path) if name.endswith(".json") and "nvidia" in name else None
                if content is None:
                    continue
                with contextlib.suppress(ValueError, RecursionError):
                    document = json.loads(content)
                    hook = document.get("hook") if isinstance(document, dict) else None
                    program = hook.get("path") if isinstance(hook, dict) else None
                    if isinstance(program, str) and shown.is_harmless(program):
                        line = content[: content.find(b'"path"')].count(b"\n") + 1
                        yield HookSeen(path, line, program, self._is_on_root(program))

    def _find_unlinked_devices(self) -> Iterator[tuple[str, int, int]]:
        for name in self._try("/dev", (), self._whole.list, "/dev"):
            if not _DEVICES.fullmatch(name):
                continue
            path = f"/dev/{name}"
            number = device_number(self._whole.root.outside(path))
            if number is not None and not self._is_there("/dev/char/{}:{}".format(*number)):
                yield path, *number

    def _find_driver_root(self, folder: str) -> DriverSeen | None:
        """Return the driver root that the installed toolkit names, else the one that shows a driver; None for none."""
        node = self._node
        seen = self._try("the GPUs", None, gpus.find_gpus, node)
        if seen is not None and seen.absent:
            return None
        root = self._try("the driver's root", None, roots.find_installed_root, node, folder)
        said_by = f"nvidia-container-cli.root in the config.toml below {folder}"
        if root is None:
            candidates = (roots.CONTAINER_ROOT, "/")
            root = next(
                (each for each in candidates if any(map(self._is_there, _join_root(each, _DRIVER_SIGNS)))), None
            )
            said_by = "it shows nvidia-smi or /dev/nvidiactl"
        if root is None or not shown.is_harmless(root):
            return None
        folders = (*LIBRARY_FOLDERS, *_MORE_LIBRARY_FOLDERS)
        missing = [
            name
            for name in _LIBRARIES
            if not any(self._is_there(path) for path in _join_root(root, [f"{each}/{name}" for each in folders]))
        ]
        return DriverSeen(root, said_by, tuple(missing))

    def _read_specifications(
        self, engines: Sequence[EngineSeen], receipt: Receipt | None
    ) -> Iterator[SpecificationSeen]:
        paths = [file.path for file in receipt.specifications] if receipt is not None else []
        managed = {self._try(path, path, self._whole.canonical, path) for path in paths}
        folders = [*_CDI_FOLDERS, *(folder for each in engines for folder in each.cdi_folders or ())]
        known = set()
        for folder in folders:
            for name in self._try(folder, (), self._whole.list, folder):
                path = posixpath.join(folder, name)
                place = self._try(path, path, self._whole.canonical, path)
                content = self._read_content(path) if name.endswith(_SPECIFICATIONS) and place not in known else None
                if content is not None:
                    known.add(place)
                    named = (each for each in diagnosis_form.parse_paths(content) if shown.is_harmless(each[1]))
                    missing = tuple(each for each in named if not self._is_there(each[1]))
                    yield SpecificationSeen(path, content, missing, managed=place in managed)

    # --- reading ---

    def _read_content(self, path: str) -> bytes | None:
        for reader in self._node.readers():
            content = self._try(path, None, reader.content, path)
            if content is not None:
                return content
        return None

    def _read_text(self, path: str) -> str:
        return (self._read_content(path) or b"").decode(errors="replace")

    def _is_there(self, path: str) -> bool:
        return self._try(path, True, self._whole.status, path) is not None  # noqa: FBT003  # anything but None

    def _try(
        self, what: str, default: _Other, read: Callable[_Given, _Read], *given: _Given.args, **named: _Given.kwargs
    ) -> _Read | _Other:
        """Return the result of `read`; if it raises, record the failure and return the default."""
        try:
            return read(*given, **named)
        except (InstallerError, OSError) as error:
            self.unseen.append(f"{what}: {error}")
            return default


def parse_loader(start: bytes) -> str | None:
    """Return the program that executes a file with these first bytes, None if it needs none. Pure.

    Source: elf(5), PT_INTERP; execve(2), "Interpreter scripts".
    """
    if start.startswith(b"#!"):
        words = start.split(b"\n", 1)[0].removeprefix(b"#!").split()
        return words[0].decode(errors="replace") if words else None
    if not start.startswith(b"\x7fELF") or len(start) < _ELF_HEADER or start[4] != _ELF_64:
        return None
    order = "<" if start[5] == 1 else ">"
    (offset,) = struct.unpack_from(f"{order}Q", start, 32)
    size, count = struct.unpack_from(f"{order}HH", start, 54)
    for place in range(offset, offset + size * count, size or 1):
        if place + 40 > len(start):
            return None
        (kind,) = struct.unpack_from(f"{order}I", start, place)
        if kind == _PT_INTERP:
            begin, _, _, length = struct.unpack_from(f"{order}QQQQ", start, place + 8)
            name = start[begin : begin + length].rstrip(b"\0")
            return name.decode(errors="replace") or None
    return None


_ELF_HEADER: Final = 64
_ELF_64: Final = 2
_PT_INTERP: Final = 3


def _join_root(root: str, paths: Sequence[str]) -> list[str]:
    return [posixpath.join(root, path.lstrip("/")) for path in paths]


def _list_cgroup_fields(setting: CgroupSetting | None) -> tuple[str | None, str, int | None]:
    return (
        (None, "", None)
        if setting is None or setting.name not in findings.DRIVERS
        else (setting.name, setting.path, setting.line)
    )


def _names_nvidia(files: Sequence[ReadFile]) -> bool:
    return any(b"nvidia" in file.content for file in files)


def _convert_error(error: ConfigurationError, path: str) -> Fault:
    """Return an error as a fault, of the file at `path` if the error names none."""
    return msgspec.structs.replace(Fault.of(error, stops=False), path=error.path or path)
