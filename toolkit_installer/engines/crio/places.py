"""CRI-O's paths, its live configuration, and the sources of its default runtime's settings. Reads, never writes.

Paths are the requested ones, those that the running CRI-O was told, or the usual ones. CRI-O's folder of drop-ins is
the usual one, or its own --config-dir, wherever its --config is. The running CRI-O is queried over plain HTTP on the
socket of the CRI, and its flags are read.

Sources (`--config-source`): `command` is the running CRI-O as queried by the node's own program (`crio status config`),
or by us on the same socket if that program fails; else the program's output for its files (`crio config`). `file` is
our own parse of all files that CRI-O reads; `file=PATH` is that file alone.
"""

from __future__ import annotations

import http.client
import os
import posixpath
import socket as unix_socket
import stat
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import DocumentError, lookup
from toolkit_installer.engines.api import LiveState
from toolkit_installer.engines.common import command_line, serving
from toolkit_installer.engines.common.serving import NoAnswerError, resolve_socket
from toolkit_installer.engines.crio import config as crio_config
from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.node import processes
from toolkit_installer.node.files import SWAP_SUFFIX, Files
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.node.queries import Query, Secrecy
from toolkit_installer.node.root import Root
from toolkit_installer.node.signals import interruptible, limited
from toolkit_installer.node.sockets import shorten_socket_path
from toolkit_installer.node.writing import TEMPORARY_SUFFIX
from toolkit_installer.settings import EngineSettings
from toolkit_installer.toolkit.payload import RUNTIMES

CONFIG = "/etc/crio/crio.conf"
DROP_INS = "/etc/crio/crio.conf.d"
DROP_IN_NAME = "99-nvidia.toml"
_LEFT = (TEMPORARY_SUFFIX, SWAP_SUFFIX)
"""Suffixes of files that a killed run may have left: the next run removes them before anything else."""


class CrioPaths(msgspec.Struct, frozen=True):
    """The root file, the folder whose files are read after it, and our file there.

    `unread` says in words why the running CRI-O does not read our file; empty if it does, or if unknown. `elsewhere` is
    the root file that it reads if it reads neither the named one nor the folder next to that.
    """

    config: str
    folder: str
    drop_in: str
    unread: str = ""
    elsewhere: str = ""


def locate_files(node: Node, target: EngineTarget, live: LiveState | None) -> CrioPaths:
    """Return the paths of CRI-O's files. Raises NodeError."""
    seen = live.process if live is not None else None
    process = seen if seen is not None and not seen.hidden else None  # a hidden one does not show its files
    reads = _read_path_flag(live, "--config-dir") or DROP_INS
    config = _find_root_file(node, target.config, live) or _read_path_flag(live, "--config") or CONFIG
    drop_in = target.settings.drop_in
    if drop_in is None and target.config is not None and posixpath.dirname(target.config).endswith(".d"):
        # callers older than --drop-in-config name the drop-in itself
        drop_in, config = (
            target.config,
            _read_path_flag(live, "--config") or posixpath.dirname(target.config).removesuffix(".d"),
        )
    elsewhere = ""
    if drop_in is None:
        folder = _folder(node, target, reads, process)
        drop_in = posixpath.join(folder, DROP_IN_NAME)
        # another root file is fine if CRI-O reads its folder: nothing is written to the root file
        if target.config is not None and process is not None and folder != _drop_in_folder(target.config):
            theirs = _read_path_flag(live, "--config") or CONFIG
            elsewhere = theirs if command_line.is_same_file(node, process, theirs, config) is False else ""
    parent = posixpath.dirname(drop_in)
    folder = reads if is_beneath(parent, reads) else parent
    unread = ""
    if process is not None and command_line.is_in_folder(node, process, reads, parent) is False:
        unread = f"the running CRI-O reads {reads}, and this file is not in there"
    return CrioPaths(config, folder, drop_in, unread, elsewhere)


def reads_instead(node: Node, live: LiveState, drop_in: str) -> str:
    """Return the folder of drop-ins that the running CRI-O reads, if `drop_in` is not in it.

    Empty if it is, or if that is unknown. Raises NodeError.
    """
    process = live.process
    if process is None or process.hidden:
        return ""
    theirs = _read_path_flag(live, "--config-dir") or DROP_INS
    return theirs if command_line.is_in_folder(node, process, theirs, posixpath.dirname(drop_in)) is False else ""


def _read_path_flag(live: LiveState | None, flag: str) -> str | None:
    """Return the path of the file or folder in the running CRI-O's flag; None if it has none. Raises NodeError."""
    name = read_flag(live, flag)
    process = live.process if live is not None else None
    return command_line.place(process, name) if name and process is not None else None


def _find_root_file(node: Node, config: str | None, live: LiveState | None) -> str | None:
    """Return the named root file; if it does not exist, and CRI-O's own is in the same folder, CRI-O's own.

    The GPU Operator names `/etc/crio/config.toml` on every node, and CRI-O reads `crio.conf` in the same folder.
    """
    if config is None or node.files.status(config) is not None:
        return config
    own = posixpath.join(posixpath.dirname(config), posixpath.basename(_read_path_flag(live, "--config") or CONFIG))
    return own if node.files.is_file(own) else config


def _folder(node: Node, target: EngineTarget, usual: str, process: Process | None) -> str:
    """Return the default folder for our file: next to the named root file, if CRI-O reads that folder.

    If only single folders of the node are mounted, this is the folder's path as seen from here.
    """
    if target.config is None:
        return usual
    beside = _drop_in_folder(target.config)
    if process is None or beside == usual:
        return beside
    return beside if command_line.is_in_folder(node, process, usual, beside) is not False else usual


def _drop_in_folder(config: str) -> str:
    """Return the usual folder of drop-ins next to a root file."""
    return posixpath.join(posixpath.dirname(config), posixpath.basename(DROP_INS))


def list_drop_ins(files: Files, folder: str) -> list[str]:
    """Return the paths of the files that CRI-O reads in `folder`, in its order. Raises NodeError.

    It walks the tree as Go's filepath.Walk does: each folder's names in the order of their bytes, subfolders in place,
    hidden files and all endings included. A symlink is read, never walked into.
    """
    found = []
    for name in sorted(files.list(folder), key=os.fsencode):
        path = posixpath.join(folder, name)
        status = files.own_status(path)
        if status is None or name.endswith(_LEFT):
            continue
        if stat.S_ISDIR(status.st_mode):
            found += list_drop_ins(files, path)
        else:
            found.append(path)
    return found


def build_sort_key(path: str, folder: str) -> tuple[bytes, ...]:
    """Return the key that sorts the paths below `folder` as CRI-O reads them. Pure."""
    return tuple(os.fsencode(part) for part in posixpath.relpath(path, folder).split("/"))


_LIMIT = 16 << 20
"""Bytes of a response."""
_VARIABLES = {
    "--config": "CONTAINER_CONFIG",
    "--config-dir": "CONTAINER_CONFIG_DIR",
    "--default-runtime": "CONTAINER_DEFAULT_RUNTIME",
    "--runtimes": "CONTAINER_RUNTIMES",
    "--hooks-dir": "CONTAINER_HOOKS_DIR",
}
"""The environment variables that replace missing flags, if relevant here. Source: crio(8), internal/criocli."""
_LISTS = ("--runtimes", "--hooks-dir")
_SHORT = {"--config": "-c", "--config-dir": "-d"}


class CrioLiveState(LiveState, frozen=True):
    """The state that the running CRI-O reports. `hooks_dirs` are the folders whose hooks it watches."""

    hooks_dirs: tuple[str, ...] = ()
    config: bytes | None = None
    """Its live configuration as TOML, built-in values included; None if it does not report it."""
    variables: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The variables in its environment that replace flags."""


def uses_cgroupfs(live: LiveState | None) -> bool:
    """Tell whether the running CRI-O reports that it does not leave cgroups to systemd. Pure."""
    if not isinstance(live, CrioLiveState) or live.config is None:
        return False
    manager: object = lookup(toml_document.parse(live.config), (*crio_config.RUNTIME, "cgroup_manager"))
    return manager == "cgroupfs"


def read_variables(process: Process) -> dict[str, str]:
    """Return a CRI-O's environment variables that replace flags."""
    known = _VARIABLES.values()
    return {name: value for name, value in processes.environment(process).items() if name in known and value}


def read_flag(live: LiveState | None, flag: str) -> str | None:
    """Return a flag's value from the running CRI-O's command line or environment; None if neither has it. Pure."""
    process = live.process if live is not None else None
    if process is None:
        return None
    return read_process_flag(process, live.variables if isinstance(live, CrioLiveState) else {}, flag)


def read_process_flag(process: Process, given: Mapping[str, str], flag: str) -> str | None:
    """Return the value of a CRI-O's flag, or of the variable that replaces it. Pure."""
    names = (flag, _SHORT[flag]) if flag in _SHORT else (flag,)
    # lists may be split over several flags; of other flags the last one counts
    values = command_line.flag_values(process.arguments[1:], *names)
    if flag in _LISTS and values:
        return ",".join(values)
    return values[-1] if values else given.get(_VARIABLES[flag])


def serves_our_handlers(live: LiveState) -> bool:
    """Tell whether it offers a handler that runs one of the toolkit's executables, or may."""
    return any(path is None or posixpath.basename(path) in RUNTIMES for path in live.handlers.values())


def parse_runtime_table(content: bytes) -> dict[str, Any]:
    """Return the `crio.runtime` table of CRI-O's live configuration. Raises NoAnswerError."""
    try:
        runtime = lookup(toml_document.parse(content), crio_config.RUNTIME)
    except DocumentError as error:
        raise NoAnswerError(f"no TOML: {error}") from error
    if not isinstance(runtime, dict) or not isinstance(runtime.get("runtimes"), dict):
        raise NoAnswerError("it names no runtimes")
    return runtime


def list_cdi_folders(runtime: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders of CDI specifications in its `crio.runtime` table. CDI itself cannot be turned off."""
    return tuple(map(str, runtime.get("cdi_spec_dirs") or ()))


@Query(ignored=("seconds",), secrecy=Secrecy.TEXT, polled=True)
def query_configuration(root: Root, path: str, seconds: float) -> bytes:
    """Return the response of `GET /config`, which `crio status` requests too: TOML. Raises NoAnswerError, Stopped."""
    resolve_socket(root, path)
    try:
        with (
            shorten_socket_path(root, path) as name,
            interruptible(),
            limited(seconds),
            unix_socket.socket(unix_socket.AF_UNIX) as connected,
        ):
            connected.settimeout(seconds)
            connected.connect(name)
            connection = http.client.HTTPConnection("localhost")
            connection.sock = connected
            connection.request("GET", "/config")
            answer = connection.getresponse()
            body = answer.read(_LIMIT + 1)
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(f"no configuration: {serving.describe_error(error)}", path=path) from error
    if len(body) > _LIMIT:  # a truncated configuration would look complete
        raise NoAnswerError(f"its configuration is larger than {_LIMIT >> 20} MiB", path=path)
    if answer.status != http.HTTPStatus.OK:
        raise NoAnswerError(f"no configuration: {answer.status} {answer.reason}", path=path)
    return body


_FILE = "file"
_SECONDS = 20.0
_NAME = "crio"


class CrioSource(msgspec.Struct, frozen=True):
    """A configuration to take settings from. `name` says in words where it is from."""

    name: str
    content: bytes


class CrioSources(msgspec.Struct, frozen=True):
    """The first source that could be read (None: our own parse), and why earlier ones could not.

    `failed`: no requested source could be read.
    """

    source: CrioSource | None = None
    failures: tuple[str, ...] = ()
    failed: bool = False


def read_first_source(
    node: Node, settings: EngineSettings, live: LiveState | None, status: Sequence[str], config: Sequence[str]
) -> CrioSources:
    """Return the first of the sources that lists runtimes.

    `status` and `config` are the flags with which `crio status` and `crio config` find the socket and the files. The
    default source is `file`: CRI-O's live configuration may differ from that of its next start. Raises
    ConfigurationError if the source is not a file, NodeError.
    """
    heard: list[str] = []
    for word in settings.config_sources:
        if word == _FILE:
            return CrioSources(failures=tuple(heard))
        kind, _, path = word.partition("=")
        found: CrioSource | list[str]
        if kind == _FILE:
            canonical, file = node.locate_file(path)
            found = CrioSource(canonical, file.content) if file is not None else [f"{path} does not exist"]
        else:
            found = _query_crio(node, settings, live, status, config)
        if isinstance(found, CrioSource):
            return CrioSources(found, tuple(heard))
        heard += found
    return CrioSources(failures=tuple(heard), failed=bool(heard))


def _query_crio(
    node: Node, settings: EngineSettings, live: LiveState | None, status: Sequence[str], config: Sequence[str]
) -> CrioSource | list[str]:
    """Return CRI-O's configuration, or in words why there is none."""
    live_config = live.config if isinstance(live, CrioLiveState) else None
    binary = _binary(node, settings, live)
    if binary is None:
        return (
            CrioSource("what CRI-O says on its socket", live_config)
            if live_config
            else [f"no {_NAME} was found on the node"]
        )
    first = _run_and_parse(node, [binary, "status", *status, "config"])
    if isinstance(first, CrioSource):
        return first
    if live_config is not None:
        return CrioSource("what CRI-O says on its socket", live_config)
    second = _run_and_parse(node, [binary, *config, "config"], complete=False)
    return second if isinstance(second, CrioSource) else [first, second]


def _binary(node: Node, settings: EngineSettings, live: LiveState | None) -> str | None:
    """Return the program in the settings, else the running one, else the one in the node's PATH."""
    if settings.executable is not None:
        return settings.executable
    process = live.process if live is not None else None
    return process.executable if process is not None else node.programs.find_program(_NAME)


def _run_and_parse(node: Node, command: Sequence[str], *, complete: bool = True) -> CrioSource | str:
    """Return the configuration that a program prints, or in words why there is none.

    `complete`: it includes built-in values, and so some runtime. `crio config` omits these.
    """
    words = f"`{' '.join(command)}`"
    try:
        done = node.programs.run(command, seconds=_SECONDS)
    except ProgramError as error:
        return f"{words}: {error.reason}"
    if done.status != 0:
        last = done.errors.splitlines()[-1:]
        return ": ".join([f"{words} ended with {done.status}", *last])
    try:
        named = lookup(toml_document.parse(done.output), crio_config.RUNTIMES)
    except DocumentError as error:
        return f"{words} prints no configuration: {error.reason}"
    if complete and not isinstance(named, dict):
        return f"{words} names no runtimes"
    return CrioSource(words, done.output)
