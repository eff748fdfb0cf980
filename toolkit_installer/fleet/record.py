"""Records what seams answer while a node is looked at. It changes nothing of what is asked and answered.

Answers what seams are asked from a capture, in place of a node.

Puts a recorder, or a player, in the place of every seam for as long as a node is looked at.

A function is known in each module that imported it by name: it is replaced in all of them, so that none is left through
which the node could be reached. That takes all modules to be there before.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import posixpath
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from toolkit_installer.engines.api import LiveState
from toolkit_installer.engines.common.serving import NoAnswerError
from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.fleet import archive, seams, values
from toolkit_installer.fleet.archive import Archive, Run
from toolkit_installer.fleet.masking import Cleaning, Hiding
from toolkit_installer.fleet.seams import Question, Seam
from toolkit_installer.fleet.values import Answer, NotReadableError, RawAnswer
from toolkit_installer.node.programs import Programs
from toolkit_installer.node.reading import CONFIG_LIMIT, Reader
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.run import preload
from toolkit_installer.settings import EngineName

_HIDDEN_FROM_US: Final = (errno.EACCES, errno.EPERM, errno.EIO)
RUN: Final = "Programs.run"

Answers = dict[str, dict[str, Answer]]
"""By the seam's name, and by what was asked there."""


class Recorder:
    """Of one node."""

    def __init__(self) -> None:
        self._within = False
        """A seam is at work: what it asks at others is a part of its own answer."""
        self._answers: dict[Seam, dict[str, Answer]] = {}
        self._values: dict[tuple[Seam, str], Any] = {}
        """What is asked again is answered as before: processes come and go, and a capture is of one instant."""
        self._runs: dict[str, Run] = {}
        self.unread: dict[str, str] = {}
        """What could not be read, and why."""

    def asked(self, question: Question, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Ask what is asked, record the answer, and return it, or raise it."""
        if self._within:
            return question.function(*given, **named)
        self._within = True
        try:
            line = self._line(question, given, named)  # before it is asked: a program reads the files that it inherits
            known = (question.seam, line)
            if known in self._values and not question.seam.again:
                return self._values[known]
            value = self._values[known] = question.function(*given, **named)
            kept = value if question.seam.keeps is None else question.seam.keeps(value)
            self._keep(question, line, Answer(values.built(kept)))
        except (InstallerError, OSError) as error:
            self._keep(question, line, Answer(failure=values.failure_of(error)))
            self._note(error)
            raise
        finally:
            self._within = False
        return value

    def recorded(self, hiding: Hiding | None, root: str) -> tuple[Answers, dict[str, str]]:
        """Return all that was recorded, secrets hidden unless `hiding` is None; and what stands for contents' digests.

        Those are by the SHA-256 of what stands for the contents. `root`: of the node.
        """
        clean = Cleaning(hiding, root)
        for seam, answers in self._answers.items():
            for line, answer in answers.items():
                clean.first(seam.hides, line, answer, self._runs.get(line))
        for run in self._runs.values():
            clean.run(run)
        clean.found()
        found: Answers = {}
        for seam, answers in self._answers.items():
            found[str(seam)] = {}
            for line, answer in answers.items():
                ran = self._runs.get(line)
                asked = clean.line(line) if ran is None else clean.run(ran).line
                cleaned = clean.second(seam.hides, line, answer, ran)
                found[str(seam)][values.escaped(asked)] = values.packed(cleaned)
        ordered = {name: dict(sorted(found[name].items())) for name in sorted(found)}
        return ordered, dict(sorted(clean.digests.items()))

    def _line(self, question: Question, given: tuple[Any, ...], named: dict[str, Any]) -> str:
        arguments = question.arguments(given, named)
        if question.seam.name != RUN:
            return archive.line(arguments)
        run = run_of(arguments)
        self._runs[run.line] = run
        return run.line

    def _keep(self, question: Question, line: str, answer: Answer) -> None:
        self._answers.setdefault(question.seam, {})[line] = answer

    def _note(self, error: InstallerError | OSError) -> None:
        number = error.number if isinstance(error, NodeError) else error.errno if isinstance(error, OSError) else None
        if number in _HIDDEN_FROM_US:
            path = error.path if isinstance(error, InstallerError) else error.filename
            self.unread.setdefault(str(path), str(error))


def run_of(arguments: list[Any]) -> Run:
    """Return the program that is run with the arguments that count of `Programs.run`."""
    programs, command, given, numbers = arguments
    assert isinstance(programs, Programs)  # noqa: S101  # it is a method of theirs
    return Run.of(programs.root.folder, command, given, {number: _content_of(number) for number in numbers})


def _content_of(fd: int) -> bytes:
    """Return what is in an open file, and leave where it is read on from."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


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
        line = run_of(arguments).line if question.seam.name == RUN else archive.line(arguments)
        answers = self._archive.answers.get(str(question.seam), {})
        raw = answers.get(values.escaped(line))
        if raw is None:
            raise NotCapturedError(f"not captured: {archive.shown(str(question.seam), line)}")
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


_PACKAGE = "toolkit_installer."


class _Asked(Protocol):
    """A recorder, or a player."""

    def asked(self, question: Question, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Answer what is asked at a seam."""


def prepare() -> None:
    """Import all that has a seam, before anything is forked."""
    _questions()


@contextlib.contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    """Have a recorder hear all that is asked of the node."""
    with _replaced(_at_all_seams(recorder)):
        yield


@contextlib.contextmanager
def played_by(player: Player) -> Iterator[None]:
    """Have a player answer all that is asked of a node."""
    replaced = _at_all_seams(player)
    digest = _at(seams.DIGEST)
    replaced |= {
        seams.DIGEST: functools.wraps(digest)(lambda content: player.digest(digest(content))),
        seams.REST: player.rest,
        seams.MONOTONIC: player.monotonic,
    }
    for engine, seam in seams.trials():
        replaced[seam] = _tried(player, _at(seam), engine)
    for engine, seam in seams.talks():
        if engine in player.versions:
            replaced[seam] = _supposed(player, _at(seam), engine)
    with _replaced(replaced):
        yield


def _at_all_seams(asked: _Asked) -> dict[Seam, Callable[..., Any]]:
    return {question.seam: _tapped(asked, question) for question in _questions()}


@functools.cache
def _questions() -> tuple[Question, ...]:
    preload.import_all()
    return tuple(seams.questions())


def _tapped(asked: _Asked, question: Question) -> Callable[..., Any]:
    @functools.wraps(question.function)
    def ask(*given: Any, **named: Any) -> Any:
        return asked.asked(question, given, named)

    return ask


def _tried(player: Player, function: Callable[..., Any], engine: EngineName) -> Callable[..., Any]:
    """Return what lets an engine's own binary say nothing about a text that it was not asked about."""

    @functools.wraps(function)
    def try_out(*given: Any, **named: Any) -> None:
        try:
            with player.trying(engine):
                function(*given, **named)
        except NotCapturedError:
            player.untried[str(engine)] = None

    # as a method that has no need of its object was written
    return staticmethod(try_out) if isinstance(function, staticmethod) else try_out


def _supposed(player: Player, function: Callable[..., Any], engine: EngineName) -> Callable[..., Any]:
    """Return what lets an engine be of another version than the one that it says."""

    @functools.wraps(function)
    def ask(*given: Any, **named: Any) -> LiveState:
        live: LiveState = function(*given, **named)
        player.captured[str(engine)] = live.version
        return msgspec.structs.replace(live, version=player.versions[engine])

    return ask


def _at(seam: Seam) -> Callable[..., Any]:
    place, name = seam.owner()
    found: Callable[..., Any] = vars(place)[name]
    return found


@contextlib.contextmanager
def _replaced(replacements: dict[Seam, Callable[..., Any]]) -> Iterator[None]:
    undone = []
    known: dict[int, Callable[..., Any]] = {}
    for seam, function in replacements.items():
        place, name = seam.owner()
        original = vars(place)[name]
        known[id(original)] = function
        undone.append((place, name, original))
    # methods have one place; functions one in each module that names them
    for module in [each for name, each in sys.modules.items() if name.startswith(_PACKAGE)]:
        undone += [(module, name, value) for name, value in list(vars(module).items()) if id(value) in known]
    try:
        for place, name, original in undone:
            setattr(place, name, known[id(original)])
        yield
    finally:
        for place, name, original in undone:
            setattr(place, name, original)
