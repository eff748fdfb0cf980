"""Writing an engine's files, and seeing somebody else's edit between two of our own: then all is done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from toolkit_installer import log
from toolkit_installer.engines.api import Engine, EngineFile, quarantine
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.disk.files import ChangedMeanwhileError
from toolkit_installer.node.disk.reading import Found, Metadata
from toolkit_installer.node.disk.writing import own_metadata
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import memory

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
