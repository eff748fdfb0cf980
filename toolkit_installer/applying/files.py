"""Install and remove the toolkit's files and folders, and write the engines' files.

Copying reports its progress. Folders that were created for files that no longer belong to the installation are removed
with them, before the final receipt is saved. `ManagedFileWriter` notices another program's edit between two writes of
its own: then the whole work is repeated.
"""

from __future__ import annotations

import itertools
import posixpath
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from toolkit_installer import log
from toolkit_installer.engines.api import Engine, EngineFile, choose_quarantine
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import FileIdentity, Found, Metadata, Tree
from toolkit_installer.node.terminal import StatusLine
from toolkit_installer.node.writing import own_metadata
from toolkit_installer.planning.installed import Copies
from toolkit_installer.planning.plan import ToolkitWork
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import Copy, Receipt
from toolkit_installer.receipt.store import ReceiptStore

_LINE_SECONDS = 5.0
_BAR_SECONDS = 0.1
_CELLS = 20


class CopyProgress:
    """The progress of copying `total` bytes: a bar on a terminal, else a log line every 5 seconds.

    Work that finishes sooner is not reported. `now` is a monotonic clock in seconds.
    """

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self.bar = StatusLine(on=log.is_for_people())
        self._total = total
        self._now = now
        self._done = 0
        self._began = self._reported_at = now()

    def add(self, count: int) -> None:
        """Add copied bytes and report progress if due; 0 after other work."""
        self._done += count
        now = self._now()
        if now - self._reported_at < (_BAR_SECONDS if self.bar.on else _LINE_SECONDS):
            return
        self._reported_at = now
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
    """Install the toolkit files that the plan names, in order, each atomically, over any existing file.

    Each file and its name are on the disk before the next one gets its name: a caller comes after what it calls, and an
    engine may run them meanwhile. If neither toolkit nor receipt exists yet, the files that use the toolkit are written
    after this function returns; then the names of consecutive files in one folder are flushed together, before the
    first file in another folder. `safe_point` is called before each file.

    Returns the stamps of the copies, except those whose source changed meanwhile. Raises NodeError, ConfigurationError,
    and what `safe_point` raises.
    """
    work, tree = seen.plan.toolkit, Tree(seen.target.payload.root)
    each = seen.receipt is not None or bool(work.present)
    sources = [tree.status(file.source) for file in work.write if file.source is not None]
    progress = CopyProgress(sum(status.st_size for status in sources if status is not None))
    copies, copied = Copies(node, work.folder, tree), []
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
                    if copy is not None and before is not None and copy.source_stamp == FileIdentity.of(before).stamp:
                        copied.append(copy)
                    progress.add(0)
                elif file.content is not None:
                    node.files.overwrite(path, file.content, own_metadata(file.mode), flush=each)
                log.get().debug("Installed the file", file=path)
            if not each:
                node.files.flush_folder(folder)
    finally:
        progress.bar.clear()
    return copied


def remove_needless_folders(node: Node, receipt: Receipt, store: str) -> Receipt:
    """Remove the folders that no file of the receipt needs; return the receipt without them.

    `store` is the receipt's folder. A folder that holds another program's files stays recorded, for cleanup to check it
    again. Raises NodeError.
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
    """Make the directory entries of the toolkit, and of the `folders` that were created, durable. Raises NodeError."""
    paths = [work.folder, *folders, *(posixpath.join(work.folder, file.name) for file in work.files)]
    for folder in dict.fromkeys(map(node.files.canonical, dict.fromkeys(map(posixpath.dirname, paths)))):
        node.files.flush_folder(folder)


def remove(node: Node, folder: str, name: str) -> None:
    """Remove one file and the temporary files of killed runs beside it. Raises NodeError."""
    path = node.files.in_folder(posixpath.join(folder, name))
    node.files.sweep(path)
    node.files.remove(path)


def remove_toolkit_files(node: Node, receipt: Receipt) -> None:
    """Remove every file that the receipt names, users before what they use. Raises NodeError."""
    for name in reversed(receipt.toolkit_files):
        remove(node, receipt.toolkit_folder, name)


def remove_folders(node: Node, receipt: Receipt, store: ReceiptStore) -> None:
    """Remove the receipt, and the created folders that hold no files of other programs.

    Folders that contain the receipt are removed after it, all others before. Raises NodeError.
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
            continue  # ours is gone, and another program has created it anew since
        if not node.files.remove_folder(canonical):
            log.get().info("Left the folder: it is not empty", key="folder-left", file=folder)


_Result = TypeVar("_Result")
_NEW_FILE_MODE = 0o644
_ATTEMPTS = 3
"""How often the work is tried if another program writes the same file meanwhile."""


class ManagedFileWriter:
    """Writes files and keeps the contents it wrote, to detect edits by other programs."""

    def __init__(self, node: Node, store: str) -> None:
        """`store` is the receipt's folder."""
        self._node = node
        self._store = store
        self._attempts: dict[str, list[bytes | None]] = {}

    def write(
        self, engine: Engine | None, file: EngineFile, content: bytes | None, lost: Metadata | None = None
    ) -> None:
        """Write `content` to a file, or remove the file if `content` is None.

        `engine` is None for a file that needs no reload. `lost` is the metadata to restore if the file is missing.

        Raises ChangedMeanwhileError if another program wrote the file since it was read, NodeError.
        """
        expected = self._expected(engine, file)
        if content == (None if expected is None else expected.content):
            return
        # before the attempt: even one that fails late, at its last fsync, has changed the file
        attempts = self._attempts.setdefault(file.path, [])
        attempts.append(content)
        try:
            self._put(file, content, expected, lost)
        except ChangedMeanwhileError:
            attempts.pop()  # the file holds the other program's content: a rollback must not touch it
            raise

    def _put(self, file: EngineFile, content: bytes | None, expected: Found | None, lost: Metadata | None) -> None:
        """Replace or remove the file. Raises ChangedMeanwhileError, having written nothing; NodeError."""
        if content is None:
            assert expected is not None  # noqa: S101  # it differs from content
            self._node.files.remove_expected(expected)
            log.get().info("Removed the file", key="file-removed", file=file.path)
            return
        metadata = lost or own_metadata(_NEW_FILE_MODE) if file.found is None else file.found.metadata
        self._node.files.replace(file.path, content, metadata, expected)
        log.get().info("Wrote the file", key="file-written", file=file.path)

    def _expected(self, engine: Engine | None, file: EngineFile) -> Found | None:
        """Return the file as it is expected to be: as first read, or as one of our own attempts left it."""
        attempts = self._attempts.get(file.path)
        if not attempts:
            return file.found
        known = (*attempts, file.content)
        ours = {file_records.digest_of(content) for content in known if content is not None}
        self._node.files.recover(
            file.path, ours, choose_quarantine(engine, self._store) if engine is not None else None
        )
        now = self._node.files.read_file(file.path)
        if (None if now is None else now.content) not in known:
            raise ChangedMeanwhileError("somebody else changed it meanwhile", path=file.path, hint="it is read again")
        return now


def retry_if_changed(work: Callable[[], _Result]) -> _Result:
    """Call `work` and return its result; repeat it if another program wrote the same file meanwhile.

    Raises ConfigurationError if that happens repeatedly.
    """
    attempts = 1
    while True:
        try:
            return work()
        except ChangedMeanwhileError as error:
            if attempts == _ATTEMPTS:
                raise ConfigurationError(
                    f"somebody else changed it {_ATTEMPTS} times while it was edited",
                    path=error.path,
                    hint="find out who writes it; then start again",
                ) from error
            log.get().warning(
                "Somebody changed the file meanwhile: planning again", key="file-changed-meanwhile", file=error.path
            )
            attempts += 1
