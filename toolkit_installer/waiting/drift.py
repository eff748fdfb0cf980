"""Telling what somebody changed of the files that a waiting instance looks after: once, and with what would undo it."""

from __future__ import annotations

import posixpath

from toolkit_installer import log
from toolkit_installer.engines.common import serving
from toolkit_installer.errors import InstallerError
from toolkit_installer.node import idling
from toolkit_installer.node.node import Node
from toolkit_installer.planning import toolkit_state
from toolkit_installer.planning.prepare import prepare
from toolkit_installer.planning.toolkit_state import Damage
from toolkit_installer.receipt import memory, schema
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import OnDrift, Settings

_LONGEST = 4000
"""Characters of a difference in the log; `plan` shows all of it."""


class DriftWatch:
    """Looks after all that a run has put on the node: the engines' files, the specifications, the toolkit's files."""

    def __init__(self, settings: Settings, node: Node, store: ReceiptStore) -> None:
        self._settings = settings
        self._node = node
        self._store = store
        self._receipt = f"{store.folder}/{schema.FILE}"
        self.told = False
        """A change was told: once in each process is enough, as the report may be all that follows."""
        self.differences: dict[str, str] = {}
        """What a run would change in the files that somebody changed, as far as that can be told, by path."""

    def watched(self, receipt: Receipt | None) -> list[tuple[str, str, str]]:
        """Return what the idle process is to look at: the event, paths as seen from here, their identities now."""
        if receipt is None or self._settings.on_drift is OnDrift.IGNORE:
            return []
        paths = [*receipt.file_paths(), *(f"{receipt.toolkit_folder}/{name}" for name in receipt.toolkit_files)]
        places = map(self._node.root.outside, [*paths, self._node.files.canonical(self._receipt)])
        return [(idling.DRIFT, place, idling.identity(place)) for place in places]

    def folders(self, receipt: Receipt | None) -> list[str]:
        """Return the folders, as seen from here, in which any change is worth a look at once.

        Not those of CDI specifications: others write there at each start of a container.
        """
        if receipt is None or self._settings.on_drift is OnDrift.IGNORE:
            return []
        files = [file.path for engine in receipt.engines for file in engine.files]
        files += [f"{receipt.toolkit_folder}/{name}" for name in receipt.toolkit_files]
        # the toolkit's own folder may be renamed as a whole
        folders = [posixpath.dirname(receipt.toolkit_folder), *map(posixpath.dirname, files)]
        return list(map(self._node.root.outside, dict.fromkeys(folders)))

    def look(self, receipt: Receipt | None) -> bool:
        """Tell whether any of these files is not as it was written, and say so. Raises NodeError, Stopped.

        To be asked where there was a receipt: none means that somebody deleted it.
        """
        if receipt is None and self._node.files.own_status(self._receipt) is None:
            self.told = True
            log.get().warning(
                "The receipt was deleted; `--on-drift repair` or `refresh` would rebuild it",
                key="receipt-gone",
                file=self._receipt,
            )
            return True
        if not memory.drifted(self._node, receipt) and not damage(self._settings, self._node, receipt):
            return False
        self.told = True
        if self._settings.on_drift is OnDrift.REPAIR:
            log.get().warning("A managed file was changed: looking again", key="drift-repair")
        else:
            self.differences = _report(self._settings, self._node, self._store, receipt)
        return True


def damage(settings: Settings, node: Node, receipt: Receipt | None) -> tuple[Damage, ...]:
    """Return the toolkit's files that are not what they were. Raises NodeError."""
    return toolkit_state.damaged(node, settings, receipt) if receipt is not None else ()


def _report(settings: Settings, node: Node, store: ReceiptStore, receipt: Receipt | None) -> dict[str, str]:
    """Log what was changed: of an engine's file, what a run would change, or why it cannot be read any more.

    Return what a run would change, by path.
    """
    paths = memory.drifted(node, receipt)
    engines = receipt.asked() if receipt is not None else ()
    # planning asks the engines: one that somebody stopped stays so
    ask = not any(serving.starts_when_asked(node, each.name, each.socket) for each in engines)
    differences, refusal = _differences(settings, node, store, receipt) if paths and ask else ({}, None)
    from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # what was not changed needs none

    command = refresh_command.of_self()
    hint = f"`{command}` puts it right"
    for path in paths:
        wrong = refusal if refusal is not None and refusal.path == path else None
        log.get().warning(
            "Somebody changed the file; `--on-drift repair` or `refresh` would put the handlers back",
            key="drift",
            file=path,
            line=wrong.line if wrong is not None else None,
            reason=wrong.reason if wrong is not None else None,
            difference=differences.get(path),
            hint=hint if wrong is None else f"mend the file, then `{command}`",
        )
    for each in damage(settings, node, receipt):
        folder = receipt.toolkit_folder if receipt is not None else ""
        log.get().warning(
            "A file of the toolkit is not what was put there",
            key="toolkit-damaged",
            file=f"{folder}/{each.name}",
            what=each.what,
            hint=hint,
        )
    return {path: differences[path] for path in paths if differences.get(path)}


def _differences(
    settings: Settings, node: Node, store: ReceiptStore, receipt: Receipt | None
) -> tuple[dict[str, str], InstallerError | None]:
    """Return what a run would change now, as diffs by path in which secrets are masked; or why none can be planned."""
    from toolkit_installer.documents import diff  # noqa: PLC0415  # what was not changed needs none

    try:
        seen = prepare(receipt, settings, node, store)
    except InstallerError as error:
        log.get().debug("What a run would change cannot be told", reason=str(error))
        return {}, error
    files = [wanted for engine in seen.plan.engines for wanted in engine.desired.files]
    return {
        wanted.path: diff.unified(wanted.path, wanted.file.content, wanted.target)[:_LONGEST] for wanted in files
    }, None
