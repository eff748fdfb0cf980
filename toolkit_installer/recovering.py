"""Tidying up beside the engines' files after a run that was killed while it replaced one."""

from __future__ import annotations

from toolkit_installer import log
from toolkit_installer.node.files import Recovered
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import Receipt


def recover(node: Node, receipt: Receipt | None) -> None:
    """Leave each engine's file alone in its folder, as one whole version. Raises NodeError, ConfigurationError."""
    for engine in receipt.engines if receipt is not None else ():
        for file in engine.files:
            before = () if file.before is None else (file.before.sha256,)
            recovered = node.files.recover(file.path, frozenset((*file.written, *before)))
            if recovered is Recovered.REMOVED:
                log.get().info("Tidied up", file=file.path, engine=engine.name, what=recovered)
            elif recovered is not Recovered.NOTHING:
                log.get().warning("Saved an edit", file=file.path, engine=engine.name, what=recovered)
