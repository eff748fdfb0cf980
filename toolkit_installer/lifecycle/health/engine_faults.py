"""What is wrong with an engine beside its answer: its files, its low-level runtime, its cgroup driver. Reads only."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from toolkit_installer.documents.changes import ABSENT, Table, lookup, same
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.api import Live
from toolkit_installer.engines.listed import Fault
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.lifecycle.health.form import FileFault
from toolkit_installer.node import processes
from toolkit_installer.node.disk import look as disk
from toolkit_installer.node.disk.root import NodeError, Root
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import memory
from toolkit_installer.receipt.schema import EngineRecord, FileRecord
from toolkit_installer.settings import EngineName

if TYPE_CHECKING:
    from toolkit_installer.engines.detect.kubelet import Kubelet

_LONGEST_WORDS = 400
_DEFAULTS = ("default-runtime", "default_runtime_name", "default_runtime")
_USE_ONE = "write the same SystemdCgroup into the options of all runtimes (true where systemd manages the node)"
"""For a kubelet that takes the engine's driver, and ignores its own setting: only containerd has more than one."""


def find(node: Node, engine: EngineRecord, live: Live | None, changed: Sequence[str]) -> Iterator[FileFault]:
    """Yield what is wrong, what keeps the engine from starting first; `changed`: managed files that are not ours."""
    paths = {file.role: file.path for file in engine.files}
    found = adapter_of(engine.name).faults(node, engine.socket, live, paths, as_written=not changed)
    for fault in sorted(found, key=lambda fault: not fault.stops):
        yield FileFault(_words(fault), fault.hint, stops=fault.stops, path=fault.path or None)
    if live is not None:
        if changed and not found:
            yield from _refused(node, engine, live, changed)
        yield from _without_runtime(engine, live)
        yield from _other_cgroups(node, engine, live)


def _refused(node: Node, engine: EngineRecord, live: Live, changed: Sequence[str]) -> Iterator[FileFault]:
    """Yield that the engine's own program would not start with files that somebody changed, in its own words."""
    words = adapter_of(engine.name).refusal(node, live.process) if live.process is not None else None
    if words is None:
        return
    from toolkit_installer import foreign_words  # noqa: PLC0415  # of a file that is refused

    shown = " ".join(foreign_words.of_program(words).split())[:_LONGEST_WORDS]
    what = f"{', '.join(changed)}: refused by {engine.name}'s own program: {shown}"
    yield FileFault(what, "correct what it names", stops=True, path=changed[0] if len(changed) == 1 else None)


def _words(fault: Fault) -> str:
    """Return a fault with its place, and without its hint."""
    return str(ConfigurationError(fault.reason, path=fault.path or None, line=fault.line))


def _without_runtime(engine: EngineRecord, live: Live) -> Iterator[FileFault]:
    """Yield that the engine's own low-level runtime is not there; nothing where its PATH cannot be seen."""
    if not engine.low_level or live.process is None:
        return
    name = engine.low_level[0]
    root = processes.root_of(live.process)
    folders = processes.environment(live.process).get("PATH", "").split(":")
    places = [name] if posixpath.isabs(name) else [f"{each}/{name}" for each in folders if each.startswith("/")]
    if not places or any(_may_be_there(root, place) for place in places):
        return
    where = "is not there" if posixpath.isabs(name) else "is in none of the folders of its PATH"
    package = posixpath.basename(name)
    yield FileFault(
        f"its low-level runtime {name} {where}: no container starts",
        f"install it again (its package is usually called {package}), or put its file back",
        stops=True,
    )


def _may_be_there(root: Root, path: str) -> bool:
    """Tell whether a process has something at a path, or that cannot be seen from here."""
    try:
        return disk.leads_somewhere(root.outside(root.canonical(path)))
    except NodeError:
        return True


def _other_cgroups(node: Node, engine: EngineRecord, live: Live) -> Iterator[FileFault]:
    """Yield that handlers put containers into control groups in another way than the kubelet has them made."""
    from toolkit_installer.engines.detect import kubelet  # noqa: PLC0415  # of an engine that tells its driver

    told = kubelet.cgroup_driver(node) if live.cgroup_drivers else None
    if told is None or not _is_used_by(node, engine, told.kubelet):
        return
    names = live.cgroup_drivers.keys() & {*dict(engine.handlers), live.default or ""}
    wanted, whose = told.driver, f"the kubelet's cgroup driver is {told.driver} ({told.told_by})"
    asks = any(live.cgroup_drivers[name] != wanted for name in names) and kubelet.asks_for_cgroup_driver(
        node, told, engine.name, live.release
    )
    if asks:
        wanted = live.cgroup_drivers.get(live.default or "", wanted)
        whose = f"the kubelet takes the cgroup driver of the default runtime {live.default}, {wanted}"
    others = sorted(name for name in names if live.cgroup_drivers[name] != wanted)
    if not others:
        return
    by_systemd = wanted == "systemd"
    unit = live.process.unit if live.process is not None and live.process.unit is not None else str(engine.name)
    mend_kubelet = (
        f"write cgroupDriver: systemd into {told.file or 'its --config file'}, then `systemctl restart kubelet`"
    )
    change = adapter_of(engine.name).cgroup_switch(wanted) if by_systemd else _USE_ONE
    mend_engine = f"{change}, then `systemctl restart {unit}` and `toolkit-installer refresh`"
    effect = "the kubelet's limits do not count for its containers" if by_systemd else "none of its containers starts"
    yield FileFault(
        f"{whose}, and that of {', '.join(others)} is {'cgroupfs' if by_systemd else 'systemd'}: {effect}",
        mend_engine if by_systemd or asks else mend_kubelet,
        stops=not by_systemd,
    )


def _is_used_by(node: Node, engine: EngineRecord, user: Kubelet) -> bool:
    """Tell whether an engine is the one that a kubelet uses. Raises NodeError."""
    if engine.name is EngineName.DOCKER:
        from toolkit_installer.engines.detect import kubelet  # noqa: PLC0415  # as above

        return kubelet.reaches_docker_by_shim(node)
    return user.socket is None or node.files.canonical(user.socket) == node.files.canonical(engine.socket)


def lost(node: Node, engine: EngineRecord, file: FileRecord, handlers: Sequence[str]) -> tuple[str, ...]:
    """Return in words what of ours is no longer in an engine's file, or says something else. Raises NodeError.

    There is nothing to return of a file that cannot be read or parsed, which is a fault of its own.
    """
    adapter = adapter_of(engine.name)
    try:
        content = node.files.content(file.path)
        document = adapter.parse(content) if content is not None else None
        owned = memory.remembered(adapter, file, None).ownership.keys
    except ConfigurationError:
        return ()
    if document is None:
        return ()
    words = (_lost(document, key.path, key.ours, handlers, item=key.item) for key in owned)
    return tuple(dict.fromkeys(each for each in words if each))


def _lost(document: Table, path: tuple[str, ...], ours: Any, handlers: Sequence[str], *, item: bool) -> str:
    """Return in words what became of a value of ours, "" where it is there. Pure."""
    found = lookup(document, path)
    if item:
        there = isinstance(found, list) and any(same(each, ours) for each in found)
        return "" if there else f"{path[-1]} has lost the element that names our file"
    if found is not ABSENT and same(found, ours):
        return ""
    name = next((part for part in path if part in handlers), None)
    what = f"the handler {name}" if name is not None else ".".join(path)
    if path[-1] in _DEFAULTS:
        return f"the default runtime is no longer {ours}"
    return f"{what} is gone" if found is ABSENT else f"{what} was changed"
