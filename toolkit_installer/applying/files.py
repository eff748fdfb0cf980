"""Putting the toolkit's files in place, and telling meanwhile how far that is.

Folders that were made for files which are no longer ours: they go with these, before the receipt is settled.

Writing an engine's files, and seeing somebody else's edit between two of our own: then all is done again.
"""

from __future__ import annotations

import itertools
import posixpath
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from toolkit_installer import log
from toolkit_installer.engines.api import Engine, EngineFile, quarantine
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Found, Identity, Metadata, Tree
from toolkit_installer.node.terminal import StatusLine
from toolkit_installer.node.writing import own_metadata
from toolkit_installer.planning.installed import Copies
from toolkit_installer.planning.plan import ToolkitWork
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt import memory
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


_Result = TypeVar("_Result")
_NEW_FILE_MODE = 0o644
_ATTEMPTS = 3
"""How often a plan is made again because somebody else wrote the same file meanwhile."""


class Writer:
    """Writes files and keeps what it wrote, to notice another content as somebody else's edit."""

    def __init__(self, node: Node, store: str) -> None:
        """`store` is the receipt's folder."""
        self._node = node
        self._store = store
        self._attempts: dict[str, list[bytes | None]] = {}

    def write(
        self, engine: Engine | None, file: EngineFile, content: bytes | None, lost: Metadata | None = None
    ) -> None:
        """Make a file of an engine, or one that no engine has to be told of, hold `content`; None: no file.

        `lost` is what one carried that is restored, as it is missing.

        Raises ChangedMeanwhileError if somebody else wrote it since it was read, NodeError.
        """
        expected = self._expected(engine, file)
        if content == (None if expected is None else expected.content):
            return
        # before the attempt: one that fails late, at its last fsync, has changed the file all the same
        attempts = self._attempts.setdefault(file.path, [])
        attempts.append(content)
        try:
            self._put(file, content, expected, lost)
        except ChangedMeanwhileError:
            attempts.pop()  # the file is the other program's as it was: a rollback has nothing to restore in it
            raise

    def _put(self, file: EngineFile, content: bytes | None, expected: Found | None, lost: Metadata | None) -> None:
        """Replace or remove the file. Raises ChangedMeanwhileError, after which nothing of ours is in it; NodeError."""
        if content is None:
            assert expected is not None  # noqa: S101  # it differs from content
            self._node.files.remove_expected(expected)
            log.get().info("Removed the file", key="file-removed", file=file.path)
            return
        metadata = lost or own_metadata(_NEW_FILE_MODE) if file.found is None else file.found.metadata
        self._node.files.replace(file.path, content, metadata, expected)
        log.get().info("Wrote the file", key="file-written", file=file.path)

    def _expected(self, engine: Engine | None, file: EngineFile) -> Found | None:
        """Return the file as it must still be: as it was read, or as one of our own attempts left it."""
        attempts = self._attempts.get(file.path)
        if not attempts:
            return file.found
        known = (*attempts, file.content)
        ours = {memory.digest_of(content) for content in known if content is not None}
        self._node.files.recover(file.path, ours, quarantine(engine, self._store) if engine is not None else None)
        now = self._node.files.read_file(file.path)
        if (None if now is None else now.content) not in known:
            raise ChangedMeanwhileError("somebody else changed it meanwhile", path=file.path, hint="it is read again")
        return now


def undisturbed(work: Callable[[], _Result]) -> _Result:
    """Do the work, and do it again if somebody else wrote the same file meanwhile; return what it returns.

    Raises ConfigurationError if that happens over and over.
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
