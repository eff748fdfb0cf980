"""What the running CRI-O says of itself, beside the CRI: over plain HTTP on the same socket, and by its flags."""

from __future__ import annotations

import http.client
import posixpath
import socket as unix_socket
from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import DocumentError, lookup
from toolkit_installer.engines.api import Live
from toolkit_installer.engines.common import answering, command_line
from toolkit_installer.engines.common.answering import NoAnswerError, place_of_socket
from toolkit_installer.engines.crio import config as crio_config
from toolkit_installer.node import processes
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.processes import Process
from toolkit_installer.node.signals import interruptible, limited
from toolkit_installer.node.sockets import reachable
from toolkit_installer.toolkit.payload import RUNTIMES

_LIMIT = 16 << 20
"""Bytes of an answer."""
_VARIABLES = {
    "--config": "CONTAINER_CONFIG",
    "--config-dir": "CONTAINER_CONFIG_DIR",
    "--default-runtime": "CONTAINER_DEFAULT_RUNTIME",
    "--runtimes": "CONTAINER_RUNTIMES",
    "--hooks-dir": "CONTAINER_HOOKS_DIR",
}
"""What stands in for a flag that is not given, of those that matter here. Source: crio(8), internal/criocli."""
_LISTS = ("--runtimes", "--hooks-dir")
_SHORT = {"--config": "-c", "--config-dir": "-d"}


class CrioLive(Live, frozen=True):
    """What the running CRI-O says of itself. `hooks_dirs` are the folders whose hooks it watches."""

    hooks_dirs: tuple[str, ...] = ()
    config: bytes | None = None
    """The configuration that it runs with, as TOML, what is built in included; None where it does not say."""
    variables: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Those that it was started with, and that stand in for its flags."""


def uses_cgroupfs(live: Live | None) -> bool:
    """Tell whether the running CRI-O says that it does not leave cgroups to systemd. Pure."""
    if not isinstance(live, CrioLive) or live.config is None:
        return False
    manager: object = lookup(toml_document.parse(live.config), (*crio_config.RUNTIME, "cgroup_manager"))
    return manager == "cgroupfs"


def variables(process: Process) -> dict[str, str]:
    """Return the variables of a CRI-O that stand in for its flags."""
    known = _VARIABLES.values()
    return {name: value for name, value in processes.environment(process).items() if name in known and value}


def told(live: Live | None, flag: str) -> str | None:
    """Return what the running CRI-O's command line, else its environment, says; None if neither, or none runs. Pure."""
    process = live.process if live is not None else None
    if process is None:
        return None
    return told_to(process, live.variables if isinstance(live, CrioLive) else {}, flag)


def told_to(process: Process, given: Mapping[str, str], flag: str) -> str | None:
    """Return what a CRI-O was told by a flag, or the variable in its place. Pure."""
    names = (flag, _SHORT[flag]) if flag in _SHORT else (flag,)
    # a list may be given in several flags; of all others the last one counts
    values = command_line.values(process.arguments[1:], *names)
    if flag in _LISTS and values:
        return ",".join(values)
    return values[-1] if values else given.get(_VARIABLES[flag])


def serves_ours(live: Live) -> bool:
    """Tell whether it offers a handler that runs one of the toolkit's executables, or may."""
    return any(path is None or posixpath.basename(path) in RUNTIMES for path in live.handlers.values())


def runtime_in(content: bytes) -> dict[str, Any]:
    """Return the `crio.runtime` table of what CRI-O says that it runs with. Raises NoAnswerError."""
    try:
        runtime = lookup(toml_document.parse(content), crio_config.RUNTIME)
    except DocumentError as error:
        raise NoAnswerError(f"no TOML: {error}") from error
    if not isinstance(runtime, dict) or not isinstance(runtime.get("runtimes"), dict):
        raise NoAnswerError("it names no runtimes")
    return runtime


def cdi_folders(runtime: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where it looks for CDI specifications: in its `crio.runtime` table. CDI itself cannot be switched off."""
    return tuple(map(str, runtime.get("cdi_spec_dirs") or ()))


def configuration(root: Root, path: str, seconds: float) -> bytes:
    """Return the answer of `GET /config`, which `crio status` asks for too: TOML. Raises NoAnswerError, Stopped."""
    place_of_socket(root, path)
    try:
        with (
            reachable(root, path) as name,
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
        raise NoAnswerError(f"no configuration: {answering.words(error)}", path=path) from error
    if len(body) > _LIMIT:  # a part of it would be taken for the whole
        raise NoAnswerError(f"its configuration is larger than {_LIMIT >> 20} MiB", path=path)
    if answer.status != http.HTTPStatus.OK:
        raise NoAnswerError(f"no configuration: {answer.status} {answer.reason}", path=path)
    return body
