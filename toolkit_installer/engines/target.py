"""An engine to work on, as it was asked for and found, and what is to be registered with it."""

from __future__ import annotations

import dataclasses

from toolkit_installer.engines.common.distribution import Distribution
from toolkit_installer.settings import EngineName, EngineSettings
from toolkit_installer.toolkit.handlers import Handler


@dataclasses.dataclass(frozen=True)
class EngineTarget:
    """An engine to work on: what was asked of it, which stays as it is, and what was found about it on the node."""

    name: EngineName
    asked: EngineSettings = EngineSettings()
    found_config: str | None = None
    """The file that the node's distribution starts it with, None where that is the usual one or its process tells."""
    found_socket: str | None = None
    """The socket on which it was met, or on which the node's distribution has it; None: the usual one."""
    recognised: bool = False
    """It was recognised on the node, not named (`--runtime`)."""
    distribution: Distribution | None = None
    why: str = ""
    """What tells that it is this engine, in words."""

    @property
    def config(self) -> str | None:
        """Its file: the one that was asked for, else the one that was found; None: where it usually is."""
        return self.found_config if self.asked.config is None else self.asked.config

    @property
    def socket(self) -> str | None:
        """Its socket: the one that was asked for, else the one that was found; None: where it usually is."""
        return self.found_socket if self.asked.socket is None else self.asked.socket


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be registered with an engine."""

    target: EngineTarget
    handlers: tuple[Handler, ...]
    default: str | None
    toolkit_folder: str

    @property
    def served(self) -> dict[str, str]:
        """The handlers' executables by name: what the live engine is to show."""
        return {handler.name: handler.executable for handler in self.handlers}

    @property
    def settings(self) -> EngineSettings:
        """What was asked of the engine."""
        return self.target.asked
