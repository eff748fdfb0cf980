"""Answers what seams are asked from a capture, in place of a node."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from toolkit_installer.engines.common.answering import NoAnswerError
from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.lifecycle.capture import asking, values
from toolkit_installer.lifecycle.capture.archive import Archive
from toolkit_installer.lifecycle.capture.recording import RUN, run_of
from toolkit_installer.lifecycle.capture.seams import Question
from toolkit_installer.lifecycle.capture.values import NotReadableError, RawAnswer
from toolkit_installer.node.disk.reading import CONFIG_LIMIT, Reader
from toolkit_installer.node.disk.root import Root
from toolkit_installer.settings import EngineName

_LONGEST_ANSWER = CONFIG_LIMIT + 1024 * 1024
"""Bytes: a file of the node has at most CONFIG_LIMIT, and its path and attributes stand beside it."""
_LONGEST_SHOWN = 80


class NotCapturedError(Exception):
    """The capture has no answer to what the plan asks. No error of the program's: nobody is to take it for one."""


class DamagedError(Exception):
    """The capture has an answer that no node gives. As above: who plans must not take it for the node's."""


class Player:
    """Of one capture. `here`: folders of this machine that are looked at as they are, as payloads are.

    `versions`: of which version engines are supposed to be, by their names.
    """

    def __init__(self, archive: Archive, here: Collection[str] = (), versions: Mapping[str, str] | None = None) -> None:
        self._archive = archive
        self._here = tuple(here)
        self._digests: Mapping[str, str] = archive.digests
        self._waited = 0.0
        self._no_programs = False
        self.versions: Mapping[str, str] = versions or {}
        self.captured: dict[str, str] = {}
        """What engines that are supposed to be of another version said of theirs."""
        self.untried: dict[str, None] = {}
        """Engines whose own binary would be asked about what is planned, and was not."""

    def asked(self, question: Question, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return what the node answered, or raise it. Raises NotCapturedError, DamagedError."""
        if self._here and self._is_here(given[0] if given else None):
            return question.function(*given, **named)
        if self._no_programs and question.seam.name == RUN:
            raise NotCapturedError("not captured: what another version's binary says")
        arguments = question.arguments(given, named)
        line = run_of(arguments).line if question.seam.name == RUN else asking.line(arguments)
        answers = self._archive.answers.get(str(question.seam), {})
        raw = answers.get(values.escaped(line))
        if raw is None:
            raise NotCapturedError(f"not captured: {asking.shown(str(question.seam), line)}")
        try:
            return _read(raw, question)
        except NotReadableError as error:
            raise DamagedError(f"is damaged: {question.seam}: {error}") from error

    @contextlib.contextmanager
    def trying(self, engine: EngineName) -> Iterator[None]:
        """Have no binary asked meanwhile that is of another version than the engine is supposed to be."""
        self._no_programs = engine in self.versions
        try:
            yield
        finally:
            self._no_programs = False

    def digest(self, found: str) -> str:
        """Return the SHA-256 that a content has on the node."""
        return self._digests.get(found, found)

    def rest(self, seconds: float) -> None:
        """Let time pass for whoever waits for an engine."""
        self._waited += seconds

    def monotonic(self) -> float:
        """Return how long was waited."""
        return self._waited

    def _is_here(self, asked: Any) -> bool:
        return any(_beneath(place, folder) for place in _places(asked) for folder in self._here)


def _read(raw: RawAnswer, question: Question) -> Any:
    """Return the node's answer, or raise it. Raises NotReadableError for what no node answers."""
    if len(raw.value) > _LONGEST_ANSWER:
        raise NotReadableError(f"an answer of more than {_LONGEST_ANSWER} bytes, and no file may have as many")
    try:
        value = values.read(raw, question.answer)
    except OSError as error:
        if question.seam.says_why:
            raise NotReadableError("an error of the system, for which it has one of its own") from error
        raise
    except InstallerError as error:
        if error.exit_code is ExitCode.BUG and not (question.seam.again and isinstance(error, NoAnswerError)):
            raise NotReadableError(f"an error {type(error).__name__}, which no node leads to here") from error
        raise
    if question.seam.valid is not None and not question.seam.valid(value):
        raise NotReadableError(f"{str(value)[:_LONGEST_SHOWN]!r}, which no node answers")
    return value


def _places(asked: Any) -> Iterator[str]:
    if isinstance(asked, str):
        yield asked
    elif isinstance(asked, Reader):
        yield asked.root.folder
    elif isinstance(asked, Root):
        yield asked.folder


def _beneath(place: str, folder: str) -> bool:
    straight = posixpath.normpath(place)  # a capture may name a path that leads out of the folder again
    return straight == folder or straight.startswith(f"{folder.rstrip('/')}/")
