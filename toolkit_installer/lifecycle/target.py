"""What a run is about, found out once from what was asked: payload, driver, engines and what each is to register."""

from __future__ import annotations

import dataclasses
import os

from toolkit_installer.driver import roots
from toolkit_installer.engines.api import Request
from toolkit_installer.engines.detect import decide
from toolkit_installer.errors import UsageError
from toolkit_installer.node.disk.tree import Tree
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName, EngineSettings, Settings, ToolkitSettings
from toolkit_installer.toolkit import handlers, payload
from toolkit_installer.toolkit.payload import Payload


@dataclasses.dataclass(frozen=True)
class EngineTarget:
    """An engine that is to be configured: where its files and socket are, and what it is to serve."""

    name: EngineName
    settings: EngineSettings
    request: Request


@dataclasses.dataclass(frozen=True)
class Target:
    """What a run is about. `settings` are what was asked for, `toolkit` the same with the driver's paths found."""

    settings: Settings
    toolkit: ToolkitSettings
    payload: Payload
    engines: tuple[EngineTarget, ...]
    driver_away: bool
    """No driver is usable, and the root that the toolkit was installed with stays."""


def resolve(settings: Settings, node: Node) -> Target:
    """Find out what the settings leave open. Nothing is written.

    Raises PayloadError, DriverNotReadyError, ConfigurationError where the node contradicts what was asked for or does
    not tell which engine it has, UsageError for handlers that cannot be registered.
    """
    found, away = roots.settled(settings, node)
    source = payload.source_root(
        settings.toolkit.source_root,
        settings.toolkit.package_type,
        node.programs.find_program("rpm") is not None,
        os.path.isdir,
    )
    contents = payload.find_payload(Tree(source), source, os.uname().machine)
    engines: tuple[EngineTarget, ...] = ()
    if settings.configure_engine:
        decided = decide.detect(node, found)
        engines = tuple(_engine(each.settings, contents) for each in decided)
    return Target(settings, found.toolkit, contents, engines, away)


def _engine(settings: Settings, contents: Payload) -> EngineTarget:
    """Return an engine with what it is to serve; `settings` are for this engine alone. Raises UsageError."""
    (name,) = settings.runtimes
    folder = settings.toolkit.folder
    registered = handlers.handlers(settings.engine.runtime_name, contents.executables, folder)
    default = settings.engine.runtime_name if settings.engine.set_as_default else None
    if default is not None and all(handler.name != default for handler in registered):
        raise UsageError(
            f"--runtime-name {default} cannot be the default: the payload has no executable for it",
            hint="choose another name, or a payload that has it",
        )
    return EngineTarget(name, settings.engine, Request(registered, default, folder, settings.engine))
