"""Records what seams answer while a node is looked at. It changes nothing of what is asked and answered."""

from __future__ import annotations

import errno
import os
from typing import Any, Final

from toolkit_installer.errors import InstallerError
from toolkit_installer.lifecycle.capture import asking, values
from toolkit_installer.lifecycle.capture.asking import Run
from toolkit_installer.lifecycle.capture.cleaning import Cleaning
from toolkit_installer.lifecycle.capture.hiding import Hiding
from toolkit_installer.lifecycle.capture.seams import Question, Seam
from toolkit_installer.lifecycle.capture.values import Answer
from toolkit_installer.node.disk.root import NodeError
from toolkit_installer.node.programs import Programs

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
            return asking.line(arguments)
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
