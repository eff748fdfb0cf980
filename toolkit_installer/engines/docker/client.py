"""Query dockerd through the docker SDK, and refuse dockers that are not the node's own.

Snaps and Docker Desktop are always refused; rootless docker unless the user names its file or socket.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from toolkit_installer import log
from toolkit_installer.engines.api import LiveState
from toolkit_installer.engines.common import serving
from toolkit_installer.engines.common.serving import NoAnswerError, resolve_socket
from toolkit_installer.engines.docker.config import DockerLiveState
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.queries import Query, Secrecy
from toolkit_installer.node.root import Root
from toolkit_installer.node.signals import interruptible, limited
from toolkit_installer.node.sockets import shorten_socket_path

if TYPE_CHECKING:
    import requests


_LIMIT = 16 << 20
"""Bytes of a response."""


_FIELD_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("DefaultRuntime", "OperatingSystem", "ServerVersion"), str),
    **dict.fromkeys(("CDISpecDirs", "SecurityOptions"), list),
    "ContainersRunning": int,
    "LiveRestoreEnabled": bool,
    "Runtimes": dict,
}
"""The fields that are read of dockerd's information, which has many more, with the types of its API."""


def select_used_fields(info: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of dockerd's information that are read."""
    return {name: value for name, value in info.items() if name in _FIELD_TYPES}


def has_field_types(info: Mapping[str, Any]) -> bool:
    """Return whether dockerd's fields are of the types that its API has (system information)."""
    return all(info.get(name) is None or type(info[name]) is kind for name, kind in _FIELD_TYPES.items())


@Query(ignored=("seconds",), secrecy=Secrecy.JSON, polled=True, keep=select_used_fields, is_valid=has_field_types)
def query_info(root: Root, path: str, seconds: float) -> dict[str, Any]:
    """Return the response of `GET /info` on the node's socket. Raises NoAnswerError, Stopped."""
    resolve_socket(root, path)
    # the SDK takes longer to import than everything else: only if there is a socket to query
    log.listen()
    import docker.constants  # noqa: PLC0415
    import docker.errors  # noqa: PLC0415
    import requests.exceptions  # noqa: PLC0415
    import urllib3.exceptions  # noqa: PLC0415

    try:
        with shorten_socket_path(root, path) as name, interruptible(), limited(seconds):
            # any version works: the request has none, and "auto" would first read another response without limit
            client = docker.APIClient(
                base_url=f"unix://{name}",
                version=docker.constants.DEFAULT_DOCKER_API_VERSION,
                timeout=max(1, round(seconds)),
            )
            client.trust_env = False  # no proxy or password of ours applies to the node's socket
            try:
                answer = _read_json(client.get(f"{client.base_url}/info", stream=True, timeout=max(1, round(seconds))))
            finally:
                client.close()
    except (OSError, docker.errors.DockerException, requests.exceptions.RequestException) as error:
        why = serving.describe_error(error, requests.exceptions.Timeout, urllib3.exceptions.TimeoutError)
        raise NoAnswerError(why, path=path) from error
    return answer


def _read_json(response: requests.Response) -> dict[str, Any]:
    """Return the JSON object of a response. Raises OSError, also if it exceeds the limit or is no JSON object."""
    with response:
        response.raise_for_status()
        body = bytearray()
        for piece in response.iter_content(1 << 16):
            body += piece
            if len(body) > _LIMIT:
                raise OSError(f"its answer is larger than {_LIMIT >> 20} MiB")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise OSError("its answer is not JSON") from error
    if not isinstance(answer, dict):
        raise OSError("its answer is not an object")  # the server's fault, not a caller's
    return answer


_SNAP = ("/snap/", "/var/snap/", "/var/lib/snapd/", "/run/snap.docker/")
_DESKTOP = ("/.docker/desktop/", "/.docker/daemon.json")
_DESKTOP_SYSTEM = "Docker Desktop"
_ROOTLESS_CONFIG = "docker/daemon.json"


def refuse_foreign_docker(node: Node, target: EngineTarget, socket: str, config: str, live: LiveState | None) -> None:
    """Raise ConfigurationError for a docker whose containers could not run the toolkit, or that belongs to a user."""
    process = live.process if live is not None else None
    answer = live if isinstance(live, DockerLiveState) else None
    places = {place: node.files.canonical(place) for place in (config, socket)}
    for place, canonical in places.items():
        if any(path.startswith(_SNAP) for path in (place, canonical)):
            raise _snap(place)
        if any(part in path for part in _DESKTOP for path in (place, canonical)):
            raise _desktop(place)
    if process is not None and process.executable.startswith(_SNAP):
        raise _snap(process.executable)
    if answer is not None and answer.system == _DESKTOP_SYSTEM:
        raise _desktop(socket)
    if target.config is not None or target.socket is not None:
        return
    if answer is not None and answer.rootless:
        who = f" (PID {process.pid})" if process is not None else ""
        raise ConfigurationError(
            f"the docker of this node{who} is rootless: its file is a user's own, not /etc/docker/daemon.json",
            path=find_rootless_config(process) if process is not None else None,
            hint="nothing was changed; run as that user, and name it: --config and --socket, with "
            "--toolkit-install-dir and --pid-file in folders of the user's",
        )


def find_rootless_config(process: Process) -> str | None:
    """Return the daemon.json of a rootless dockerd, None if unknown.

    It lies in the user's configuration folder, as defined by the XDG Base Directory specification.
    """
    variables = processes.environment(process)
    home = variables.get("HOME")
    folder = variables.get("XDG_CONFIG_HOME") or (posixpath.join(home, ".config") if home else "")
    return posixpath.join(folder, _ROOTLESS_CONFIG) if posixpath.isabs(folder) else None


def _snap(place: str) -> ConfigurationError:
    return ConfigurationError(
        "this is docker's snap: it is confined, and its containers could not run the toolkit",
        path=place,
        hint="nothing was changed; install docker from your distribution's packages or docker's own",
    )


def _desktop(place: str) -> ConfigurationError:
    return ConfigurationError(
        "this is Docker Desktop: its dockerd runs in a virtual machine of its own, not on this node",
        path=place,
        hint="nothing was changed; install Docker Engine, or name its socket with --socket",
    )
