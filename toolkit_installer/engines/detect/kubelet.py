"""The engine and the cgroup driver that the node's kubelets use, standalone or embedded in a distribution's process.

For a distribution that does not run now, its files say which engine its kubelet will use when it starts.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from toolkit_installer.engines.common import command_line, serving
from toolkit_installer.engines.detect import unit_files
from toolkit_installer.engines.detect.unit_files import TABLE
from toolkit_installer.engines.ownership import CgroupSetting
from toolkit_installer.engines.registry import Distribution, get_row, normalize_socket
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, find_by_name, flag_value, read_as, root_of
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.node.queries import Query
from toolkit_installer.node.root import NodeError
from toolkit_installer.settings import EngineName

_KUBELET = "kubelet"
_ENDPOINT_FLAG = "--container-runtime-endpoint"
_CRI_DOCKERD = "/var/run/cri-dockerd.sock"

_SHIM = "cri-dockerd"

_EMBEDDED = {name: row for row in TABLE for name in row.kubelets}


_ENDPOINT = "container-runtime-endpoint"
_NONE = "/dev/null"
"""The value that means "no endpoint" to RKE2."""


class Kubelet(msgspec.Struct, frozen=True):
    """A kubelet of the node. `socket` is None if it names none; `told_by` is the flag or file that names it."""

    process: Process
    socket: str | None
    told_by: str


class ConfiguredKubelet(msgspec.Struct, frozen=True):
    """A distribution's kubelet whose files name another engine's socket than the distribution's own."""

    distribution: str
    socket: str
    told_by: str


def find_configured_kubelets(node: Node) -> tuple[ConfiguredKubelet, ...]:
    """Return the engines that distributions' files name instead of their own, whether they run or not."""
    found = []
    rows = [row for row in TABLE if row.kubelet_options is not None or row.kubelet_socket_flag is not None]
    commands = unit_files.read_unit_commands(node, [unit for row in rows for unit in row.units])
    for row in TABLE:
        found += [
            ConfiguredKubelet(row.name, normalize_socket(socket), told_by)
            for told_by, socket in _by_flags(node, row, commands)
            if socket and not row.serves(socket)
        ]
        if (usual := row.kubelet_options) is None:
            continue
        known = [(f" of {unit}", commands[unit]) for unit in row.units if unit in commands]
        if not known and _is_there(node, row):
            known = [("", unit_files.UnitCommand((), {}))]
        for of_unit, each in known:
            options = _options_file(each.arguments, each.environment, row.name, usual)
            paths = (*_node_drop_ins(node, options), options)
            texts = [(path, text) for path in paths if (text := _node_text(node, path))]
            named = next(_parse_k3s_choices(each.arguments, texts, of_unit), None)
            if named is not None:
                found.append(ConfiguredKubelet(row.name, normalize_socket(named[1]), named[0]))
    return tuple(dict.fromkeys(found))


def _is_there(node: Node, row: Distribution) -> bool:
    """Tell whether a distribution's program, or its generated file, is on this node: its options outlive it."""
    with contextlib.suppress(NodeError):
        return any(node.files.status(path) is not None for path in (row.config, *row.binaries))
    return False


def _by_flags(
    node: Node, row: Distribution, commands: Mapping[str, unit_files.UnitCommand]
) -> Iterator[tuple[str, str | None]]:
    """Yield a distribution's flags, also those in its kubelet's file of flags, with the sockets that they name."""
    flag = row.kubelet_socket_flag
    for unit in row.units if flag is not None else ():
        if (
            flag is not None
            and unit in commands
            and (value := command_line.last_flag_value(commands[unit].arguments, flag))
        ):
            yield f"{flag} of {unit}", value.partition(":")[2]
    if row.kubelet_flags is not None and (text := _node_text(node, row.kubelet_flags)):
        for name, folder in row.kubelet_variables:
            text = text.replace(name, folder)
        yield f"{_ENDPOINT_FLAG} in {row.kubelet_flags}", parse_endpoint(tuple(text.split()))


def find_running_kubelets(node: Node) -> tuple[Kubelet, ...]:
    """Return the node's kubelets, by PID. Kubelets of other nodes, which may run as containers, are omitted."""
    return tuple(
        _kubelet_of(node, process) for process in sorted(find_kubelet_processes(node), key=lambda process: process.pid)
    )


def reaches_docker_by_shim(node: Node) -> bool:
    """Tell whether a kubelet of the node uses docker through cri-dockerd, or the dockershim of older kubelets.

    Neither passes CDI devices on (seen with cri-dockerd 0.4.0): the container starts without them, and no error is
    reported.
    """
    sockets = [each.socket for each in find_running_kubelets(node) if each.socket is not None]
    if any(posixpath.basename(socket) in get_row(EngineName.DOCKER).shim_sockets for socket in sockets):
        return True
    shims = (parse_endpoint(each.arguments) for each in find_by_name(frozenset({_SHIM}))) if sockets else ()
    return any(endpoint is not None and normalize_socket(endpoint) in sockets for endpoint in shims)


class CgroupDriver(msgspec.Struct, frozen=True):
    """A kubelet's configured cgroup driver: `driver` is systemd or cgroupfs; `file` is its --config."""

    kubelet: Kubelet
    driver: str
    told_by: str
    file: str | None


def find_cgroup_driver(node: Node) -> CgroupDriver | None:
    """Return the cgroup driver of the node's kubelet; None if no kubelet runs, or it is part of a distribution.

    A distribution sets the drivers of its kubelet and its engine itself.
    """
    for process in find_kubelet_processes(node):
        if process.name != _KUBELET or process.hidden:
            continue
        found, config = _kubelet_of(node, process), flag_value(process.arguments, "--config")
        told = read_cgroup_setting(found)
        if told is None:
            return CgroupDriver(found, "cgroupfs", "which is its default", config)
        return CgroupDriver(found, told.name, f"{'by' if told.path.startswith('--') else 'in'} {told.path}", config)
    return None


_KUBELET_USES_ENGINE_DRIVER_FROM = (1, 31)
"""The first kubelet that uses the driver that its engine reports (KubeletCgroupDriverFromCRI, on by default)."""
_ENGINE_REPORTS_DRIVER_FROM = {EngineName.CONTAINERD: (2, 0), EngineName.CRIO: (1, 28)}
"""The engines' first releases that report it, by the CRI's RuntimeConfig."""


def uses_engine_cgroup_driver(
    node: Node, told: CgroupDriver, engine: EngineName, release: tuple[int, int] | None
) -> bool:
    """Tell whether a kubelet uses its engine's cgroup driver, whatever its own setting. Runs `kubelet --version`."""
    if release is None or release < _ENGINE_REPORTS_DRIVER_FROM.get(engine, (release[0] + 1, 0)):
        return False
    try:
        shown = node.programs.run([told.kubelet.process.executable, "--version"], seconds=10)
    except ProgramError:
        return False
    found = re.search(rb"v(\d+)\.(\d+)", shown.output)
    return found is not None and (int(found[1]), int(found[2])) >= _KUBELET_USES_ENGINE_DRIVER_FROM


def find_kubelet_processes(node: Node) -> list[Process]:
    """Return the node's processes that are kubelets, or contain one."""
    return [process for process in find_by_name(frozenset({_KUBELET, *_EMBEDDED})) if node.is_home_of(process)]


def _kubelet_of(node: Node, process: Process) -> Kubelet:
    known = _visible(node, process)
    row = _EMBEDDED.get(process.name)
    told = _list_sources(node, known)
    sources = told if not known.hidden else (*told, *_observe_sockets(node, process))
    for told_by, socket in sources:
        if socket:
            return Kubelet(process, normalize_socket(socket), told_by)
    if known.hidden:
        return Kubelet(process, None, "it has wiped its command line, and nothing else shows which engine it uses")
    if row is not None:
        return Kubelet(process, normalize_socket(row.socket), f"it is part of {row.name}")
    return Kubelet(process, None, "no flag and no file of its own names a socket")


def _visible(node: Node, process: Process) -> Process:
    """Return a process with the command line of its unit, if it has wiped its own and is that unit's main process.

    k3s wipes its arguments, and systemd still has them (systemctl(1), `show --property=ExecStart`).
    """
    if not process.hidden or process.unit is None:
        return process
    if node.services.property(process.unit, "MainPID") != str(process.pid):
        return process
    started = node.services.property(process.unit, "ExecStart") or ""
    words = started.partition("argv[]=")[2].partition(" ;")[0].split()
    # a snap's unit starts a program of snapd, which then starts this process
    if not words or posixpath.basename(words[0]) not in (process.name, process.name.partition("-")[0]):
        return process
    # systemd shows variables unexpanded, and they may hold any flag (systemd.service(5), "Command lines")
    files = (
        unit_files.read_unit_commands(node, [process.unit]).get(process.unit)
        if any("$" in word for word in words)
        else None
    )
    words = list(files.arguments) if files is not None else words
    return msgspec.structs.replace(process, arguments=tuple(words), hidden=any("$" in word for word in words))


def _observe_sockets(node: Node, process: Process) -> Iterator[tuple[str, str]]:
    """Yield evidence and socket of a kubelet with a wiped command line: it or an engine it started serves the socket.

    A k3s with --docker serves the CRI itself and starts no containerd; a k3s with a foreign endpoint does neither.
    Source: k3s-io/k3s, pkg/agent/run.go.
    """
    for path in processes.list_bound_sockets(process.pid) or ():
        if posixpath.basename(path) == posixpath.basename(_CRI_DOCKERD):
            yield f"it serves {path} itself", _CRI_DOCKERD
    for path, engine in serving.find_kubelet_engines(node, process):
        yield f"{engine.name} (PID {engine.pid}), which belongs to it, serves there", path


def _list_sources(node: Node, process: Process) -> Iterator[tuple[str, str | None]]:
    """Yield the flags and files that may name the socket, with the socket, strongest first: flags win over files."""
    row = _EMBEDDED.get(process.name)
    if row is not None and row.kubelet_options is not None:
        unit = (
            unit_files.read_unit_commands(node, [process.unit]).get(process.unit) if process.unit is not None else None
        )
        environment = unit.environment if unit is not None else {}
        options = _options_file(process.arguments, environment, row.name, row.kubelet_options)
        dropped = _listed(process, f"{options}.d", (".yaml", ".yml"))
        yield from _parse_k3s_choices(
            process.arguments, [(path, _text(process, path)) for path in (*reversed(dropped), options)]
        )
        return
    yield _ENDPOINT_FLAG, parse_endpoint(process.arguments)
    if flag_value(process.arguments, "--container-runtime") == "docker" or "--docker" in process.arguments:
        yield "--docker" if "--docker" in process.arguments else "--container-runtime=docker", _CRI_DOCKERD
    flags_file = flag_value(process.arguments, "--kubelet-args-file")
    if flags_file is None and process.hidden and row is not None:
        flags_file = row.kubelet_flags
    arguments = process.arguments
    if flags_file is not None:
        text = _text(process, flags_file)
        for name, folder in row.kubelet_variables if row is not None else ():
            text = text.replace(name, folder)
        arguments = tuple(text.split())
        yield f"{_ENDPOINT_FLAG} in {flags_file}", parse_endpoint(arguments)
    for config in _config_files(process, arguments):
        yield (
            f"containerRuntimeEndpoint in {config}",
            parse_plain_value(_text(process, config), "containerRuntimeEndpoint"),
        )


def _config_files(process: Process, arguments: Sequence[str]) -> list[str]:
    """Return a kubelet's configuration files, the strongest first.

    The files of --config-dir are read after that of --config, in order, and win.
    """
    config_dir = flag_value(arguments, "--config-dir")
    dropped = _listed(process, config_dir, ".conf") if config_dir is not None else []
    config = flag_value(arguments, "--config")
    return [*reversed(dropped), *([config] if config is not None else [])]


def read_cgroup_setting(kubelet: Kubelet) -> CgroupSetting | None:
    """Return a running kubelet's cgroup setting, None if no flag and no file of its own has one."""
    process = kubelet.process
    arguments = process.arguments
    extra = [each.partition("=")[2] for each in command_line.flag_values(arguments, "--kubelet-arg") if _CGROUP in each]
    flag = next(filter(None, (flag_value(arguments, f"--{_CGROUP}"), *reversed(extra))), None)
    if flag is not None:
        return CgroupSetting(flag, f"--{_CGROUP}")
    texts = ((path, _text(process, path)) for path in _config_files(process, arguments))
    return next(filter(None, (parse_cgroup_setting(path, text) for path, text in texts)), None)


def parse_cgroup_setting(path: str, text: str) -> CgroupSetting | None:
    """Return the cgroup driver in the text of a kubelet's file, None if it has none. Pure."""
    name = parse_plain_value(text, "cgroupDriver")
    line = next((number for number, each in enumerate(text.splitlines(), 1) if "cgroupDriver" in each), None)
    return None if name is None else CgroupSetting(name, path, line)


_CGROUP = "cgroup-driver"


def _parse_k3s_choices(
    arguments: Sequence[str], texts: Sequence[tuple[str, str]], of_unit: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the flags and options that make k3s use an engine other than its own, with that engine's socket.

    `texts`: its files of options with their paths, the strongest first. Flags win over files, and `docker` over
    `container-runtime-endpoint`, which is docker's own socket then. Source: k3s-io/k3s, pkg/cli/cmds/agent.go and
    pkg/agent/run.go. Pure.
    """
    docker: list[tuple[str, str]] = []
    named: list[tuple[str, str | None]] = []
    for word in arguments:
        if word.partition("=")[0] == "--docker":
            docker.insert(0, (f"--docker{of_unit}", word.partition("=")[2] or "true"))
    extra = reversed(command_line.flag_values(arguments, "--kubelet-arg"))
    named += [(f"--kubelet-arg{of_unit}", each.partition("=")[2]) for each in extra if each.startswith(f"{_ENDPOINT}=")]
    named += [(f"kubelet-arg in {path}", _extra_in(text)) for path, text in texts]
    named.append((f"{_ENDPOINT_FLAG}{of_unit}", parse_endpoint(tuple(arguments))))
    for path, text in texts:
        if (value := parse_plain_value(text, "docker")) is not None:
            docker.append((f"docker in {path}", value))
        named.append((f"{_ENDPOINT} in {path}", parse_plain_value(text, _ENDPOINT)))
    if docker and docker[0][1].lower() in _TRUE:
        yield docker[0][0], _CRI_DOCKERD
    yield from ((told_by, socket) for told_by, socket in named if socket and socket != _NONE)


_TRUE = frozenset({"true", "yes", "on", "y", "t", "1"})
"""The values that YAML 1.1 and Go's flags parse as true, in any case."""


def _extra_in(text: str) -> str | None:
    """Return the endpoint among the kubelet's flags (`kubelet-arg`) in a file of options. Pure."""
    found = re.search(rf"""^[^#\n]*[\s"'\[,-]{_ENDPOINT}=([^"'\s#,\]]+)""", text, re.MULTILINE)
    return found[1] if found is not None else None


def _options_file(arguments: Sequence[str], environment: Mapping[str, str], name: str, usual: str) -> str:
    """Return k3s' file of options: the absolute path in a variable or flag, else the usual one. Pure."""
    named = environment.get(f"{name.upper()}_CONFIG_FILE") or command_line.last_flag_value(arguments, "--config", "-c")
    return named if named is not None and posixpath.isabs(named) else usual


def _node_text(node: Node, path: str) -> str:
    """Return a file of the node, "" if it cannot be read."""
    try:
        return (node.files.content(path) or b"").decode(errors="replace") if posixpath.isabs(path) else ""
    except ConfigurationError:
        return ""


def _node_drop_ins(node: Node, options: str) -> list[str]:
    """Return the drop-ins of a file of options, the strongest first."""
    try:
        names = node.files.list(f"{options}.d") if posixpath.isabs(options) else []
    except ConfigurationError:
        return []
    return [f"{options}.d/{name}" for name in reversed(names) if name.lower().endswith((".yaml", ".yml"))]


def parse_endpoint(arguments: tuple[str, ...]) -> str | None:
    """Return the last non-empty --container-runtime-endpoint, as the kubelet parses its flags. Pure."""
    return next(filter(None, reversed(command_line.flag_values(arguments, _ENDPOINT_FLAG))), None)


def parse_plain_value(text: str, key: str) -> str | None:
    """Return the plain value of a top-level key in a YAML or JSON text, None if there is none. Pure.

    In a kubelet's file, this key is in one flat mapping; comments are ignored.
    """
    rest = r"""(?:[ \t]*(?:[>|][+-]?[ \t]*)?\r?\n[ \t]+|[ \t]*)["']?([^"'\s#,}>|]+)"""  # or on the line below, indented
    pattern = rf"""^(?:[{{]|[^#\n]*?[{{,])?[ \t]*["']?{re.escape(key)}["']?[ \t]*:{rest}"""
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else None


def _text(process: Process, path: str) -> str:
    """Return a file as the process sees it, "" if it cannot be read."""
    try:
        return (read_as(process, command_line.place(process, path)) or b"").decode(errors="replace")
    except NodeError:
        return ""


@Query()
def _listed(process: Process, folder: str, ending: str | tuple[str, ...]) -> list[str]:
    """Return the files of a folder with one of the endings, sorted by name."""
    root = root_of(process)
    try:
        names = sorted(os.listdir(root.outside(root.canonical(command_line.place(process, folder)))))
    except (OSError, NodeError):
        return []
    return [f"{folder.rstrip('/')}/{name}" for name in names if name.endswith(ending)]
