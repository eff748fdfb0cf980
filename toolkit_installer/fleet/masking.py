"""Hides what may be secret in all answers of a capture: in each as its seam and its path have it. Pure.

Each answer is read twice: at first to find all that is hidden anywhere, then to hide that also where programs quote it.

Hides in one capture what may be secret, and leaves texts that are as good: stand-ins made with a key.

Equal values have equal stand-ins, so that texts can still be compared, and a text has as many lines and parses as
before: what is planned for it is what would have been planned for the text itself. The same holds for digests
of contents, by which the receipt knows files: whoever has no key cannot try out passwords. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import posixpath
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolkit_installer.documents.changes import sha256
from toolkit_installer.documents.masking import DocumentMasker as Texts
from toolkit_installer.engines import registry
from toolkit_installer.fleet.archive import Run, parts
from toolkit_installer.fleet.seams import Hides
from toolkit_installer.fleet.values import Answer, Failure
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


_LENGTH: Final = 20
"""Hexadecimal digits of a stand-in: as many bits as nobody's files have values."""
_DIGITS: Final = 12
_SHA256: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_TORN: Final = (("value = ", ""), ('{"value": ', "}"))
"""What the receipt writes before and after a value that it tore from TOML, or from JSON."""
_RECORDED: Final = frozenset({"before", "first", "written"})
"""Fields of a file's record that hold digests."""
_IDENTITY: Final = re.compile(r'((?:(?<=")|\A)[0-9]+ [0-9]+ )([0-9]+)( [0-9]+ [0-9]+(?=\Z|"))')
"""A watched file's device, inode, size, time and mode (idling.identity), alone or as a text of JSON."""


class Hiding:
    """Of one capture, or of a set of captures that are made with the same key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.texts = Texts(self._word, self._number)
        self._digests: set[str] = set()
        """SHA-256 of contents that may hold a secret."""
        self.folders: set[str] = set()
        """Folders of the toolkit, by receipts: its programs are no secret, and known by their sizes."""

        self.made: set[str] = set()
        """SHA-256 of files that this program generated, by receipts: they are its own words."""

    @property
    def name(self) -> str:
        """What the key is called: captures with the same name have the same stand-ins."""
        return self._made("the key's name")[:_LENGTH]

    def receipt(self, content: bytes) -> bytes:
        """Return a receipt without what it remembers of the engines' files. Their digests are to be hidden, too."""
        try:
            return self._receipt(json.loads(content))
        except (ValueError, RecursionError):
            return self.texts.content(content)

    def _receipt(self, said: Any) -> bytes:
        if isinstance(said, dict) and isinstance(folder := said.get("toolkit_folder"), str):
            self.folders.add(folder)
            contents = said.get("contents")
            entries = contents if isinstance(contents, list) else ()
            self.made.update(str(each.get("sha256")) for each in entries if isinstance(each, dict))
        return json.dumps(self._owned(said), indent=2).encode() + b"\n"

    def note(self, digest: str) -> None:
        """Note the SHA-256 of a content that may hold a secret."""
        self._digests.add(digest)

    def digest(self, found: str) -> str:
        """Return what stands for a SHA-256."""
        return self._made(found) if found in self._digests else found

    def digests(self, text: str) -> str:
        """Return a text in which the digests of contents that may hold a secret are hidden."""
        return _SHA256.sub(lambda match: self.digest(match[0]), text)

    def identity(self, text: str) -> str:
        """Return a text in which the sizes of watched files are hidden."""
        return _IDENTITY.sub(lambda match: match[1] + self._number(match[2]) + match[3], text)

    def _owned(self, value: Any) -> Any:
        """Return a part of a receipt. Of values of ours, those that stood there before are parts of a file."""
        if isinstance(value, list):
            return [self._owned(item) for item in value]
        if not isinstance(value, dict):
            return value
        for name in _RECORDED & value.keys():
            said = value[name]
            found = said if isinstance(said, list) else [said.get("sha256")] if isinstance(said, dict) else ()
            self._digests.update(each for each in found if isinstance(each, str))
        path = value.get("path")
        if not isinstance(path, list):
            return {key: self._owned(item) for key, item in value.items()}
        keys = tuple(name for name in path if isinstance(name, str))
        return {
            key: self._torn(item, keys) if key in {"ours", "prior"} and isinstance(item, str) else item
            for key, item in value.items()
        }

    def _torn(self, text: str, path: tuple[str, ...]) -> str:
        """Return a value that was torn from a file, where it stood below these keys."""
        for head, tail in _TORN:
            if text.startswith(head) and text.endswith(tail):
                return head + self.texts.fragment(text[len(head) : len(text) - len(tail)], path) + tail
        return self.texts.fragment(text, path)

    def _word(self, value: str) -> str:
        return f"hidden!{self._made(value)[:_LENGTH]}"

    def _number(self, value: str) -> str:
        return f"9{int(self._made(value), 16)}"[:_DIGITS]

    def _made(self, value: str) -> str:
        return hmac.new(self._key, value.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()


def in_all(value: Any, change: Callable[[str], str], in_bytes: Callable[[str], str]) -> Any:
    """Return a value in which each text is what `change` makes of it, and each text in bytes what `in_bytes` does."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, bytes):
        return in_bytes(value.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    if isinstance(value, Mapping):
        return {change(key): in_all(item, change, in_bytes) for key, item in value.items()}
    return [in_all(item, change, in_bytes) for item in value] if isinstance(value, (list, tuple)) else value
