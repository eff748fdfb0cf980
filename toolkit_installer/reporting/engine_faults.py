"""Faults of an engine besides a missing answer: its files, low-level runtime, cgroup driver, and the runtimes' needs.

Reads only. NVIDIA's runtime starts containers by a low-level runtime of its config.toml, and in the mode `cdi` it looks
for the devices of one kind in CDI specifications. If either is missing, the engine serves the handler all the same, and
each container fails.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit_installer.documents import shown
from toolkit_installer.documents.changes import ABSENT, Table, is_same, lookup
from toolkit_installer.engines import registry
from toolkit_installer.engines.api import LiveState, get_adapter
from toolkit_installer.engines.ownership import Fault
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes, trust
from toolkit_installer.node.node import Node
from toolkit_installer.node.root import NodeError, Root, leads_to_file
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, Receipt
from toolkit_installer.reporting.status_verdict import FileFault
from toolkit_installer.toolkit import wrappers

if TYPE_CHECKING:
    from toolkit_installer.engines.detect.kubelet import Kubelet


_LONGEST_WORDS = 400
_DEFAULTS = ("default-runtime", "default_runtime_name", "default_runtime")
_USE_ONE = "write the same SystemdCgroup into the options of all runtimes (true where systemd manages the node)"
"""The remedy for a kubelet that takes the engine's driver over its own setting: only containerd can have several."""


def find_faults(
    node: Node, engine: EngineRecord, live: LiveState | None, changed: Sequence[str]
) -> Iterator[FileFault]:
    """Yield an engine's faults, those that keep it from starting first; `changed`: managed files that were edited."""
    paths = {file.role: file.path for file in engine.files}
    found = get_adapter(engine.name).find_faults(node, engine.socket, live, paths, as_written=not changed)
    for fault in sorted(found, key=lambda fault: not fault.stops):
        yield FileFault(_format_fault(fault), fault.hint, stops=fault.stops, path=fault.path or None)
    if live is not None:
        if changed and not found:
            yield from _find_refusal(node, engine, live, changed)
        yield from _find_missing_runtime(engine, live)
        yield from _find_cgroup_mismatch(node, engine, live)


def _find_refusal(node: Node, engine: EngineRecord, live: LiveState, changed: Sequence[str]) -> Iterator[FileFault]:
    """Yield the error with which the engine's own program would refuse to start with files that were edited."""
    words = get_adapter(engine.name).find_restart_obstacle(node, live.process) if live.process is not None else None
    if words is None:
        return
    from toolkit_installer import foreign_words  # noqa: PLC0415  # only for a file that is refused

    shown = " ".join(foreign_words.mask_program_text(words).split())[:_LONGEST_WORDS]
    what = f"{', '.join(changed)}: refused by {engine.name}'s own program: {shown}"
    yield FileFault(what, "correct what it names", stops=True, path=changed[0] if len(changed) == 1 else None)


def _format_fault(fault: Fault) -> str:
    """Return a fault as text, with its place and without its hint."""
    return str(ConfigurationError(fault.reason, path=fault.path or None, line=fault.line))


def _find_missing_runtime(engine: EngineRecord, live: LiveState) -> Iterator[FileFault]:
    """Yield a fault if the engine's own low-level runtime is missing; nothing if its PATH cannot be read."""
    if not engine.low_level or live.process is None:
        return
    name = engine.low_level[0]
    root = processes.root_of(live.process)
    folders = processes.environment(live.process).get("PATH", "").split(":")
    places = [name] if posixpath.isabs(name) else [f"{each}/{name}" for each in folders if each.startswith("/")]
    if not places or any(_may_exist(root, place) for place in places):
        return
    where = "is not there" if posixpath.isabs(name) else "is in none of the folders of its PATH"
    package = posixpath.basename(name)
    yield FileFault(
        f"its low-level runtime {name} {where}: no container starts",
        f"install it again (its package is usually called {package}), or put its file back",
        stops=True,
    )


def _may_exist(root: Root, path: str) -> bool:
    """Return whether a process has a file at this path, or True if that cannot be seen from here."""
    try:
        return leads_to_file(root.outside(root.canonical(path)))
    except NodeError:
        return True


def _find_cgroup_mismatch(node: Node, engine: EngineRecord, live: LiveState) -> Iterator[FileFault]:
    """Yield a fault if handlers place containers in cgroups by another driver than the kubelet's."""
    from toolkit_installer.engines.detect import kubelet  # noqa: PLC0415  # only for an engine that reports its driver

    setting = kubelet.find_cgroup_driver(node) if live.cgroup_drivers else None
    if setting is None or not _is_used_by(node, engine, setting.kubelet):
        return
    names = live.cgroup_drivers.keys() & {*dict(engine.handlers), live.default or ""}
    wanted, whose = setting.driver, f"the kubelet's cgroup driver is {setting.driver} ({setting.told_by})"
    takes_engines = any(live.cgroup_drivers[name] != wanted for name in names) and kubelet.uses_engine_cgroup_driver(
        node, setting, engine.name, live.release
    )
    if takes_engines:
        wanted = live.cgroup_drivers.get(live.default or "", wanted)
        whose = f"the kubelet takes the cgroup driver of the default runtime {live.default}, {wanted}"
    others = sorted(name for name in names if live.cgroup_drivers[name] != wanted)
    if not others:
        return
    by_systemd = wanted == "systemd"
    unit = live.process.unit if live.process is not None and live.process.unit is not None else str(engine.name)
    mend_kubelet = (
        f"write cgroupDriver: systemd into {setting.file or 'its --config file'}, then `systemctl restart kubelet`"
    )
    change = get_adapter(engine.name).describe_cgroup_edit(wanted) if by_systemd else _USE_ONE
    mend_engine = f"{change}, then `systemctl restart {unit}` and `toolkit-installer refresh`"
    effect = "the kubelet's limits do not count for its containers" if by_systemd else "none of its containers starts"
    yield FileFault(
        f"{whose}, and that of {', '.join(others)} is {'cgroupfs' if by_systemd else 'systemd'}: {effect}",
        mend_engine if by_systemd or takes_engines else mend_kubelet,
        stops=not by_systemd,
    )


def _is_used_by(node: Node, engine: EngineRecord, user: Kubelet) -> bool:
    """Return whether a kubelet uses this engine. Raises NodeError."""
    if registry.get_row(engine.name).shim_sockets:
        from toolkit_installer.engines.detect import kubelet  # noqa: PLC0415  # as above

        return kubelet.reaches_docker_by_shim(node)
    return user.socket is None or node.files.canonical(user.socket) == node.files.canonical(engine.socket)


def describe_lost_values(
    node: Node, engine: EngineRecord, file: FileRecord, handlers: Sequence[str]
) -> tuple[str, ...]:
    """Return descriptions of our values that are missing or changed in an engine's file. Raises NodeError.

    Returns () for a file that cannot be read or parsed, which is a fault of its own.
    """
    adapter = get_adapter(engine.name)
    try:
        content = node.files.content(file.path)
        document = adapter.parse(content) if content is not None else None
        owned = file_records.to_recorded_file(adapter, file, None).ownership.keys
    except ConfigurationError:
        return ()
    if document is None:
        return ()
    words = (_describe_lost_value(document, key.path, key.ours, handlers, item=key.item) for key in owned)
    return tuple(dict.fromkeys(each for each in words if each))


def _describe_lost_value(
    document: Table, path: tuple[str, ...], ours: Any, handlers: Sequence[str], *, item: bool
) -> str:
    """Return a description of what became of a value of ours, "" if it is unchanged. Pure."""
    found = lookup(document, path)
    if item:
        there = isinstance(found, list) and any(is_same(each, ours) for each in found)
        return "" if there else f"{path[-1]} has lost the element that names our file"
    if found is not ABSENT and is_same(found, ours):
        return ""
    name = next((part for part in path if part in handlers), None)
    what = f"the handler {name}" if name is not None else ".".join(path)
    if path[-1] in _DEFAULTS:
        return f"the default runtime is no longer {ours}"
    return f"{what} is gone" if found is ABSENT else f"{what} was changed"


_CDI_RUNTIME = "nvidia-container-runtime.cdi"
_CHOOSING_RUNTIME = "nvidia-container-runtime"
"""The runtime that takes its mode from config.toml."""
_KIND = "nvidia.com/gpu"
_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""The folders that NVIDIA's runtime searches, for the kind _KIND, unless its config.toml names others."""
_SPECIFICATIONS = (".yaml", ".json")
_KIND_LINE = rb"""(?m)(?:^|[{,])[ \t]*["']?kind["']?[ \t]*:[ \t]*["']?([^"'\s,]+)"""


def read_runtime_settings(node: Node, receipt: Receipt) -> Mapping[str, Any]:
    """Return the `nvidia-container-runtime` table of the installed config.toml; {} if it cannot be read."""
    try:
        content = node.files.content(f"{receipt.toolkit_folder}/{wrappers.CONFIG_NAME}")
        table = tomllib.loads((content or b"").decode()).get("nvidia-container-runtime")
    except (ConfigurationError, ValueError, RecursionError):
        return {}  # damaged, which is reported with the toolkit's files
    return table if isinstance(table, dict) else {}


def describe_missing_runtimes(node: Node, settings: Mapping[str, Any], engines: Sequence[int]) -> str | None:
    """Return a message if all low-level runtimes that NVIDIA's runtime would use are missing, else None.

    `engines` are the PIDs of the running engines: an engine may see another root than the node's.
    """
    named = settings.get("runtimes")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    roots = [node.programs.root, *(Root(f"/proc/{pid}/root") for pid in engines)]
    if not names or any(_exists(node, roots, name) for name in names):
        return None
    looked_for = ", ".join(map(shown.named, names))
    return f"none of the low-level runtimes is there that NVIDIA's runtime looks for: {looked_for}"


def _exists(node: Node, roots: Sequence[Root], name: str) -> bool:
    if posixpath.isabs(name):
        return any(trust.is_program(root, name) for root in roots)
    return node.programs.find_program(name) is not None


def find_handlers_without_devices(
    node: Node, settings: Mapping[str, Any], handlers: Mapping[str, str]
) -> dict[str, str]:
    """Return the handlers that find no CDI devices on this node, and why; `handlers` map names to executables."""
    by_cdi = [name for name, path in handlers.items() if _is_by_cdi(path, settings)]
    if not by_cdi:
        return {}
    modes = settings.get("modes")
    cdi = modes.get("cdi") if isinstance(modes, dict) else None
    table = cdi if isinstance(cdi, dict) else {}
    kind, folders = table.get("default-kind", _KIND), table.get("spec-dirs", _FOLDERS)
    if not isinstance(kind, str) or not isinstance(folders, list | tuple) or _is_specified(node, kind, folders):
        return {}
    why = f"no CDI specification of the kind {kind} is in {' or '.join(map(str, folders))}"
    return dict.fromkeys(by_cdi, why)


def _is_by_cdi(path: str, settings: Mapping[str, Any]) -> bool:
    program = posixpath.basename(path)
    return program == _CDI_RUNTIME or (program == _CHOOSING_RUNTIME and settings.get("mode") == "cdi")


def _is_specified(node: Node, kind: str, folders: list[Any] | tuple[Any, ...]) -> bool:
    for reader in node.readers():
        for folder in folders:
            for name in reader.list(str(folder)):
                if name.endswith(_SPECIFICATIONS) and kind.encode() in _parse_kinds(reader.content(f"{folder}/{name}")):
                    return True
    return False


def _parse_kinds(specification: bytes | None) -> list[bytes]:
    return re.findall(_KIND_LINE, specification or b"")
