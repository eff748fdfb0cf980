"""Putting the toolkit's files in place, and telling meanwhile how far that is.

Folders that were made for files which are no longer ours: they go with these, before the receipt is settled.
"""

from __future__ import annotations

import itertools
import posixpath
import time
from collections.abc import Callable, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.node.disk.reading import Identity, Tree
from toolkit_installer.node.disk.writing import own_metadata
from toolkit_installer.node.node import Node
from toolkit_installer.node.terminal import StatusLine
from toolkit_installer.planning.plan import ToolkitWork
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.planning.toolkit_state import Copies
from toolkit_installer.receipt.schema import Copy, Receipt
from toolkit_installer.receipt.store import ReceiptStore

_LINE_SECONDS = 5.0
_BAR_SECONDS = 0.1
_CELLS = 20


class Progress:
    """How many bytes are copied, of `total`: a bar on a person's terminal, else a log line every 5 seconds.

    Of what is done sooner, nothing is told. `now` returns seconds, and never goes back.
    """

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self.bar = StatusLine(on=log.is_for_people())
        self._total = total
        self._now = now
        self._done = 0
        self._began = self._told = now()

    def add(self, count: int) -> None:
        """Count bytes that were copied; 0 after what else took its time."""
        self._done += count
        now = self._now()
        if now - self._told < (_BAR_SECONDS if self.bar.on else _LINE_SECONDS):
            return
        self._told = now
        rate = round(self._done / (now - self._began))
        if self.bar.on:
            cells = "#" * (_CELLS * self._done // max(self._total, 1))
            amount = f"{self._done / 1e6:.1f} of {self._total / 1e6:.1f} MB, {rate / 1e6:.1f} MB/s"
            self.bar.show(f"Copying the toolkit [{cells:{_CELLS}}] {amount}")
        else:
            log.get().info(
                "Copying the toolkit",
                key="copying",
                bytes_done=self._done,
                bytes_total=self._total,
                bytes_per_second=rate,
            )


def install(node: Node, seen: Prepared, safe_point: Callable[[], None]) -> list[Copy]:
    """Put the toolkit's files in place that the plan names, in their order, each atomically, over whatever is there.

    A file is on the disk, its name too, before the next one gets its own: what calls comes after what is called, and an
    engine may run them meanwhile. Where nothing of the toolkit is there yet, and no receipt, what uses it is written
    after this has returned. Then the names of files that follow each other in one folder are flushed together, before
    the first one in another folder. `safe_point` is called before each file.
    Returns the stamps of the copies, but for those whose source somebody touched meanwhile.
    Raises NodeError, ConfigurationError, and what `safe_point` raises.
    """
    work, tree = seen.plan.toolkit, Tree(seen.target.payload.root)
    each = seen.receipt is not None or bool(work.present)
    sources = [tree.status(file.source) for file in work.write if file.source is not None]
    progress = Progress(sum(status.st_size for status in sources if status is not None))
    copies, made = Copies(node, work.folder, tree), []
    paths = ((node.files.in_folder(posixpath.join(work.folder, file.name)), file) for file in work.write)
    try:
        for folder, placed in itertools.groupby(paths, lambda place: posixpath.dirname(place[0])):
            for path, file in placed:
                safe_point()
                if file.target is not None:
                    node.files.symlink(file.target, path, flush=each)
                elif file.source is not None:
                    before = tree.status(file.source)
                    node.files.copy(tree.outside(file.source), path, own_metadata(file.mode), progress.add, flush=each)
                    copy = copies.taken(file.name, file.source)
                    if copy is not None and before is not None and copy.source_stamp == Identity.of(before).stamp:
                        made.append(copy)
                    progress.add(0)
                elif file.content is not None:
                    node.files.overwrite(path, file.content, own_metadata(file.mode), flush=each)
                log.get().debug("Installed the file", file=path)
            if not each:
                node.files.flush_folder(folder)
    finally:
        progress.bar.clear()
    return made


def without_needless(node: Node, receipt: Receipt, store: str) -> Receipt:
    """Remove the folders that no file of the receipt needs; return it without them. `store` is the receipt's folder.

    One that somebody else put something into stays recorded: cleanup looks at it again. Raises NodeError.
    """
    needed = [f"{path}/" for path in (*receipt.file_paths(), receipt.toolkit_folder, store)]
    kept = list(receipt.folders)
    for folder in reversed(receipt.folders):
        within = f"{folder}/".startswith(f"{receipt.toolkit_folder}/")
        if within or any(path.startswith(f"{folder}/") for path in needed):
            continue
        canonical = node.files.in_folder(folder)
        if node.files.made_by_others(canonical) or node.files.remove_folder(canonical):
            kept.remove(folder)
        else:
            log.get().info("A folder stays: somebody put something into it", key="folder-kept", file=folder)
    return msgspec.structs.replace(receipt, folders=tuple(kept))


def flush(node: Node, work: ToolkitWork, folders: Sequence[str]) -> None:
    """Make the entries of the toolkit, and of `folders`, those that we created, durable. Raises NodeError."""
    paths = [work.folder, *folders, *(posixpath.join(work.folder, file.name) for file in work.files)]
    for folder in dict.fromkeys(map(node.files.canonical, dict.fromkeys(map(posixpath.dirname, paths)))):
        node.files.flush_folder(folder)


def remove(node: Node, folder: str, name: str) -> None:
    """Remove one file, and what a killed run left of it. Raises NodeError."""
    path = node.files.in_folder(posixpath.join(folder, name))
    node.files.sweep(path)
    node.files.remove(path)


def remove_all(node: Node, receipt: Receipt) -> None:
    """Remove every file that the receipt names, users before what they use. Raises NodeError."""
    for name in reversed(receipt.toolkit_files):
        remove(node, receipt.toolkit_folder, name)


def remove_folders(node: Node, receipt: Receipt, store: ReceiptStore) -> None:
    """Remove the receipt, and the folders that were created where nothing of anybody else's is in them.

    The folders that hold the receipt go once it is gone, all others before. Raises NodeError.
    """
    _remove_folders(node, receipt, store.folder, store_gone=False)
    store.clear()
    _remove_folders(node, receipt, store.folder, store_gone=True)


def _remove_folders(node: Node, receipt: Receipt, around: str, *, store_gone: bool) -> None:
    for folder in reversed(receipt.folders):
        canonical = node.files.in_folder(folder)
        if around.startswith(f"{canonical}/") is not store_gone:
            continue
        inside = f"{canonical}/".startswith(f"{node.files.canonical(receipt.toolkit_folder)}/")
        if not inside and node.files.made_by_others(canonical):
            continue  # ours is gone, and somebody has made it anew since
        if not node.files.remove_folder(canonical):
            log.get().info("Left the folder: it is not empty", key="folder-left", file=folder)
