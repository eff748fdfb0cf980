"""Tidying up beside the engines' files after a run that was killed while it replaced one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from toolkit_installer import log
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.api import quarantine
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.disk.files import Recovered, swap_name
from toolkit_installer.node.disk.folders import temporary_name
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, Receipt, State
from toolkit_installer.toolkit import layout


def refuse_strangers(node: Node, receipt: Receipt | None, paths: Iterable[str]) -> None:
    """Raise ConfigurationError for what lies beside the files at `paths`, under our names, and no run of ours left.

    It would be taken for somebody's version that a killed run had displaced, and would be put in the file's place. A
    run that was killed left a receipt that says so; one that ended well left nothing. Raises NodeError.
    """
    if receipt is not None and receipt.state is not State.INSTALLED:
        return
    ours = {file.path: file.known for file in receipt.files()} if receipt is not None else {}
    for path in paths:
        folder, name = os.path.split(path)
        swap = os.path.join(folder, swap_name(name))
        temporary = os.path.join(folder, temporary_name(name))
        status, beside = node.files.own_status(temporary), node.files.own_status(swap)
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise _in_the_way(temporary, path)
        regular = beside is not None and stat.S_ISREG(beside.st_mode)
        if beside is not None and not (regular and node.files.digest(swap) in ours.get(path, ())):
            raise _in_the_way(swap, path)


def _in_the_way(path: str, file: str) -> ConfigurationError:
    return ConfigurationError(
        f"is in the way: a new version of {file} gets this name, and no run of this installer left it there",
        path=path,
        hint="look at what it is and who made it; then move it away",
    )


def is_needed(node: Node, receipt: Receipt | None, store: str) -> bool:
    """Tell whether a run that was killed left anything for `recover` to do. Reads, never writes. Raises NodeError."""
    if any(node.files.half_made(folder) for folder in _own_folders(receipt, store)):
        return True
    places = [os.path.split(path) for path in (receipt.file_paths() if receipt is not None else ())]
    beside = (os.path.join(folder, named(name)) for folder, name in places for named in (temporary_name, swap_name))
    return any(node.files.own_status(path) is not None for path in beside)


def recover(node: Node, receipt: Receipt | None, store: str) -> None:
    """Leave each managed file alone in its folder, as one whole version, and nothing half made in our own folders.

    `store`: the receipt's folder. What the next run does not write again would stay. Raises NodeError,
    ConfigurationError.
    """
    sweep(node, receipt, store)
    if receipt is None:
        return
    for engine in receipt.engines:
        recover_engine(node, engine, store)
    recover_specifications(node, receipt)


def sweep(node: Node, receipt: Receipt | None, store: str) -> None:
    """Leave nothing half made in our own folders. Raises NodeError."""
    for folder in _own_folders(receipt, store):
        node.files.sweep_folder(folder)


def _own_folders(receipt: Receipt | None, store: str) -> list[str]:
    if receipt is None:
        return [store]
    return [store, *(os.path.join(receipt.toolkit_folder, inner) for inner in ("", *layout.FOLDERS))]


def recover_engine(node: Node, engine: EngineRecord, store: str) -> None:
    """Leave each of an engine's files alone in its folder, as one whole version. Raises as `recover` does."""
    for file in engine.files:
        _recover(node, file, quarantine(adapter_of(engine.name), store))


def recover_specifications(node: Node, receipt: Receipt) -> None:
    """Leave each CDI specification alone in its folder, as one whole version. Raises as `recover` does."""
    for file in receipt.specifications:
        _recover(node, file, None)


def _recover(node: Node, file: FileRecord, quarantine_folder: str | None) -> None:
    """Leave one file alone in its folder; a version of somebody else's that must not stay there is quarantined."""
    recovered = node.files.recover(file.path, file.known, quarantine_folder)
    if recovered is Recovered.REMOVED:
        log.get().info("Tidied up", key="tidied-up", file=file.path, what=recovered)
    elif recovered is not Recovered.NOTHING:
        log.get().warning("Saved an edit", key="edit-saved", file=file.path, what=recovered)
