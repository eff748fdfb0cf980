"""The engines that can be configured."""

from __future__ import annotations

from toolkit_installer.engines.base import Engine
from toolkit_installer.engines.containerd import Containerd
from toolkit_installer.engines.docker import Docker
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import EngineName

ROOMS: dict[EngineName, Engine] = {EngineName.DOCKER: Docker(), EngineName.CONTAINERD: Containerd()}


def room(name: EngineName) -> Engine:
    """Return the engine's room. Raises UsageError for one that is not built yet."""
    try:
        return ROOMS[name]
    except KeyError:
        raise UsageError(f"--runtime {name}: this engine is not built yet", hint="use docker or containerd") from None
