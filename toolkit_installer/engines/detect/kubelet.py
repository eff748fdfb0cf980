"""What the kubelets of the node were told to use, whether they are processes of their own or parts of another."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator

import msgspec

from toolkit_installer.engines.common import command_line, serving
from toolkit_installer.engines.detect.table import TABLE
from toolkit_installer.engines.registry import plain
from toolkit_installer.node import descriptors
from toolkit_installer.node.command_lines import flag_value
from toolkit_installer.node.disk.root import NodeError
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, named, read_as, root_of

_KUBELET = "kubelet"
_ENDPOINT_FLAG = "--container-runtime-endpoint"
_CRI_DOCKERD = "/var/run/cri-dockerd.sock"

_EMBEDDED = {name: row for row in TABLE for name in row.kubelets}


class Kubelet(msgspec.Struct, frozen=True):
    """A kubelet of the node. `socket` is None where it names none; `told_by` says what named it."""

    process: Process
    socket: str | None
    told_by: str


def running(node: Node) -> tuple[Kubelet, ...]:
    """Return the kubelets of the node, by PID. Those of other nodes, which may run as containers, are left out."""
    return tuple(_kubelet_of(node, process) for process in sorted(of_node(node), key=lambda process: process.pid))


def of_node(node: Node) -> list[Process]:
    """Return the processes of the node that are kubelets, or have one in them."""
    return [process for process in named(frozenset({_KUBELET, *_EMBEDDED})) if node.is_home_of(process)]


def _kubelet_of(node: Node, process: Process) -> Kubelet:
    known = _visible(node, process)
    row = _EMBEDDED.get(process.name)
    sources = _told(known) if not known.hidden else (*_told(known), *_shown(node, process))
    for told_by, socket in sources:
        if socket:
            return Kubelet(process, plain(socket), told_by)
    if known.hidden:
        return Kubelet(process, None, "it has wiped its command line, and nothing else shows which engine it uses")
    if row is not None:
        return Kubelet(process, plain(row.socket), f"it is part of {row.name}")
    return Kubelet(process, None, "no flag and no file of its own names a socket")


def _visible(node: Node, process: Process) -> Process:
    """Return a process with the command line of its unit, where it has wiped its own and is that unit's main one.

    k3s wipes its arguments, and systemd still knows them (systemctl(1), `show --property=ExecStart`).
    """
    if not process.hidden or process.unit is None:
        return process
    if node.services.property(process.unit, "MainPID") != str(process.pid):
        return process
    started = node.services.property(process.unit, "ExecStart") or ""
    words = started.partition("argv[]=")[2].partition(" ;")[0].split()
    # the unit of a snap starts a program of snapd's, which then starts this one
    if not words or posixpath.basename(words[0]) not in (process.name, process.name.partition("-")[0]):
        return process
    # what stands for a variable is not filled in, and may hold any flag (systemd.service(5), "Command lines")
    return msgspec.structs.replace(process, arguments=tuple(words), hidden=any("$" in word for word in words))


def _shown(node: Node, process: Process) -> Iterator[tuple[str, str]]:
    """Yield what a kubelet with a wiped command line shows by what it does: what it serves, and what it started.

    A k3s with --docker serves the CRI itself and starts no containerd, one with an endpoint of somebody else's does
    neither. Source: k3s-io/k3s, pkg/agent/run.go.
    """
    for path in descriptors.bound(process.pid) or ():
        if posixpath.basename(path) == posixpath.basename(_CRI_DOCKERD):
            yield f"it serves {path} itself", _CRI_DOCKERD
    for path, engine in serving.beside(node, process):
        yield f"{engine.name} (PID {engine.pid}), which belongs to it, serves there", path


def _told(process: Process) -> Iterator[tuple[str, str | None]]:
    """Yield what names the socket, and the socket, the strongest first: a flag wins over a file."""
    yield _ENDPOINT_FLAG, endpoint_of(process.arguments)
    if flag_value(process.arguments, "--container-runtime") == "docker" or "--docker" in process.arguments:
        yield "--docker" if "--docker" in process.arguments else "--container-runtime=docker", _CRI_DOCKERD
    row = _EMBEDDED.get(process.name)
    flags_file = flag_value(process.arguments, "--kubelet-args-file")
    if flags_file is None and process.hidden and row is not None:
        flags_file = row.kubelet_flags
    arguments = process.arguments
    if flags_file is not None:
        text = _text(process, flags_file)
        for name, folder in row.kubelet_variables if row is not None else ():
            text = text.replace(name, folder)
        arguments = tuple(text.split())
        yield f"{_ENDPOINT_FLAG} in {flags_file}", endpoint_of(arguments)
    if row is not None and (options := row.kubelet_options) is not None:
        # the files of the folder are read after the other, in their order, and win
        for file in (*reversed(_listed(process, f"{options}.d", ".yaml")), options):
            text = _text(process, file)
            yield f"container-runtime-endpoint in {file}", value_in(text, "container-runtime-endpoint")
            if value_in(text, "docker") == "true":
                yield f"docker in {file}", _CRI_DOCKERD
        return
    # the files of --config-dir are read after that of --config, in their order, and win
    config_dir = flag_value(arguments, "--config-dir")
    dropped = _listed(process, config_dir, ".conf") if config_dir is not None else []
    for config in (*reversed(dropped), flag_value(arguments, "--config")):
        if config is not None:
            yield f"containerRuntimeEndpoint in {config}", value_in(_text(process, config), "containerRuntimeEndpoint")


def endpoint_of(arguments: tuple[str, ...]) -> str | None:
    """Return the last --container-runtime-endpoint of a kubelet's flags, as the kubelet takes it. Pure."""
    return next(filter(None, reversed(command_line.values(arguments, _ENDPOINT_FLAG))), None)


def value_in(text: str, key: str) -> str | None:
    """Return the plain value of a top-level key in a YAML or JSON text, None where there is none. Pure.

    A kubelet's file is one flat mapping where this key stands; comments do not count.
    """
    pattern = rf"""^(?:[{{]|[^#\n]*?[{{,])?[ \t]*["']?{re.escape(key)}["']?\s*:\s*["']?([^"'\s#,}}]+)"""
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else None


def _text(process: Process, path: str) -> str:
    """Return a file as the process reads it; nothing where it cannot be read: then it says nothing."""
    try:
        return (read_as(process, command_line.place(process, path)) or b"").decode(errors="replace")
    except NodeError:
        return ""


def _listed(process: Process, folder: str, ending: str) -> list[str]:
    """Return the files of a folder with that ending, by name."""
    root = root_of(process)
    try:
        names = sorted(os.listdir(root.outside(root.canonical(command_line.place(process, folder)))))
    except (OSError, NodeError):
        return []
    return [f"{folder.rstrip('/')}/{name}" for name in names if name.endswith(ending)]
