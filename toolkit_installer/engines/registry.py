"""The engines that can be configured."""

from __future__ import annotations

from toolkit_installer.engines.api import Engine
from toolkit_installer.engines.containerd.places import PlacedContainerd
from toolkit_installer.engines.crio.engine import Crio
from toolkit_installer.engines.docker.engine import Docker
from toolkit_installer.settings import EngineName

ROOMS: dict[EngineName, Engine] = {
    EngineName.DOCKER: Docker(),
    EngineName.CONTAINERD: PlacedContainerd(),
    EngineName.CRIO: Crio(),
}


def room(name: EngineName) -> Engine:
    """Return the engine's room."""
    return ROOMS[name]
