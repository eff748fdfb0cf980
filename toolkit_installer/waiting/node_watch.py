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
from collections.abc import Iterable

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
from toolkit_installer.planning.prepare import prepare
from toolkit_installer.receipt import memory, schema
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import OnDrift, Settings, WithoutGpu

_MAX_DIFFERENCE = 4000
"""The longest difference in the log, in characters; `plan` shows all of it."""


class DriftWatch:
    """A watch of all that a run wrote to the node: the engines' files, the specifications, the toolkit's files."""

    def __init__(self, settings: Settings, node: Node, store: ReceiptStore) -> None:
        self._settings = settings
        self._node = node
        self._store = store
        self._receipt = f"{store.folder}/{schema.FILE}"
        self.told = False
        """Whether a change was logged, which each process does once: the log line may be the only reaction."""
        self.differences: dict[str, str] = {}
        """The changes that a run would make to files that were edited, as far as they can be planned, by path."""

    def watched(self, receipt: Receipt | None) -> list[tuple[str, str, str]]:
        """Return what the idle process watches: the event, paths as seen from here, their present identities."""
        if receipt is None or self._settings.on_drift is OnDrift.IGNORE:
            return []
        paths = [*receipt.file_paths(), *(f"{receipt.toolkit_folder}/{name}" for name in receipt.toolkit_files)]
        places = map(self._node.root.outside, [*paths, self._node.files.canonical(self._receipt)])
        return [(idling.DRIFT, place, idling.identity(place)) for place in places]

    def folders(self, receipt: Receipt | None) -> list[str]:
        """Return the folders, as seen from here, in which any change is to be inspected at once.

        The folders of CDI specifications are omitted: other programs write there at each start of a container.
        """
        if receipt is None or self._settings.on_drift is OnDrift.IGNORE:
            return []
        files = [file.path for engine in receipt.engines for file in engine.files]
        files += [f"{receipt.toolkit_folder}/{name}" for name in receipt.toolkit_files]
        # the toolkit's own folder may be renamed as a whole
        folders = [posixpath.dirname(receipt.toolkit_folder), *map(posixpath.dirname, files)]
        return list(map(self._node.root.outside, dict.fromkeys(folders)))

    def look(self, receipt: Receipt | None) -> bool:
        """Return whether any of these files differs from what was written, and log that. Raises NodeError, Stopped.

        To be called only if there was a receipt: None means that the receipt was deleted.
        """
        if receipt is None and self._node.files.own_status(self._receipt) is None:
            self.told = True
            log.get().warning(
                "The receipt was deleted; `--on-drift repair` or `refresh` would rebuild it",
                key="receipt-gone",
                file=self._receipt,
            )
            return True
        if not memory.drifted(self._node, receipt) and not find_damage(self._settings, self._node, receipt):
            return False
        self.told = True
        if self._settings.on_drift is OnDrift.REPAIR:
            publish(EventKind.DRIFT_REPAIR, "A managed file was changed: looking again", level="warning")
        else:
            self.differences = _log_drift(self._settings, self._node, self._store, receipt)
        return True


def find_damage(settings: Settings, node: Node, receipt: Receipt | None) -> tuple[Damage, ...]:
    """Return the toolkit's files that differ from the installed ones. Raises NodeError."""
    return installed.find_damage(node, settings, receipt) if receipt is not None else ()


def _log_drift(settings: Settings, node: Node, store: ReceiptStore, receipt: Receipt | None) -> dict[str, str]:
    """Log the changed files: for an engine's file, what a run would change, or why the file cannot be parsed.

    Return the changes that a run would make, by path.
    """
    paths = memory.drifted(node, receipt)
    engines = receipt.asked() if receipt is not None else ()
    # planning queries the engines, which must not start one that an administrator stopped
    ask = not any(serving.is_socket_activated(node, each.name, each.socket) for each in engines)
    differences, refusal = _plan_differences(settings, node, store, receipt) if paths and ask else ({}, None)
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
    for each in find_damage(settings, node, receipt):
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


def _plan_differences(
    settings: Settings, node: Node, store: ReceiptStore, receipt: Receipt | None
) -> tuple[dict[str, str], InstallerError | None]:
    """Return the changes that a run would make now, as diffs by path with masked secrets; or why it cannot plan."""
    from toolkit_installer.documents import diff  # noqa: PLC0415  # only for a changed file

    try:
        seen = prepare(receipt, settings, node, store)
    except InstallerError as error:
        log.get().debug("What a run would change cannot be told", reason=str(error))
        return {}, error
    files = [wanted for engine in seen.plan.engines for wanted in engine.desired.files]
    return {
        wanted.path: diff.format_diff(wanted.path, wanted.file.content, wanted.target)[:_MAX_DIFFERENCE]
        for wanted in files
    }, None


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

    def __init__(self, settings: Settings, node: Node) -> None:
        toolkit = settings.toolkit
        self.named = not roots.is_automatic(toolkit) and not toolkit.cdi.enabled
        """Whether the root was named, and the same files are installed for every driver in it."""
        self.watched: tuple[tuple[str, str], ...] = ()
        """Paths that change with the driver, with their identities (idling.identity) from before the last search."""
        self.away = False
        """Whether there was a driver in the named root, and none is usable there now."""
        self._settings = settings
        self._node = node
        self._seen = DriverHistory.UNKNOWN

    @property
    def seen(self) -> DriverHistory:
        """What was seen so far of the driver in the named root."""
        return self._seen

    def restore(self, watched: tuple[tuple[str, str], ...], seen: DriverHistory, *, away: bool) -> None:
        """Restore what the process before the idle one saved."""
        self.watched = watched
        self.away = self.named and away
        self._seen = seen

    def renew(self) -> None:
        """Take the identities before an inspection of the node; inspect a named root whose driver changed meanwhile.

        Raises NodeError, Stopped.
        """
        before = self.watched
        self.watched = identify_paths(roots.paths_to_watch(self._node, self._settings.toolkit))
        if self._seen is not DriverHistory.UNKNOWN and (self.away or self.watched != before):
            self._look()

    def changed(self) -> None:
        """Take the identities again: this change is known, whatever comes of it."""
        self.watched = identify_paths(path for path, _ in self.watched)

    def look_first(self) -> None:
        """Inspect a named root for the first time: only a driver that was there can go. Raises NodeError, Stopped."""
        if self.named and self._seen is DriverHistory.UNKNOWN:
            self.watched = self.watched or identify_paths(roots.paths_to_watch(self._node, self._settings.toolkit))
            self._look()

    def _look(self) -> None:
        """Probe whether the driver in the named root is usable, and log what changed. Raises Stopped."""
        try:
            found = roots.find_driver(self._node, self._settings.toolkit)
            without_gpu = found.driver is None and gpus.find_gpus(self._node).absent
        except InstallerError as error:
            found, without_gpu = DriverSearch(None, (str(error),)), False
        usable = found.driver is not None
        gone = not usable and (
            self._seen is DriverHistory.WORKING or (self._seen is DriverHistory.THERE and found.nothing_there)
        )
        came = usable and (self.away or self._seen in (DriverHistory.NOTHING, DriverHistory.THERE))
        self.away = gone and not without_gpu
        if usable:
            self._seen = DriverHistory.WORKING
        elif self._seen in (DriverHistory.UNKNOWN, DriverHistory.NOTHING):
            self._seen = DriverHistory.NOTHING if found.nothing_there else DriverHistory.THERE
        if came and found.driver is not None:
            roots.log_driver_found(found.driver)
        elif self.away:
            roots.log_driver_gone(self._settings.toolkit.driver_root, found.missing, hint=_REMEDY)


NO_GPU_TEXT = "no NVIDIA GPU: nothing is installed\n"
"""The ready file's content while the node shows no GPU."""


class GpuWatch:
    """A watch of a node without a GPU: whether a run changes nothing there, and which paths to watch meanwhile."""

    def __init__(self, settings: Settings, node: Node) -> None:
        self._settings = settings
        self._asked_for = settings.without_gpu is WithoutGpu.IDLE
        self._node = node
        self.idle = False
        """Whether the run changes nothing on the node, and has logged that."""
        self.watched: tuple[tuple[str, str], ...] = ()
        """Paths that change when a GPU comes, with their identities (idling.identity) from before the inspection."""

    def leaves_alone(self, receipt: Receipt | None) -> bool:
        """Return whether the run is to change nothing; an existing installation is kept up with or without a GPU.

        Raises NodeError, Stopped.
        """
        self.watched = ()
        if not self._asked_for or receipt is not None:
            self.idle = False
            return False
        watched = identify_paths(gpus.paths_to_watch(self._node))
        seen = gpus.find_usable_gpus(self._node, self._settings.toolkit)
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

    def waits_for_driver(self, receipt: Receipt | None) -> bool:
        """Return whether the run goes on without a driver that it needs, idle, until there is one.

        With `--without-gpu idle` it does for a GPU that came later, as no other program waits for its driver then. An
        existing installation stays as it is without a driver, and needs no waiting.
        """
        if not self._settings.daemon:
            return False
        bare = receipt is None or receipt.state is not State.INSTALLED
        return self._settings.wait_for_driver or (self._asked_for and bare)

    def wait_for_driver(self) -> None:
        """Return once a driver is usable, for a run that does not become idle. Raises Stopped."""
        from toolkit_installer.driver import waiting  # noqa: PLC0415  # few runs wait

        waiting.wait_for_driver(self._node, self._settings, None)


def identify_paths(paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the paths, each with its identity as the idle process will compare it."""
    return tuple((path, idling.identity(path)) for path in paths)
