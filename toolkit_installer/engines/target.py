"""An engine to work on, as requested and as found, and the handlers to register with it. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from toolkit_installer.engines.registry import Distribution
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import EngineName, EngineSettings
from toolkit_installer.toolkit.payload import RUNTIMES

_FIXED = {"nvidia-cdi": RUNTIMES[1], "nvidia-legacy": RUNTIMES[2]}
"""The two handlers whose names the user cannot choose, and their executables."""


_USUAL = "nvidia"
"""The first handler's name if the user gave a fixed name, which then only chooses the default."""


class EngineTarget(msgspec.Struct, frozen=True):
    """An engine to work on: the requested settings, which stay unchanged, and the facts found on the node."""

    name: EngineName
    settings: EngineSettings = EngineSettings()
    found_config: str | None = None
    """The file that the node's distribution starts it with, None if it is the usual file or its process names it."""
    found_socket: str | None = None
    """The socket on which it was found, or that the node's distribution uses; None: the usual one."""
    detected: bool = False
    """It was detected on the node, not named (`--runtime`)."""
    distribution: Distribution | None = None
    why: str = ""
    """The evidence that it is this engine, in words."""

    @property
    def config(self) -> str | None:
        """Its file: the requested one, else the one that was found; None: the usual one."""
        return self.found_config if self.settings.config is None else self.settings.config

    @property
    def socket(self) -> str | None:
        """Its socket: the requested one, else the one that was found; None: the usual one."""
        return self.found_socket if self.settings.socket is None else self.settings.socket


class Handler(msgspec.Struct, frozen=True):
    """A named OCI runtime: `executable` is its path on the node."""

    name: str
    executable: str


def select_handlers(runtime_name: str, executables: Collection[str], toolkit_folder: str) -> tuple[Handler, ...]:
    """Return the handlers to register: `runtime_name` first, then the two fixed ones, if `executables` has theirs."""
    wanted = {_USUAL if runtime_name in _FIXED else runtime_name: RUNTIMES[0], **_FIXED}
    return tuple(
        Handler(name, f"{toolkit_folder}/{executable}")
        for name, executable in wanted.items()
        if executable in executables
    )


class Request(msgspec.Struct, frozen=True):
    """The handlers to register with an engine; the adapter's `build_desired_state` puts them into its files."""

    target: EngineTarget
    handlers: tuple[Handler, ...]
    default: str | None
    toolkit_folder: str
    by_cdi: bool = False
    """Containers get the GPU by CDI, without handlers: CDI must be on in the engine, whatever the settings say."""

    @property
    def enable_cdi(self) -> bool:
        """Whether to turn CDI on in the engine itself."""
        return self.by_cdi or self.settings.enable_cdi

    def by_cdi_alone(self) -> Request:
        """Return this request with CDI in place of the handlers."""
        return Request(self.target, (), None, self.toolkit_folder, by_cdi=True)

    @classmethod
    def of(cls, target: EngineTarget, executables: Collection[str], toolkit_folder: str) -> Request:
        """Return the request for a target, limited to `executables`, those in the payload. Raises UsageError."""
        registered = select_handlers(target.settings.runtime_name, executables, toolkit_folder)
        default = target.settings.runtime_name if target.settings.set_as_default else None
        if default is not None and all(handler.name != default for handler in registered):
            raise UsageError(
                f"--runtime-name {default} cannot be the default: the payload has no executable for it",
                hint="choose another name, or a payload that has it",
            )
        return cls(target, registered, default, toolkit_folder)

    @property
    def served(self) -> dict[str, str]:
        """The handlers' executables by name, as the live engine should report them."""
        return {handler.name: handler.executable for handler in self.handlers}

    @property
    def settings(self) -> EngineSettings:
        """The engine's requested settings."""
        return self.target.settings
