"""The engines that can be configured."""

from __future__ import annotations

from toolkit_installer.engines.base import Engine
from toolkit_installer.engines.containerd import Containerd
from toolkit_installer.engines.crio import Crio
from toolkit_installer.engines.docker import Docker
from toolkit_installer.settings import EngineName

ROOMS: dict[EngineName, Engine] = {
    EngineName.DOCKER: Docker(),
    EngineName.CONTAINERD: Containerd(),
    EngineName.CRIO: Crio(),
}


def room(name: EngineName) -> Engine:
    """Return the engine's room."""
    return ROOMS[name]
