"""Hides what may be secret in all answers of a capture: in each as its seam and its path have it. Pure.

Each answer is read twice: at first to find all that is hidden anywhere, then to hide that also where programs quote it.
"""

from __future__ import annotations

import posixpath
import stat
from typing import Any, Final

from toolkit_installer.documents.digests import sha256
from toolkit_installer.engines import registry
from toolkit_installer.lifecycle.capture.asking import Run, parts
from toolkit_installer.lifecycle.capture.hiding import Hiding, in_all
from toolkit_installer.lifecycle.capture.seams import Hides
from toolkit_installer.lifecycle.capture.values import Answer, Failure
from toolkit_installer.receipt.schema import FILE as RECEIPT_FILE
from toolkit_installer.receipt.schema import FOLDER as RECEIPT_FOLDER

_ENGINES: Final = frozenset(name for row in registry.ENGINES for name in row.processes)
_ARGUMENTS: Final = "arguments"
_CONTENT: Final = "content"
_MODE, _SIZE = 0, 6
"""Places in what stands for an `os.stat_result` (values.py)."""


class Cleaning:
    """Of one capture. `hiding`: None where secrets are to be kept. `root`: of the node."""

    def __init__(self, hiding: Hiding | None, root: str) -> None:
        self._hiding = hiding
        self._root = root
        self._payloads: set[str] = set()
        """Roots of trees that payloads were read from: their files are public, and known by their sizes."""
        self.digests: dict[str, str] = {}
        """What stands for the SHA-256 of contents, by that of what stands for the contents themselves."""
        self._contents: list[tuple[bytes, bytes]] = []

    def first(self, hides: Hides, line: str, answer: Answer, run: Run | None) -> None:
        """Find what an answer has that is hidden."""
        if self._hiding is None:
            return
        if hides is Hides.PUBLIC:
            self._payloads |= {parts(line)[0]} - {self._root}
        self._hidden(self._hiding, hides, line, answer, run)

    def found(self) -> None:
        """Say that all answers were read."""
        if self._hiding is None:
            return
        self._hiding.texts.settle()
        for before, hidden in self._contents:
            if before != hidden:
                self._hiding.note(sha256(before))

    def second(self, hides: Hides, line: str, answer: Answer, run: Run | None) -> Answer:
        """Return an answer as it is captured, once all were read."""
        hiding = self._hiding
        if hiding is None:
            return answer
        self._contents = []
        made = self._hidden(hiding, hides, line, answer, run)
        for before, hidden in self._contents:
            known = sha256(before)
            if hiding.digest(known) != known:
                self.digests[sha256(hidden)] = hiding.digest(known)
        if made.failure is not None:
            failure = made.failure
            reason, path = hiding.texts.words(failure.reason), failure.path
            path = None if path is None else self._plain(path)
            hint = None if failure.hint is None else hiding.texts.known(failure.hint)
            return Answer(None, Failure(failure.kind, reason, path, failure.line, hint, failure.number))
        return Answer(in_all(self._sized(line, made.value), self._plain, self._known))

    def line(self, line: str) -> str:
        """Return what was asked, as it is captured."""
        return self._plain(line) if self._hiding is not None else line

    def run(self, run: Run) -> Run:
        """Return a program that was run, as it is captured."""
        hiding = self._hiding
        if hiding is None:
            return run
        # an engine's binary is given the flags of the engine; all other words are our own
        is_engine = posixpath.basename(run.words[0]) in _ENGINES
        words = [self._plain(word) for word in (hiding.texts.arguments(run.words) if is_engine else run.words)]
        return Run(run.root, tuple(words), tuple(hiding.texts.content(text) for text in run.texts))

    def _plain(self, text: str) -> str:
        """Return a text that is no document's: a name, a path, an identity, a digest."""
        assert self._hiding is not None  # noqa: S101  # else nothing is changed
        return self._hiding.digests(self._hiding.identity(self._hiding.texts.odd(text)))

    def _known(self, text: str) -> str:
        """Return a document, whose values are hidden, without sizes and digests of others."""
        assert self._hiding is not None  # noqa: S101  # else nothing is changed
        return self._hiding.digests(self._hiding.identity(text))

    def _hidden(self, hiding: Hiding, hides: Hides, line: str, answer: Answer, run: Run | None) -> Answer:  # noqa: PLR0911
        """Return an answer without the values that its own texts have."""
        value = answer.value
        if answer.failure is not None or value is None or hides in {Hides.NOTHING, Hides.PUBLIC}:
            return answer
        if hides is Hides.JSON:
            return Answer(hiding.texts.value(value))
        if hides is Hides.WORDS:
            return Answer(value | {_ARGUMENTS: hiding.texts.arguments(value[_ARGUMENTS])})
        if run is not None:
            return Answer(self._output(hiding, run, value))
        if isinstance(value, dict) and isinstance(value.get(_CONTENT), bytes):
            return Answer(value | {_CONTENT: self._content(hiding, str(value.get("path", "")), value[_CONTENT])})
        if isinstance(value, bytes):
            return Answer(self._content(hiding, parts(line)[-1], value))
        return Answer(hiding.texts.document(value) if isinstance(value, str) else value)

    def _content(self, hiding: Hiding, path: str, content: bytes) -> bytes:
        """Return a file's content."""
        if path.endswith(f"/{RECEIPT_FOLDER}/{RECEIPT_FILE}"):
            return hiding.receipt(content)
        if sha256(content) in hiding.made:
            return content
        hidden = hiding.texts.content(content)
        self._contents.append((content, hidden))
        return hidden

    def _output(self, hiding: Hiding, run: Run, value: dict[str, Any]) -> dict[str, Any]:
        """Return what a program printed: a configuration, or what it says of itself."""
        texts = hiding.texts
        output, errors = value["output"].decode(errors="surrogateescape"), str(value["errors"])
        is_document = {"config", "show", "generate"} & set(run.words)
        shown = texts.document(output) if is_document else texts.output(output)
        return value | {
            "output": shown.encode(errors="surrogateescape"),
            "errors": texts.words(errors),
        }

    def _sized(self, line: str, value: Any) -> Any:
        """Return a file's attributes without its size, which tells of a secret as its digest does."""
        path = parts(line)[-1]
        if isinstance(value, dict) and isinstance(known := value.get("identity"), dict) and "size" in known:
            sized = known if self._is_program(line, path) else known | {"size": min(known["size"], 1)}
            return value | {"identity": sized}
        is_status = isinstance(value, list) and len(value) > _SIZE and all(type(each) is int for each in value)
        if not is_status or not stat.S_ISREG(value[_MODE]) or self._is_program(line, path):
            return value
        return [*value[:_SIZE], min(value[_SIZE], 1), *value[_SIZE + 1 :]]

    def _is_program(self, line: str, path: str) -> bool:
        """Tell whether a file is one of the toolkit or of its payload, which are no secret."""
        folders = self._hiding.folders if self._hiding is not None else ()
        around = any(path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
        return parts(line)[0] in self._payloads or (around and RECEIPT_FOLDER not in posixpath.dirname(path).split("/"))
