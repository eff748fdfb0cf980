"""What a run is about, found out once from what was asked: payload, driver, engines and what each is to register."""

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
    """What a run is about: what was asked for, which stays as it is, and what was found out from it, once."""

    settings: Settings
    driver: Driver
    payload: Payload
    engines: tuple[Request, ...]
    """What is to be registered with which engine."""
    driver_away: bool
    """No driver is usable, and the root that the toolkit was installed with stays."""


def resolve(settings: Settings, node: Node, receipt: Receipt | None) -> Target:
    """Find out what the settings leave open; `receipt` is what was recorded before. Nothing is written.

    Raises PayloadError, DriverNotReadyError, ConfigurationError where the node contradicts what was asked for or does
    not tell which engine it has, UsageError for handlers that cannot be registered.
    """
    driver, away = roots.resolve(settings.toolkit, node)
    source = payload.source_root(
        settings.toolkit.source_root,
        settings.toolkit.package_type,
        node.programs.find_program("rpm") is not None,
        root.is_folder,
    )
    contents = payload.find_payload(Tree(source), source, machine.architecture())
    recorded = [each.name for each in receipt.asked()] if receipt is not None else []
    found = decide.detect(node, settings, recorded=recorded) if settings.configure_engine else ()
    engines = tuple(Request.of(each, contents.executables, settings.toolkit.folder) for each in found)
    return Target(settings, driver, contents, engines, away)
