"""Which parts of an answer secrets are taken out of, and in what order: of all answers of a capture. Pure.

First each text is looked through by itself, for what its own names and looks tell. Then every text is looked through
once more for the secrets that were found in any other, as one that is named nowhere is torn from where it was.
"""

from __future__ import annotations

from typing import Any, Final

from toolkit_installer.documents.digests import sha256
from toolkit_installer.lifecycle.capture.asking import Run
from toolkit_installer.lifecycle.capture.hiding import Hiding, in_all
from toolkit_installer.lifecycle.capture.seams import Hides
from toolkit_installer.lifecycle.capture.values import Answer, Failure
from toolkit_installer.receipt.schema import FILE as RECEIPT_FILE
from toolkit_installer.receipt.schema import FOLDER as RECEIPT_FOLDER

_RECEIPT: Final = f"/{RECEIPT_FOLDER}/{RECEIPT_FILE}"
_CONTENTS: Final = ("content", "output")
"""Fields that hold bytes: of a file, and of a program's answer."""
_ARGUMENTS: Final = "arguments"
_ERRORS: Final = "errors"


class Cleaning:
    """Of one capture. `hiding`: None where secrets are to be kept."""

    def __init__(self, hiding: Hiding | None) -> None:
        self._hiding = hiding
        self.digests: dict[str, str] = {}
        """SHA-256 of contents that had secrets, by that of what stands for them."""

    def first(self, hides: Hides, answer: Answer) -> None:
        """Find the secrets in an answer."""
        if self._hiding is not None:
            self._hidden(self._hiding, hides, answer)

    def second(self, hides: Hides, answer: Answer) -> Answer:
        """Return an answer without secrets, once all were looked through."""
        if self._hiding is None:
            return answer
        found = self._hidden(self._hiding, hides, answer)
        hidden = Answer(in_all(found.value, self._hiding.everywhere), found.failure)
        if hides is Hides.TEXT:
            self._compare(answer.value, hidden.value)
        return hidden

    def line(self, line: str) -> str:
        """Return what was asked, without the secrets that were found."""
        return line if self._hiding is None else self._hiding.everywhere(line)

    def run(self, run: Run) -> Run:
        """Return a program that was run, without secrets in its words and in what it was given."""
        if self._hiding is None:
            return run
        words = [self._hiding.everywhere(word) for word in self._hiding.words(run.words)]
        texts = in_all([self._hiding.content(text) for text in run.texts], self._hiding.everywhere)
        return Run(run.root, tuple(words), tuple(texts))

    def _compare(self, before: Any, hidden: Any) -> None:
        """Note the digests of contents that are not what they were."""
        pairs = [(before, hidden)]
        if isinstance(before, dict):
            pairs = [(before.get(name), hidden.get(name)) for name in _CONTENTS]
        for old, new in pairs:
            if isinstance(old, bytes) and old != new:
                self.digests[sha256(new)] = sha256(old)

    def _hidden(self, hiding: Hiding, hides: Hides, answer: Answer) -> Answer:
        """Return an answer without the secrets that its own texts tell."""
        failure, value = answer.failure, answer.value
        if failure is not None:
            reason = hiding.everywhere(hiding.text(failure.reason))
            return Answer(None, Failure(failure.kind, reason, failure.path, failure.line, failure.hint, failure.number))
        if value is None or hides is Hides.NOTHING:
            return answer
        if hides is Hides.JSON:
            return Answer(hiding.object(value))
        if hides is Hides.WORDS:
            return Answer(value | {_ARGUMENTS: hiding.words(value[_ARGUMENTS])})
        return Answer(_text(hiding, value))


def _text(hiding: Hiding, value: Any) -> Any:
    if isinstance(value, bytes):
        return hiding.content(value)
    result = dict(value)
    is_receipt = str(value.get("path", "")).endswith(_RECEIPT)
    for name in _CONTENTS:
        if isinstance(content := value.get(name), bytes):
            result[name] = hiding.receipt(content) if is_receipt else hiding.content(content)
    if isinstance(errors := value.get(_ERRORS), str):
        result[_ERRORS] = hiding.text(errors)
    return result
