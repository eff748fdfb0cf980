"""What on the node still needs the toolkit's binaries: running containers, and CDI specifications."""

from __future__ import annotations

import itertools
import os

import psutil

from toolkit_installer.engines.ownership import beneath
from toolkit_installer.node.node import Node
from toolkit_installer.node.root import NodeError

CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Where engines look for CDI specifications (CDI's SPEC.md, "CDI JSON definition")."""

_SHIMS = frozenset({"containerd-shim", "containerd-shim-runc-v1", "containerd-shim-runc-v2"})
_MONITOR = "conmon"
_RUNTIME_FILE = "runtime"
"""In a shim's working directory, a container's bundle: the runtime that it was started with, and is stopped with."""
_COMM = 15
"""Characters of a process's name that the kernel keeps (proc_pid_comm(5))."""


def holders(node: Node, folder: str) -> list[str]:
    """Return in words what refers to the toolkit in `folder`; nothing if it may go. Raises NodeError."""
    return [*_containers(node, folder), *_specifications(node, folder)]


def _containers(node: Node, folder: str) -> list[str]:
    """Return the containers whose runtime lies in the folder: they are stopped and deleted through it."""
    shims = {name[:_COMM] for name in _SHIMS}
    found = []
    for process in psutil.process_iter():
        try:
            name = process.name()[:_COMM]
            if name in shims:
                runtime, container = _of_shim(process.pid)
            elif name == _MONITOR:
                runtime, container = _of_monitor(process.cmdline())
            else:
                continue
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it ended meanwhile: it holds nothing
        if beneath(runtime, folder) and _same_file(node, process.pid, runtime):
            found.append(f"the container {container} (PID {process.pid}) runs with {runtime}")
    return found


def _of_shim(pid: int) -> tuple[str, str]:
    """Return runtime and id of a containerd shim's container, empty where they cannot be read."""
    place = f"/proc/{pid}/cwd"
    try:
        with open(f"{place}/{_RUNTIME_FILE}", encoding="utf-8", errors="replace") as stream:
            return stream.read().strip(), os.path.basename(os.readlink(place))
    except OSError:
        return "", ""  # an older shim, or one that ends


def _of_monitor(arguments: list[str]) -> tuple[str, str]:
    """Return runtime and id of a conmon's container."""
    pairs = dict(itertools.pairwise(arguments))
    return pairs.get("-r", pairs.get("--runtime", "")), pairs.get("-c", pairs.get("--cid", ""))


def _same_file(node: Node, pid: int, path: str) -> bool:
    """Tell whether the process's runtime is the one of this node, and not of one that shares only its paths."""
    try:
        theirs = os.stat(f"/proc/{pid}/root{path}")
    except OSError:
        return True  # it cannot be told apart: then it holds the toolkit
    ours = node.files.status(path)
    return ours is not None and (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def _specifications(node: Node, folder: str) -> list[str]:
    """Return the CDI specifications that name something in the folder, as a hook or a mount."""
    found = []
    needle = f"{folder.rstrip('/')}/".encode()
    for place in CDI_FOLDERS:
        for name in node.files.list(place):
            path = f"{place}/{name}"
            if not name.endswith((".json", ".yaml")) or not node.files.is_file(path):
                continue
            try:
                content = node.files.read(path)
            except NodeError:
                continue  # removed meanwhile
            if needle in content:
                found.append(f"the CDI specification {path} names it")
    return found
