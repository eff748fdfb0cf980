"""Watches of a waiting run: drift of the managed files, the driver, and a GPU that is still to come.

Drift of a managed file is logged once, with the change that a run would make to undo it.

With `--driver-root auto`, or if CDI specifications are written, converging again shows what a change of the driver
means. A named root is used without inspection instead: nothing on the node depends on its content. So it is only
inspected: the node is not ready from when its driver is gone until there is one again. A driver that has yet to be
installed does not make the node unready, nor does one whose nvidia-smi never worked here: some cannot be run from here.

A run on a node that shows no GPU (`--without-gpu idle`) changes nothing, logs why, and waits for a GPU.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Callable, Iterable

from toolkit_installer import log
from toolkit_installer.driver import gpus, roots
from toolkit_installer.driver.roots import DriverSearch
from toolkit_installer.engines.common import serving
from toolkit_installer.errors import InstallerError
from toolkit_installer.events import EventKind, publish
from toolkit_installer.node import idling
from toolkit_installer.node.node import Node
from toolkit_installer.planning import installed
from toolkit_installer.planning.installed import Damage
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.settings import OnDrift, ToolkitSettings

_MAX_DIFFERENCE = 4000
"""The longest difference in the log, in characters; `plan` shows all of it."""


class DriftWatch:
    """A watch of all that a run wrote to the node: the engines' files, the specifications, the toolkit's files."""

    def __init__(
        self,
        node: Node,
        receipt_path: str,
        on_drift: OnDrift,
        toolkit: ToolkitSettings,
        prepare: Callable[[Receipt | None], Prepared],
    ) -> None:
        """`prepare` returns what a run would change; it may raise InstallerError."""
        self._node = node
        self._receipt_path = receipt_path
        self._on_drift = on_drift
        self._toolkit = toolkit
        self._prepare = prepare
        self.logged = False
        """Whether a change was logged, which each process does once: the log line may be the only reaction."""
        self.differences: dict[str, str] = {}
        """The changes that a run would make to files that were edited, as far as they can be planned, by path."""

    @property
    def repairs(self) -> bool:
        """Whether a run undoes changes of managed files (`--on-drift repair`)."""
        return self._on_drift is OnDrift.REPAIR

    def list_watched_paths(self, receipt: Receipt | None) -> list[tuple[str, str, str]]:
        """Return what the idle process watches: the event, paths as seen from here, their present identities."""
        if receipt is None or self._on_drift is OnDrift.IGNORE:
            return []
        paths = [*receipt.file_paths(), *(f"{receipt.toolkit_folder}/{name}" for name in receipt.toolkit_files)]
        places = map(self._node.root.outside, [*paths, self._node.files.canonical(self._receipt_path)])
        return [(idling.DRIFT, place, idling.identity(place)) for place in places]

    def list_watched_folders(self, receipt: Receipt | None) -> list[str]:
        """Return the folders, as seen from here, in which any change is to be inspected at once.

        The folders of CDI specifications are omitted: other programs write there at each start of a container.
        """
        if receipt is None or self._on_drift is OnDrift.IGNORE:
            return []
        files = [file.path for engine in receipt.engines for file in engine.files]
        files += [f"{receipt.toolkit_folder}/{name}" for name in receipt.toolkit_files]
        # the toolkit's own folder may be renamed as a whole
        folders = [posixpath.dirname(receipt.toolkit_folder), *map(posixpath.dirname, files)]
        return list(map(self._node.root.outside, dict.fromkeys(folders)))

    def log_changes(self, receipt: Receipt | None) -> bool:
        """Log the files that differ from what was written; return whether there are any. Raises NodeError, Stopped.

        To be called only if there was a receipt: None means that the receipt was deleted.
        """
        if receipt is None and self._node.files.own_status(self._receipt_path) is None:
            self.logged = True
            log.get().warning(
                "The receipt was deleted; `--on-drift repair` or `refresh` would rebuild it",
                key="receipt-gone",
                file=self._receipt_path,
            )
            return True
        if not file_records.list_drifted(self._node, receipt) and not find_damage(self._node, self._toolkit, receipt):
            return False
        self.logged = True
        if self.repairs:
            publish(EventKind.DRIFT_REPAIR, "A managed file was changed: looking again", level="warning")
        else:
            self.differences = self._log_drift(receipt)
        return True

    def _log_drift(self, receipt: Receipt | None) -> dict[str, str]:
        """Log the changed files: for an engine's file, what a run would change, or why the file cannot be parsed.

        Return the changes that a run would make, by path.
        """
        paths = file_records.list_drifted(self._node, receipt)
        engines = receipt.served_engines() if receipt is not None else ()
        # planning queries the engines, which must not start one that an administrator stopped
        may_query = not any(serving.is_socket_activated(self._node, each.name, each.socket) for each in engines)
        differences, refusal = self._plan_differences(receipt) if paths and may_query else ({}, None)
        from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # only for a changed file

        command = refresh_command.of_self()
        hint = f"`{command}` puts it right"
        for path in paths:
            wrong = refusal if refusal is not None and refusal.path == path else None
            publish(
                EventKind.DRIFT,
                "Somebody changed the file; `--on-drift repair` or `refresh` would put the handlers back",
                level="warning",
                file=path,
                line=wrong.line if wrong is not None else None,
                reason=wrong.reason if wrong is not None else None,
                difference=differences.get(path),
                hint=hint if wrong is None else f"mend the file, then `{command}`",
            )
        for each in find_damage(self._node, self._toolkit, receipt):
            folder = receipt.toolkit_folder if receipt is not None else ""
            publish(
                EventKind.TOOLKIT_DAMAGED,
                "A file of the toolkit is not what was put there",
                level="warning",
                file=f"{folder}/{each.name}",
                what=each.what,
                hint=hint,
            )
        return {path: differences[path] for path in paths if differences.get(path)}

    def _plan_differences(self, receipt: Receipt | None) -> tuple[dict[str, str], InstallerError | None]:
        """Return the changes that a run would make now, as diffs by path with masked secrets; or why it cannot plan."""
        from toolkit_installer.documents import diff  # noqa: PLC0415  # only for a changed file

        try:
            seen = self._prepare(receipt)
        except InstallerError as error:
            log.get().debug("What a run would change cannot be told", reason=str(error))
            return {}, error
        files = [wanted for engine in seen.plan.engines for wanted in engine.desired.files]
        return {
            wanted.path: diff.format_diff(wanted.path, wanted.file.content, wanted.target)[:_MAX_DIFFERENCE]
            for wanted in files
        }, None


def find_damage(node: Node, toolkit: ToolkitSettings, receipt: Receipt | None) -> tuple[Damage, ...]:
    """Return the toolkit's files that differ from the installed ones. Raises NodeError."""
    return installed.find_damage(node, toolkit, receipt) if receipt is not None else ()


_REMEDY = (
    "look at the driver container's log, or install the driver there again: the node is ready once nvidia-smi works; "
    "if the driver is elsewhere now, start `run` with another --driver-root"
)


class DriverHistory(enum.StrEnum):
    """The most that was seen of the driver in a named root."""

    UNKNOWN = ""
    """Not inspected yet."""
    NOTHING = "nothing"
    THERE = "there"
    """nvidia-smi exists, and has not worked so far."""
    WORKING = "working"


class DriverWatch:
    """A watch of the driver's paths, and of whether the driver of a named root is gone."""

    def __init__(self, node: Node, toolkit: ToolkitSettings) -> None:
        self.named = not roots.is_automatic(toolkit) and not toolkit.cdi.enabled
        """Whether the root was named, and the same files are installed for every driver in it."""
        self.watched: tuple[tuple[str, str], ...] = ()
        """Paths that change with the driver, with their identities (idling.identity) from before the last search."""
        self.gone = False
        """Whether there was a driver in the named root, and none is usable there now."""
        self.not_found = False
        """Whether the last plan found no usable driver; files generated for the previous driver are then kept."""
        self.history = DriverHistory.UNKNOWN
        """What was seen so far of the driver in the named root."""
        self._node = node
        self._toolkit = toolkit

    @property
    def missing(self) -> bool:
        """Whether no driver was usable at the last inspection."""
        return self.gone or self.not_found

    def restore(self, watched: tuple[tuple[str, str], ...], history: DriverHistory, *, missing: bool) -> None:
        """Restore what the process before the idle one saved."""
        self.watched = watched
        self.gone, self.not_found = self.named and missing, not self.named and missing
        self.history = history

    def refresh(self) -> None:
        """Take the identities before an inspection of the node; inspect a named root whose driver changed meanwhile.

        Raises NodeError, Stopped.
        """
        before = self.watched
        self.watched = identify_paths(roots.paths_to_watch(self._node, self._toolkit))
        if self.history is not DriverHistory.UNKNOWN and (self.gone or self.watched != before):
            self._inspect()

    def update_identities(self) -> None:
        """Take the identities again: this change is known, whatever comes of it."""
        self.watched = identify_paths(path for path, _ in self.watched)

    def inspect_first(self) -> None:
        """Inspect a named root for the first time: only a driver that was there can go. Raises NodeError, Stopped."""
        if self.named and self.history is DriverHistory.UNKNOWN:
            self.watched = self.watched or identify_paths(roots.paths_to_watch(self._node, self._toolkit))
            self._inspect()

    def _inspect(self) -> None:
        """Probe whether the driver in the named root is usable, and log what changed. Raises Stopped."""
        try:
            found = roots.find_driver(self._node, self._toolkit)
            without_gpu = found.driver is None and gpus.find_gpus(self._node).absent
        except InstallerError as error:
            found, without_gpu = DriverSearch(None, (str(error),)), False
        usable = found.driver is not None
        vanished = not usable and (
            self.history is DriverHistory.WORKING or (self.history is DriverHistory.THERE and found.nothing_there)
        )
        appeared = usable and (self.gone or self.history in (DriverHistory.NOTHING, DriverHistory.THERE))
        self.gone = vanished and not without_gpu
        if usable:
            self.history = DriverHistory.WORKING
        elif self.history in (DriverHistory.UNKNOWN, DriverHistory.NOTHING):
            self.history = DriverHistory.NOTHING if found.nothing_there else DriverHistory.THERE
        if appeared and found.driver is not None:
            roots.log_driver_found(found.driver)
        elif self.gone:
            roots.log_driver_gone(self._toolkit.driver_root, found.missing, hint=_REMEDY)


NO_GPU_TEXT = "no NVIDIA GPU: nothing is installed\n"
"""The ready file's content while the node shows no GPU."""


class GpuWatch:
    """A watch of a node without a GPU: whether a run changes nothing there, and which paths to watch meanwhile."""

    def __init__(self, node: Node, toolkit: ToolkitSettings, *, may_idle: bool) -> None:
        """`may_idle`: `--without-gpu idle`."""
        self._node = node
        self._toolkit = toolkit
        self._may_idle = may_idle
        self.idle = False
        """Whether the run changes nothing on the node, and has logged that."""
        self.watched: tuple[tuple[str, str], ...] = ()
        """Paths that change when a GPU comes, with their identities (idling.identity) from before the inspection."""

    def must_idle(self, receipt: Receipt | None) -> bool:
        """Return whether the run is to change nothing; an existing installation is kept up with or without a GPU.

        Raises NodeError, Stopped.
        """
        self.watched = ()
        if not self._may_idle or receipt is not None:
            self.idle = False
            return False
        watched = identify_paths(gpus.paths_to_watch(self._node))
        seen = gpus.find_usable_gpus(self._node, self._toolkit)
        if self.idle and not seen.absent:
            log.get().info("The node shows an NVIDIA GPU now", key="gpu-found", gpu=str(seen))
        elif seen.absent and not self.idle:
            log.get().info(
                "This node shows no NVIDIA GPU: nothing is changed here until it does (--without-gpu idle)",
                key="no-gpu",
                gpu=str(seen),
            )
        self.idle = seen.absent
        self.watched = watched if seen.absent else ()
        return seen.absent


def identify_paths(paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the paths, each with its identity as the idle process will compare it."""
    return tuple((path, idling.identity(path)) for path in paths)
