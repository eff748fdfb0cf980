"""The dry run: what `run` would change, and which error would stop it."""

from __future__ import annotations

import os

import msgspec

from toolkit_installer.applying.reload_gate import ReloadBudget
from toolkit_installer.errors import AlreadyRunningError, InstallerError
from toolkit_installer.node import locks
from toolkit_installer.node.node import Node
from toolkit_installer.planning import other_installer
from toolkit_installer.planning import plan as plan_of
from toolkit_installer.planning.prepare import Prepared, preflight, prepare_unchecked
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import PID_FILES, Settings, WithoutGpu
from toolkit_installer.waiting.node_watch import GpuWatch


class DryRun(msgspec.Struct, frozen=True):
    """The result of a dry run. `seen`: None for a node without a GPU, which a run would not change."""

    seen: Prepared | None
    stops: InstallerError | None = None
    """The error that would stop the run before it changes anything."""


def find_running_installer(settings: Settings, node: Node) -> AlreadyRunningError | None:
    """Return the error that a run would raise because another installer is running, None if none is."""
    own = node.files.in_folder(settings.pid_file)
    usual = list(map(node.files.in_folder, PID_FILES))
    try:
        other_installer.refuse_running(node, settings.toolkit.install_dir)
        for path in (*(usual if own in usual else (own,)), *settings.pid_files_besides):
            locks.require_free(node.files, path)
    except AlreadyRunningError as stops:
        return other_installer.explain_lock(stops)
    return None


def simulate_run(settings: Settings, node: Node) -> DryRun:
    """Return what a run would do. Raises InstallerError if it could not plan a change."""
    store = ReceiptStore(node, settings.toolkit.install_dir)
    gpus = GpuWatch(node, settings.toolkit, may_idle=settings.without_gpu is WithoutGpu.IDLE)
    if gpus.must_idle(trust.load(node, store)):
        return DryRun(None)
    seen = prepare_unchecked(store.load(), settings, node, store)
    try:
        _require_doable(settings, node, store, seen)
    except InstallerError as stops:
        return DryRun(seen, stops)
    return DryRun(seen)


def _require_doable(settings: Settings, node: Node, store: ReceiptStore, seen: Prepared) -> None:
    """Raise InstallerError if `run` could not make the planned change, or would not be allowed to."""
    preflight(node, seen.target, seen.facts, seen.plan)
    if not plan_of.is_done(seen.receipt, seen.plan):
        require_recordable(settings, node, store, seen)
    if any(engine.reload_why for engine in seen.plan.engines):
        ReloadBudget(node.files, settings.pid_file, settings.reload_budget).require_reload()


def require_recordable(settings: Settings, node: Node, store: ReceiptStore, seen: Prepared) -> None:
    """Raise ConfigurationError if the receipt of the change could not be written so that it can be read again."""
    from toolkit_installer.applying.record import ReceiptBuilder  # noqa: PLC0415  # only for a change

    pid_file = node.files.in_folder(settings.pid_file)
    folders = node.files.missing_folders(os.path.dirname(pid_file))
    ReceiptBuilder(node, store, pid_file, tuple(folders)).require_recordable(seen)
