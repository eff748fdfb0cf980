"""The engines that can be configured."""

from __future__ import annotations

from toolkit_installer.engines.base import Engine
from toolkit_installer.engines.containerd_places import PlacedContainerd
from toolkit_installer.engines.crio import Crio
from toolkit_installer.engines.docker import Docker
from toolkit_installer.settings import EngineName

ROOMS: dict[EngineName, Engine] = {
    EngineName.DOCKER: Docker(),
    EngineName.CONTAINERD: PlacedContainerd(),
    EngineName.CRIO: Crio(),
}


def room(name: EngineName) -> Engine:
    """Return the engine's room."""
    return ROOMS[name]
