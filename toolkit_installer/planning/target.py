"""Resolve the settings into a run's target: payload, driver, engines and the handlers to register with each."""

from __future__ import annotations

import msgspec

from toolkit_installer.driver import roots
from toolkit_installer.driver.roots import Driver
from toolkit_installer.engines.detect import decide
from toolkit_installer.engines.target import Request
from toolkit_installer.node import machine, root
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Tree
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.settings import Settings
from toolkit_installer.toolkit import payload
from toolkit_installer.toolkit.payload import Payload


class Target(msgspec.Struct, frozen=True):
    """A run's target: the unchanged settings, and the values resolved from them once."""

    settings: Settings
    driver: Driver
    payload: Payload
    engines: tuple[Request, ...]
    """The handlers to register, by engine."""
    driver_away: bool
    """No driver is usable, and the driver root from the last installation is kept."""


def resolve_target(settings: Settings, node: Node, receipt: Receipt | None) -> Target:
    """Resolve what the settings leave open, without writing; `receipt` is the one from before this run.

    Raises PayloadError, DriverNotReadyError; ConfigurationError if the node contradicts the settings or its engine
    cannot be determined; UsageError for handlers that cannot be registered.
    """
    driver, away = roots.resolve_driver(settings.toolkit, node)
    source = payload.source_root(
        settings.toolkit.source_root,
        settings.toolkit.package_type,
        node.programs.find_program("rpm") is not None,
        root.is_folder,
    )
    contents = payload.find_payload(Tree(source), source, machine.architecture())
    recorded = [each.name for each in receipt.served_engines()] if receipt is not None else []
    found = decide.detect_engines(node, settings, recorded=recorded) if settings.configure_engine else ()
    engines = tuple(Request.of(each, contents.executables, settings.toolkit.folder) for each in found)
    return Target(settings, driver, contents, engines, away)
