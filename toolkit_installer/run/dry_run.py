"""What `run` would do, found out without doing it: what it would change, and what would stop it."""

from __future__ import annotations

import os

import msgspec

from toolkit_installer.applying.reload_gate import ReloadBudget
from toolkit_installer.errors import AlreadyRunningError, InstallerError
from toolkit_installer.node import locks
from toolkit_installer.node.node import Node
from toolkit_installer.planning import other_installer
from toolkit_installer.planning import plan as plan_of
from toolkit_installer.planning.prepare import Prepared, planned, preflight
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import PID_FILES, Settings
from toolkit_installer.waiting.node_watch import GpuWatch


class Foreseen(msgspec.Struct, frozen=True):
    """What a run would come to. `seen`: None for a node that it would leave alone, as that shows no GPU."""

    seen: Prepared | None
    stops: InstallerError | None = None
    """What would stop it before it does any of that."""


def holder(settings: Settings, node: Node) -> AlreadyRunningError | None:
    """Return the error with which a run would make way for another one that is at work, None for none."""
    own = node.files.in_folder(settings.pid_file)
    usual = list(map(node.files.in_folder, PID_FILES))
    try:
        other_installer.refuse(node, settings.toolkit.install_dir)
        for path in (*(usual if own in usual else (own,)), *settings.pid_files_besides):
            locks.require_free(node.files, path)
    except AlreadyRunningError as stops:
        return other_installer.explained(stops)
    return None


def foresee(settings: Settings, node: Node) -> Foreseen:
    """Return what a run would come to. Raises InstallerError where it would not even know what to do."""
    store = ReceiptStore(node, settings.toolkit.install_dir)
    if GpuWatch(settings, node).leaves_alone(trust.load(node, store)):
        return Foreseen(None)
    seen = planned(store.load(), settings, node, store)
    try:
        _require_doable(settings, node, store, seen)
    except InstallerError as stops:
        return Foreseen(seen, stops)
    return Foreseen(seen)


def _require_doable(settings: Settings, node: Node, store: ReceiptStore, seen: Prepared) -> None:
    """Raise InstallerError where `run` could not do what is planned, or would not be allowed to."""
    preflight(node, seen.target, seen.facts, seen.plan)
    if not plan_of.is_done(seen.receipt, seen.plan):
        require_recordable(settings, node, store, seen)
    if any(engine.reload_why for engine in seen.plan.engines):
        ReloadBudget(node.files, settings.pid_file, settings.reload_budget).require_reload()


def require_recordable(settings: Settings, node: Node, store: ReceiptStore, seen: Prepared) -> None:
    """Raise ConfigurationError where the receipt of the change could not be written so that it is read again."""
    from toolkit_installer.applying.record import Recorder  # noqa: PLC0415  # of what is to be changed alone

    pid_file = node.files.in_folder(settings.pid_file)
    folders = node.files.missing_folders(os.path.dirname(pid_file))
    Recorder(node, settings, store, pid_file, tuple(folders)).require_recordable(seen)
