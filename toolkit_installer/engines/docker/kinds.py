"""Dockers that are not the node's own: refused by name, or only configured where their file is named."""

from __future__ import annotations

import posixpath

from toolkit_installer.engines.api import Live
from toolkit_installer.engines.docker.cdi import DockerLive
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process

_SNAP = ("/snap/", "/var/snap/", "/var/lib/snapd/", "/run/snap.docker/")
_DESKTOP = ("/.docker/desktop/", "/.docker/daemon.json")
_DESKTOP_SYSTEM = "Docker Desktop"
_ROOTLESS_CONFIG = "docker/daemon.json"


def refuse(node: Node, target: EngineTarget, socket: str, config: str, live: Live | None) -> None:
    """Raise ConfigurationError for a docker whose containers could not run the toolkit, or that is somebody else's."""
    process = live.process if live is not None else None
    answer = live if isinstance(live, DockerLive) else None
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
            path=config_of(process) if process is not None else None,
            hint="nothing was changed; run as that user, and name it: --config and --socket, with "
            "--toolkit-install-dir and --pid-file in folders of the user's",
        )


def config_of(process: Process) -> str | None:
    """Return the daemon.json of a rootless dockerd, None where it cannot be told.

    It lies in the user's own configuration folder, as the XDG Base Directory specification has it.
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
